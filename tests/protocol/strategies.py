"""Messages made up from their own classes, and the forms in which older and newer peers send them."""

from functools import cache
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.inspect import (
    BoolType,
    BytesType,
    Field,
    IntType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from tidelog.protocol.messages import CORRELATION_MAX, REPLIES, REQUESTS, Reply, Request

Message: TypeAlias = type[Request] | type[Reply]
Draw: TypeAlias = st.DrawFn

MESSAGES: list[Message] = [*REQUESTS.values(), *REPLIES.values()]
CORRELATIONS = st.integers(0, CORRELATION_MAX)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=9)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""What a newer peer may have appended."""


@cache
def struct_of(cls: type[Struct]) -> StructType:
    """The class as msgspec sees it."""
    info = type_info(cls)
    assert isinstance(info, StructType)
    return info


def required_fields(cls: type[Struct]) -> list[Field]:
    """The fields that every peer has always sent."""
    return [field for field in struct_of(cls).fields if field.required]


@cache
def messages(cls: type[Struct]) -> st.SearchStrategy[Any]:
    """Any message of that class."""
    return _values(struct_of(cls))


def _values(kind: Type) -> st.SearchStrategy[Any]:
    match kind:
        case IntType(ge=low, le=high):
            return st.integers(low, high)
        case BytesType(min_length=least, max_length=most):
            return st.binary(min_size=least or 0, max_size=most)
        case StrType(max_length=most):
            return st.text(max_size=min(most or 20, 20))
        case BoolType():
            return st.booleans()
        case NoneType():
            return st.none()
        case VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case UnionType(types=kinds):
            return st.one_of(*map(_values, kinds))
        case StructType(cls=cls, fields=fields):
            return st.builds(cls, *(_values(field.type) for field in fields))
    raise AssertionError(f"no field may be a {kind}")


def plain(value: object) -> Any:
    """The value as the lists that go over the wire."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def as_an_older_peer_sends(draw: Draw, value: Any) -> tuple[Any, Any]:
    """The value without some of its younger fields, and what must become of it."""
    if isinstance(value, tuple):
        pairs = [as_an_older_peer_sends(draw, item) for item in value]
        return [sent for sent, _ in pairs], tuple(expected for _, expected in pairs)
    if not isinstance(value, Struct):
        return value, value
    info = struct_of(type(value))
    known = draw(st.integers(len(required_fields(type(value))), len(info.fields)))
    pairs = [as_an_older_peer_sends(draw, getattr(value, field.name)) for field in info.fields[:known]]
    tag = [] if info.tag is None else [info.tag]
    return tag + [sent for sent, _ in pairs], type(value)(*(expected for _, expected in pairs))


def as_a_newer_peer_sends(draw: Draw, value: Any) -> Any:
    """The value with fields appended that this tidelog has never heard of."""
    if isinstance(value, tuple):
        return [as_a_newer_peer_sends(draw, item) for item in value]
    if not isinstance(value, Struct):
        return value
    info = struct_of(type(value))
    tag = [] if info.tag is None else [info.tag]
    fields = [as_a_newer_peer_sends(draw, getattr(value, field.name)) for field in info.fields]
    return tag + fields + draw(st.lists(JUNK, max_size=3))


from_an_older_peer = st.composite(as_an_older_peer_sends)
from_a_newer_peer = st.composite(as_a_newer_peer_sends)
"""Made once: to make one reads the function's source."""
