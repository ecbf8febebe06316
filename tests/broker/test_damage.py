"""A replica whose log is damaged says so, and is cut when nobody counts on it any more (ADR 105)."""

from dataclasses import replace
from typing import Any

import pytest

from tests.broker.node import PLACE, Node, records
from tidelog.broker.damage import is_gone, may_be_cut, with_damage
from tidelog.broker.partition import Partition
from tidelog.broker.upkeep import Upkeep, UpkeepSettings
from tidelog.protocol.batch import stamp
from tidelog.protocol.errors import DamagedLog, StorageError
from tidelog.protocol.types import BrokerId
from tidelog.replication.followership import Append, Truncate, Wait
from tidelog.storage.config import LogConfig

ME = BrokerId(1)
SIZE = len(records(1, 200))
SMALL = LogConfig(segment_bytes=4 * SIZE, index_interval_bytes=0)


@pytest.fixture
def node() -> Node:
    """Broker 1 follows broker 2, and has twenty committed records in segments of four."""
    node = Node(config=SMALL)
    node.follow(2)
    for offset in range(20):
        node.partition.carry_out(Append(offset, 0), at(offset), 0)
    node.partition.carry_out(Append(20, 0), b"", 0)
    assert (node.partition.high_watermark, len(node.partition.log.segments)) == (20, 5)
    return node


def at(offset: int, epoch: int = 0) -> bytes:
    batch = bytearray(records(1, 200))
    stamp(batch, offset, epoch)
    return bytes(batch)


def rot(node: Node, offset: int) -> None:
    """Flip a bit in the body of that record."""
    log = node.partition.log
    segment = next(each for each in log.segments if each.base_offset <= offset < each.next_offset)
    node.disk.rot(f"{log.directory.path}/{segment.name}", segment.position_of(offset) + SIZE - 1)


def found(node: Node, offset: int) -> Partition:
    """Damage there is found by whoever reads it."""
    rot(node, offset)
    with pytest.raises(StorageError):
        node.partition._read(offset, 1000, node.partition.log.end_offset)
    return node.partition


# ── found ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_that_finds_damage_is_refused_and_the_replica_knows(node: Node) -> None:
    told: list[Partition] = []
    node.replicas.damage_found = told.append
    partition = found(node, 9)
    assert partition.damage is not None
    assert (partition.damage.base_offset, partition.damage.end_offset, partition.damage.leader_epoch) == (
        8,
        12,
        0,
    )
    assert (told, partition.offline) == ([partition], None)
    assert node.replicas.damaged() == {PLACE: 0}


def test_all_that_is_not_damaged_is_served(node: Node) -> None:
    node.lead()
    found(node, 9)
    for offset in (0, 8, 10, 19):
        assert node.partition._read(offset, 1, 20)


def test_nothing_more_is_fetched_for_it(node: Node) -> None:
    assert node.replicas.followed(BrokerId(2)) == {PLACE: node.partition}
    found(node, 9)
    assert node.replicas.followed(BrokerId(2)) == {}


def test_an_answer_to_what_was_asked_before_changes_nothing(node: Node) -> None:
    partition = found(node, 9)
    for step in (Append(21, 0), Truncate(19, loses_committed=False)):
        assert isinstance(partition.carry_out(step, at(20), 0), Wait)
    assert partition.log.end_offset == 20


def test_a_damaged_leader_takes_and_gives_records_as_before(node: Node) -> None:
    node.lead(isr=(1,), min_isr=1)
    found(node, 9)
    assert node.produce(records(1, 200)).error == 0
    assert node.partition.high_watermark == 21


@pytest.mark.parametrize("batches", [1, 4], ids=["before it is written", "before the next segment begins"])
def test_a_leader_that_meets_damage_as_it_appends_refuses_for_now_and_the_replica_knows(
    node: Node, batches: int
) -> None:
    partition = node.lead(isr=(1,), min_isr=1)
    partition.log.truncate_to(16 + batches, 0)
    segment = partition.log.segments[-1]
    segment.close()
    node.disk.rot(f"{partition.log.directory.path}/{segment.name}", 5)
    assert node.produce(records(1, 200)).error == StorageError.code
    assert (partition.log.end_offset, partition.offline) == (16 + batches, None)
    assert partition.damage is not None
    assert partition.damage.base_offset == 16
    assert node.replicas.damaged() == {PLACE: 1}


def test_of_several_segments_the_first_and_the_last_are_known_and_the_oldest_epoch(node: Node) -> None:
    partition = found(node, 13)
    node.follow(3)
    found(node, 5)
    found(node, 17)
    known = partition.damage
    assert known is not None
    assert (known.base_offset, known.end_offset, known.leader_epoch) == (4, 20, 0)


def test_damage_that_names_no_segment_may_be_anywhere(node: Node) -> None:
    damage = with_damage(None, node.partition.log, 3, DamagedLog("planted"))
    assert (damage.base_offset, damage.leader_epoch, damage.why) == (0, 3, "planted")


