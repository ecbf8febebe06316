"""The messages as a table that can be compared: what an older tidelog sends must go on meaning the same.

Produce request 17
acks: int -32768..32767
partitions: list of PartitionProduce, at most 65536
transactional_id: text, at most 1024, or nil = nil
"""

import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.inspect import (
    BoolType,
    BytesType,
    IntType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
)

from tests.protocol.strategies import MESSAGES, struct_of
from tidelog.protocol.messages import Entry, Request

Schema = dict[str, list[str]]
"""The fields of each message or entry, by its name, kind and tag."""


def schema_of(classes: Iterable[type[Struct]] = (*MESSAGES, *Entry.__subclasses__())) -> Schema:
    """The table of these classes."""
    return {_title(cls): [_field(field) for field in struct_of(cls).fields] for cls in classes}


def _title(cls: type[Struct]) -> str:
    tag = struct_of(cls).tag
    kind = "entry" if tag is None else f"{'request' if issubclass(cls, Request) else 'reply'} {tag}"
    return f"{cls.__name__} {kind}"


def _field(field: msgspec.inspect.Field) -> str:
    default = "nil" if field.default is None else repr(field.default)
    return f"{field.name}: {_type(field.type)}" + ("" if field.required else f" = {default}")


def _type(kind: Type) -> str:
    """The type with all of its bounds: a tighter bound refuses what an older peer may send."""
    match kind:
        case IntType(ge=low, le=high):
            return f"int {low}..{high}"
        case BytesType(min_length=least, max_length=most):
            return f"bytes {least}..{most}"
        case StrType(max_length=most):
            return "text" if most is None else f"text, at most {most}"
        case BoolType():
            return "bool"
        case NoneType():
            return "nil"
        case VarTupleType(item_type=item, max_length=most):
            return f"list of {_type(item)}, at most {most}"
        case UnionType(types=kinds):
            return ", or ".join(map(_type, kinds))
        case StructType(cls=cls):
            return cls.__name__
    raise AssertionError(f"no field may be a {kind}")


def breaks(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> list[str]:
    """Why a peer with the old messages would not understand one with the new."""
    wrong = [f"{title} is gone, or has another tag" for title in old if title not in new]
    for title, fields in old.items():
        now = new.get(title, [])
        wrong += [
            f"{title}, field {at}: was {was!r}, is {now[at] if at < len(now) else 'gone'!r}"
            for at, was in enumerate(fields)
            if title in new and was != (now[at] if at < len(now) else None)
        ]
        wrong += [
            f"{title}: {field!r} was appended without a default"
            for field in now[len(fields) :]
            if " = " not in field
        ]
    return wrong


def to_text(schema: Schema) -> str:
    """The table as it is committed."""
    return "\n".join("\n    ".join((title, *fields)) for title, fields in schema.items()) + "\n"


def from_text(text: str) -> Schema:
    """The committed table."""
    blocks = re.split(r"\n(?=\S)", text.strip("\n"))
    return {
        title: [field.strip() for field in fields]
        for title, *fields in (block.split("\n") for block in blocks)
    }
