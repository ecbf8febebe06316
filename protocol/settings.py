"""Every setting there is: where it may stand, what it may be, and which of several values holds (DECISIONS 22).

    a topic's setting     topic   ──unset──►  cluster  ──unset──►  default
    a broker's setting    broker  ──unset──►  cluster  ──unset──►  default
    the cluster's                             cluster  ──unset──►  default

What it keeps true:

* A name means the same at every level, and is Kafka's where Kafka has one; underscores are taken for dots.
* What is refused is named with its value and with what would be accepted; an unknown name with the nearest known.
* What is accepted is kept in one spelling (`canonical`), so that equal settings are equal texts everywhere.

A table and functions over the settings that are committed, a mapping of (level, name, key) to text: the controller
checks what it is asked with the very table by which brokers read what was committed.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from tidelog.protocol.batch import HEADER_SIZE
from tidelog.protocol.errors import InvalidConfig

Config = TypeVar("Config")

Settings: TypeAlias = Mapping[tuple[str, str, str], str | None]
"""What is set: of what kind of thing, of which one, which setting; None, as if it were not there: not set."""

TOPIC: Final = "topic"
BROKER: Final = "broker"
CLUSTER: Final = "cluster"
DEFAULT: Final = "default"
START: Final = "start"
"""Where a value stands that a broker was started with, and says so itself."""
CONTROLLER: Final = "controller"
"""Where a default stands that the active controller was started with."""
LEVELS: Final = (TOPIC, BROKER, CLUSTER)

_I31: Final = 2**31 - 1
_I63: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")


class Kind(NamedTuple):
    """What a value may be."""

    accepted: str
    """In words: "it must be ..."."""
    canonical: Callable[[str], str | None]
    """The one spelling of a value; None: it is not accepted."""


def whole(low: int, high: int, *, unlimited: bool = False) -> Kind:
    """A number from `low` to `high`; -1 as well where that stands for no limit."""

    def canonical(value: str) -> str | None:
        if not _WHOLE.fullmatch(value):
            return None
        number = int(value)
        return str(number) if low <= number <= high or (unlimited and number == -1) else None

    return Kind(
        f"a whole number from {low} to {high}" + (", or -1 for no limit" if unlimited else ""), canonical
    )


def one_of(*words: str) -> Kind:
    """One of these words, in any case."""
    known = {word.lower(): word for word in words}
    return Kind(f"one of {', '.join(words)}", lambda value: known.get(value.lower()))


def some_of(*words: str) -> Kind:
    """One or more of these words, with commas."""

    def canonical(value: str) -> str | None:
        given = [word.strip().lower() for word in value.split(",")]
        return ",".join(dict.fromkeys(given)) if set(given) <= set(words) else None

    return Kind(f"one or more of {', '.join(words)}, with commas", canonical)


def _share(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return f"{number:g}" if 0 <= number <= 1 else None


FLAG: Final = one_of("true", "false")
SHARE: Final = Kind("a number from 0 to 1", _share)
AT_START: Final = "it is read when a process starts: change its file or its flags, and start it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    key: str
    of: str
    """What it is a setting of. It may stand there, and at the cluster for all."""
    kind: Kind
    default: str | None
    """None: nothing holds where nothing is set."""
    sentence: str
    instead: str = ""
    """How else it is changed, if not through the cluster; empty: it may be changed while everything runs."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Where it may stand."""
        return (self.of,) if self.of == CLUSTER else (self.of, CLUSTER)

    @property
    def dynamic(self) -> bool:
        """Whether it may be changed while everything runs."""
        return not self.instead


def _setting(of: str, key: str, kind: Kind, default: object, sentence: str, instead: str = "") -> Setting:
    text = None if default is None else str(default)
    assert text is None or kind.canonical(text) == text, f"{key}={text}"
    return Setting(key=key, of=of, kind=kind, default=text, sentence=sentence, instead=instead)


MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
UNCLEAN_RECOVERY: Final = "unclean.recovery"
FLUSH_MODE: Final = "flush.mode"
CLEANUP_POLICY: Final = "cleanup.policy"
AUTO_CREATE: Final = "auto.create.topics.enable"
MOVE_RATE: Final = "reassignment.throttled.rate"

