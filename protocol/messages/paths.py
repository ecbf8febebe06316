"""From msgspec's path to a value (`$[1][1][0][1]`) to the field's name (`Produce.partitions[0].index`).

For error messages only: arrays have no names on the wire, and people cannot count.
"""

import re
from collections.abc import Mapping

from msgspec.inspect import StructType, Type, UnionType, VarTupleType, type_info

from tidelog.protocol.messages.shapes import Reply, Request


def field_path(messages: Mapping[int, type[Request] | type[Reply]], tag: int | None, path: str) -> str:
    """The name of what lies at that path of a head whose message has that tag."""
    steps = [int(step) for step in re.findall(r"\[(\d+)\]", path)]
    message = None if tag is None else messages.get(tag)
    if steps[:1] == [0]:
        return "correlation"
    if message is None or not steps:
        return ("the head", "the message", "the message's tag")[min(len(steps), 2)]
    return message.__name__ + _names(type_info(message), steps[1:])


def _names(kind: Type | None, steps: list[int]) -> str:
    """The steps from a value of that type on, named as far as the type tells."""
    names = ""
    for step in steps:
        kind = _one(kind)
        if isinstance(kind, StructType):
            at = step if kind.tag is None else step - 1
            if not 0 <= at < len(kind.fields):
                return f"{names}.tag" if at < 0 else f"{names}[{step}]"
            names += f".{kind.fields[at].name}"
            kind = kind.fields[at].type
        else:
            names += f"[{step}]"
            kind = kind.item_type if isinstance(kind, VarTupleType) else None
    return names


def _one(kind: Type | None) -> Type | None:
    """The type that can hold further values, where the alternative is nil."""
    if isinstance(kind, UnionType):
        return next((each for each in kind.types if isinstance(each, StructType | VarTupleType)), None)
    return kind
