"""Produce, request by request: what is refused and in which order, and when the rest is answered (design 2.5)."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import msgpack

from tests.broker.node import PLACE, Asked, Node, records
from tidelog.broker.groups.records import GROUPS_TOPIC
from tidelog.broker.partition import Partition
from tidelog.broker.requests import produce
from tidelog.protocol.batch import HEADER_SIZE, build, read_header, stamp
from tidelog.protocol.compression import CODECS
from tidelog.protocol.errors import (
    CorruptMessage,
    DiskFull,
    DuplicateSequenceNumber,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopic,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnsupportedVersion,
)
from tidelog.protocol.messages import ACKS_ALL, Leader, PartitionProduce, Produce
from tidelog.protocol.records import encode
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log


def numbered(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    return records(1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


# ── what is refused, in this order ────────────────────────────────────────────────────────────────────


def test_without_a_lease_nothing_is_written(node: Node) -> None:
    node.replicas.lease_until_ms = node.now_ms
    assert node.produce(epoch=9).error == NotLeaderOrFollower.code
    assert node.partition.log.end_offset == 0


def test_a_topic_that_nobody_knows_is_unknown(node: Node) -> None:
    assert node.produce(place=(b"?" * 16, 0)).error == UnknownTopicId.code


def test_who_does_not_lead_says_who_does_before_it_looks_at_epochs(node: Node) -> None:
    node.follow(2, epoch=4)
    for epoch in (-1, 3, 4, 5):
        answer = node.produce(epoch=epoch).entry
        assert (answer.error, answer.current_leader) == (NotLeaderOrFollower.code, Leader(BrokerId(2), 4))


def test_a_broker_that_is_no_replica_says_who_leads(node: Node) -> None:
    node.adopt(place=(PLACE[0], 1), replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=4)
    answer = node.produce(place=(PLACE[0], 1)).entry
    assert (answer.error, answer.current_leader) == (NotLeaderOrFollower.code, Leader(BrokerId(2), 4))


@pytest.mark.parametrize(("epoch", "error"), [(0, FencedLeaderEpoch), (2, UnknownLeaderEpoch)])
def test_a_request_for_another_leadership_is_refused(
    node: Node, epoch: int, error: type[TidelogError]
) -> None:
    node.lead()
    assert node.produce(epoch=epoch, acks=5).error == error.code


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_is_none_one_or_all(node: Node, acks: int) -> None:
    assert node.produce(b"nonsense", acks).error == InvalidRequiredAcks.code


def test_an_idempotent_producer_needs_all(node: Node) -> None:
    assert node.produce(numbered(0), 1).error == InvalidRequiredAcks.code


def flipped() -> bytes:
    batch = bytearray(records(1))
    batch[-1] ^= 1
    return bytes(batch)


def strange_codec() -> bytes:
    header = read_header(records(1))
    return bytes(
        build(
            records(1)[HEADER_SIZE:],
            last_offset_delta=0,
            record_count=1,
            base_timestamp=0,
            max_timestamp=0,
            attributes=header.attributes | 7,
        )
    )


def timed_from_to(base: int, newest: int) -> bytes:
    """As another client than ours may send it."""
    return bytes(
        build(
            records(1)[HEADER_SIZE:],
            last_offset_delta=0,
            record_count=1,
            base_timestamp=base,
            max_timestamp=newest,
        )
    )


BAD: list[tuple[bytes, type[TidelogError]]] = [
    (b"", CorruptMessage),
    (b"short", CorruptMessage),
    (flipped(), CorruptMessage),
    (records(1) + records(1), InvalidRecord),
    (records(1, size=3000), MessageTooLarge),
    (records(1, attributes=32), InvalidRecord),
    (records(1, attributes=8), InvalidTimestamp),  # the leader's time is the leader's to give
    (timed_from_to(-2, -2), InvalidTimestamp),  # -1 is no time, and below it is nothing that anybody can say
    (timed_from_to(-2, 0), InvalidTimestamp),
    (timed_from_to(0, -2), InvalidTimestamp),
    (records(1, attributes=64), UnsupportedVersion),  # a delete horizon is compaction's
    (records(1, attributes=1 << 9), UnsupportedVersion),
    (strange_codec(), UnsupportedVersion),
    (records(1)[:16] + b"\x07" + records(1)[17:], CorruptMessage),
]


@pytest.mark.parametrize("isr", [(1, 2, 3), (1,)])
@pytest.mark.parametrize(("batch", "error"), BAD)
def test_a_bad_batch_is_told_before_too_few_replicas(
    batch: bytes, error: type[TidelogError], isr: tuple[int, ...]
) -> None:
    node = Node(config=LogConfig(max_message_bytes=2000))
    node.lead(isr=isr)
    assert node.produce(batch).error == error.code


def packed(columns: object) -> bytes:
    """A batch of two records with right checksums, whatever its columns are."""
    made = build(
        msgpack.encode(columns), last_offset_delta=1, record_count=2, base_timestamp=0, max_timestamp=0
    )
    return bytes(made)


@pytest.mark.parametrize(
    "columns",
    [
        [None, [b"a", b"b"], [7, None], None, None],
        [[0], [b"a", b"b"], [b"x", b"y"], None, None],
        [None, [b"a"], [b"x", b"y"], None, None],
        [None, [b"a", b"b"], [b"x"], None, None],
        [None, [b"a", 7], [b"x", b"y"], None, None],
        [None, None, [b"x"], None, None],
        [None, [b"a", b"b"], [b"x", b"y"], None, [1, 0]],
        7,
    ],
)
def test_a_compacted_topic_takes_no_batch_that_nobody_can_judge_and_no_retry_is_asked_for(
    columns: object,
) -> None:
    node = Node(config=LogConfig(cleanup_policy="compact"))
    node.lead()
    assert node.produce(packed(columns)).error == InvalidRecord.code
    assert node.produce(packed([[0, 1], [b"a", b"b"], [b"x", None], None, None])).waits


def test_a_batch_of_another_format_is_refused_by_an_error_that_travels(node: Node) -> None:
    batch = bytearray(records(1))
    batch[16] = 9
    stamp(batch, 0, -1)
    assert node.produce(bytes(batch)).error == UnsupportedVersion.code


def test_a_bad_batch_is_told_before_a_full_disk(node: Node) -> None:
    fill_the_disk(node)
    assert node.produce().error == DiskFull.code
    assert node.produce(flipped()).error == CorruptMessage.code


# ── how old and how new records may be ────────────────────────────────────────────────────────────────

DAY_MS = 86_400_000
NOW_MS = 5 * DAY_MS
LIMITED = LogConfig(message_timestamp_before_max_ms=2 * DAY_MS, message_timestamp_after_max_ms=DAY_MS)


def leader_at(wall_ms: int, config: LogConfig = LIMITED) -> Node:
    node = Node(config=config)
    node.now_ms = wall_ms
    node.lead(min_isr=1, isr=(1,))
    return node


def timed(*times: int, **fields: Any) -> bytes:
    return bytes(encode([b"x"] * len(times), timestamps=list(times), now_ms=0, **fields))


@pytest.mark.parametrize(
    ("time_ms", "told"),
    [
        (3 * DAY_MS, None),
        (3 * DAY_MS - 1, "172800001 ms before its leader's: message.timestamp.before.max.ms is 172800000"),
        (6 * DAY_MS, None),
        (6 * DAY_MS + 1, "86400001 ms after its leader's: message.timestamp.after.max.ms is 86400000"),
    ],
)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_record_has_to_be_of_its_leaders_days_where_its_topic_wants_that(
    time_ms: int, told: str | None, codec: str
) -> None:
    node = leader_at(NOW_MS)
    answer = node.produce(timed(NOW_MS, time_ms, NOW_MS, codec=CODECS[codec])).entry
    assert answer.error == (InvalidTimestamp.code if told else 0)
    assert told is None or told in str(answer.message)
    assert told is None or "record 1 has" in str(answer.message)
    assert node.partition.log.end_offset == (0 if told else 3)


@pytest.mark.parametrize("config", [LogConfig(), replace(LIMITED, message_timestamp_type="LogAppendTime")])
def test_any_time_will_do_where_none_is_asked_for(config: LogConfig) -> None:
    node = leader_at(NOW_MS, config)
    assert not node.produce(timed(0, 2 * NOW_MS)).error


def test_a_bad_time_is_told_before_too_few_replicas() -> None:
    node = Node(config=LIMITED)
    node.lead(isr=(1,))
    assert node.produce(timed(NOW_MS)).error == InvalidTimestamp.code


def test_a_repetition_is_known_also_when_it_has_become_too_old() -> None:
    node = leader_at(NOW_MS)
    batch = timed(NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    assert not node.produce(batch).error
    node.now_ms = NOW_MS + 3 * DAY_MS
    answer = node.produce(batch).entry
    assert (answer.error, answer.base_offset) == (0, 0)
    later = timed(NOW_MS, producer_id=7, producer_epoch=0, base_sequence=1)
    assert node.produce(later).error == InvalidTimestamp.code
    assert node.partition.log.end_offset == 1


def test_with_too_few_in_sync_nothing_is_written(node: Node) -> None:
    node.adopt(isr=(1,))
    assert node.produce().error == NotEnoughReplicas.code
    assert node.partition.log.end_offset == 0
    assert not node.produce(acks=1).error


def test_too_few_in_sync_are_told_before_a_full_disk(node: Node) -> None:
    fill_the_disk(node)
    node.produce(acks=1)
    node.adopt(isr=(1,))
    assert node.produce().error == NotEnoughReplicas.code


def fill_the_disk(node: Node) -> None:
    node.disk.capacity = node.disk.medium.used + 10


def test_a_partition_is_named_once_or_nothing_is_written(node: Node) -> None:
    batch = records(1)
    entry = PartitionProduce(*PLACE, len(batch))
    with pytest.raises(InvalidRequest):
        node.ask(Produce(1, 1000, (entry, entry)), batch + batch)
    assert node.partition.log.end_offset == 0


def test_who_wants_no_answer_must_not_wait_for_one(node: Node) -> None:
    with pytest.raises(InvalidRequest):
        node.ask(Produce(0, 1000, ()))


def test_a_disk_that_fails_takes_the_partition_offline_and_tells_all_who_wait(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = node.produce()

    def fails(*_: Any) -> None:
        raise StorageError("planted")

    monkeypatch.setattr(Log, "append", fails)
    assert node.produce().error == StorageError.code
    node.turn()
    assert waiting.error == NotLeaderOrFollower.code
    assert node.produce().error == StorageError.code


def test_a_disk_that_fails_right_behind_an_append_keeps_nobody_waiting(node: Node) -> None:
    """Where the broker looks for room, and the disk does not say."""

    def fails(partition: Partition, _: int) -> None:
        partition.go_offline("planted")

    node.context = replace(node.context, appended=fails)
    asked = node.produce()
    node.turn()
    assert asked.error == NotLeaderOrFollower.code


# ── when it is answered ───────────────────────────────────────────────────────────────────────────────


def test_with_acks_none_nothing_is_answered(node: Node) -> None:
    assert node.produce(acks=0).waits
    assert node.partition.log.end_offset == 1


def test_with_acks_one_the_leader_is_enough(node: Node) -> None:
    node.produce(acks=1)
    answer = node.produce(acks=1).entry
    assert (answer.error, answer.base_offset, answer.log_start) == (0, 1, 0)


@pytest.mark.parametrize("acks", [1, -1])
def test_the_answer_has_the_leaders_time_where_records_have_it_also_the_second_time(acks: int) -> None:
    node = Node(config=LogConfig(message_timestamp_type="LogAppendTime"))
    node.lead(min_isr=1, isr=(1,))
    batch = numbered(0) if acks == -1 else records(1)
    assert node.produce(batch, acks).entry.append_time == 1000
    if acks == -1:
        node.wait(500)
        assert node.produce(batch, acks).entry.append_time == 1000


def test_the_answer_has_no_time_where_records_have_their_producers(node: Node) -> None:
    assert node.produce(acks=1).entry.append_time == -1


def test_with_acks_all_everybody_in_sync_must_have_it(node: Node) -> None:
    asked = node.produce()
    node.fetched(2, 1)
    node.turn()
    assert asked.waits
    node.fetched(3, 1)
    assert asked.waits, "never inside the change that makes it possible"
    node.turn()
    assert asked.entry.base_offset == 0


def test_who_waits_for_a_commit_is_not_looked_at_for_every_record_that_is_not_committed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of a thousand requests in flight would be looked at for each of them (S9)."""
    for follower in (2, 3):
        node.fetched(follower, 0)
    looks: list[Any] = []
    look = produce._Waiting.try_complete

    def looked(self: produce._Waiting) -> bool:
        looks.append(self)
        return look(self)

    monkeypatch.setattr(produce._Waiting, "try_complete", looked)
    waiting = [node.produce() for _ in range(3)]
    node.turn()
    assert not looks
    node.fetched(2, 3)
    node.turn()
    assert not looks, "somebody in sync lacks them"
    node.fetched(3, 3)
    node.turn()
    assert [each.entry.base_offset for each in waiting] == [0, 1, 2]
    assert len(looks) == 3