_TABLE: Final = (
    _setting(TOPIC, MIN_ISR, whole(1, _I31), 2, "How many replicas must have a record before it counts; at most as many as there are."),
    _setting(TOPIC, UNCLEAN, FLAG, "false", "Whether a partition may lose committed records to have a leader again: as unclean.recovery=aggressive."),
    _setting(TOPIC, UNCLEAN_RECOVERY, one_of("none", "balanced", "aggressive"), "none", "What is done without an operator when nobody who has every committed record can lead: nothing, ask the last who had, or ask who is there."),
    _setting(TOPIC, FLUSH_MODE, one_of("async", "group"), "async", "Whether a record counts when replicas have it in memory, or on stable storage: that survives the loss of power everywhere. A topic keeps what it was made with."),
    _setting(TOPIC, CLEANUP_POLICY, some_of("delete", "compact"), "delete", "Whether old records are deleted, or all but the newest of each key, or both."),
    _setting(TOPIC, "retention.ms", whole(0, _I63, unlimited=True), 7 * 24 * 3_600_000, "How old records become before they are deleted."),
    _setting(TOPIC, "retention.bytes", whole(0, _I63, unlimited=True), -1, "How large a partition becomes before its oldest records are deleted."),
    _setting(TOPIC, "segment.bytes", whole(1024, _I31), 1 << 30, "How large a file of the log becomes. Less means more files, finer retention."),
    _setting(TOPIC, "segment.ms", whole(1, _I63), 7 * 24 * 3_600_000, "How much time a file of the log spans."),
    _setting(TOPIC, "index.interval.bytes", whole(0, _I31), 4096, "One index entry for at least this many bytes of log."),
    _setting(TOPIC, "max.message.bytes", whole(HEADER_SIZE, 64 << 20), 1 << 20, "The largest batch that a producer may send."),
    _setting(TOPIC, "compression.type", one_of("producer", "none", "uncompressed", "gzip", "lz4", "zstd", "snappy"), "producer", "How batches are compressed; producer: as they come. Anything else is work for the leader, batch by batch."),
    _setting(TOPIC, "message.timestamp.type", one_of("CreateTime", "LogAppendTime"), "CreateTime", "Whether a record has the producer's time or the leader's."),
    _setting(TOPIC, "message.timestamp.before.max.ms", whole(0, _I63), _I63, "How far a record's time may lie before its leader's; with an older one its batch is refused."),
    _setting(TOPIC, "message.timestamp.after.max.ms", whole(0, _I63), _I63, "How far a record's time may lie ahead of its leader's; with a later one its batch is refused."),
    _setting(TOPIC, "delete.retention.ms", whole(0, _I63), 24 * 3_600_000, "How long compaction keeps the mark that a key was deleted."),
    _setting(TOPIC, "min.compaction.lag.ms", whole(0, _I63), 0, "How long a record is safe from compaction."),
    _setting(TOPIC, "max.compaction.lag.ms", whole(1, _I63), _I63, "How long a record may wait for compaction, however little of the log is new."),
    _setting(TOPIC, "min.cleanable.dirty.ratio", SHARE, "0.5", "How much of a log must be new since its last compaction for the next."),
    _setting(TOPIC, "file.delete.delay.ms", whole(0, _I63), 60_000, "How long a file that has left a log stays on the disk, for whoever is reading it."),
    _setting(BROKER, "leader.replication.throttled.rate", whole(1, _I63), None, "What replicas that are being added may take from a broker in a second."),
    _setting(BROKER, "replica.lag.time.max.ms", whole(1, _I31), 10_000, "How long a replica in sync may be behind.", AT_START),
    _setting(BROKER, "replica.fetch.wait.max.ms", whole(1, _I31), 500, "How long a follower's fetch waits for records; up to four times as long, and a quarter of `replica.lag.time.max.ms`, while there are none.", AT_START),
    _setting(BROKER, "replica.fetch.min.bytes", whole(0, _I31), 1, "How many bytes a follower's fetch waits for.", AT_START),
    _setting(BROKER, "replica.fetch.response.max.bytes", whole(1, _I31), 10 << 20, "The most that a follower's fetch is answered with.", AT_START),
    _setting(BROKER, "replica.fetch.max.bytes", whole(1, _I31), 1 << 20, "The most of one partition in it.", AT_START),
    _setting(BROKER, "broker.heartbeat.interval.ms", whole(1, _I31), 2000, "How often a broker says that it lives.", AT_START),
    _setting(BROKER, "broker.session.timeout.ms", whole(1, _I31), 9000, "How long a broker may be silent before others take over.", AT_START),
    _setting(BROKER, "hwm.propagation.ms", whole(1, _I31), 100, "How soon followers that are read from hear what is committed.", AT_START),
    _setting(BROKER, "flush.ms", whole(1, _I31), 30_000, "Every log is flushed at least this often."),
    _setting(BROKER, "flush.bytes", whole(1, _I63), 64 << 20, "What is new is flushed when it is so many bytes, or 65,536 batches: what a restart has to check at most."),
    _setting(BROKER, "replica.socket.timeout.ms", whole(1, _I31), 5000, "How much longer than its wait a follower's fetch may take before it connects anew.", AT_START),
    _setting(BROKER, "replica.high.watermark.checkpoint.interval.ms", whole(1, _I31), 5000, "How often it is written down how far partitions are committed."),
    _setting(BROKER, "log.flush.start.offset.checkpoint.interval.ms", whole(1, _I31), 60_000, "How often it is written down where logs start."),
    _setting(BROKER, "controlled.shutdown.max.ms", whole(0, _I31), 30_000, "How long a stop waits until others lead what the broker led.", AT_START),
    _setting(BROKER, "open.segments", whole(16, _I31), 512, "How many log files are open at once.", AT_START),
    _setting(BROKER, "log.retention.check.interval.ms", whole(1, _I31), 300_000, "How often it is looked for records that have been kept long enough, and for logs to compact."),
    _setting(BROKER, "stray.delete.delay.ms", whole(0, _I63, unlimited=True), 24 * 3_600_000, "How long a log stays on the disk that the cluster does not place on the broker; -1: until an operator removes it."),
    _setting(BROKER, "log.cleaner.enable", FLAG, "true", "Whether logs with cleanup.policy=compact are compacted."),
    _setting(BROKER, "log.cleaner.dedupe.buffer.size", whole(1 << 20, _I31), 112 << 20, "How much memory compaction may take for keys; what does not fit takes several passes."),
    _setting(BROKER, "log.cleaner.io.max.bytes.per.second", whole(1, _I63), 64 << 20, "How much compaction reads and writes in a second."),
    _setting(BROKER, "storage.min.free.bytes", whole(0, _I63), 256 << 20, "With less free space a broker refuses records, until there is half as much again; 0: until nothing fits."),
    _setting(BROKER, "storage.reserve.bytes", whole(0, _I63), 16 << 20, "How much space a node keeps in each data directory for its metadata log, markers and checkpoints.", AT_START),
    _setting(BROKER, "log.scrubber.enable", FLAG, "true", "Whether logs are read again in the background, so that damage is found before a reader comes upon it."),
    _setting(BROKER, "log.scrubber.interval.ms", whole(1, _I63), 86_400_000, "From the beginning of one round through all logs to that of the next; a longer round is followed by the next."),
    _setting(BROKER, "log.scrubber.io.max.bytes.per.second", whole(1, _I63), 4 << 20, "How much of them is read again in a second."),
    _setting(BROKER, "max.connections", whole(16, _I31), 2000, "How many connections a node serves.", AT_START),
    _setting(BROKER, "metadata.log.max.record.bytes.between.snapshots", whole(1, _I63), 20 << 20, "After how many bytes of the metadata log a snapshot is taken: what a start has to replay at most.", AT_START),
    _setting(BROKER, "metadata.log.max.snapshot.interval.ms", whole(0, _I63), 3_600_000, "After what time one is taken, if there is anything new; 0: time does not matter.", AT_START),
    _setting(CLUSTER, "num.partitions", whole(1, 5000), 1, "How many partitions a topic has that does not say."),
    _setting(CLUSTER, "default.replication.factor", whole(1, 2**15 - 1), 3, "How many replicas a topic has that does not say."),
    _setting(CLUSTER, AUTO_CREATE, FLAG, "false", "Whether a topic that a producer writes to and that is missing is made, with the defaults of all."),
    _setting(CLUSTER, "auto.leader.rebalance.enable", FLAG, "true", "Whether preferred leaders get their partitions back by themselves."),
    _setting(CLUSTER, "leader.imbalance.check.interval.seconds", whole(1, _I31), 300, "How often that is looked at."),
    _setting(CLUSTER, "leader.imbalance.per.broker.percentage", whole(0, 100), 10, "How many of a broker's partitions others may lead before something is done."),
    _setting(CLUSTER, "fast.fencing.enable", FLAG, "true", "Whether a refused connection is proof that a broker's process is gone."),
    _setting(BROKER, "group.consumer.heartbeat.interval.ms", whole(1, _I31), 5000, "How often members of groups are asked to say that they live.", AT_START),
    _setting(BROKER, "group.consumer.session.timeout.ms", whole(1, _I31), 45_000, "How long a member may be silent before others get its partitions, if it does not say so itself.", AT_START),
    _setting(BROKER, "group.consumer.min.session.timeout.ms", whole(1, _I31), 1000, "No member is given less.", AT_START),
    _setting(BROKER, "group.consumer.max.session.timeout.ms", whole(1, _I31), 1_800_000, "No member is given more.", AT_START),
    _setting(BROKER, "group.max.size", whole(1, _I31), 1000, "How many members a group may have.", AT_START),
    _setting(BROKER, "offset.metadata.max.bytes", whole(1, _I31), 4096, "How much may be kept with a committed offset.", AT_START),
    _setting(BROKER, "offsets.retention.minutes", whole(1, _I31), 7 * 24 * 60, "How long offsets of a group without members are kept.", AT_START),
    _setting(BROKER, "offsets.retention.check.interval.ms", whole(1, _I31), 600_000, "How often it is looked for those that are too old.", AT_START),
    _setting(BROKER, "offsets.topic.num.partitions", whole(1, 5000), 16, "How many partitions the topic of the groups is made with.", AT_START),
    _setting(BROKER, "offsets.topic.replication.factor", whole(1, 2**15 - 1), 3, "How many replicas it is made with; until so many brokers are there, there are no groups.", AT_START),
    _setting(CLUSTER, "producer.id.expiration.ms", whole(1, _I63), 24 * 3_600_000, "How long the sequence numbers of a producer are remembered that has fallen silent: what it sends again later is not known as such."),
    _setting(CLUSTER, MOVE_RATE, whole(1, _I63), None, "What one broker hands out in a second for moves, until they have ended.", "it is set by `tidelog partition move --throttle` and ends with the moves"),
    _setting(CLUSTER, "quorum.fetch.timeout.ms", whole(1, _I31), 2000, "How long controllers take to notice that their leader is gone.", AT_START),
    _setting(CLUSTER, "quorum.election.timeout.ms", whole(1, _I31), 1000, "How long a candidate waits for votes, at least.", AT_START),
    _setting(CLUSTER, "metadata.log.segment.bytes", whole(1024, _I31), 16 << 20, "How large a file of the metadata log becomes on a controller.", AT_START),
    _setting(CLUSTER, "metadata.log.segment.ms", whole(1, _I63), 7 * 24 * 3_600_000, "How much time a file of it spans.", AT_START),
    _setting(CLUSTER, "metadata.max.idle.interval.ms", whole(1, _I31), 500, "How often the active controller writes that nothing happened.", AT_START),
)  # fmt: skip

