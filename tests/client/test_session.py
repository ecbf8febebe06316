"""What producers, consumers and admin share: metadata, requests and tasks that end, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any

import pytest

from tests.client.nodes import HOST, until
from tests.client.scripted import Scripted, partition
from tests.client.simulated import in_virtual_time
from tests.client.test_connections import listening
from tidelog.client.cluster import Changes
from tidelog.client.config import Address
from tidelog.client.io.client import Client, connect
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    InvalidRequest,
    RequestTimedOut,
    Throttled,
    UnknownTopicOrPartition,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    CreateTopics,
    CreateTopicsReply,
    InitProducerId,
    InitProducerIdReply,
    ListReassignments,
    ListReassignmentsReply,
    Metadata,
    TopicMetadata,
)
from tidelog.protocol.types import BrokerId

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE, TWO = BrokerId(1), BrokerId(2)


@pytest.fixture
async def brokers(nothing_left: None) -> AsyncIterator[Scripted]:  # noqa: ARG001 -- it ends after this
    async with Scripted(2) as brokers:
        yield brokers


def refreshes(client: Client) -> float:
    """How often metadata was learned. Requests are more when the machine is busy: who is slow is not waited for."""
    return client.metrics()["refreshes"]


# ── to begin ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_client_knows_the_cluster_when_it_has_started(brokers: Scripted) -> None:
    async with brokers.client() as client:
        assert sorted(client.cluster.brokers) == [1, 2]
        assert client.cluster.cluster_id == "c"


async def test_a_client_can_be_awaited_as_well(brokers: Scripted) -> None:
    async with await brokers.client() as client:
        await client.start()
        assert refreshes(client) == 1


@pytest.mark.slow
async def test_a_start_that_fails_names_every_address_and_leaves_nothing(
    closed_port: Callable[[], int],
) -> None:
    refused = Address(HOST, closed_port())
    async with listening() as silent, listening(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20) as foreign:
        client = connect([str(refused), str(silent), str(foreign)], connect_timeout=1.5)
        with pytest.raises(ConnectionFailed) as caught:
            await client.start()
    assert str(caught.value).splitlines() == [
        "no broker can be reached:",
        f"  {refused}: Connection refused",
        f"  {silent}: no answer in 1500 ms",
        f"  {foreign}: " + str(caught.value).splitlines()[3].split(": ", 1)[1],
    ]
    assert "does not speak tidelog's protocol" in str(caught.value)
    with pytest.raises(ClientClosed):
        await client.start()


async def test_a_broker_that_is_starting_is_waited_for(brokers: Scripted) -> None:
    brokers.alive = []
    client = brokers.client()
    starting = asyncio.ensure_future(client.start())
    await until(lambda: brokers.count(Metadata) >= 2, "it has asked again")
    brokers.alive = [ONE]
    await starting
    assert sorted(client.cluster.brokers) == [1]
    await client.close()


# ── metadata ──────────────────────────────────────────────────────────────────────────────────────────


async def test_however_many_want_fresh_metadata_one_request_is_sent(brokers: Scripted) -> None:
    async with brokers.client() as client:
        before = refreshes(client)
        await asyncio.gather(*(client.refresh(["orders"]) for _ in range(50)))
        assert refreshes(client) == before + 1


async def test_whoever_wants_newer_metadata_waits_for_a_request_that_is_sent_after(brokers: Scripted) -> None:
    async with brokers.client() as client:
        brokers.mute = {ONE, TWO}
        first = asyncio.ensure_future(client.refresh(["orders"]))
        await until(lambda: brokers.unanswered, "the first request has come")
        others = [asyncio.ensure_future(client.refresh(["orders"], newer=True)) for _ in range(5)]
        joins = asyncio.ensure_future(client.refresh(["orders"]))
        await asyncio.sleep(0)
        brokers.mute = set()
        before = refreshes(client)
        brokers.unanswered[0].reply(brokers.metadata(Metadata(("orders",))))
        await asyncio.gather(first, joins)
        await asyncio.gather(*others)
        assert refreshes(client) == before + 2


async def test_topics_that_are_wanted_meanwhile_share_the_next_request(brokers: Scripted) -> None:
    async with brokers.client() as client:
        before = len(brokers.asked)
        await asyncio.gather(client.refresh(["orders"]), client.refresh(["bills"]), client.refresh())
        names = [request.names for _, request in brokers.asked[before:] if isinstance(request, Metadata)]
        assert set(names) == {("orders", "bills")}


async def test_a_request_that_asks_for_other_topics_is_not_enough(brokers: Scripted) -> None:
    async with brokers.client() as client:
        brokers.mute = {ONE, TWO}
        first = asyncio.ensure_future(client.refresh(["bills"]))
        await until(lambda: brokers.unanswered, "the first request has come")
        brokers.mute = set()
        second = asyncio.ensure_future(client.refresh(["orders"]))
        await asyncio.sleep(0)
        brokers.unanswered[0].reply(brokers.metadata(Metadata(("bills",))))
        await asyncio.gather(first, second)
        assert "orders" in client.cluster.topics


async def test_who_stops_waiting_for_metadata_takes_nothing_from_the_others(brokers: Scripted) -> None:
    async with brokers.client() as client:
        waiters = [asyncio.ensure_future(client.topic("orders")) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        assert (await waiters[1]) == (await waiters[2])
        assert (await client.topic("orders")).name == "orders"


async def test_a_known_topic_is_not_asked_for_again(brokers: Scripted) -> None:
    async with brokers.client() as client:
        await client.topic("orders")
        before = refreshes(client)
        assert len((await client.topic("orders")).partitions) == 2
        assert refreshes(client) == before


async def test_a_topic_that_appears_soon_is_waited_for(brokers: Scripted) -> None:
    async with brokers.client() as client:
        waiting = asyncio.ensure_future(client.topic("bills"))
        await until(lambda: brokers.count(Metadata) >= 2, "it has been asked for")
        brokers.offset += 1
        brokers.topics["bills"] = TopicMetadata(0, None, "bills", b"b" * 16, (partition(0),))
        assert (await waiting).id == b"b" * 16


@pytest.mark.slow
async def test_a_topic_that_does_not_appear_is_said_not_to_be_there(brokers: Scripted) -> None:
    loop = asyncio.get_running_loop()
    async with brokers.client() as client:
        began = loop.time()
        with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'bills'"):
            await client.topic("bills")
        assert loop.time() - began < 3


async def test_the_watchers_are_told_what_has_changed(brokers: Scripted) -> None:
    seen: list[Changes] = []
    async with brokers.client() as client:
        await client.topic("orders")
        unwatch = client.watch(seen.append)
        await client.refresh(newer=True)
        assert seen == []
        brokers.offset += 1
        brokers.topics["orders"] = TopicMetadata(
            0, None, "orders", b"o" * 16, (partition(0, 2, 1), partition(1))
        )
        await client.refresh(newer=True)
        assert [changes.topics for changes in seen] == [{"orders"}]
        unwatch()
        unwatch()


@pytest.mark.slow
async def test_a_silent_broker_does_not_keep_metadata_from_coming(brokers: Scripted) -> None:
    loop = asyncio.get_running_loop()
    async with brokers.client() as client:
        for broker in (ONE, TWO):
            await client.connection(broker)
        for broker in (ONE, TWO):
            brokers.mute = {broker}
            began = loop.time()
            await client.refresh(["orders"], newer=True)
            assert loop.time() - began < 2


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_ends_in_its_time_and_the_client_goes_on(brokers: Scripted) -> None:
    loop = asyncio.get_running_loop()
    async with brokers.client() as client:
        began = loop.time()
        with pytest.raises(RequestTimedOut, match="did not answer InitProducerId"):
            await client.call(ONE, InitProducerId(), timeout_ms=50)
        assert loop.time() - began < 1
        assert client.connections.at_hand(ONE) is not None, "a short patience says nothing about the broker"
        await client.refresh(newer=True)


async def test_a_connection_that_was_silent_for_a_whole_request_time_out_is_made_anew(
    brokers: Scripted,
) -> None:
    async with brokers.client(request_timeout_ms=80) as client:
        before = await client.connection(ONE)
        with pytest.raises(RequestTimedOut):
            await client.call(ONE, InitProducerId())
        assert client.connections.at_hand(ONE) is None
        assert await client.connection(ONE) is not before


async def test_any_broker_is_asked_until_one_answers(brokers: Scripted) -> None:
    refused: list[Exception] = []

    def handle(broker: BrokerId, incoming: Incoming) -> None:
        if len(refused) < 3:
            incoming.refuse(Throttled(f"broker {broker} is busy"))
        else:
            incoming.reply(ListReassignmentsReply(throttle_bytes_s=7))

    brokers.handler = handle
    async with brokers.client() as client:
        reply, _ = await client.call_any(ListReassignments(), on_retry=refused.append)
        assert isinstance(reply, ListReassignmentsReply)
        assert reply.throttle_bytes_s == 7
        assert {str(error) for error in refused} == {"broker 1 is busy", "broker 2 is busy"}


@pytest.mark.slow
async def test_a_broker_that_never_answers_leaves_time_for_another_one(brokers: Scripted) -> None:
    async with brokers.client() as client:
        for mute in (ONE, TWO):
            brokers.mute = {mute}
            brokers.handler = lambda _broker, incoming: incoming.reply(ListReassignmentsReply())
            reply, _ = await client.call_any(ListReassignments(), timeout_ms=2500)
            assert isinstance(reply, ListReassignmentsReply)


async def test_an_error_that_nothing_can_mend_is_raised_at_once(brokers: Scripted) -> None:
    brokers.handler = lambda _broker, incoming: incoming.reply(
        CreateTopicsReply(error=InvalidRequest.code, message="no")
    )
    async with brokers.client() as client:
        with pytest.raises(InvalidRequest, match="no"):
            await client.call_any(CreateTopics(()))
        assert brokers.count(CreateTopics) == 1


async def test_the_time_that_is_left_travels_with_the_request(brokers: Scripted) -> None:
    brokers.handler = lambda _broker, incoming: incoming.reply(CreateTopicsReply())
    async with brokers.client() as client:
        await client.call_any(CreateTopics(()), timeout_ms=5000)
        [request] = [request for _, request in brokers.asked if isinstance(request, CreateTopics)]
        assert 1500 <= request.timeout_ms <= 2500, "one attempt takes half of it"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────


class Child:
    """Something that notes when it was closed."""

    def __init__(self, name: str, order: list[str], error: Exception | None = None) -> None:
        self.name, self.order, self.error = name, order, error

    async def close(self) -> None:
        self.order.append(self.name)
        if self.error is not None:
            raise self.error

    def metrics(self) -> Mapping[str, float]:
        return {"records_sent": 2}


async def test_children_end_first_the_last_one_before_the_others(brokers: Scripted) -> None:
    order: list[str] = []
    async with brokers.client() as client:
        one, two = Child("one", order), Child("two", order)
        client.register(one)
        client.register(two)
        client.register(gone := Child("gone", order))
        client.unregister(gone)
        assert client.metrics()["records_sent"] == 4
    assert order == ["two", "one"]


async def test_a_child_finishes_what_it_has_begun_and_begins_nothing_new(brokers: Scripted) -> None:
    client = await brokers.client()
    seen: list[object] = []

    class Finishing(Child):
        async def close(self) -> None:
            seen.append((await client.topic("orders")).name)
            with pytest.raises(ClientClosed):
                client.register(Child("late", []))

    client.register(Finishing("one", []))
    await client.close()
    assert seen == ["orders"]
    with pytest.raises(ClientClosed):
        await client.refresh()


async def test_what_a_child_could_not_finish_is_raised_when_all_is_closed(brokers: Scripted) -> None:
    order: list[str] = []
    client = await brokers.client()
    client.register(Child("one", order, RequestTimedOut("one is late")))
    client.register(Child("two", order, ConnectionFailed("two is lost")))
    with pytest.raises(ConnectionFailed, match="two is lost") as caught:
        await client.close()
    assert caught.value.__notes__ == ["and RequestTimedOut: one is late"]
    assert order == ["two", "one"]
    assert len(client.connections) == 0


async def test_the_error_of_the_block_comes_before_those_of_closing(brokers: Scripted) -> None:
    async def use() -> None:
        async with brokers.client() as client:
            client.register(Child("one", [], ConnectionFailed("lost")))
            raise ValueError("the block's own")

    with pytest.raises(ValueError, match="the block's own") as caught:
        await use()
    assert caught.value.__notes__ == ["and when the client was closed: ConnectionFailed: lost"]


async def test_a_task_that_fails_is_reported_and_the_others_go_on(brokers: Scripted) -> None:
    loop = asyncio.get_running_loop()
    before, seen = loop.get_exception_handler(), []
    loop.set_exception_handler(lambda _loop, context: seen.append(context))

    async def fail() -> None:
        raise ValueError("a bug")

    async with brokers.client() as client:
        task = client.spawn(fail(), name="work")
        await until(task.done, "it has failed")
        await asyncio.sleep(0)
        assert client.metrics()["task_errors"] == 1
    loop.set_exception_handler(before)
    [context] = seen
    assert context["message"] == "a task of the client failed: work"
    assert isinstance(context["exception"], ValueError)


async def test_tasks_end_with_the_client(brokers: Scripted) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    async with brokers.client() as client:
        _ = client.spawn(work())
        await asyncio.sleep(0)
    assert ended == ["work"]


async def test_a_closed_client_says_so(brokers: Scripted) -> None:
    client = await brokers.client()
    await client.close()
    for refused in (
        client.start,
        client.refresh,
        lambda: client.topic("bills"),
        lambda: client.call(ONE, Metadata()),
    ):
        with pytest.raises(ClientClosed):
            await refused()
    await client.close()


async def test_whoever_waits_is_told_that_the_client_was_closed(brokers: Scripted) -> None:
    client = await brokers.client()
    brokers.mute = {ONE, TWO}
    waiting = [
        asyncio.ensure_future(client.topic("orders")),
        asyncio.ensure_future(client.refresh(newer=True)),
        asyncio.ensure_future(client.call_any(ListReassignments())),
    ]
    await until(lambda: len(brokers.unanswered) >= 2, "both have been asked")
    await client.close()
    for one in waiting:
        with pytest.raises((ClientClosed, ConnectionFailed)):
            await one


async def test_a_client_may_be_closed_before_it_starts(brokers: Scripted) -> None:
    await brokers.client().close()


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 200])
async def test_a_client_may_be_closed_while_it_starts(turns: int) -> None:
    async with listening() as silent:
        client, loop = connect(str(silent), connect_timeout=20), asyncio.get_running_loop()
        starting = [asyncio.ensure_future(client.start()) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        began = loop.time()
        await client.close()
        for one in starting:
            with pytest.raises(ClientClosed):
                await one
        assert loop.time() - began < 2


@in_virtual_time
async def test_a_topic_that_nobody_tells_of_says_who_was_asked() -> None:
    async with Scripted(2) as brokers, brokers.client(request_timeout_ms=100) as client:
        brokers.mute = {ONE, TWO}
        with pytest.raises(
            RequestTimedOut, match=r"'bills' is not known in time; last: .*no broker can be reached"
        ):
            await client.topic("bills", timeout=0.35)


async def test_who_is_cancelled_while_it_starts_leaves_it_to_others_who_wait(brokers: Scripted) -> None:
    client = brokers.client()
    first, second = asyncio.ensure_future(client.start()), asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    await client.refresh(newer=True)
    await client.close()


async def test_closing_twice_at_once_and_being_cancelled_in_it_still_closes(brokers: Scripted) -> None:
    client = await brokers.client()
    first, second = asyncio.ensure_future(client.close()), asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert len(client.connections) == 0


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_cancelled_leaves_the_client_usable(brokers: Scripted, seed: int) -> None:
    rng = Random(seed)
    brokers.handler = lambda _broker, incoming: incoming.reply(
        InitProducerIdReply() if isinstance(incoming.message, InitProducerId) else ListReassignmentsReply()
    )

    async def work(client: Client) -> Any:
        await client.refresh(newer=True)
        await client.connection(rng.choice([ONE, TWO]), rng.choice(["requests", "fetches"]))
        await client.call(rng.choice([ONE, TWO]), InitProducerId())
        await client.call_any(ListReassignments())
        return await client.topic("orders")

    async with brokers.client() as client:
        tasks = [asyncio.ensure_future(work(client)) for _ in range(8)]
        for task in tasks[:-2]:
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, tuple | asyncio.CancelledError) for result in results), results
        assert not isinstance(results[-1], BaseException)
        assert (await work(client)).name == "orders"