def test_a_duplicate_waits_for_the_original_to_be_committed(node: Node) -> None:
    first, again = node.produce(numbered(0)), node.produce(numbered(0))
    assert first.waits
    assert again.waits
    node.fetched(2, 1)
    node.fetched(3, 1)
    node.turn()
    assert (first.entry.base_offset, again.entry.base_offset) == (0, 0)
    assert node.partition.log.end_offset == 1


def test_what_was_written_long_ago_is_there_and_its_offset_is_forgotten(node: Node) -> None:
    for sequence in range(7):
        node.produce(numbered(sequence))
    answer = node.produce(numbered(0)).entry
    assert (answer.error, answer.base_offset) == (DuplicateSequenceNumber.code, -1)


@pytest.mark.parametrize("decision", [{"leader": 2, "leader_epoch": 1}, {"leader_epoch": 1}, {"leader": -1}])
def test_another_leadership_ends_the_waiting_in_the_same_burst(node: Node, decision: dict[str, Any]) -> None:
    asked = node.produce()
    node.adopt(**decision)
    node.turn()
    assert asked.error == NotLeaderOrFollower.code
    assert asked.entry.base_offset == -1


def test_a_topic_that_goes_ends_the_waiting(node: Node) -> None:
    asked = node.produce()
    node.remove()
    node.turn()
    assert asked.error == NotLeaderOrFollower.code


