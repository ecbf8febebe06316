"""What users hand in where partitions, offsets and topics are meant: taken in the forms that are documented, and anything
else refused at once, with what was given and what is taken.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tidelog.client.sizes import is_text
from tidelog.protocol.errors import InvalidRequest
from tidelog.protocol.messages.shapes import TOPIC_NAME_MAX
from tidelog.protocol.types import Offset, TopicPartition

GivenPartition: TypeAlias = TopicPartition | tuple[str, int]

_PAIR = 2
_I64 = 2**63 - 1


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


def topic_name(given: object) -> str:
    """A name that can be asked for: a request with another one fails for all who share it, or ends the connection."""
    if not isinstance(given, str) or not given or not is_text(given):
        raise InvalidRequest(f"a topic's name is text, not {given!r}")
    if len(given) > TOPIC_NAME_MAX:
        raise InvalidRequest(
            f"a topic's name has at most {TOPIC_NAME_MAX} characters, not {len(given)}: {given[:20]!r}..."
        )
    return given
