"""Records go into the open batch of their partition, within the memory that there is; a batch ends once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.producing import ID, Desk
from tidelog.client.batching import Batch
from tidelog.client.columns import Columns
from tidelog.client.partitioning import STEP_BYTES, TOGETHER
from tidelog.client.sending import Told
from tidelog.client.sizes import RECORD_OVERHEAD
from tidelog.protocol.errors import InvalidRecord, MessageTooLarge, UnknownTopicOrPartition
from tidelog.protocol.records import decode
from tidelog.protocol.types import BrokerId


def test_records_of_one_partition_share_a_batch_until_it_is_full() -> None:
    desk = Desk(batch_size=100)
    first, second = desk.put(b"x" * 40), desk.put(b"x" * 40)
    third = desk.put(b"x" * 40)
    assert first is second is not third
    assert list(first.lane.queue) == [first]
    assert first.lane.open is third


def test_a_few_full_batches_let_others_run_before_the_next_record() -> None:
    desk = Desk(batch_size=100)
    for _ in range(TOGETHER):
        assert desk.accumulator.append("orders", b"x" * 90) is not None
        assert not desk.accumulator.held
    assert desk.accumulator.append("orders", b"x" * 90) is not None
    assert desk.accumulator.held
    assert desk.accumulator.append("orders", b"v") is None
    desk.accumulator.hold(back=False)
    assert desk.accumulator.append("orders", b"x" * 90) is not None
    assert not desk.accumulator.held, "it is counted from there"


def test_a_large_batch_takes_room_as_it_grows_and_lets_others_run_meanwhile() -> None:
    desk = Desk(batch_size=10 * STEP_BYTES, buffer_memory=20 * STEP_BYTES, max_request_size=20 * STEP_BYTES)
    accumulator = desk.accumulator
    value = b"x" * (STEP_BYTES // 2 - RECORD_OVERHEAD)
    batch = desk.put(value)
    rooms, held = [batch.size], list[int]()
    for number in range(1, 20):
        assert desk.put(value) is batch
        rooms.append(batch.size)
        if accumulator.held:
            held.append(number)
            accumulator.hold(back=False)
    assert rooms == [STEP_BYTES * (1 + at // 2) for at in range(20)]
    assert held == [8, 16], "after four steps each"
    assert accumulator.room == 10 * STEP_BYTES
    assert desk.put(value) is not batch


def test_a_batch_grows_as_far_as_there_is_memory() -> None:
    desk = Desk(batch_size=10 * STEP_BYTES, buffer_memory=2 * STEP_BYTES, max_request_size=20 * STEP_BYTES)
    batch = desk.put(b"x" * 30)
    [portion] = Columns([b"v" * 92] * 5000, None).columns(
        desk.accumulator, desk.accumulator.topics["orders"], 0
    )
    assert portion.take() is not None
    assert desk.accumulator.room == 0
    assert batch.size == 2 * STEP_BYTES
    assert batch.room < 100
    assert portion.take() is None


def test_no_batch_becomes_larger_than_its_topic_takes() -> None:
    """As it says itself: also of the smallest records, encoded."""
    for value, key in ((b"", b""), (b"v", None), (b"x" * 300, b"k" * 20)):
        desk = Desk(batch_size=100_000, buffer_memory=1_000_000, max_request_size=100_000)
        desk.sending.learn("orders", ID, [(BrokerId(1), 1), (BrokerId(2), 1)], desk.now_ms, 10_000)
        for number in range(3000):
            desk.accumulator.append("orders", value, key, 0, 50_000 + number * 2**33, first=True)
        sizes = [len(batch.data or b"") for shipment in desk.turn() for batch in shipment.batches]
        assert 5_000 < max(sizes) <= 10_000


def test_records_without_keys_stay_in_one_partition_for_a_batch_and_then_move() -> None:
    desk = Desk(leaders=(1, 1, 1), batch_size=100)
    lanes = [desk.put(b"x" * 40, partition=None).lane.index for _ in range(8)]
    assert [len(set(lanes[at : at + 2])) for at in (0, 2, 4, 6)] == [1, 1, 1, 1]
    assert all(lanes[at] != lanes[at + 2] for at in (0, 2, 4))


def test_a_burst_of_full_batches_is_one_request() -> None:
    desk = Desk(leaders=(1, 2) * TOGETHER, batch_size=100, buffer_memory=100_000, max_request_size=50_000)
    while not desk.accumulator.held:
        assert desk.accumulator.append("orders", b"x" * 90) is not None
    [first, *_] = sorted(desk.turn(), key=lambda shipment: -len(shipment.batches))
    assert len(first.batches) == TOGETHER


@pytest.mark.parametrize("seed", range(5))
def test_records_without_keys_never_go_to_a_partition_that_is_gone(seed: int) -> None:
    desk = Desk(leaders=(1,) * 6, batch_size=100, buffer_memory=100_000)
    for _ in range(seed):
        desk.put(b"x" * 90, partition=None)
        desk.accumulator.hold(back=False)
    desk.lead(1, 1)
    found = set()
    for _ in range(8):
        found.add(desk.put(b"x" * 90, partition=None).lane.index)
        desk.accumulator.hold(back=False)
    assert found == {0, 1}


def test_the_same_key_goes_to_the_same_partition() -> None:
    desk = Desk(leaders=(1, 1, 1))
    assert len({desk.put(key=b"k", partition=None).lane.index for _ in range(9)}) == 1
    assert desk.accumulator.partition_for("orders", b"k") == desk.put(key=b"k", partition=None).lane.index


def test_there_is_room_for_so_many_bytes_and_it_comes_back_when_a_batch_has_ended() -> None:
    desk = Desk(buffer_memory=2000)
    while desk.accumulator.append("orders", b"x" * (100 - RECORD_OVERHEAD), None, 0, first=True) is not None:
        pass
    assert 0 <= desk.accumulator.room < 100
    desk.sending.flushing = 1
    for shipment in desk.turn():
        desk.written(shipment)
    for shipment in desk.turn():
        desk.written(shipment)
    assert desk.accumulator.room == 2000
    assert not desk.accumulator.outstanding


def test_a_topic_that_is_not_known_is_for_later() -> None:
    assert Desk().accumulator.append("nobody", b"v") is None


def test_a_partition_that_is_not_there_is_refused_with_the_number_of_those_that_are() -> None:
    desk = Desk()
    with pytest.raises(UnknownTopicOrPartition, match="orders has 2 partitions, there is no partition 2"):
        desk.accumulator.append("orders", b"v", None, 2)


@pytest.mark.parametrize("value", ["text", 5, ["list"]])
def test_what_is_no_bytes_is_refused_and_harms_no_other_record(value: object) -> None:
    desk = Desk()
    batch = desk.put(b"good")
    with pytest.raises(InvalidRecord, match="a record's value is bytes or None"):
        desk.accumulator.append("orders", value, None, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match="a record's key is bytes or None"):
        desk.accumulator.append("orders", b"v", value, 0)  # type: ignore[arg-type]
    assert len(batch) == 1


@pytest.mark.parametrize("headers", [[("n",)], [(b"n", b"v")], [("n", "v")], [("\ud800", b"v")]])
def test_a_header_that_nobody_could_read_is_refused_at_once(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(InvalidRecord, match="a header is a pair"):
        Desk().accumulator.append("orders", b"v", None, 0, None, headers)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="milliseconds since 1970"):
        Desk().accumulator.append("orders", b"v", None, 0, -1)


def test_a_record_that_can_never_be_sent_is_refused_with_the_numbers() -> None:
    with pytest.raises(MessageTooLarge, match="a record of 5009 bytes for orders: at most 5000"):
        Desk().put(b"x" * (5009 - RECORD_OVERHEAD))
    with pytest.raises(MessageTooLarge, match="at most 400"):
        Desk(buffer_memory=400).put(b"x" * 401)


def test_a_record_that_is_larger_than_a_batch_has_one_of_its_own() -> None:
    desk = Desk()
    small, large = desk.put(b"s"), desk.put(b"x" * 3000)
    assert small is not large
    assert list(small.lane.queue) == [small]


def test_each_record_has_the_time_when_it_was_given_or_the_one_that_it_was_given() -> None:
    desk = Desk()
    batch = desk.put()
    desk.wall_ms += 20
    desk.accumulator.time_passes()
    desk.put()
    desk.accumulator.append("orders", b"v", None, 0, 77)
    assert [batch.timestamp_ms(place) for place in range(3)] == [50_000, 50_020, 77]
    desk.accumulator.close(batch.lane)
    assert decode(batch.encode(0, -1, -1, -1)).timestamps == [50_000, 50_020, 77]


def test_a_batch_holds_what_was_given_key_by_key_and_header_by_header() -> None:
    desk = Desk()
    batch = desk.put(b"a", key=b"k")
    desk.accumulator.append("orders", None, None, 0, None, [("n", b"1"), ("n", None)])
    desk.accumulator.append("orders", bytearray(b"c"), memoryview(b"q"), 0)  # type: ignore[arg-type]
    desk.accumulator.close(batch.lane)
    columns = decode(batch.encode(0, 7, 0, 0))
    assert columns.values == [b"a", None, b"c"]
    assert columns.keys == [b"k", None, b"q"]
    assert columns.headers == [(), (("n", b"1"), ("n", None)), ()]


def test_a_topic_that_was_made_anew_with_fewer_partitions_takes_nothing_for_the_others() -> None:
    desk = Desk(leaders=(1, 1, 1))
    desk.put(partition=2)
    desk.sending.learn("orders", b"another-another-", [(desk.put().lane.leader, 1)], desk.now_ms)
    assert len(desk.accumulator.topics["orders"].lanes) == 1
    assert desk.accumulator.topics["orders"].sticky.index == 0


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────


def put(
    desk: Desk, columns: Columns, partition: int | None = None
) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Put them all in, then what each partition was sent: keys and values."""
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    batches: dict[Batch, None] = {}
    for portion in columns.columns(desk.accumulator, desk.accumulator.topics["orders"], partition):
        while not portion.done:
            part = portion.take()
            if part is None:
                deliver(desk, found)
                continue
            columns.parts.append(part)
            batches[part.batch] = None
    deliver(desk, found)
    return found


