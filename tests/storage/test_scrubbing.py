"""Looking at segments again: whatever has changed since it was written is found, and nothing else (docs/STORAGE.md, 10.11)."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.logs import SMALL, Host, batch
from tidelog.protocol.batch import HEADER_SIZE, stamp
from tidelog.protocol.errors import DamagedLog
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.storage.scan import BATCHES_PER_STEP, SLICE
from tidelog.storage.scrubbing import Scrub, after, in_turn
from tidelog.storage.segment import Segment

ONE_SEGMENT = LogConfig(segment_bytes=64 << 20)


def scrubbed(segment: Segment) -> Scrub:
    """Look at all of it, as the owner does, but for the pauses."""
    scrub = Scrub(segment)
    while (wanted := scrub.wanted) is not None:
        for _ in scrub.check(segment.read_at(*wanted)):
            pass
    return scrub


def damaged(log: Log) -> list[int]:
    """The bases of the segments in which something is wrong."""
    return [each.base_offset for each in log.segments if scrubbed(each).problem is not None]


def filled(count: int, config: LogConfig = SMALL, size: int = 20) -> Host:
    host = Host(config=config)
    for _ in range(count):
        host.log.append(batch(2, size=size), 0, now_ms=0)
    return host


def test_a_log_that_is_as_it_was_written_has_no_damage() -> None:
    host = filled(60)
    assert len(host.log.segments) > 5
    assert damaged(host.log) == []


def test_a_new_and_an_empty_log_have_none_either() -> None:
    assert damaged(Host().log) == []


@settings(max_examples=60)
@given(st.data())
def test_any_bit_that_flips_in_a_segment_is_found_there(data: st.DataObject) -> None:
    host = filled(30)
    segment = data.draw(st.sampled_from([each for each in host.log.segments if each.size]))
    position = data.draw(st.integers(0, segment.size - 1))
    host.disk.rot(f"{host.path}/{segment.name}", position, data.draw(st.integers(0, 7)))
    assert damaged(host.log) == [segment.base_offset]
    before = scrubbed(segment).position
    assert before <= position < before + len(batch(2, size=20)), "the batch is named"


def test_damage_is_found_where_a_batch_is_larger_than_what_is_read_at_once() -> None:
    host = filled(3, ONE_SEGMENT, size=SLICE)
    (segment,) = host.log.segments
    assert scrubbed(segment).problem is None
    host.disk.rot(f"{host.path}/{segment.name}", segment.size - 1)
    assert scrubbed(segment).position == segment.size * 2 // 3


def test_bytes_that_are_gone_are_damage() -> None:
    host = filled(5, ONE_SEGMENT)
    (segment,) = host.log.segments
    for size in (segment.size - 1, segment.size * 4 // 5, 10):
        segment.file().truncate(size)
        assert "the file ends" in str(scrubbed(segment).problem)


def test_whole_batches_in_the_wrong_order_are_damage() -> None:
    host = filled(3, ONE_SEGMENT)
    (segment,) = host.log.segments
    second = bytearray(batch(2, size=20))
    stamp(second, 0, 0)
    segment.file().write_at(len(second), bytes(second))
    assert "offset 0 of epoch 0 follows offset 2" in str(scrubbed(segment).problem)


def test_a_batch_in_the_place_of_a_longer_one_is_missed_at_the_end() -> None:
    host = filled(3, ONE_SEGMENT)
    (segment,) = host.log.segments
    last = bytearray(batch(1, size=60))
    stamp(last, 4, 0)
    segment.file().write_at(
        segment.size - len(batch(2, size=20)),
        bytes(last)[: len(batch(2, size=20))].ljust(len(batch(2, size=20)), b"\0"),
    )
    assert scrubbed(segment).problem is not None


def test_a_step_is_some_hundred_batches() -> None:
    host = filled(4 * BATCHES_PER_STEP, ONE_SEGMENT)
    (segment,) = host.log.segments
    scrub, steps, before = Scrub(segment), 0, 0
    while (wanted := scrub.wanted) is not None:
        for _ in scrub.check(segment.read_at(*wanted)):
            assert scrub.position - before <= BATCHES_PER_STEP * len(batch(2, size=20))
            steps, before = steps + 1, scrub.position
    assert steps >= 4


def test_small_batches_cost_more_than_their_bytes_and_large_ones_what_they_are() -> None:
    small, large = filled(100, ONE_SEGMENT), filled(100, ONE_SEGMENT, size=1000)
    assert scrubbed(small.log.segments[0]).cost == 4096 + 100 * 512
    assert scrubbed(large.log.segments[0]).cost == 4096 + large.log.size


def test_what_is_appended_while_it_is_looked_at_is_left_to_the_next_look() -> None:
    host = filled(2, ONE_SEGMENT)
    (segment,) = host.log.segments
    scrub = Scrub(segment)
    host.log.append(batch(2, size=20), 0, now_ms=0)
    while (wanted := scrub.wanted) is not None:
        for _ in scrub.check(segment.read_at(*wanted)):
            pass
    assert (scrub.problem, scrub.next_offset) == (None, 4)


def test_the_segment_behind_a_base_is_found_whatever_became_of_that_one() -> None:
    log = filled(60).log
    segments = log.segments
    assert after(log, -1) is segments[0]
    assert after(log, segments[2].base_offset) is segments[3]
    assert after(log, segments[2].base_offset - 1) is segments[2]
    assert after(log, segments[-1].base_offset) is None


def test_what_lies_below_the_start_of_the_log_is_not_looked_at() -> None:
    log = filled(60).log
    log.raise_log_start(log.segments[3].base_offset - 1)
    assert after(log, -1) is log.segments[2]
    log.raise_log_start(log.segments[3].base_offset)
    assert after(log, -1) is log.segments[3]


def test_an_empty_log_has_nothing_to_look_at() -> None:
    assert after(Host().log, -1) is None


def test_every_log_has_its_turn_wherever_a_round_begins() -> None:
    logs = list("abcdef")
    firsts = set()
    for seed in range(30):
        turns = in_turn(logs, Random(seed))
        assert sorted(turns) == logs
        firsts.add(turns[0])
    assert firsts == set(logs)
    assert in_turn([], Random(0)) == []


# ── cutting off what is damaged ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "within", [0, 5, HEADER_SIZE - 1, HEADER_SIZE + 3], ids=["base", "head", "size", "body"]
)
@pytest.mark.parametrize("forget", [False, True], ids=["indexes known", "indexes lost"])
def test_a_log_is_cut_at_the_base_of_a_damaged_segment_whatever_is_damaged_there(
    within: int, *, forget: bool
) -> None:
    host = filled(30)
    host.log.flush()
    segment = host.log.segments[2]
    host.disk.rot(f"{host.path}/{segment.name}", within)
    if forget:
        segment.close()
        segment.forget_indexes()
    host.log.truncate_to(segment.base_offset, 0)
    assert host.log.end_offset == segment.base_offset
    assert damaged(host.log) == []
    while host.log.end_offset < 60:
        host.log.append(batch(2, size=20), 0, now_ms=0)
    assert damaged(host.log) == []
    assert host.kill_and_open().damage == []
    assert host.log.end_offset == 60


def test_damage_in_front_of_the_cut_refuses_it_and_says_where_it_is() -> None:
    host = filled(30)
    first, later = host.log.segments[1], host.log.segments[3]
    host.disk.rot(f"{host.path}/{first.name}", 5)
    with pytest.raises(DamagedLog) as told:
        host.log.truncate_to(later.base_offset, 0)
    assert (told.value.base_offset, host.log.end_offset) == (first.base_offset, 60)