SETTINGS: Final[Mapping[str, Setting]] = {setting.key: setting for setting in _TABLE}
"""Every setting, by its name with dots."""


# ── what may be set ───────────────────────────────────────────────────────────────────────────────────


def canonical_key(key: str) -> str:
    """The name with dots."""
    return key.strip().replace("_", ".")


def setting_of(level: str, key: str) -> Setting:
    """What this is the name of; InvalidConfig when nothing at that level has the name."""
    if level not in LEVELS:
        raise InvalidConfig(f"{level!r} has no settings: it must be one of {', '.join(LEVELS)}")
    name = canonical_key(key)
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"{key}: there is no such setting; {_nearest(level, name)}")
    if level not in setting.levels:
        raise InvalidConfig(f"{name}: it may be set for {' or '.join(setting.levels)}, not for {level}")
    return setting


def _nearest(level: str, name: str) -> str:
    known = [key for key, setting in SETTINGS.items() if level in setting.levels]
    near = difflib.get_close_matches(name.lower(), known, n=1) or difflib.get_close_matches(
        name, SETTINGS, n=1
    )
    return f"the nearest is {near[0]}" if near else f"a {level} has {', '.join(sorted(known))}"


def changeable(level: str, key: str) -> Setting:
    """What this is the name of, if it may be set there while everything runs."""
    setting = setting_of(level, key)
    if not setting.dynamic:
        raise InvalidConfig(f"{setting.key}: it cannot be set here; {setting.instead}")
    return setting