def test_what_is_offline_has_nothing_to_say_of_damage(node: Node) -> None:
    partition = found(node, 9)
    partition.go_offline("planted")
    assert node.replicas.damaged() == {}


# ── when it may be cut ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "said"),
    [
        pytest.param({"leader": 2, "isr": (2, 3)}, "it may", id="out of all"),
        pytest.param({"leader": 2, "isr": (1, 2, 3)}, "it may not", id="in sync"),
        pytest.param({"leader": 2, "isr": (2,), "elr": (1,)}, "it may not", id="eligible"),
        pytest.param({"leader": -1, "isr": (), "elr": (3,)}, "it may not", id="nobody leads"),
        pytest.param({"leader": 1, "isr": (1,)}, "it may not", id="leads itself"),
        pytest.param({"leader": 2, "isr": (2, 3), "epoch": 0}, "it may not", id="what it told still counts"),
    ],
)
def test_it_may_be_cut_when_nothing_is_counted_on_it(node: Node, state: dict[str, Any], said: str) -> None:
    partition = found(node, 9)
    node.follow(**state)
    assert may_be_cut(partition.damage, partition.state, ME) is (said == "it may")
    assert node.replicas.damaged() == ({} if said == "it may" else {PLACE: partition.leader_epoch})


def test_damage_that_is_found_in_the_newer_leadership_needs_a_newer_one_still(node: Node) -> None:
    node.follow(2, isr=(2, 3))
    partition = found(node, 9)
    assert not may_be_cut(partition.damage, partition.state, ME)
    node.follow(2)
    assert may_be_cut(partition.damage, partition.state, ME)


def test_a_log_that_is_whole_is_not_cut(node: Node) -> None:
    node.follow(2, isr=(2, 3))
    assert not may_be_cut(None, node.partition.state, ME)


# ── cut ───────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_cut_at_the_damaged_segment_and_fetches_from_there(node: Node) -> None:
    partition = found(node, 9)
    node.follow(2, isr=(2, 3))
    assert partition.cut_damaged(0)
    assert (partition.log.end_offset, partition.high_watermark, partition.damage, partition.repairs) == (
        8,
        8,
        None,
        1,
    )
    assert node.replicas.followed(BrokerId(2)) == {PLACE: partition}
    following = partition.followership
    assert following is not None
    assert following.ask(partition.view()) == (1, 8, 0)


def test_a_log_that_is_damaged_where_it_starts_begins_anew(node: Node) -> None:
    partition = node.partition
    partition.log.raise_log_start(6)
    found(node, 7)
    node.follow(2, isr=(2, 3))
    partition.cut_damaged(0)
    assert (partition.log.log_start, partition.log.end_offset, partition.high_watermark) == (6, 6, 6)


def test_a_cut_that_meets_older_damage_leaves_all_as_it_was(node: Node) -> None:
    partition = found(node, 17)
    log = partition.log
    node.disk.rot(f"{log.directory.path}/{log.segments[1].name}", 5)
    node.follow(2, isr=(2, 3))
    with pytest.raises(DamagedLog) as told:
        partition.cut_damaged(0)
    assert (told.value.base_offset, log.end_offset, partition.repairs) == (4, 20, 0)
    partition.found_damage(told.value)
    partition.cut_damaged(0)
    assert log.end_offset == 4


def test_damage_below_the_logs_start_is_no_damage_any_more(node: Node) -> None:
    partition = found(node, 9)
    assert partition.damage is not None
    partition.log.raise_log_start(11)
    assert not is_gone(partition.damage, partition.log)
    partition.log.raise_log_start(12)
    assert is_gone(partition.damage, partition.log)


def test_a_long_log_is_cut_in_steps_and_fetched_again_when_it_is_done(node: Node) -> None:
    partition = node.partition
    for offset in range(20, 120):
        partition.carry_out(Append(offset, 0), at(offset), 0)
    found(node, 9)
    node.follow(2, isr=(2, 3))
    ends = []
    while not partition.cut_damaged(0):
        ends.append(partition.log.end_offset)
        assert partition.high_watermark == partition.log.end_offset
        assert node.replicas.followed(BrokerId(2)) == {}
    assert ends == [88, 60, 32]
    assert partition.log.end_offset == 8


# ── compaction ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_compaction_that_comes_upon_damage_ends_and_the_replica_knows() -> None:
    node = Node(config=replace(SMALL, cleanup_policy="compact"))
    node.follow(2)
    for offset in range(20):
        node.partition.carry_out(Append(offset, 0), at(offset), 0)
    node.partition.carry_out(Append(20, 0), b"", 0)
    node.partition.log.flush()
    node.data.write_recovery_points().run()
    rot(node, 9)

    async def saved() -> bool:
        return True

    upkeep = Upkeep(node.replicas, node.context.clocks, UpkeepSettings(), save_log_starts=saved)
    for _ in range(2):
        await upkeep._compact()
        assert (upkeep.compactions, node.partition.log.compaction) == (0, None)
        assert node.partition.damage is not None
        assert node.partition.damage.base_offset == 8
