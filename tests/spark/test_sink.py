"""The sink's tasks against a real cluster, killed wherever it hurts; ADR 0112 names the cases."""

import asyncio
import itertools
import time
from collections import Counter
from random import Random
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.spark.conftest import World
from tidelog.client import Client, connect
from tidelog.protocol.errors import InvalidRequest, OffsetOutOfRange
from tidelog.protocol.types import TopicPartition
from tidelog.spark import sink
from tidelog.spark.ledger import CHECKSUM, Done, Intent, Ledger, Numbering, Place
from tidelog.spark.options import WriteOptions
from tidelog.spark.portal import Address
from tidelog.spark.writing import BATCH_ROWS, Digest, Writing

pytestmark = pytest.mark.slow

ROWS = 3 * BATCH_ROWS + 100
NOW_MS = int(time.time() * 1000)
"""No time of long ago: brokers look what is too old whenever somebody makes a topic with settings."""


def rows(count: int = ROWS, first: int = 0, key: str | None = None) -> pa.RecordBatch:
    values = [b"%d" % number for number in range(first, first + count)]
    return pa.record_batch({"value": values, "key": [(key or f"k{n % 50}").encode() for n in range(count)]})


class Attempt:
    """One attempt at a task, with a client of its own as another process has."""

    def __init__(self, world: World, place: Place, topic: str) -> None:
        self._bootstrap = world.bootstrap
        self.place, self._options = place, WriteOptions(Address(world.bootstrap), topic)

    async def __aenter__(self) -> Writing:
        self._client: Client = await connect(self._bootstrap)
        self.writing = Writing(self._client, Ledger(self._client), self.place, self._options)
        await self.writing.begin(NOW_MS)
        return self.writing

    async def __aexit__(self, *_: object) -> None:
        await self.writing.abort()
        await self._client.close()


def place(batch: int = 0) -> Place:
    return Place(uuid4().hex, 0, batch)


def once(world: World, topic: str, count: int = ROWS) -> None:
    """Each row is there, and none twice."""
    seen = Counter(world.values(topic))
    assert [value for value, times in seen.items() if times > 1] == []
    assert set(seen) == {b"%d" % number for number in range(count)}


async def write(
    attempt: Attempt, *batches: pa.RecordBatch, finish: bool = True, commit: bool = False
) -> None:
    """An attempt: killed before its end, ended, or ended and acknowledged by the driver."""
    async with attempt as writing:
        for batch in batches:
            await writing.add(batch)
        if not finish:
            return
        here = await writing.finish()
        if commit:
            task = attempt.place
            done = Done(batch=task.batch, tasks={str(task.task): here}, checksum=CHECKSUM)
            await writing._ledger.finish(task.query, done)


def test_a_task_killed_between_its_records_and_its_word_is_resumed(world: World) -> None:
    topic, task = world.topic(2), place()

    async def killed() -> None:
        async with Attempt(world, task, topic) as writing:
            await writing.add(rows())
            for target in writing._targets.values():
                await target.finish()  # all is acknowledged, and the ledger does not say so

    world.run(killed())
    assert len(world.values(topic)) == ROWS
    world.run(write(Attempt(world, task, topic), rows()))
    once(world, topic)


@pytest.mark.parametrize("sent", [1, BATCH_ROWS, ROWS - 1])
def test_a_task_killed_while_it_writes_is_resumed_behind_what_is_there(world: World, sent: int) -> None:
    topic, task = world.topic(2), place()
    world.run(write(Attempt(world, task, topic), rows(sent), finish=False))
    world.run(write(Attempt(world, task, topic), rows()))
    once(world, topic)


def test_a_task_that_is_done_is_only_compared(world: World) -> None:
    topic, task = world.topic(2), place()
    for _ in range(3):
        world.run(write(Attempt(world, task, topic), rows(1000), commit=True))
    once(world, topic, 1000)


def test_an_earlier_micro_batch_is_never_written_again(world: World) -> None:
    topic, task = world.topic(), place(batch=7)
    world.run(write(Attempt(world, task, topic), rows(10), commit=True))

    async def late() -> bool:
        async with Attempt(world, Place(task.query, task.task, 6), topic) as writing:
            return writing.skipped

    assert world.run(late())


def test_two_attempts_at_once_write_each_row_once(world: World) -> None:
    topic, task = world.topic(3), place()
    pieces = [rows(2000, first) for first in range(0, 20_000, 2000)]

    async def both() -> None:
        async with Attempt(world, task, topic) as one, Attempt(world, task, topic) as other:
            for piece in pieces:
                await asyncio.gather(one.add(piece), other.add(piece))
            await asyncio.gather(one.finish(), other.finish())

    world.run(both())
    seen = Counter(world.values(topic))
    assert len(seen) == 20_000
    assert set(seen.values()) == {1}


