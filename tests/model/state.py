"""What is remembered: by the metadata log, by each broker's disk and process, by the wires, and by the oracle.

Sets of brokers are bit masks. A record of the log is one integer, `epoch << EPOCH_SHIFT | serial`, so that its
epoch is a shift away and no two appends are ever equal. A log is a list whose index is the offset; slots below
`base` hold ABSENT, because nothing was ever copied there.
"""

from typing import NamedTuple

from tests.model.rules import Rules

EPOCH_SHIFT = 20
ABSENT = -1
NOBODY = -1
LEASE = 6
"""Ticks for which an answered heartbeat lets a broker serve."""

IDLE, LEADER, FOLLOWER = 0, 1, 2
HARMLESS, HOST_CRASH, DAMAGED = 0, 1, 2
"""Crash kinds (1.8), in the order in which one overrides another; `clean` and `process` are both harmless."""


class Record(NamedTuple):
    """The partition, as the metadata log has it (4.1)."""

    replicas: tuple[int, ...]
    adding: int
    removing: int
    isr: int
    elr: int
    min_isr: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    unclean_epoch: int
    recovering: bool
    group: bool
    directory: int
    """The directory of the last leader (ours): what DECISIONS 5 may recover from."""


class Image(NamedTuple):
    """The cluster after one batch of the metadata log; its index in the log is its offset."""

    record: Record
    broker_epochs: tuple[int, ...]
    starts: tuple[int, ...]
    directories: tuple[int, ...]
    fenced: int
    stopping: int


class Fetch(NamedTuple):
    """A follower's fetch (2.6)."""

    sender: int
    leader: int
    generation: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    durable: int
    log_start: int


class Fetched(NamedTuple):
    """The leader's answer; `diverging` and `out_of_range` exclude records."""

    leader: int
    generation: int
    leader_epoch: int
    asked: int
    records: tuple[int, ...]
    hwm: int
    log_start: int
    diverging: tuple[int, int] | None
    out_of_range: bool


class Flushed(NamedTuple):
    """A follower tells that an fsync completed (DECISIONS 25)."""

    sender: int
    leader: int
    broker_epoch: int
    leader_epoch: int
    durable: int
    last_epoch: int


class Alter(NamedTuple):
    """AlterPartition (2.10)."""

    sender: int
    quorum_epoch: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    seq: int
    isr: int
    member_epochs: tuple[int, ...]


class Verdict(NamedTuple):
    """The controller's answer to an Alter; `isr` is what D2 forbids to use."""

    leader_epoch: int
    partition_epoch: int
    seq: int
    refused: bool
    isr: int


class Register(NamedTuple):
    """A registration (4.5, DECISIONS 2)."""

    sender: int
    quorum_epoch: int
    start: int
    directory: int
    answered_epoch: int
    answered_start: int
    start_before: int
    crash: int
    flushed: bool


class Beat(NamedTuple):
    """A heartbeat (4.4), with what the lease needs: when, and over which connection."""

    sender: int
    quorum_epoch: int
    broker_epoch: int
    position: int
    sent: int
    connection: int


class Broker:
    """One broker: its disk, and the process that currently uses it."""

    __slots__ = (
        "ack",
        "active",
        "alters",
        "answered_epoch",
        "answered_start",
        "answers",
        "base",
        "beats",
        "cache",
        "checkpointed_hwm",
        "checkpointed_start",
        "claimed",
        "config_min",
        "connection",
        "crash",
        "directory",
        "doomed",
        "epoch",
        "fetches",
        "flush_floor",
        "flushes",
        "flushing",
        "follower_epoch",
        "follower_offset",
        "follower_start",
        "generation",
        "group_marked",
        "heard",
        "heard_epoch",
        "hwm",
        "hwm",
        "id",
        "lease",
        "leso",
        "lineage",
        "log",
        "log_start",
        "lost",
        "old",
        "pending",
        "pending_sent",
        "pending_seq",
        "position",
        "quorum_epoch",
        "record",
        "registers",
        "role",
        "seq",
        "start",
        "start_before",
        "synced",
        "up",
        "verdicts",
        "wanted_start",
    )  # fmt: skip

    def __init__(self, number: int, brokers: int) -> None:
        self.id = number
        # the disk
        self.log: list[int] = []
        self.base = 0
        self.log_start = 0
        self.synced = 0
        self.claimed = 0
        """The durable offset that the process believes in and reports; `synced` is the medium's truth."""
        self.old: list[int] | None = None
        """What the medium still holds after a truncation that was not flushed."""
        self.checkpointed_hwm = 0
        self.checkpointed_start = 0
        self.group_marked = False
        self.directory = number
        self.start = 0
        self.start_before = 0
        self.answered_epoch = 0
        self.answered_start = 0
        self.crash = HARMLESS
        self.position = 0
        self.lineage = -1
        self.lost = False
        """The oracle's word: unflushed data is gone and no registration has told the controller yet."""
        self._begin_process(brokers)

    def _begin_process(self, brokers: int) -> None:
        # the process
        self.up = True
        self.epoch = 0
        self.active = True
        self.role = IDLE
        self.record: Record | None = None
        self.hwm = 0
        self.cache: list[tuple[int, int]] = []
        self.generation = 0
        self.flushing = -1
        self.flush_floor = 0
        self.doomed = False
        self.config_min = 1
        self.quorum_epoch = 0
        self.lease = 0
        self.connection = 0
        # the leader's part
        self.leso = 0
        self.ack = [-1] * brokers
        self.follower_offset = [-1] * brokers
        self.follower_start = [-1] * brokers
        self.follower_epoch = [-1] * brokers
        self.heard = [-1] * brokers
        """Per follower: the number of its last fetch, and the process that sent it."""
        self.heard_epoch = [-1] * brokers
        self.pending = 0
        self.pending_seq = 0
        self.pending_sent = -1
        self.seq = 0
        self.wanted_start = -1
        # the wires: what this broker sent, and what is on its way to it
        self.fetches: list[Fetch] = []
        self.answers: list[Fetched] = []
        self.flushes: list[Flushed] = []
        self.alters: list[Alter] = []
        self.verdicts: list[Verdict] = []
        self.registers: list[Register] = []
        self.beats: list[Beat] = []

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that this broker believes in, -1 before it has a record."""
        return -1 if self.record is None else self.record.leader_epoch

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, -1 if there is none at or above log start."""
        return self.log[-1] >> EPOCH_SHIFT if len(self.log) > self.log_start else -1