def checked(level: str, key: str, value: str) -> tuple[str, str]:
    """A setting that is to be made, name and value in the one spelling that is kept; or InvalidConfig."""
    setting = changeable(level, key)
    canonical = setting.kind.canonical(value.strip())
    if canonical is None:
        raise InvalidConfig(f"{setting.key}={value}: it must be {setting.kind.accepted}")
    return setting.key, canonical


# ── what holds ────────────────────────────────────────────────────────────────────────────────────────


class Found(NamedTuple):
    """The value that holds, and where it stands."""

    value: str | None
    source: str


def find(settings: Settings, level: str, name: str, key: str, own: Mapping[str, str] | None = None) -> Found:
    """What holds for a topic, a broker or the cluster; `own` are defaults of this process, where it has others."""
    setting = SETTINGS[key]
    if level == setting.of != CLUSTER:
        value = settings.get((level, name, key))
        if value is not None:
            return Found(value, level)
    value = settings.get((CLUSTER, "", key))
    if value is not None:
        return Found(value, CLUSTER)
    return Found((own or {}).get(key, setting.default), DEFAULT)


def number(settings: Settings, level: str, name: str, key: str) -> int | None:
    """The same, as the number that it is; None: no such limit is set."""
    value = find(settings, level, name, key).value
    return None if value is None else int(value)