def deliver(desk: Desk, found: dict[int, list[tuple[bytes | None, bytes | None]]]) -> None:
    """Send everything and have it written."""
    desk.sending.flushing = 1
    while shipments := desk.turn():
        for shipment in shipments:
            told = []
            for batch in shipment.batches:
                assert batch.data is not None
                columns = decode(batch.data)
                lane = found.setdefault(batch.lane.index, [])
                told.append(Told(None, len(lane)))
                lane += zip(columns.keys, columns.values, strict=True)
            desk.sending.answered(shipment, told, desk.now_ms)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=300)), max_size=60),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)
def test_columns_arrive_whole_in_order_and_say_where(
    rows: list[tuple[bytes | None, bytes | None]], partition: int | None, keyed: bool
) -> None:
    desk = Desk(leaders=(1, 1), batch_size=500, buffer_memory=1200, max_in_flight=1)
    keys = [key for key, _ in rows] if keyed else None
    columns = Columns([value for _, value in rows], keys)
    found = put(desk, columns, partition)
    landed = columns.landed()
    assert len(landed) == len(rows)
    for (key, value), metadata in zip(rows, landed, strict=True):
        assert found[metadata.partition][metadata.offset] == (key if keyed else None, value)
    for index, column in found.items():
        for has_key in (True, False):  # those with keys keep their order, and those without
            assert [row for row in column if (row[0] is not None) is has_key] == [
                (key if keyed else None, value)
                for (key, value), metadata in zip(rows, landed, strict=True)
                if metadata.partition == index and (keyed and key is not None) is has_key
            ]


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="1 keys for 2 values"):
        Columns([b"a", b"b"], [b"k"])


def test_columns_with_one_record_that_is_too_large_are_refused_whole() -> None:
    desk = Desk()
    columns = Columns([b"a", b"x" * 6000], None)
    with pytest.raises(MessageTooLarge):
        columns.columns(desk.accumulator, desk.accumulator.topics["orders"], None)
    assert not desk.accumulator.outstanding


def test_a_columns_record_takes_the_room_of_a_single_one() -> None:
    desk = Desk()
    batch = desk.put(b"abc", key=b"k")
    alone = batch.room
    [portion] = Columns([b"abc"], [b"k"]).columns(desk.accumulator, desk.accumulator.topics["orders"], 0)
    assert portion.take() is not None
    assert batch.size - alone == alone - batch.room == 4 + RECORD_OVERHEAD


def test_batches_that_are_hardly_filled_give_their_room_to_one_that_needs_it() -> None:
    desk = Desk(buffer_memory=2000, leaders=(1, 1, 1))
    first, second, third = (desk.put(partition=index) for index in range(3))
    assert (first.room, len(first.lane.queue), len(second.lane.queue)) == (1000 - 1 - RECORD_OVERHEAD, 1, 1)
    assert third.lane.open is third
