"""`tidelog.sync`: what blocks, from threads, in forks, in notebooks, by Ctrl-C and at the interpreter's exit."""

import asyncio
import gc
import inspect
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
import tidelog.sync
from tests.client.conftest import open_sockets
from tests.client.nodes import DEADLINE_S
from tests.client.served import Served
from tidelog.client.io.loop_thread import LoopThread
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    DeliveryError,
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)

NUMBERS = itertools.count()
SOURCE = Path(tidelog.__file__).parents[1]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture
def nothing_left(served: Served) -> Iterator[None]:  # noqa: ARG001 -- it is there before
    """After the test: no thread of a client; the cluster, in this process too, starts some when it likes."""
    yield
    until(
        lambda: not any(thread.name.startswith("tidelog-") for thread in threading.enumerate()),
        "all threads have ended",
    )


def counted(consumer: tidelog.sync.Consumer, count: int, max_records: int | None = None) -> int:
    """How many records come: at least so many, however busy the machine, and what comes at once after those."""
    found = 0
    for batch in consumer.batches(max_records, timeout=DEADLINE_S):
        found += len(batch)
        if found >= count:
            break
    return found + sum(len(batch) for batch in consumer.batches(timeout=0.1))


@pytest.fixture
def client(served: Served, nothing_left: None) -> Iterator[tidelog.sync.Client]:  # noqa: ARG001 -- it ends after this
    with tidelog.sync.connect(served.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: tidelog.sync.Client) -> str:
    name = f"topic-{next(NUMBERS)}"
    client.admin.create_topics(tidelog.NewTopic(name, partitions=2, replication_factor=1))
    return name


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s in vain: {what}; {threading.enumerate()}"
        threading.Event().wait(0.005)


# ── the same names ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["Admin", "Consumer", "Producer", "Client"])
def test_whatever_the_client_can_do_is_here_by_the_same_name_and_arguments(name: str) -> None:
    session = {"start", "cluster", "connections", "rng", "call", "call_any", "connection", "refresh", "hint"}
    session |= {"register", "unregister", "spawn", "watch", "backoff", "pause", "topic", "adopt"}
    blocking = getattr(tidelog.sync, name)
    for public, found in inspect.getmembers(getattr(tidelog, name), inspect.isfunction):
        if public.startswith("_") or (name == "Client" and public in session):
            continue
        here = getattr(blocking, public, None)
        assert here is not None, f"tidelog.sync.{name}.{public} is missing"
        assert list(inspect.signature(here).parameters) == list(inspect.signature(found).parameters), public
        assert here.__doc__, public
    assert inspect.signature(tidelog.sync.connect).parameters == inspect.signature(tidelog.connect).parameters


def test_records_are_sent_and_read_back(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:
        sent = producer.send(topic, b"a", b"k", partition=1, headers=[("h", b"1")], timestamp_ms=5)
        assert (sent.topic, sent.partition, sent.offset, sent.timestamp_ms) == (topic, 1, 0, 5)
        assert producer.enqueue(topic, b"b", partition=1).result().offset == 1
        landed = producer.send_many(topic, iter([b"c", b"d"]), partition=1)
        assert [landed[at].offset for at in range(2)] == [2, 3]
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        records = [next(consumer) for _ in range(4)]
    assert [record.value for record in records] == [b"a", b"b", b"c", b"d"]
    assert (records[0].key, records[0].headers, records[0].timestamp_ms) == (b"k", (("h", b"1"),), 5)


def test_one_thread_keeps_its_order_whichever_way_its_records_go(
    client: tidelog.sync.Client, topic: str
) -> None:
    large = b"x" * 10_000
    with client.producer() as producer:
        producer.send(topic, b"0", partition=0)
        for number in range(1, 3000):
            value = large + b"%d" % number if number % 500 == 0 else b"%d" % number
            producer.enqueue(topic, value, partition=0)
        producer.send(topic, b"3000", partition=0)
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        values = [next(consumer).value or b"" for _ in range(3001)]
    assert [int(value.removeprefix(large)) for value in values] == list(range(3001))


def test_records_wait_for_room_and_all_arrive(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer(buffer_memory=20_000, batch_size=5_000) as producer:
        deliveries = [producer.enqueue(topic, b"x" * 100, partition=0) for _ in range(5000)]
        producer.flush(timeout=DEADLINE_S)
        assert all(delivery.done for delivery in deliveries)
        assert [delivery.result().offset for delivery in deliveries] == list(range(5000))


def test_the_consumer_counts_what_was_read_and_no_more(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(100)], partition=0)
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        for expected in range(10):
            assert consumer.getone().offset == expected
        assert consumer.position((topic, 0)) == 10
        assert consumer.positions()[tidelog.TopicPartition(topic, 0)].lag == 90
        assert next(consumer).offset == 10
        consumer.seek((topic, 0), 50)
        assert next(consumer).offset == 50
        found = consumer.getmany(timeout=5, max_records=10)
        assert [record.offset for record in found[tidelog.TopicPartition(topic, 0)]] == list(range(51, 61))
        assert counted(consumer, 39, max_records=7) == 39
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 100}


