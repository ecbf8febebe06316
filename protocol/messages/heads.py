"""A frame's head: the msgpack array `[correlation, [tag, fields...]]`, to bytes and back.

What it keeps true: a head decodes in one call, every value checked; whatever is wrong with one ends in
MalformedFrame, with the path of the field that is wrong, or in UnsupportedVersion, when it is a message that
only a newer tidelog knows. Both carry the correlation as far as it could be read, so that an answer can be
addressed.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn, Union

import msgpack  # type: ignore[import-untyped]
import msgspec

from tidelog.protocol.errors import MalformedFrame, UnsupportedVersion
from tidelog.protocol.messages.paths import field_path
from tidelog.protocol.messages.registry import REPLIES, REQUESTS
from tidelog.protocol.messages.shapes import Correlation, Reply, Request
from tidelog.protocol.types import Buffer

CORRELATION_MAX: Final = 2**31 - 1
"""Correlations run from 0 to here and start again at 0."""

_BEGINNING: Final = 64
"""Correlation and tag lie within the first 12 bytes of any head that we can understand."""

_encode: Final = msgspec.msgpack.Encoder().encode

_BAD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be."""


def _decoder(messages: Mapping[int, type[Request] | type[Reply]]) -> msgspec.msgpack.Decoder[Any]:
    """Heads around any of these messages. The head is an array that may grow, like any other."""
    union: Any = Union[tuple(messages.values())]  # noqa: UP007 -- built from a table
    fields = [("correlation", Correlation), ("message", union)]
    return msgspec.msgpack.Decoder(msgspec.defstruct("Head", fields, array_like=True, frozen=True, gc=False))


_decode_request: Final = _decoder(REQUESTS).decode
_decode_reply: Final = _decoder(REPLIES).decode


def encode_head(correlation: int, message: Request | Reply) -> bytes:
    """The head of a frame that carries this message."""
    assert 0 <= correlation <= CORRELATION_MAX, f"correlation {correlation} is not below 2^31"
    return _encode((correlation, message))


def decode_request(head: Buffer) -> tuple[int, Request]:
    """Correlation and request, or MalformedFrame or UnsupportedVersion with what could be read."""
    try:
        decoded = _decode_request(head)
    except _BAD as error:
        _refuse(head, REQUESTS, error)
    return decoded.correlation, decoded.message


def decode_reply(head: Buffer) -> tuple[int, Reply]:
    """Correlation and reply, or MalformedFrame or UnsupportedVersion with what could be read."""
    try:
        decoded = _decode_reply(head)
    except _BAD as error:
        _refuse(head, REPLIES, error)
    return decoded.correlation, decoded.message


def _refuse(head: Buffer, messages: Mapping[int, type[Request] | type[Reply]], error: Exception) -> NoReturn:
    """Find out what is wrong with a head that did not decode, and raise it."""
    correlation, tag = _beginning(head)
    refused: MalformedFrame | UnsupportedVersion
    if not isinstance(error, msgspec.ValidationError) or not _is_msgpack(head):
        refused = MalformedFrame(f"a head of {len(head)} bytes cannot be read: {error}")
    elif tag is not None and tag not in messages:
        kind = "request" if messages is REQUESTS else "reply"
        refused = UnsupportedVersion(f"no {kind} has the tag {tag} here: the peer may be a newer tidelog")
    else:
        fact, _, path = str(error).partition(" - at ")
        refused = MalformedFrame(f"{field_path(messages, tag, path)}: {fact}")
    refused.correlation = correlation
    raise refused from error


def _beginning(head: Buffer) -> tuple[int, int | None]:
    """Correlation and tag as far as they can be read, else 0 and None."""
    reader = msgpack.Unpacker(max_buffer_size=_BEGINNING)
    reader.feed(head[:_BEGINNING])
    correlation = 0
    try:
        reader.read_array_header()
        correlation = _number(reader.unpack())
        reader.read_array_header()
        return correlation, _number(reader.unpack())
    except (msgpack.UnpackException, ValueError):
        return correlation, None


def _number(value: object) -> int:
    """The value, if it can be a correlation or a tag."""
    if type(value) is int and 0 <= value <= CORRELATION_MAX:
        return value
    raise ValueError(f"{value!r} is not a number from 0 to {CORRELATION_MAX}")


def _is_msgpack(head: Buffer) -> bool:
    """Whether the bytes are one well-formed msgpack value."""
    try:
        msgspec.msgpack.decode(head, type=msgspec.Raw)
    except _BAD:
        return False
    return True
