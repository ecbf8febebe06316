"""Bytes of this format, decoded for ever, and the table of messages that only grows."""

import json
from struct import pack_into
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from msgspec import Struct

from tests.protocol.golden import (
    BATCHES,
    CORRELATION,
    HEADS,
    SCHEMA,
    batch_words,
    batches,
    grown,
    heads,
    message_words,
    read,
)
from tests.protocol.schema import Schema, breaks, from_text, schema_of, to_text
from tests.protocol.strategies import MESSAGES
from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat, UnsupportedVersion
from tidelog.protocol.messages import Request, decode_reply, decode_request
from tidelog.protocol.records import decode

GOLDEN_HEADS, GOLDEN_BATCHES = read(HEADS), read(BATCHES)
COMMITTED = from_text(SCHEMA.read_text(encoding="utf-8"))
CLASSES = {cls.__name__: cls for cls in MESSAGES}


def later_defaults(found: Any, words: Any) -> Any:
    """The message found, without the fields that are at their defaults and that the words do not know."""
    if isinstance(found, Struct):
        defaults = {field.name: field.default for field in msgspec.structs.fields(found)}
        return {
            name: later_defaults(getattr(found, name), words.get(name))
            for name in defaults
            if name in words or getattr(found, name) != defaults[name]
        }
    if isinstance(found, tuple):
        return [later_defaults(item, word) for item, word in zip(found, words, strict=True)]
    return message_words(found)


# ---------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("name", GOLDEN_HEADS)
def test_a_golden_head_means_what_it_always_meant(name: str) -> None:
    head, words = bytes.fromhex(GOLDEN_HEADS[name]["hex"]), GOLDEN_HEADS[name]["words"]
    cls = CLASSES[name.split("-v", maxsplit=1)[0]]
    correlation, message = (decode_request if issubclass(cls, Request) else decode_reply)(head)
    assert (correlation, type(message)) == (CORRELATION, cls)
    assert later_defaults(message, words) == words


@pytest.mark.parametrize("name", GOLDEN_BATCHES)
def test_a_golden_batch_means_what_it_always_meant(name: str) -> None:
    batch = bytes.fromhex(GOLDEN_BATCHES[name]["hex"])
    assert json.loads(json.dumps(batch_words(batch))) == GOLDEN_BATCHES[name]["words"]


def test_every_message_and_kind_of_batch_has_its_golden_bytes() -> None:
    assert grown(GOLDEN_HEADS, heads()) == GOLDEN_HEADS, "run scripts/golden_frames.py"
    assert GOLDEN_BATCHES.keys() == batches().keys(), "run scripts/golden_frames.py"


def test_a_message_that_grew_gets_a_second_head_beside_its_first() -> None:
    old = {"Hello": {"hex": "00", "words": {"client_id": "x"}}}
    new = {"Hello": {"hex": "01", "words": {"client_id": "x", "mood": "fine"}}}
    assert grown(old, new) == {"Hello": old["Hello"], "Hello-v2": new["Hello"]}
    assert grown(grown(old, new), new) == grown(old, new)


def test_a_decoder_that_swapped_two_fields_would_be_caught() -> None:
    words = GOLDEN_HEADS["Hello"]["words"]
    _, message = decode_request(bytes.fromhex(GOLDEN_HEADS["Hello"]["hex"]))
    planted = msgspec.structs.replace(message, client_id=message.software, software=message.client_id)  # type: ignore[attr-defined]
    assert later_defaults(planted, words) != words


# ---------------------------------------------------------------------------- newer formats


def test_a_batch_of_magic_4_is_refused_by_name() -> None:
    newer = bytearray.fromhex(GOLDEN_BATCHES["none"]["hex"])
    newer[16] = 4
    pack_into(">I", newer, 17, crc32c(newer[:17]))
    with pytest.raises(UnsupportedFormat, match=r"offset 8589934592 has magic 4, this tidelog reads 3"):
        decode(newer)


def test_a_batch_with_a_newer_codec_is_refused_by_name() -> None:
    newer = bytearray.fromhex(GOLDEN_BATCHES["zstd"]["hex"])
    newer[26] |= 0b111
    pack_into(">I", newer, 21, crc32c(newer[25:]))
    with pytest.raises(UnsupportedFormat, match="codec 7 is newer"):
        decode(newer)


def test_a_batch_with_a_sixth_column_is_refused() -> None:
    batch = bytearray.fromhex(GOLDEN_BATCHES["values-only"]["hex"])
    batch[65] = 0x96
    batch += b"\xc0"
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">II", batch, 17, crc32c(batch[:17]), crc32c(batch[25:]))
    with pytest.raises(CorruptMessage, match="array` of length 5, got 6"):
        decode(batch)


def test_a_message_of_a_newer_peer_is_refused_by_name() -> None:
    head = msgspec.msgpack.encode([CORRELATION, [126, "whatever", 1]])
    with pytest.raises(UnsupportedVersion, match="no request has the tag 126 "):
        decode_request(head)


# ---------------------------------------------------------------------------- the table of messages


def test_messages_have_only_grown() -> None:
    assert breaks(COMMITTED, schema_of()) == []


def test_the_table_is_complete() -> None:
    assert schema_of() == COMMITTED, "run scripts/golden_frames.py"


def test_the_table_can_be_read_again() -> None:
    assert from_text(to_text(COMMITTED)) == COMMITTED


def planted(change: Any) -> list[str]:
    """What is found when somebody edits Fetch like that."""
    edited: Schema = {title: list(fields) for title, fields in COMMITTED.items()}
    change(edited["Fetch request 18"])
    return breaks(COMMITTED, edited)


def test_fields_that_were_reordered_are_found() -> None:
    assert len(planted(lambda fields: fields.insert(0, fields.pop(1)))) == 2


def test_a_field_that_was_removed_is_found() -> None:
    assert planted(lambda fields: fields.pop())[0].endswith("is 'gone'")


def test_a_field_that_was_renamed_is_found() -> None:
    assert (
        len(planted(lambda fields: fields.__setitem__(0, fields[0].replace("max_wait_ms", "patience_ms"))))
        == 1
    )


def test_a_field_that_was_retyped_or_bounded_more_tightly_is_found() -> None:
    assert len(planted(lambda fields: fields.__setitem__(0, fields[0].replace("2147483647", "32767")))) == 1


def test_a_default_that_was_changed_is_found() -> None:
    assert len(planted(lambda fields: fields.__setitem__(4, fields[4].replace("= 0", "= 1")))) == 1


def test_a_field_that_was_appended_without_a_default_is_found() -> None:
    assert planted(lambda fields: fields.append("mood: text")) == [
        "Fetch request 18: 'mood: text' was appended without a default"
    ]


def test_a_field_that_was_appended_with_a_default_is_welcome() -> None:
    assert planted(lambda fields: fields.append("mood: text = ''")) == []


def test_a_tag_that_was_changed_is_found() -> None:
    edited = dict(COMMITTED)
    edited["Fetch request 23"] = edited.pop("Fetch request 18")
    assert breaks(COMMITTED, edited) == ["Fetch request 18 is gone, or has another tag"]