def test_pausing_and_resuming_goes_on_where_it_was(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(100)], partition=0)
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert next(consumer).offset == 0
        consumer.pause()
        assert consumer.paused() == consumer.assignment() == {(topic, 0)}
        assert consumer.getmany(timeout=0.05) == {}
        consumer.resume()
        assert next(consumer).offset == 1


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_record_that_is_none_is_refused_at_once(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"v")
        with pytest.raises(InvalidRecord, match="not str"):
            producer.enqueue(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartition, match="no partition 7"):
            producer.enqueue(topic, b"v", partition=7)
        with pytest.raises(MessageTooLarge):
            producer.enqueue(topic, b"v" * (2 << 20))


def test_what_is_refused_later_is_told_by_its_delivery_or_by_flush(
    client: tidelog.sync.Client, topic: str
) -> None:
    producer = client.producer()
    producer.enqueue(topic, b"v").result()
    client._thread.call(producer._inner.close)  # it fails behind the queue's back
    told, untold = producer.enqueue(topic, b"v"), producer.enqueue(topic, b"v")
    with pytest.raises(ClientClosed):
        told.result(timeout=5)
    assert told.done
    with pytest.raises(DeliveryError, match="1 records were not acknowledged") as caught:
        producer.flush(timeout=5)
    assert caught.value.undelivered == 1
    assert untold.done
    producer.close()


@pytest.mark.usefixtures("nothing_left")
def test_undelivered_records_are_told_with_their_count() -> None:
    with Served() as other:
        client = tidelog.sync.connect(other.bootstrap, request_timeout_ms=1000)
        client.admin.create_topics(tidelog.NewTopic("orders", partitions=1, replication_factor=1))
        producer = client.producer(buffer_memory=2000, batch_size=1000, delivery_timeout_ms=60_000)
        producer.send("orders", b"v")
        other.kill()
        for _ in range(100):
            producer.enqueue("orders", b"v" * 94)
        with pytest.raises(RequestTimedOut, match=r"in 0\.1 s"):
            producer.flush(timeout=0.1)
        with pytest.raises(DeliveryError, match="100 records") as caught:
            producer.close(timeout=0.1)
        assert caught.value.undelivered == 100
        client.close()


@pytest.mark.usefixtures("nothing_left")
def test_nobody_there_is_said_in_time_and_leaves_nothing() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        tidelog.sync.connect("127.0.0.1:1", connect_timeout=1)


@pytest.mark.usefixtures("nothing_left")
def test_a_closed_client_says_so(served: Served) -> None:
    client = tidelog.sync.connect(served.bootstrap)
    client.admin.create_topics(tidelog.NewTopic("closed", partitions=1, replication_factor=1))
    producer, consumer = client.producer(), client.consumer("closed")
    producer.send("closed", b"v")
    client.close()
    client.close()
    assert client.closed
    for call in (
        client.admin.list_topics,
        client.metrics,
        client.producer,
        producer.flush,
        consumer.getone,
        lambda: producer.send("closed", b"v"),
        lambda: producer.enqueue("closed", b"v"),
        lambda: next(consumer.batches()),
    ):
        with pytest.raises(ClientClosed):
            call()
    producer.close()
    consumer.close()


def test_a_closed_producer_takes_nothing(client: tidelog.sync.Client, topic: str) -> None:
    producer = client.producer()
    producer.send(topic, b"v")
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed, match="producer"):
        producer.enqueue(topic, b"v")


def test_who_reads_nothing_is_told_so(client: tidelog.sync.Client, topic: str) -> None:
    consumer = client.consumer()
    with pytest.raises(InvalidRequest, match="nothing is read"):
        next(consumer)
    consumer.subscribe(topic)
    assert consumer.getmany(timeout=0.01) == {}


@pytest.mark.usefixtures("nothing_left")
def test_clients_that_are_closed_leave_no_socket(served: Served) -> None:
    before = len(open_sockets())
    for _ in range(10):
        with tidelog.sync.connect(served.bootstrap) as client:
            client.admin.list_topics()
    # Both ends of a connection are in this process; nodes may have opened one among themselves meanwhile.
    until(lambda: len(open_sockets()) < before + 10, "their sockets are closed")


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────


