"""What operators ask for and are told, as values; and what becomes of the errors of several things asked at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from tidelog.client.arguments import (
    LONGEST_S,
    brokers_of,
    large,
    listed,
    mapped,
    seconds,
    text,
    topic_name,
    whole,
)
from tidelog.protocol.errors import InvalidConfig, InvalidRequest, SeveralErrors, TidelogError, error_of
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ConfigEntry,
    ReplicaPlaces,
)
from tidelog.protocol.messages import NewTopic as NewTopicEntry
from tidelog.protocol.types import BrokerId, Epoch, TopicPartition

ConfigValue: TypeAlias = str | int | float | bool
"""A setting's value; numbers and flags are written as Kafka does."""

At: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | int
"""Which offset: the log's start, its end, that of the largest timestamp, or the first at or after a time in ms."""

_I64: Final = 2**63 - 1

_AT: Final[Mapping[object, int]] = {
    "earliest": EARLIEST,
    "latest": LATEST,
    "max_timestamp": MAX_TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is to be."""

    name: str
    partitions: int = 0
    """How many; 0: as many as the cluster's default."""
    replication_factor: int = 0
    """How many brokers keep each; 0: as many as the cluster's default."""
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Its settings that differ from the cluster's: `{"retention.ms": 3_600_000}`."""
    assignment: Sequence[Sequence[int]] = ()
    """Instead of both numbers: who keeps which partition, the preferred leader first."""

    def entry(self) -> NewTopicEntry:
        """As it travels."""
        name = topic_name(self.name)
        partitions = whole("partitions", self.partitions)
        factor = whole("replication_factor", self.replication_factor)
        settings = mapped("configs", self.configs, "{'retention.ms': 3_600_000}")
        return NewTopicEntry(
            name,
            0 if self.assignment else partitions,
            0 if self.assignment else factor,
            places(self.assignment),
            tuple(ConfigEntry(text("a setting's name", key), text_of(settings[key])) for key in settings),
        )


class Election(NamedTuple):
    """What became of one partition's leadership."""

    partition: TopicPartition
    leader: BrokerId
    leader_epoch: Epoch
    changed: bool
    """False: whom was asked for leads already."""
    unclean: bool
    """Whether committed records may be lost by it."""


class Move(NamedTuple):
    """A partition that is being moved, or has just been told to be."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    """Who has it: the target first, then who is to leave."""
    adding: tuple[BrokerId, ...]
    """Who has to copy it; nobody: the move is complete."""
    removing: tuple[BrokerId, ...]
    """Who leaves when those have."""
    isr: tuple[BrokerId, ...] = ()
    """Who has everything, where moves are listed."""
    waiting_for: tuple[BrokerId, ...] = ()
    """Who of the target is not alive: the move cannot end without them."""


class Moves(NamedTuple):
    """All that is being moved."""

    partitions: tuple[Move, ...]
    throttle_bytes_s: int
    """What one broker hands out for moves in a second; 0: as much as it can."""


class Offset(NamedTuple):
    """Where a group is to go on: at this offset."""

    offset: int

    def time_ms(self, now_ms: int) -> int | None:
        """None: it is no time."""
        return None


class Shift(NamedTuple):
    """Where a group is to go on: so many records further, or back."""

    by: int

    def time_ms(self, now_ms: int) -> int | None:
        """None: it is no time."""
        return None


class Time(NamedTuple):
    """Where a group is to go on: at the first record of that time (ms since 1970) or later."""

    at_ms: int

    def time_ms(self, now_ms: int) -> int | None:
        """That time."""
        return self.at_ms


class Duration(NamedTuple):
    """Where a group is to go on: at the first record that is so old, or younger."""

    seconds: float

    def time_ms(self, now_ms: int) -> int | None:
        """So long ago."""
        return max(now_ms - int(self.seconds * 1000), 0)


Target: TypeAlias = Literal["earliest", "latest"] | Offset | Shift | Time | Duration
"""Where a group is to go on."""


class OffsetReset(NamedTuple):
    """What is done with a group's offset of one partition."""

    partition: TopicPartition
    before: int | None
    """What was committed; None: nothing."""
    after: int


def offset_within(to: Target, had: int | None, start: int, end: int, at_time: int | None) -> int:
    """The offset that is meant, within what there is. `at_time`: that of the first record of the time, -1: there is none.

    A shift of what was never committed counts from where the log begins, or back from its end.
    """
    if to == "earliest":
        return start
    if to == "latest":
        return end
    if isinstance(to, Offset):
        return min(max(to.offset, start), end)
    if isinstance(to, Shift):
        base = had if had is not None else start if to.by >= 0 else end
        return min(max(base + to.by, start), end)
    if isinstance(to, Time | Duration):
        return end if at_time is None or at_time < 0 else min(max(at_time, start), end)
    raise _no_target(to)


def check_target(to: object) -> None:
    """Refuse what is none, before anything is asked because of it."""
    match to:
        case "earliest" | "latest":
            pass
        case Offset(number) | Shift(number):
            large(type(to).__name__, number, -_I64)
        case Time(number):
            large("Time", number)
        case Duration(span):
            if abs(seconds("Duration", span)) >= LONGEST_S:
                raise _no_target(to)
        case _:
            raise _no_target(to)


def _no_target(to: object) -> InvalidRequest:
    return InvalidRequest(f"{to!r}: it must be earliest, latest, an Offset, a Shift, a Time or a Duration")


def places(assignment: object) -> tuple[ReplicaPlaces, ...]:
    """Who keeps which partition, as it travels."""
    given = listed("assignment", assignment, "[[1, 2], [2, 3]]")
    return tuple(ReplicaPlaces(brokers_of("each of assignment", each)) for each in given)


def text_of(value: object) -> str:
    """A setting's value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidConfig(f"{value!r}: a setting is a text, a number, or true or false")


def timestamp_of(at: object) -> int:
    """Which offset is asked for, as it travels."""
    if type(at) is int and 0 <= at <= _I64:
        return at
    found = _AT.get(at) if isinstance(at, str) else None
    if found is None:
        raise InvalidRequest(
            f"{at!r}: it must be one of {', '.join(map(str, _AT))}, or a time in ms since 1970"
        )
    return found


class Refusals:
    """The errors of the items of one request, by their names."""

    def __init__(self) -> None:
        self.errors: dict[str, TidelogError] = {}

    def look(self, name: str, code: int, message: str | None) -> bool:
        """Note what became of one; whether it was refused."""
        if code:
            self.errors[name] = error_of(code, message or "")
        return bool(code)

    def raise_any(self, asked: int) -> None:
        """Raise what there is: the item's own error when one thing was asked for, else one that names each."""
        if not self.errors:
            return
        if asked == 1:
            raise next(iter(self.errors.values()))
        lines = [f"{name}: {error.name()}: {error}" for name, error in self.errors.items()]
        raise SeveralErrors(f"{len(lines)} of {asked} failed:\n  " + "\n  ".join(lines), self.errors)
