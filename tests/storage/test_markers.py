"""The markers as files: what stands in them, in which version, and what is not believed (docs/STORAGE.md, 8)."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.test_crashes import HERE, OURS, begin
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.storage.crashes import (
    CLEAN_SHUTDOWN,
    RUNNING,
    CrashKind,
    Marker,
    Place,
    decode_marker,
    encode_marker,
)
from tidelog.storage.files import write_whole
from tidelog.storage.io import open_directory
from tidelog.storage.seal import JSON

MARKERS = st.builds(
    Marker,
    st.builds(Place, st.binary(min_size=16, max_size=16), st.text(max_size=40), st.integers(0, 2**63)),
    st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
    st.integers(-1, 2**63 - 1),
    st.sampled_from(CrashKind),
    st.integers(0, 2**63 - 1),
)


@given(MARKERS)
def test_a_marker_comes_back_as_it_went(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker), "f") == marker


def test_a_marker_of_version_1_counts_no_starts() -> None:
    assert decode_marker(encode_marker(OURS, 1), "f") == replace(OURS, start=0)
    assert msgspec.json.decode(encode_marker(OURS, 1))["crc"] == "5b5634f0"


@pytest.mark.parametrize("name", [RUNNING, CLEAN_SHUTDOWN])
def test_after_a_marker_of_version_1_the_count_begins_and_nothing_is_lost(tmp_path: Path, name: str) -> None:
    directory = open_directory(str(tmp_path))
    old = replace(OURS, place=replace(HERE, whereabouts=0))
    write_whole(directory, name, encode_marker(old, 1))
    life = begin(directory, 2)
    assert (life.start, life.broker_epoch, life.problems) == (1, 9, ())
    assert life.incarnation_ids == (*OURS.incarnation_ids, b"\x02" * 16)


def test_a_field_that_its_version_does_not_have_is_not_read() -> None:
    for version, more in ((1, b',"start":7'), (2, b"")):
        body = JSON.unseal(encode_marker(OURS, 1))
        assert body is not None
        other = JSON.seal(body.replace(b'"version":1', b'"version":%d' % version) + more)
        assert decode_marker(other, "f") is None


def test_a_marker_is_one_line_of_json() -> None:
    fields = msgspec.json.decode(encode_marker(OURS))
    assert fields.pop("crc") == "ff54395b"
    assert fields == {
        "version": 2,
        "directory_id": "d1" * 16,
        "incarnation_ids": ["0a" * 16],
        "broker_epoch": 9,
        "boot_id": "boot-1",
        "dev": 1,
        "worst": "clean",
        "start": 7,
    }


def test_every_cut_and_every_changed_byte_of_a_marker_is_noticed() -> None:
    whole = encode_marker(OURS)
    damaged = [whole[:at] for at in range(len(whole))] + [whole + b"\n"]
    damaged += [whole[:at] + bytes([v]) + whole[at + 1 :] for at in range(len(whole)) for v in range(256)]
    assert [content for content in damaged if content != whole and decode_marker(content, "f")] == []


def test_a_marker_of_a_newer_tidelog_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / RUNNING).write_bytes(JSON.seal(b'{"version":3,"more":[]'))
    with pytest.raises(UnsupportedFormat, match=r"\.running is of version 3, this tidelog reads 2"):
        begin(open_directory(str(tmp_path)), 1)


@pytest.mark.parametrize(
    "body", [b"", b"[", b"{", b'{"version":1', b'{"version":"1"', b'{"version":0', b'{"version":2']
)
def test_a_marker_that_tidelog_would_not_write_is_none(body: bytes) -> None:
    assert decode_marker(JSON.seal(body), "f") is None


def test_a_marker_spelt_otherwise_is_none() -> None:
    body = encode_marker(OURS).rpartition(b',"crc"')[0]
    for other in (b'"worst": "clean"', b'"worst":"CLEAN"', b'"worst":"odd"'):
        assert decode_marker(JSON.seal(body.replace(b'"worst":"clean"', other)), "f") is None