def test_many_threads_send_at_once(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:

        def sending() -> None:
            for _ in range(200):
                producer.enqueue(topic, b"v")
            producer.send(topic, b"v")

        threads = [threading.Thread(target=sending) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert counted(consumer, 804) == 804


def test_threads_that_read_from_one_consumer_share_the_records(
    client: tidelog.sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(2000)])
    got: list[bytes | None] = []
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:

        def reading() -> None:
            got.extend(record.value for record in consumer)

        threads = [threading.Thread(target=reading) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: sum(p.position for p in consumer.positions().values()) == 2000, "all are read")
        consumer.close()  # which ends those that wait
        for thread in threads:
            thread.join(DEADLINE_S)
    assert sorted(int(value or b"") for value in got) == list(range(2000))


def test_a_seek_from_another_thread_reaches_who_waits(client: tidelog.sync.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"v", partition=0)
    with client.consumer() as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_end()
        timer = threading.Timer(0.05, consumer.seek, ((topic, 0), 0))
        timer.start()
        assert consumer.getone().offset == 0
        timer.join()


@pytest.mark.usefixtures("nothing_left")
def test_a_client_closed_by_another_thread_ends_who_waits(served: Served) -> None:
    client = tidelog.sync.connect(served.bootstrap)
    client.admin.create_topics(tidelog.NewTopic("ends", partitions=1, replication_factor=1))
    consumer = client.consumer("ends")
    timer = threading.Timer(0.05, client.close)
    timer.start()
    assert list(consumer) == []
    timer.join()


def test_a_blocking_call_in_the_clients_own_thread_is_refused_and_a_short_one_works(
    client: tidelog.sync.Client, topic: str
) -> None:
    consumer = client.consumer(topic)
    assert client._thread.do(consumer.paused) == set()
    with pytest.raises(InvalidRequest, match="callbacks must not wait"):
        client._thread.do(client.admin.list_topics)


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_commits_what_was_read_and_its_listeners_may_use_it(
    client: tidelog.sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
    told: list[Any] = []

    def revoked(partitions: list[tidelog.TopicPartition]) -> None:
        consumer.commit({tidelog.TopicPartition(topic, 0): 7})
        told.append(("revoked", sorted(partitions)))

    consumer: tidelog.sync.Consumer = client.consumer(
        topic,
        group=topic,
        auto_offset_reset="earliest",
        on_assigned=lambda partitions: told.append(("assigned", consumer.paused(), len(partitions))),
        on_revoked=revoked,
    )
    with consumer:
        records = [next(consumer) for _ in range(3)]
        consumer.commit(records[-1])
        assert consumer.committed() == {(topic, 0): 3, (topic, 1): None}
        assert consumer.positions()[tidelog.TopicPartition(topic, 0)].committed == 3
        assert next(consumer).offset == 3
        assert consumer.state == "stable"
    assert consumer.state == "left"
    assert told == [("assigned", set(), 2), ("revoked", [(topic, 0), (topic, 1)])]
    with client.consumer(topic, group=topic) as again:
        assert next(again).offset == 7


def test_what_was_read_is_committed_by_itself_and_what_was_not_is_read_again(
    client: tidelog.sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
    options: dict[str, Any] = {"group": topic, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 20}
    with client.consumer(topic, **options) as consumer:
        for _ in range(5):
            next(consumer)
        # The fifth is in hand still.
        until(lambda: consumer.committed((topic, 0)) == {(topic, 0): 4}, "it is committed by itself")
    with client.consumer(topic, **options) as consumer:
        assert next(consumer).offset == 5, "the block has ended well: it was done with it"


@pytest.mark.slow
def test_who_computes_for_longer_than_its_session_stays_a_member(
    client: tidelog.sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
    lost: list[Any] = []
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "session_timeout_ms": 1000}
    with client.consumer(topic, group=topic, on_lost=lost.append, **options) as consumer:
        record = next(consumer)
        [group] = client.admin.describe_groups(topic)
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s:
            sum(range(10_000))  # this thread does nothing else: the client has its own
        consumer.commit(record)
        [since] = client.admin.describe_groups(topic)
        assert [(each.member_id, each.member_epoch) for each in since.members] == [
            (each.member_id, each.member_epoch) for each in group.members
        ]
        assert since.epoch == group.epoch, "nobody has left meanwhile, nor come"
    assert lost == []


def test_who_chooses_partitions_commits_what_was_read_of_what_was_lent(
    client: tidelog.sync.Client, topic: str
) -> None:
    """A batch is lent to the thread: of it only what was read counts, also when somebody else looks."""
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % at for at in range(10)], partition=0)
    with client.consumer(group=topic, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [next(consumer).offset for _ in range(4)] == [0, 1, 2, 3]
        assert consumer.position((topic, 0)) == 4
    with client.consumer(group=topic) as again:
        again.assign([(topic, 0)])
        assert next(again).offset == 4
        again.commit({tidelog.TopicPartition(topic, 0): 2})
        assert again.committed() == {tidelog.TopicPartition(topic, 0): 2}


# ── loops, forks, exits ───────────────────────────────────────────────────────────────────────────────


async def test_it_works_where_a_loop_runs(served: Served) -> None:
    with tidelog.sync.connect(served.bootstrap) as client, client.producer() as producer:
        client.admin.create_topics(tidelog.NewTopic("notebook", partitions=1, replication_factor=1))
        assert producer.send("notebook", b"v").offset == 0


def test_a_forked_child_is_told_and_connects_anew(client: tidelog.sync.Client, topic: str) -> None:
    producer, bootstrap = client.producer(), client.config.bootstrap
    producer.send(topic, b"v", partition=0)

    def child() -> str:
        with pytest.raises(ClientClosed) as told:
            producer.enqueue(topic, b"child")
        client.close()
        with tidelog.sync.connect(str(one) for one in bootstrap) as again, again.producer() as mine:
            return f"{told.value}; {mine.send(topic, b'anew', partition=0).offset}"

    assert in_a_child(child).endswith("connect anew in it; 1")
    assert producer.send(topic, b"v", partition=0).offset == 2


def test_a_forked_child_reads_nothing_of_what_its_parent_has_in_hand(
    client: tidelog.sync.Client, topic: str
) -> None:
    """Neither the rest of the batch, nor for ever: a thread of the parent, which holds the lock, is not in the child."""
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % n for n in range(4)], partition=0)
    consumer = client.consumer(topic, auto_offset_reset="earliest")
    assert next(consumer).value == b"0"
    assert in_a_child(lambda: next(consumer)) == "ClientClosed"
    assert [next(consumer).value for _ in range(3)] == [b"1", b"2", b"3"]
    waits = threading.Thread(target=consumer.getone, daemon=True)
    waits.start()
    until(consumer._reader.locked, "it waits for the next batch")
    assert in_a_child(consumer.getone) == "ClientClosed"
    with client.producer() as producer:
        producer.send(topic, b"4", partition=0)
    waits.join(10)