def flag(settings: Settings, level: str, name: str, key: str) -> bool:
    """The same, as the truth that it is."""
    return find(settings, level, name, key).value == "true"


def unclean_recovery(settings: Settings, topic: str) -> str:
    """What is done without an operator when only an unclean election can help: none, balanced or aggressive.

    There are two settings for it, ours and Kafka's older one; what stands nearer to the topic wins, then ours.
    """
    ours, older = (find(settings, TOPIC, topic, key) for key in (UNCLEAN_RECOVERY, UNCLEAN))
    if older.source == DEFAULT or (ours.source != DEFAULT and _nearness(ours) >= _nearness(older)):
        return str(ours.value)
    if older.value == "false":
        return "none"
    return "aggressive" if ours.value == "none" else str(ours.value)


def _nearness(found: Found) -> int:
    return (DEFAULT, CLUSTER, TOPIC).index(found.source)


# ── what a process is started with ────────────────────────────────────────────────────────────────────


def configured(config: Config, fields: Mapping[str, tuple[str, ...]], said: Mapping[str, str]) -> Config:
    """The config with what was said in its fields: all at once, so that what belongs together is checked together.

    `fields` names for each setting the fields that it is, as `fetch.max_wait_ms` within a config of its own.
    """
    changes: dict[str, Any] = {}
    for key, value in said.items():
        for path in fields[key]:
            *outer, name = path.split(".")
            inner = changes
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[name] = value
    return _changed(config, changes)


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    values: dict[str, Any] = {}
    for name, value in changes.items():
        now = getattr(config, name)
        if isinstance(value, Mapping):
            values[name] = _changed(now, value)
        elif isinstance(now, str):
            values[name] = value
        else:
            values[name] = value == "true" if isinstance(now, bool) else int(value)
    return replace(config, **values)  # type: ignore[type-var]  # every config is a dataclass
