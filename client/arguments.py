"""What users hand in where partitions, offsets, topics, names and numbers are meant: taken in the forms that are documented,
and anything else refused at once, with what was given and what is taken. A broker ends the connection by which it is sent
what no message can hold, and all of the client share that.
"""

from collections.abc import Iterable, Mapping
from math import isnan, nan
from numbers import Real
from typing import Final, TypeAlias

from tidelog.client.sizes import is_text
from tidelog.protocol.errors import InvalidRequest
from tidelog.protocol.messages.shapes import TOPIC_NAME_MAX
from tidelog.protocol.types import BrokerId, Offset, TopicPartition

GivenPartition: TypeAlias = TopicPartition | tuple[str, int]

_PAIR = 2
_NAME_MAX = 1024
_I32 = 2**31 - 1
_I64 = 2**63 - 1
LONGEST_S: Final = 1e12
"""31,000 years: clocks and messages can hold the end of it."""


def partition_of(given: object) -> TopicPartition:
    """One partition, as `TopicPartition` or as a pair."""
    if isinstance(given, str):
        raise InvalidRequest(
            f"{given!r} is no partition: give TopicPartition({given!r}, 0), or the pair ({given!r}, 0)"
        )
    if not isinstance(given, tuple) or len(given) != _PAIR or not isinstance(given[0], str):
        raise InvalidRequest(
            f"{given!r} is no partition: give TopicPartition(topic, number), or such a pair, as ('orders', 0)"
        )
    topic, number = topic_name(given[0]), given[1]
    if type(number) is not int:
        raise InvalidRequest(f"{given!r} is no partition: its number is a whole number, not {number!r}")
    if number < 0:
        raise InvalidRequest(f"{given!r} is no partition: their numbers begin at 0")
    return TopicPartition(topic, number)


def partitions_of(given: object, verb: str) -> list[TopicPartition]:
    """Several, in a list or anything else that can be walked through."""
    one = isinstance(given, tuple) and len(given) == _PAIR and isinstance(given[0], str)
    if one or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{verb} takes a list of partitions, as [('orders', 0)], not {given!r}")
    return [partition_of(each) for each in given]


def offset_of(name: TopicPartition, given: object) -> Offset:
    """The offset of a record that there is, or will be."""
    if type(given) is not int:
        raise InvalidRequest(f"{name}: an offset is a whole number, not {given!r}")
    if not 0 <= given <= _I64:
        raise InvalidRequest(
            f"{name}: offset {given}: offsets begin at 0; see seek_to_beginning and seek_to_end"
        )
    return given


def times_of(given: object) -> dict[TopicPartition, int]:
    """Partitions and a time in each."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"offsets_for_times takes times by partition, as {{('orders', 0): 0}}, not {given!r}"
        )
    found = {}
    for each, at in given.items():
        name = partition_of(each)
        if type(at) is not int or not 0 <= at <= _I64:
            raise InvalidRequest(f"{name}: a time is milliseconds since 1970, not {at!r}")
        found[name] = at
    return found


def topics_of(given: Iterable[object]) -> list[str]:
    """Names of topics."""
    names = []
    for each in given:
        if isinstance(each, list | tuple | set | frozenset) and all(isinstance(name, str) for name in each):
            spread = ", ".join(repr(name) for name in each)
            raise InvalidRequest(f"topics are given one by one: ({spread}), not in a {type(each).__name__}")
        names.append(topic_name(each))
    return names


def whole(what: str, given: object, least: int = 0, most: int = _I32) -> int:
    """A whole number of that range; True is none."""
    if type(given) is not int or not least <= given <= most:
        raise InvalidRequest(f"{what}={given!r}: a whole number from {least} to {most}")
    return given


def large(what: str, given: object, least: int = 0) -> int:
    """As `whole`: a number of bytes or records."""
    return whole(what, given, least, _I64)


def some_records(given: object) -> None:
    """How many are given at most at once."""
    if type(given) is not int or given < 1:
        raise InvalidRequest(f"max_records={given!r}: a whole number, at least one")


def seconds(what: str, given: object) -> float:
    """A span of time, no longer than `LONGEST_S`."""
    try:
        span = float(given) if not isinstance(given, bool) and isinstance(given, Real) else nan
    except OverflowError:
        span = nan
    if isnan(span):
        raise InvalidRequest(f"{what}={given!r}: a number of seconds")
    return max(min(span, LONGEST_S), -LONGEST_S)


def time_out(given: object) -> None:
    """How long something may take, in seconds; None: as long as it is configured, or takes."""
    if given is not None:
        seconds("timeout", given)


def flags(**given: object) -> None:
    """Each is True or False."""
    for what, each in given.items():
        if type(each) is not bool:
            raise InvalidRequest(f"{what}={each!r}: True or False")


def text(what: str, given: object) -> str:
    """A name other than a topic's."""
    if not isinstance(given, str) or not is_text(given):
        raise InvalidRequest(f"{what} is text, not {given!r}")
    if len(given) > _NAME_MAX:
        raise InvalidRequest(
            f"{what} has at most {_NAME_MAX} characters, not {len(given)}: {given[:20]!r}..."
        )
    return given


def texts(what: str, given: object) -> tuple[str, ...]:
    """Several such names."""
    return tuple(text(f"each of {what}", each) for each in listed(what, given, "['a', 'b']"))


def broker_of(given: object) -> BrokerId:
    """A broker, by its number."""
    return BrokerId(whole("broker", given))


def brokers_of(what: str, given: object) -> tuple[BrokerId, ...]:
    """Several."""
    return tuple(broker_of(each) for each in listed(what, given, "[1, 2]"))


def listed(what: str, given: object, example: str) -> Iterable[object]:
    """A list, or anything else that can be walked through; text is none."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{what} takes a list, as {example}, not {given!r}")
    return given


def mapped(what: str, given: object, example: str) -> Mapping[object, object]:
    """One thing by another."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{what} takes a mapping, as {example}, not {given!r}")
    return given


def topic_name(given: object) -> str:
    """A name that can be asked for: a request with another one fails for all who share it, or ends the connection."""
    if not isinstance(given, str) or not given or not is_text(given):
        raise InvalidRequest(f"a topic's name is text, not {given!r}")
    if len(given) > TOPIC_NAME_MAX:
        raise InvalidRequest(
            f"a topic's name has at most {TOPIC_NAME_MAX} characters, not {len(given)}: {given[:20]!r}..."
        )
    return given