def in_a_child(call: Callable[[], object]) -> str:
    """What a forked child is answered, or the name of what is raised; ten seconds at most are given it."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads, on purpose
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            said = str(call())
        except BaseException as error:  # noqa: BLE001 -- the parent is told
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def program(served: Served, body: str, **options: Any) -> subprocess.Popen[str]:
    head = f"import tidelog.sync as sync\nclient = sync.connect({served.bootstrap!r})\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", head + body],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_an_interpreter_that_exits_without_close_delivers_what_it_has_accepted(
    client: tidelog.sync.Client, topic: str, served: Served
) -> None:
    body = f"p = client.producer()\nfor n in range(3000): p.enqueue({topic!r}, b'v')\n"
    done = program(served, body)
    out, err = done.communicate(timeout=DEADLINE_S)
    assert (done.returncode, out, err) == (0, "", "")
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert counted(consumer, 3000) == 3000


@pytest.mark.parametrize("what", ["list(c)", "c.getone()", "list(c.batches())", "c.getmany(timeout=99)"])
def test_ctrl_c_ends_the_wait(topic: str, served: Served, what: str) -> None:
    body = f"c = client.consumer({topic!r})\nc.positions()\nprint('waits', flush=True)\n{what}\n"
    waiting = program(served, body)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waits\n"
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=DEADLINE_S)
    assert waiting.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "ignored" not in err


def test_after_ctrl_c_the_client_goes_on_and_no_record_is_lost(
    client: tidelog.sync.Client, topic: str
) -> None:
    with client.consumer(auto_offset_reset="earliest") as consumer, client.producer() as producer:
        consumer.assign([(topic, 0)])
        with pytest.raises(KeyboardInterrupt):
            interrupted(consumer.getone)
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
        assert [consumer.getone().offset for _ in range(3)] == [0, 1, 2]
        assert client.metrics()["task_errors"] == 0


def interrupted(work: Callable[[], object]) -> object:
    """Do that, and be interrupted in the middle of it."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        return work()
    finally:
        timer.join()


def test_a_result_that_nobody_waits_for_any_more_is_undone() -> None:
    thread = LoopThread("test")
    undone: list[str] = []
    finish = threading.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            finish.set()
        return "done nevertheless"

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: thread.call_or(undone.append, stubborn))
    assert finish.is_set()
    assert undone == ["done nevertheless"]
    thread.end()


@pytest.mark.usefixtures("nothing_left")
def test_a_client_that_is_forgotten_says_so_and_ends(served: Served) -> None:
    with pytest.warns(ResourceWarning, match="was not closed"):
        forgotten(served)


def forgotten(served: Served) -> None:
    tidelog.sync.connect(served.bootstrap).metrics()
    gc.collect()