class Settings(NamedTuple):
    """What a seed draws before its first step."""

    brokers: int
    replicas: int
    min_isr: int
    group: bool
    unclean: int
    """0: only an operator, with ISR and ELR empty; 1: balanced; 2: aggressive."""


class World:
    """One partition's whole world."""

    __slots__ = (
        "acked",
        "brokers",
        "clients",
        "committed",
        "config_group",
        "config_min",
        "contact",
        "counts",
        "deleted",
        "deleted_records",
        "floor",
        "leaderships",
        "legit_start",
        "lineage",
        "losses",
        "meta",
        "next_directory",
        "next_serial",
        "now",
        "previous",
        "quorum_epoch",
        "reason",
        "rules",
        "seen",
        "seen_epoch",
        "settings",
        "strength",
        "taken",
        "written",
    )  # fmt: skip

    def __init__(self, rules: Rules, settings: Settings) -> None:
        n = settings.brokers
        self.rules = rules
        self.settings = settings
        self.brokers = [Broker(number, n) for number in range(n)]
        self.config_min = settings.min_isr
        self.config_group = settings.group
        replicas = tuple(range(settings.replicas))
        mask = (1 << settings.replicas) - 1
        min_isr = min(settings.min_isr, settings.replicas)
        record = Record(replicas, 0, 0, mask, 0, min_isr, 0, 0, 0, -1, False, settings.group, 0)
        self.meta = [Image(record, (0,) * n, (0,) * n, tuple(range(n)), 0, 0)]
        # the active controller's memory
        self.quorum_epoch = 0
        self.seen_epoch = 0
        self.seen = 0
        self.contact = [0] * n
        self.taken = [0] * n
        """Per broker: where in the metadata log a leadership was last taken from it."""
        self.now = 0
        # the oracle
        self.committed: list[int] = []
        self.acked: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.previous: dict[int, int] = {}
        self.next_serial = 0
        self.next_directory = n
        self.lineage = -1
        self.legit_start = 0
        self.floor = 0
        """Below it nothing is compared: an unclean leader had no record there."""
        self.deleted = 0
        self.deleted_records: set[int] = set()
        self.strength = min_isr
        self.losses = 0
        self.leaderships: list[tuple[int, int, int]] = [(0, 0, 0)]
        """Per leader epoch: its leader, when it began, and for how long its predecessor may still answer."""
        self.reason = 0
        self.clients = [[-1, -1, -1, -1], [-1, -1, -1, -1]]
        self.counts: dict[str, int] = {}
        for broker in self.brokers:
            broker.lease = LEASE
            broker.group_marked = settings.group
            broker.config_min = settings.min_isr

    @property
    def image(self) -> Image:
        """The newest committed image."""
        return self.meta[-1]

    def count(self, what: str) -> None:
        """One more of these happened."""
        self.counts[what] = self.counts.get(what, 0) + 1


def mask_of(members: tuple[int, ...]) -> int:
    """These brokers as a set."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


def alive(image: Image, gone: int = 0) -> int:
    """Registered, unfenced, not stopping (4.7), except `gone`."""
    mask = 0
    for number, epoch in enumerate(image.broker_epochs):
        if epoch >= 0:
            mask |= 1 << number
    return mask & ~(image.fenced | image.stopping | gone)
