"""Checkpoint files (docs/STORAGE.md, 5; I-34, I-35; docs/adr/0050)."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.protocol.errors import CorruptCheckpoint, UnsupportedFormat
from tidelog.protocol.types import TopicPartition
from tidelog.storage import checkpoints
from tidelog.storage.checkpoints import (
    HIGH_WATERMARKS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
    decode_epochs,
    decode_offsets,
    encode_epochs,
    encode_offsets,
    read_leader_epochs,
    write_leader_epochs,
)
from tidelog.storage.epochs import EpochEntry
from tidelog.storage.files import Directory, NoRoom
from tidelog.storage.io import open_directory
from tidelog.storage.seal import CHECKPOINT
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.faults import WHENS, Crash, Killed, PowerCut

ORDERS = {TopicPartition("orders", 0): 1204, TopicPartition("orders", 1): 88}
EPOCHS = (EpochEntry(0, 0), EpochEntry(3, 812), EpochEntry(4, 1100))

OFFSETS = st.dictionaries(
    st.builds(
        TopicPartition,
        st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
        st.integers(0, 2**31 - 1) | st.integers(0, 20),
    ),
    st.integers(0, 2**63 - 1) | st.integers(0, 2000),
    max_size=12,
)
ENTRIES = st.integers(0, 10).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n, unique=True).map(sorted),
        st.lists(st.integers(0, 2**63 - 1), min_size=n, max_size=n, unique=True).map(sorted),
    ).map(lambda columns: tuple(EpochEntry(*row) for row in zip(*columns, strict=True)))
)


def sealed(*lines: str) -> bytes:
    return CHECKPOINT.seal("".join(line + "\n" for line in lines).encode())


# ── the grammar ───────────────────────────────────────────────────────────────────────────────────────


def test_an_offset_checkpoint_looks_as_kafkas_operators_know_it_and_ends_with_a_checksum() -> None:
    body = "1\n2\norders 0 1204\norders 1 88\n"
    assert encode_offsets(ORDERS) == CHECKPOINT.seal(body.encode())
    assert encode_offsets(ORDERS).splitlines()[-1] == b"crc 4afdd2d2"


def test_an_epoch_checkpoint_has_a_line_per_epoch() -> None:
    assert encode_epochs(EPOCHS).splitlines()[:-1] == [b"1", b"3", b"0 0", b"3 812", b"4 1100"]


@given(OFFSETS)
def test_offsets_come_back_as_they_went(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offsets(encode_offsets(offsets), "f") == offsets


@given(ENTRIES)
def test_epochs_come_back_as_they_went(entries: tuple[EpochEntry, ...]) -> None:
    assert decode_epochs(encode_epochs(entries), "f") == entries


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0", "0"], "f, line 1: expected version '1', found '0'"),
        (["01", "0"], "f, line 1: expected version '1', found '01'"),
        (["+1", "0"], "f, line 1: expected version '1', found '+1'"),
        (["1", "x"], "f, line 2: expected the number of entries, found 'x'"),
        (["1", "-1"], "f, line 2: expected the number of entries, found '-1'"),
        (["1", "2", "a 0 1"], "f, line 2: expected 1, the number of entries, found '2'"),
        (["1", "0", "a 0 1"], "f, line 2: expected 1, the number of entries, found '0'"),
        (["1", "2", "a 0 1", "a 1 -1"], "f, line 4: expected '<topic> <partition> <offset>', found 'a 1 -1'"),
        (["1", "1", "a 0 +1"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 01"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 1.0"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 0x1"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 1_0"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 \u0661"], "line 3: expected '<topic>"),
        (["1", "1", "a 0  1"], "line 3: expected '<topic>"),
        (["1", "1", "a 0\t1"], "line 3: expected '<topic>"),
        (["1", "1", " a 0 1"], "line 3: expected '<topic>"),
        (["1", "1", "a 0 1 "], "line 3: expected '<topic>"),
        (["1", "1", "a 0 1\r"], "line 3: expected '<topic>"),
        (["1", "1", "a 1"], "line 3: expected '<topic>"),
        (["1", "1", "a b 0 1"], "line 3: expected '<topic>"),
        (["1", "1", "\u00e4 0 1"], "line 3: expected '<topic>"),
        (["1", "1", ""], "line 3: expected '<topic>"),
        (["1", "2", "a 0 1", "a 0 1"], "f, line 4: expected more than ('a', 0), found ('a', 0)"),
        (["1", "2", "b 0 1", "a 0 1"], "line 4: expected more than ('b', 0)"),
        (["1", "2", "a 10 1", "a 9 1"], "line 4: expected more than ('a', 10)"),
        (["1", "1", "a 2147483648 1"], "expected partitions below 2^31"),
        (["1", "1", "a 0 9223372036854775808"], "expected partitions below 2^31 and offsets below 2^63"),
        (["1", "1", "a 0 " + "9" * 5000], "line 3: expected '<topic>"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named_with_what_was_expected(
    lines: list[str], message: str
) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        decode_offsets(sealed(*lines), "f")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1", "2", "1 0", "1 5"], "line 4: expected more than 1, found 1"),
        (["1", "2", "2 0", "1 5"], "line 4: expected more than 2, found 1"),
        (["1", "2", "1 5", "2 5"], "line 4: expected more than 5, found 5"),
        (["1", "1", "-1 0"], "line 3: expected '<epoch> <start offset>', found '-1 0'"),
        (["1", "1", "2147483648 0"], "expected epochs below 2^31"),
    ],
)
def test_epochs_and_starts_that_do_not_both_increase_are_named(lines: list[str], message: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        decode_epochs(sealed(*lines), "f")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f, line 1: expected version '1', found ''"),
        (b"1\n", "f, line 2: expected the number of entries, found ''"),
        (b"1\n0\n", "f, line 2: expected 'crc', 8 hexadecimal digits and the end, found"),
        (
            b"1\n0\ncrc 00000000\n",
            "f, line 3: expected the checksum of what stands before it, found 'crc 00000000'",
        ),
        (b"1\n0\nCRC 00000000\n", "f, line 3: expected 'crc', 8 hexadecimal digits and the end"),
        (encode_offsets(ORDERS)[:-1], "f, line 4: expected 'crc', 8 hexadecimal digits and the end"),
        (encode_offsets(ORDERS) + b"\n", "f, line 6: expected 'crc', 8 hexadecimal digits and the end"),
        (encode_offsets(ORDERS).replace(b"1204", b"1205"), "f, line 5: expected the checksum"),
    ],
)
def test_a_file_without_its_checksum_is_corrupt(content: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        decode_offsets(content, "f")
    assert message in str(caught.value)


def test_a_newer_version_is_refused_by_name_and_not_taken_for_corruption() -> None:
    with pytest.raises(UnsupportedFormat, match="f is of version 2, this tidelog reads 1"):
        decode_offsets(sealed("2", "in a form that is not known yet"), "f")


def test_a_version_that_rotted_is_corruption_and_not_a_newer_tidelog() -> None:
    with pytest.raises(CorruptCheckpoint, match="line 1: expected version '1', found '3'"):
        decode_offsets(b"3" + encode_offsets(ORDERS)[1:], "f")


# ── every cut and every changed byte is noticed ───────────────────────────────────────────────────────

Codec = tuple[Callable[[Any], bytes], Callable[[bytes, str], Any]]
CODECS: list[tuple[Codec, Any]] = [
    ((encode_offsets, decode_offsets), ORDERS),
    ((encode_offsets, decode_offsets), {}),
    ((encode_epochs, decode_epochs), EPOCHS),
]


@pytest.mark.parametrize(("codec", "state"), CODECS)
def test_every_cut_and_every_other_value_of_every_byte_is_noticed(codec: Codec, state: object) -> None:
    encode, decode = codec
    whole = encode(state)
    damaged = [whole[:at] for at in range(len(whole))]
    damaged += [whole[:a] + bytes([v]) + whole[a + 1 :] for a in range(len(whole)) for v in range(256)]
    damaged += [whole[:at] + b"0" + whole[at:] for at in range(len(whole) + 1)]
    for content in damaged:
        if content != whole:
            with pytest.raises(CorruptCheckpoint):
                decode(content, "f")


DAMAGE = st.tuples(OFFSETS, st.integers(0, 10**6), st.integers(1, 255))


def check_that_damage_is_noticed(
    damage: tuple[dict[TopicPartition, int], int, int],
    encode: Callable[[Any], bytes] = encode_offsets,
    decode: Callable[[bytes, str], object] = decode_offsets,
) -> None:
    offsets, at, change = damage
    content = bytearray(encode(offsets))
    content[at % len(content)] ^= change
    with pytest.raises(CorruptCheckpoint):
        decode(bytes(content), "f")


@given(DAMAGE)
def test_a_changed_byte_is_noticed_in_any_file(damage: tuple[dict[TopicPartition, int], int, int]) -> None:
    check_that_damage_is_noticed(damage)


def test_a_grammar_without_a_checksum_is_caught() -> None:
    """What these files had at first: strict reading alone takes 813 for 812."""

    def encode_plainly(offsets: dict[TopicPartition, int]) -> bytes:
        return encode_offsets(offsets)[:-13]

    def decode_plainly(content: bytes, where: str) -> object:
        return decode_offsets(CHECKPOINT.seal(content), where)

    with pytest.raises(BaseException, match="DID NOT RAISE"):
        check_that_damage_is_noticed((ORDERS, 16, 1), encode_plainly, decode_plainly)


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────


def file_in(directory: Directory, name: str = HIGH_WATERMARKS) -> OffsetCheckpoint:
    return OffsetCheckpoint(directory, name, nullcontext())


@pytest.mark.parametrize("name", OFFSET_CHECKPOINTS)
def test_what_was_written_is_read_without_a_problem(tmp_path: Path, name: str) -> None:
    directory = open_directory(str(tmp_path))
    assert file_in(directory, name).write(ORDERS)
    assert file_in(directory, name).read_or_fallback() == (ORDERS, None)


def test_a_missing_file_is_reported_and_its_fallback_taken(tmp_path: Path) -> None:
    offsets, problem = file_in(open_directory(str(tmp_path))).read_or_fallback()
    assert offsets == {}
    assert str(problem) == f"{tmp_path}/{HIGH_WATERMARKS} is missing"


def test_a_corrupt_file_is_reported_with_its_path_and_its_fallback_taken(tmp_path: Path) -> None:
    (tmp_path / HIGH_WATERMARKS).write_text("1\n1\norders 0 -1\ncrc 00000000\n")
    offsets, problem = file_in(open_directory(str(tmp_path))).read_or_fallback()
    assert offsets == {}
    assert str(problem).startswith(f"{tmp_path}/{HIGH_WATERMARKS}, line 3: expected")


def test_a_file_that_the_disk_cannot_read_is_like_a_corrupt_one() -> None:
    disk = SimulatedDisk(Random(0))
    directory = disk.open_directory()
    file_in(directory).write(ORDERS)
    disk.fail_reads(f"/data/{HIGH_WATERMARKS}")
    offsets, problem = file_in(directory).read_or_fallback()
    assert offsets == {}
    assert HIGH_WATERMARKS in str(problem)


def test_a_file_from_a_newer_tidelog_is_neither_read_nor_replaced_by_a_fallback(tmp_path: Path) -> None:
    (tmp_path / HIGH_WATERMARKS).write_bytes(sealed("2"))
    with pytest.raises(UnsupportedFormat, match=HIGH_WATERMARKS):
        file_in(open_directory(str(tmp_path))).read_or_fallback()


def test_a_new_data_directory_begins_with_empty_files_and_keeps_those_it_has(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    file_in(directory, RECOVERY_POINTS).write(ORDERS)
    for name in OFFSET_CHECKPOINTS:
        file_in(directory, name).create()
    read = [file_in(directory, name).read_or_fallback() for name in (HIGH_WATERMARKS, RECOVERY_POINTS)]
    assert read == [({}, None), (ORDERS, None)]


def test_the_epochs_of_a_partition_are_written_and_read(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    write_leader_epochs(directory, EPOCHS)
    assert read_leader_epochs(directory) == (EPOCHS, None)


def test_epochs_that_cannot_be_read_are_rebuilt_and_that_is_reported(tmp_path: Path) -> None:
    entries, problem = read_leader_epochs(open_directory(str(tmp_path)))
    assert entries is None
    assert "leader-epoch-checkpoint is missing" in str(problem)


# ── a later state is never overtaken ──────────────────────────────────────────────────────────────────


def test_a_state_is_what_it_was_when_the_write_was_prepared(tmp_path: Path) -> None:
    file, offsets = file_in(open_directory(str(tmp_path))), dict(ORDERS)
    pending = file.prepare(offsets)
    offsets.clear()
    assert pending.run()
    assert file.read_or_fallback()[0] == ORDERS


def test_the_same_state_is_not_written_twice() -> None:
    disk = SimulatedDisk(Random(0))
    file = file_in(disk.open_directory())
    file.write(ORDERS)
    operations = disk.operations
    assert not file.write(dict(ORDERS))
    assert disk.operations == operations


States = list[tuple[int, int]]
STATES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=6)


class InAnyOrder(OffsetCheckpoint):
    """KAFKA-16541: the asynchronous writer took no notice of what had been written meanwhile."""

    def carry_out(self, pending: checkpoints.PendingWrite) -> bool:
        self._written_sequence = 0
        return super().carry_out(pending)


def check_that_the_last_state_stays(states: States, kind: type[OffsetCheckpoint] = OffsetCheckpoint) -> None:
    """Prepared in order, run in any order: at the end the file holds the state that was prepared last."""
    file = kind(SimulatedDisk(Random(0)).open_directory(), HIGH_WATERMARKS, nullcontext())
    pending = [file.prepare({TopicPartition("orders", 0): offset}) for offset, _ in states]
    for _, write in sorted(zip(states, pending, strict=True), key=lambda pair: pair[0][1]):
        write.run()
    assert file.read_or_fallback()[0] == {TopicPartition("orders", 0): states[-1][0]}


@settings(max_examples=300)
@given(STATES)
def test_a_later_state_is_never_overtaken_by_an_earlier_one(states: States) -> None:
    check_that_the_last_state_stays(states)


def test_a_writer_without_order_is_caught() -> None:
    assert_caught(partial(check_that_the_last_state_stays, kind=InAnyOrder), STATES)


def test_one_writer_at_a_time_holds_the_guard(tmp_path: Path) -> None:
    held: list[str] = []

    class Guard:
        def __enter__(self) -> None:
            held.append("enter")

        def __exit__(self, *_: object) -> None:
            held.append(f"exit, {sorted(p.name for p in tmp_path.iterdir())}")

    OffsetCheckpoint(open_directory(str(tmp_path)), HIGH_WATERMARKS, Guard()).write(ORDERS)
    assert held == ["enter", f"exit, ['{HIGH_WATERMARKS}']"]


# ── a partition that is made anew ─────────────────────────────────────────────────────────────────────


def test_a_topic_made_anew_inherits_no_high_watermark() -> None:
    """KAFKA-1647, I-37: durable before the first append, whichever crash follows."""
    disk = SimulatedDisk(Random(0))
    file_in(disk.open_directory()).write(ORDERS)
    file = file_in(disk.open_directory())
    file.read_or_fallback()
    assert file.forget(TopicPartition("orders", 0))
    disk.power_cut()
    offsets, problem = file_in(disk.open_directory()).read_or_fallback()
    assert (offsets, problem) == ({TopicPartition("orders", 1): 88}, None)


def test_forgetting_what_is_not_there_writes_nothing(tmp_path: Path) -> None:
    file = file_in(open_directory(str(tmp_path)))
    file.create()
    assert not file.forget(TopicPartition("orders", 0))


def test_an_entry_that_was_forgotten_does_not_return_with_a_write_prepared_before(tmp_path: Path) -> None:
    file = file_in(open_directory(str(tmp_path)))
    pending = file.prepare(ORDERS)
    file.forget(TopicPartition("orders", 0))
    assert not pending.run()
    assert file.read_or_fallback()[0] == {TopicPartition("orders", 1): 88}


def test_an_entry_that_is_in_the_file_is_forgotten_though_a_state_without_it_waits_to_be_written(
    tmp_path: Path,
) -> None:
    """A worker thread has it, and may never come to it."""
    file = file_in(open_directory(str(tmp_path)))
    file.write(ORDERS)
    file.prepare({TopicPartition("orders", 1): 88})
    assert file.forget(TopicPartition("orders", 0))
    assert file_in(open_directory(str(tmp_path))).read_or_fallback()[0] == {TopicPartition("orders", 1): 88}
    assert not file.forget(TopicPartition("orders", 0)), "the file is known to be without it"


def test_what_a_file_holds_that_could_not_be_read_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / HIGH_WATERMARKS).write_bytes(b"0\n1\norders 0 40\n")
    file = file_in(open_directory(str(tmp_path)))
    file.read_or_fallback()
    assert file.forget(TopicPartition("orders", 0))
    assert file.read_or_fallback() == ({}, None)


def test_a_write_for_which_there_is_no_room_makes_no_earlier_one_pass_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the earlier one counts on it: an answer to DeleteRecords, a follower that joins (ADR 79)."""
    file = file_in(open_directory(str(tmp_path)))
    earlier, later = file.prepare(ORDERS), file.prepare({})
    with monkeypatch.context() as full:
        full.setattr(checkpoints, "write_whole", no_room)
        with pytest.raises(NoRoom):
            later.run()
    assert earlier.run()
    assert file_in(open_directory(str(tmp_path))).read_or_fallback() == (ORDERS, None)


def no_room(*_: object) -> None:
    raise NoRoom("no room")


# ── crashes (I-34) ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crash", [Killed, PowerCut])
@pytest.mark.parametrize("when", WHENS)
def test_after_a_crash_anywhere_in_a_write_the_file_is_the_old_or_the_new_one(
    crash: type[Crash], when: Any
) -> None:
    seen = set()
    for nth in range(1, 8):
        disk = SimulatedDisk(Random(nth))
        file = file_in(disk.open_directory())
        file.write({TopicPartition("orders", 0): 1})
        disk.crash_at(nth, when=when, crash=crash)
        try:
            file.write({TopicPartition("orders", 0): 2})
            disk.kill()
        except crash:
            pass
        offsets, problem = file_in(disk.open_directory()).read_or_fallback()
        assert problem is None
        seen.add(offsets[TopicPartition("orders", 0)])
    assert seen == {1, 2}