def test_a_shrink_that_is_decided_lets_waiting_producers_go(node: Node) -> None:
    asked = node.produce()
    node.fetched(2, 1)
    node.adopt(isr=(1, 2))
    node.turn()
    assert not asked.error


@pytest.mark.parametrize(
    ("isr", "error"), [((1, 2, 3), RequestTimedOut), ((1,), NotEnoughReplicasAfterAppend)]
)
def test_at_the_deadline_it_is_told_why(node: Node, isr: tuple[int, ...], error: type[TidelogError]) -> None:
    asked = node.produce(timeout_ms=100)
    node.adopt(isr=isr)
    node.wait(99)
    assert asked.waits
    node.wait(1)
    assert asked.error == error.code


def test_one_request_for_many_partitions_is_answered_once_and_in_its_order(node: Node) -> None:
    second = (PLACE[0], 1)
    node.adopt(place=second)
    asked = ask_for(node, [PLACE, (b"?" * 16, 0), second])
    node.fetched(2, 1, place=second)
    node.fetched(3, 1, place=second)
    node.turn()
    assert asked.waits
    node.follow(2)
    node.turn()
    assert [entry.error for entry in asked.answer.partitions] == [
        NotLeaderOrFollower.code,
        UnknownTopicId.code,
        0,
    ]


def ask_for(node: Node, places: list[tuple[bytes, int]]) -> Asked:
    batch = records(1)
    entries = tuple(PartitionProduce(*place, len(batch)) for place in places)
    return node.ask(Produce(ACKS_ALL, 1000, entries), batch * len(places))


def test_nobody_but_a_coordinator_writes_the_groups_topic(node: Node) -> None:
    """One record that is none of theirs would leave its partition without a coordinator at the next load."""
    state = node.image.partitions[PLACE]
    node.remove()
    node.image.partitions[PLACE] = state
    node.replicas.adopt({PLACE: (GROUPS_TOPIC, state)}, (), node.now_ms, node.now_ms)
    asked = node.produce(acks=1)
    assert asked.error == InvalidTopic.code
    assert node.partition.log.end_offset == 0
