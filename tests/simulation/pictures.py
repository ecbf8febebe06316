"""What there is to see on a stage: a table of the replicas, and what has happened since the last look, as sentences.

Sentences are told by subject (the controller, each broker, the clients), in the order in which they happened to it:
what two hosts do at the same time must not depend on which of them came a hair's breadth earlier.
"""

from collections import defaultdict
from dataclasses import dataclass

from tests.simulation.cluster import Cluster
from tidelog.broker.leadership import Leadership
from tidelog.broker.partition import Partition
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.batch import walk
from tidelog.protocol.records import decode
from tidelog.protocol.types import NO_BROKER, BrokerId
from tidelog.replication.sessions import Place
from tidelog.storage.log import Log

HEADER = ("broker", "role", "epoch", "log", "high watermark", "end", "epochs", "isr")


def records_of(log: Log) -> list[str]:
    """Every record as its value and the epoch of the leader that wrote it: `a0`."""
    found: list[str] = []
    offset = log.log_start
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20)
        for at, header in walk(piece.data):
            values = decode(piece.data[at : at + header.size]).values
            found += [f"{(value or b'').decode()}{header.leader_epoch}" for value in values]
        offset = piece.next_offset
    return found


def members(brokers: tuple[BrokerId, ...]) -> str:
    """Brokers, smallest first."""
    return " ".join(map(str, sorted(brokers))) or "nobody"


def decided(state: PartitionState) -> str:
    """What the controller has decided, in a line."""
    leads = "nobody leads" if state.leader == NO_BROKER else f"{state.leader} leads"
    parts = [f"{leads} epoch {state.leader_epoch}", f"isr {members(state.isr)}"]
    if state.elr:
        parts.append(f"elr {members(state.elr)}")
    if state.last_known_elr:
        parts.append(f"not trusted {members(state.last_known_elr)}")
    return ", ".join(parts)


@dataclass(slots=True)
class Replica:
    """What was seen of a broker's replica last."""

    life: int = 0
    place: tuple[int, int] = (-1, -1)
    """Where the log ended, and how often its epochs had changed."""
    records: tuple[str, ...] = ()
    losses: int = 0
    offline: str | None = None


class Watch:
    """Looks at one partition and remembers what changed."""

    def __init__(self, cluster: Cluster, place: Place) -> None:
        self.cluster = cluster
        self.place = place
        self.replicas = {number: Replica() for number in cluster.hosts}
        self._state: PartitionState | None = None
        self._fenced: dict[int, bool] = {}
        self._told: dict[str, list[str]] = defaultdict(list)
        self.look()
        self._told.clear()

    # ── what is so now ────────────────────────────────────────────────────────────────────────────

    @property
    def image(self) -> Image:
        """The controller's."""
        return self.cluster.controllers[-1].working

    @property
    def state(self) -> PartitionState:
        """As the controller has decided."""
        return self.image.partitions[self.place]

    def partition(self, number: int) -> Partition | None:
        """The replica of a broker that is alive and in its roles."""
        broker = self.cluster.brokers.get(number)
        if broker is None or not broker.serving or not self.cluster.hosts[number].alive:
            return None
        return broker.replicas.partitions.get(self.place)

    def leadership(self, number: int) -> Leadership | None:
        """The leadership of a broker that believes it leads."""
        partition = self.partition(number)
        return partition.leadership if partition is not None else None

    def everybody_knows(self) -> bool:
        """Whether all brokers that are not fenced have read what the controller has decided last."""
        known = self.image.brokers.items()
        partitions = [self.partition(number) for number, broker in known if not broker.fenced]
        return all(partition is not None and partition.state == self.state for partition in partitions)

    # ── what has happened ─────────────────────────────────────────────────────────────────────────

    def tell(self, subject: str, what: str) -> None:
        """Something that is to be told with the next output."""
        self._told[subject].append(what)

    def told(self) -> list[str]:
        """All that has happened since the last time."""
        brokers = [f"broker {number}" for number in self.cluster.hosts]
        others = [subject for subject in self._told if subject.startswith("producer")]
        lines = [
            f"* {subject} {what}"
            for subject in ("controller:", *brokers, *others)
            for what in self._told.get(subject, ())
        ]
        self._told.clear()
        return lines

    def look(self) -> None:
        """To be called after every event."""
        self._look_at_the_controller()
        for number, replica in self.replicas.items():
            partition = self.partition(number)
            if partition is not None:
                self._look_at(number, replica, partition)

    def _look_at_the_controller(self) -> None:
        image = self.image
        for broker, known in image.brokers.items():
            if self._fenced.get(broker, True) != known.fenced:
                self.tell("controller:", f"broker {broker} is {'fenced' if known.fenced else 'alive'}")
            self._fenced[broker] = known.fenced
        state = image.partitions[self.place]
        if state is not self._state:
            if self._state is None or decided(state) != decided(self._state):
                self.tell("controller:", decided(state))
            self._state = state

    def _look_at(self, number: int, replica: Replica, partition: Partition) -> None:
        subject, life = f"broker {number}", self.cluster.hosts[number].life
        log = partition.log
        back = replica.life != life
        if back:
            replica.life, replica.losses, replica.offline = life, 0, None
        if partition.offline is not None:
            if replica.offline is None:
                replica.offline = partition.offline
                self.tell(subject, f"goes offline: {partition.offline}")
            return
        place = log.end_offset, log.epochs.changes
        if back or place != replica.place:
            records = tuple(records_of(log))
            gone = replica.records[log.end_offset - log.log_start :]
            if back:
                self.tell(subject, f"is back with {' '.join(records) or 'an empty log'}")
            elif place[0] < replica.place[0]:
                self.tell(subject, f"cuts {' '.join(gone)} off, and ends at {log.end_offset}")
            replica.place, replica.records = place, records
        for loss in partition.losses[replica.losses :]:
            last = loss.end - 1
            which = f"offset {last}" if loss.first == last else f"offsets {loss.first} to {last}"
            self.tell(subject, f"tells a loss: {which} was known to be committed")
        replica.losses = len(partition.losses)

    # ── the table ─────────────────────────────────────────────────────────────────────────────────

    def table(self) -> list[str]:
        """Every replica as it sees itself, beneath what the controller has decided."""
        rows = [HEADER, *(self._row(number) for number in self.cluster.hosts)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return [f"controller: {decided(self.state)}", *lines]

    def _row(self, number: int) -> tuple[str, ...]:
        partition, host = self.partition(number), self.cluster.hosts[number]
        known = self.replicas[number].records
        if partition is None or partition.offline is not None:
            role = "offline" if host.alive else "killed" if host.powered else "no power"
            if host.alive and partition is None:
                role = "starting"
            return str(number), role, "", f"({' '.join(known) or '-'})", "", "", "", ""
        log, isr = partition.log, ""
        records = list(known)
        records.insert(partition.high_watermark - log.log_start, "|")
        if partition.leadership is not None:
            role = "leads"
            pending = partition.leadership.pending
            isr = members(partition.leadership.state.isr)
            if pending is not None:
                isr += f", asks for {members(pending.isr)}"
        else:
            role = f"follows {partition.leader}" if partition.followership is not None else "waits"
        if host.stopped:
            role = "stopped"
        epochs = " ".join(f"{entry.epoch}@{entry.start}" for entry in log.epochs.entries)
        return (
            str(number),
            role,
            str(partition.leader_epoch),
            " ".join(records),
            str(partition.high_watermark),
            str(log.end_offset),
            epochs or "-",
            isr,
        )
