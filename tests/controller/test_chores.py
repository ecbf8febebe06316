"""What an active controller does besides answering, and when it stops."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from tests.controller.book import TOPIC, Book, ids, partition
from tidelog.controller.chores import Chores
from tidelog.controller.recovery import Recovery
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import StorageError
from tidelog.protocol.io import Incoming, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    ElectLeaders,
    GetReplicaLogInfo,
    GetReplicaLogInfoReply,
    Hello,
    ReplicaLogInfo,
    Welcome,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.types import BrokerId
from tidelog.testing.ports import HOST


def chores() -> Chores:
    """Of a controller that has led since epoch 3, and nobody of whose two living replicas answers."""
    image = Book(partition((), (1,)), live=(2, 3), fenced=(1,)).image
    active: Any = SimpleNamespace(epoch=3, image=image, recovery=Recovery())
    nothing: Any = lambda *_: None  # noqa: E731 -- whatever it is asked
    return Chores(
        active,
        idle_ms=1000,
        now_ms=lambda: 0,
        spawn=nothing,
        drive=nothing,
        give_up=nothing,
        hello=Hello("test"),
        bounds=Bounds(DEFAULT),
    )


async def is_over(waiting: "asyncio.Task[None]") -> bool:
    """A few turns later."""
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting.done()


async def test_an_operators_election_waits_for_those_who_are_alive_and_no_longer_than_the_leadership() -> (
    None
):
    ours = chores()
    waiting = asyncio.create_task(ours.find(ElectLeaders(None, unclean=True, quorum_epoch=3)))
    assert not await is_over(waiting)
    ours.end()
    assert await is_over(waiting)


async def test_an_election_that_asks_nobody_waits_for_nothing() -> None:
    for request in (
        ElectLeaders(None, unclean=False, quorum_epoch=3),
        ElectLeaders(None, unclean=True, quorum_epoch=2),
        ElectLeaders((), unclean=True, quorum_epoch=3),
    ):
        await asyncio.wait_for(chores().find(request), 1)


async def test_an_operators_election_waits_for_half_of_its_own_time() -> None:
    begun_s = asyncio.get_running_loop().time()
    await chores().find(ElectLeaders(None, unclean=True, quorum_epoch=3, timeout_ms=100))
    assert asyncio.get_running_loop().time() - begun_s >= 0.049


async def test_a_broker_of_more_partitions_than_a_frame_can_tell_of_is_asked_in_several_requests() -> None:
    ours, told = chores(), list[int]()
    active: Any = ours._active
    active.recovery = SimpleNamespace(
        answered=lambda _, reply, __: told.extend(each.index for each in reply.partitions)
    )

    def serve(incoming: Incoming) -> None:
        asked = incoming.message
        if isinstance(asked, Hello):
            incoming.reply(Welcome())
            return
        assert isinstance(asked, GetReplicaLogInfo)
        why = "orders-0 is not served here: " + "/a/directory/of/this/broker " * 5
        entries = (
            ReplicaLogInfo(each.topic_id, each.index, StorageError.code, why) for each in asked.partitions
        )
        incoming.reply(GetReplicaLogInfoReply(partitions=tuple(entries)))

    listener = await listen(HOST, 0, serve)
    known = active.image.brokers
    known[BrokerId(2)] = replace(known[BrokerId(2)], host=HOST, port=listener.port)
    await ours._ask(BrokerId(2), [(TOPIC, index) for index in range(ENTRIES_MAX + 1)])
    listener.close()
    await listener.wait_closed()
    assert told == [*range(ENTRIES_MAX + 1)]


async def test_an_answer_is_told_with_the_leader_epoch_in_which_it_was_asked_for() -> None:
    ours, told = chores(), list[object]()
    active: Any = ours._active
    active.recovery = SimpleNamespace(answered=lambda *said: told.append(said[-1]))
    places = active.image.partitions
    before = places[TOPIC, 0]

    def serve(incoming: Incoming) -> None:
        if isinstance(incoming.message, Hello):
            incoming.reply(Welcome())
            return
        places[TOPIC, 0] = structs.replace(
            before, isr=ids(2), leader=BrokerId(2), leader_epoch=before.leader_epoch + 1
        )
        incoming.reply(GetReplicaLogInfoReply())

    listener = await listen(HOST, 0, serve)
    known = active.image.brokers
    known[BrokerId(2)] = replace(known[BrokerId(2)], host=HOST, port=listener.port)
    await ours._ask(BrokerId(2), [(TOPIC, 0), (TOPIC, 7)])
    listener.close()
    await listener.wait_closed()
    assert told == [{(TOPIC, 0): before.leader_epoch}], "the other one is gone"