def test_an_attempt_that_was_asleep_writes_nothing_after_another_one_is_done(world: World) -> None:
    topic, task = world.topic(2), place()

    async def asleep() -> None:
        pieces = rows(2 * BATCH_ROWS), rows(ROWS - 2 * BATCH_ROWS, 2 * BATCH_ROWS)
        async with Attempt(world, task, topic) as sleeper:
            await sleeper.add(pieces[0])
            await write(Attempt(world, task, topic), *pieces)
            await sleeper.add(pieces[1])
            await sleeper.finish()

    world.run(asleep())
    once(world, topic)


def test_other_rows_than_before_are_refused(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(write(Attempt(world, task, topic), rows(), finish=False))
    with pytest.raises(InvalidRequest, match=r"yields other rows .* records 0 to \d+ of .* differ"):
        world.run(write(Attempt(world, task, topic), rows(first=5)))


def test_fewer_rows_than_before_are_refused(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(write(Attempt(world, task, topic), rows(), finish=False))
    with pytest.raises(InvalidRequest, match=r"yields other rows .* were written"):
        world.run(write(Attempt(world, task, topic), rows(BATCH_ROWS)))


def test_other_rows_are_refused_when_all_was_done_as_well(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(write(Attempt(world, task, topic), rows(100), commit=True))
    with pytest.raises(InvalidRequest, match="yields other rows"):
        world.run(write(Attempt(world, task, topic), rows(101)))
    with pytest.raises(InvalidRequest, match="0 rows were written, now there are 5"):
        world.run(write(Attempt(world, Place(task.query, 1, 0), topic), rows(5)))
    assert len(world.values(topic)) == 100


def test_a_checksum_tells_null_from_empty_and_sees_where_values_end() -> None:
    columns: list[list[bytes | None]] = [
        [b"a\0b"],
        [b"a", b"b"],
        [b"ab"],
        [b"", b"ab"],
        [None, b"ab"],
        [b"ab", None],
        [b"ab", b""],
    ]
    of_values = {Digest().add([None] * len(each), each).value for each in columns}
    of_keys = {Digest().add(each, [None] * len(each)).value for each in columns}
    assert len(of_values | of_keys) == 2 * len(columns)
    pieces = Digest().add([b"k"], [b"ab"]).add([None, b""], [None, b"c"])
    assert pieces.value == Digest().add([b"k", None, b""], [b"ab", None, b"c"]).value


def test_an_older_checksum_of_what_is_done_is_compared_with_nothing(world: World) -> None:
    topic, task = world.topic(), place()

    async def done_by_an_older_one() -> None:
        await Ledger(world.client).finish(task.query, Done(batch=0, tasks={"0": (100, 1)}))

    world.run(done_by_an_older_one())
    world.run(write(Attempt(world, task, topic), rows(100)))
    with pytest.raises(InvalidRequest, match="100 rows were written, now there are 101"):
        world.run(write(Attempt(world, task, topic), rows(101)))


def test_more_partitions_between_two_attempts_change_nothing(world: World) -> None:
    topic, task = world.topic(2), place()
    world.run(write(Attempt(world, task, topic), rows(), finish=False))
    world.run(world.client.admin.add_partitions(topic, 5))
    world.run(write(Attempt(world, task, topic), rows()))
    once(world, topic)


def test_a_leader_killed_while_a_task_writes_costs_no_row_and_no_second_one(world: World) -> None:
    topic, task = world.topic(2), place()
    pieces = [rows(5000, first) for first in range(0, 50_000, 5000)]

    async def shaken() -> None:
        leader = await world.cluster.leader_of(topic)
        assert leader is not None
        async with Attempt(world, task, topic) as writing:
            for number, piece in enumerate(pieces):
                await writing.add(piece)
                if number == 3:
                    await world.cluster.kill(leader)
            await writing.finish()
        await world.cluster.start(leader)
        await world.cluster.wait_ready()

    world.run(shaken())
    once(world, topic, 50_000)


def test_what_cannot_be_told_any_more_is_refused(world: World) -> None:
    topic, task = world.topic(), place()
    world.run(write(Attempt(world, task, topic), rows(), finish=False))
    world.produce(topic, [b"0"])
    world.trim(topic, -1)
    with pytest.raises(OffsetOutOfRange, match="nobody can say what was there"):
        world.run(write(Attempt(world, task, topic), rows()))


def test_a_task_goes_on_when_brokers_have_forgotten_its_producer(world: World) -> None:
    topic, task = world.topic(1), place()
    world.run(write(Attempt(world, task, topic), rows(key="k"), finish=False))

    async def resumed() -> None:
        async with Attempt(world, task, topic) as writing:
            pieces = iter([rows(key="k")])
            await writing.add(rows(0))
            target = await writing._target(topic)
            [numbering] = target.intent.lanes
            # As after an expiry: the log has the batches, and no broker knows the id that the next ones bear.
            forgotten = numbering.__class__(
                producer_id=numbering.producer_id + 10_000_000,
                producer_epoch=0,
                begin=numbering.begin,
            )
            target.intent.lanes[0] = forgotten
            found = target._find_written

            async def find_by_the_old_id(lane: object) -> None:
                target.intent.lanes[0] = numbering
                await found(lane)  # type: ignore[arg-type]  # a lane
                target.intent.lanes[0] = forgotten

            target._find_written = find_by_the_old_id  # type: ignore[method-assign]
            await writing.add(next(pieces))
            await writing.finish()
            assert target.intent.generation == 1
            assert target.intent.lanes[0].already in {BATCH_ROWS, 2 * BATCH_ROWS, 3 * BATCH_ROWS}

    world.run(resumed())
    once(world, topic)


def test_of_two_intents_the_first_one_counts_for_everybody(world: World) -> None:
    topic, task = world.topic(), place()

    def intent(producer_id: int) -> Intent:
        lanes = [Numbering(producer_id=producer_id, producer_epoch=0, begin=0)]
        return Intent(topic=topic, topic_id="", generation=0, now_ms=0, lanes=lanes)

    async def both() -> None:
        one, other = Ledger(world.client), Ledger(world.client)
        first = await one.intend(task, intent(1))
        second = await other.intend(task, intent(2))
        await one.refresh(task.query)
        assert first == second == one.intent(task, topic) == intent(1)

    world.run(both())


def test_the_ledger_keeps_one_entry_of_a_query_whose_batches_are_done(world: World) -> None:
    topic, task = world.topic(), place()
    for batch in range(3):
        world.run(write(Attempt(world, Place(task.query, 0, batch), topic), rows(10), commit=True))

    async def entries() -> list[str]:
        ledger = Ledger(world.client)
        await ledger.refresh(task.query)
        return [key for each in ledger._entries.values() for key in each if key.startswith(task.query)]

    assert world.run(entries()) == [task.query]


def test_a_worker_with_tasks_of_two_clusters_in_turn_keeps_a_ledger_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[tuple[Client, Ledger]] = []
    monkeypatch.setattr(sink, "_ledgers", kept)

    async def in_turn() -> None:
        one, other = connect("one:1"), connect("other:1")
        ledgers = [sink.ledger_of(one), sink.ledger_of(other)]
        assert [sink.ledger_of(one), sink.ledger_of(other)] == ledgers
        await one.close()
        assert sink.ledger_of(other) is ledgers[1]
        assert [client for client, _ in kept] == [other]
        await other.close()

    asyncio.run(in_turn())


def test_a_micro_batch_of_very_many_tasks_is_done_with_what_each_of_them_wrote(world: World) -> None:
    random, query = Random(7), uuid4().hex
    tasks = {str(task): (random.randrange(1 << 20), random.getrandbits(64)) for task in range(60_000)}
    done = Done(batch=3, tasks=tasks, checksum=CHECKSUM)

    async def read_again() -> Done | None:
        await Ledger(world.client).finish(query, done)
        ledger = Ledger(world.client)
        await ledger.refresh(query)
        return ledger.done(query)

    assert world.run(read_again()) == done


@pytest.mark.parametrize("ended", [10, BATCH_ROWS + 1, 2 * BATCH_ROWS + 5])
def test_an_attempt_whose_input_ended_too_soon_is_continued(world: World, ended: int) -> None:
    """Spark ends a sink's input as if that were all when computing it fails."""
    topic, task = world.topic(2), place()
    world.run(write(Attempt(world, task, topic), rows(ended)))
    assert len(world.values(topic)) == ended
    world.run(write(Attempt(world, task, topic), rows()))
    once(world, topic)


def test_two_attempts_with_batches_of_different_sizes_write_each_row_once(world: World) -> None:
    topic, task = world.topic(1), place()

    async def both() -> None:
        async with Attempt(world, task, topic) as whole:
            await whole.add(rows(BATCH_ROWS - 10, key="k"))
            await write(Attempt(world, task, topic), rows(3000, key="k"))
            await whole.add(rows(5000, BATCH_ROWS - 10, key="k"))
            await whole.finish()

    world.run(both())
    once(world, topic, BATCH_ROWS + 4990)


def test_rows_without_a_key_are_spread_and_named_partitions_are_kept(world: World) -> None:
    topic = world.topic(4)
    batch = pa.record_batch(
        {
            "value": [b"%d" % n for n in range(20_000)],
            "partition": pa.array([None] * 19_999 + [3], pa.int32()),
        }
    )
    world.run(write(Attempt(world, place(), topic), batch))
    once(world, topic, 20_000)
    ends = world.run(world.client.admin.list_offsets(topic))
    assert min(ends[TopicPartition(topic, at)].offset for at in range(4)) > 3000


def test_chunks_of_any_size_make_the_same_batches(world: World) -> None:
    topic, task = world.topic(2), place()
    whole = rows()
    world.run(write(Attempt(world, task, topic), whole.slice(0, 2 * BATCH_ROWS + 77), finish=False))
    edges = [0, 10, 5000, 5001, 20_000, whole.num_rows]
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    world.run(write(Attempt(world, task, topic), *pieces))
    once(world, topic)
