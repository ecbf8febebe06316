"""Operations whose answers are lost, late or point elsewhere: what was done is not done twice, nor called an error."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.client.scripted import ORDERS, Scripted, partition
from tests.client.simulated import in_virtual_time
from tidelog.client.admin import NewTopic
from tidelog.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidPartitions,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    SeveralErrors,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    CreatedPartitions,
    CreatedTopic,
    CreatePartitions,
    CreatePartitionsReply,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    Leader,
    ListGroupsReply,
    ListOffsets,
    ListOffsetsReply,
    Metadata,
    OffsetFound,
    OffsetQuery,
    RemovedTopic,
    TopicMetadata,
)
from tidelog.protocol.types import BrokerId, TopicPartition

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE, TWO = BrokerId(1), BrokerId(2)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
async def brokers(nothing_left: None) -> AsyncIterator[Scripted]:  # noqa: ARG001 -- it ends after this
    async with Scripted(2) as brokers:
        yield brokers


# ── orders ────────────────────────────────────────────────────────────────────────────────────────────


def loses_the_first_answer(brokers: Scripted) -> None:
    """Whoever is asked first does it and dies before it answers; the next one finds that it is done."""

    def handle(_broker: BrokerId, incoming: Incoming) -> None:
        message = incoming.message
        if brokers.count(type(message)) == 1:
            incoming.connection.abort("it dies")
        elif isinstance(message, CreateTopics):
            told = CreatedTopic(message.topics[0].name, TopicAlreadyExists.code, "it exists")
            incoming.reply(CreateTopicsReply((told,)))
        elif isinstance(message, CreatePartitions):
            told_more = CreatedPartitions(message.topics[0].name, InvalidPartitions.code, "it has 2")
            incoming.reply(CreatePartitionsReply((told_more,)))
        else:
            assert isinstance(message, DeleteTopics)
            told_gone = RemovedTopic(message.names[0], None, UnknownTopicOrPartition.code, "there is none")
            incoming.reply(DeleteTopicsReply((told_gone,)))

    brokers.handler = handle


async def test_a_topic_that_an_unanswered_attempt_has_made_was_created(brokers: Scripted) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        [created] = await client.admin.create_topics(NewTopic("orders", 2, 1), wait=False)
        assert (created.topic_id, created.partitions, created.replication_factor) == (ORDERS, 2, 1)


async def test_a_topic_that_is_not_as_it_was_wanted_is_somebody_elses(brokers: Scripted) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        with pytest.raises(TopicAlreadyExists):
            await client.admin.create_topics(NewTopic("orders", 3, 1))


async def test_what_was_only_validated_has_made_no_topic(brokers: Scripted) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        with pytest.raises(TopicAlreadyExists):
            await client.admin.create_topics(NewTopic("orders", 2, 1), validate_only=True)


async def test_a_topic_that_was_there_when_it_was_first_asked_for_exists_already(brokers: Scripted) -> None:
    told = CreatedTopic("orders", TopicAlreadyExists.code, "it exists")
    brokers.handler = lambda _broker, incoming: incoming.reply(CreateTopicsReply((told,)))
    async with brokers.client() as client:
        with pytest.raises(TopicAlreadyExists, match="it exists"):
            await client.admin.create_topics(NewTopic("orders", 2, 1))


async def test_a_topic_that_an_unanswered_attempt_has_removed_was_deleted(brokers: Scripted) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        await client.admin.delete_topics("orders")
        with pytest.raises(UnknownTopicOrPartition):
            await client.admin.delete_topics("orders")


async def test_partitions_that_an_unanswered_attempt_has_added_were_added(brokers: Scripted) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        added = await client.admin.add_partitions("orders", 2, wait=False)
        assert (added.error, added.partitions) == (0, 2)
        with pytest.raises(InvalidPartitions, match="it has 2"):
            await client.admin.add_partitions("orders", 2)


@pytest.mark.parametrize(("count", "validate_only"), [(3, False), (1, False), (2, True)])
async def test_partitions_that_no_unanswered_attempt_can_have_added_are_refused(
    brokers: Scripted, count: int, *, validate_only: bool
) -> None:
    loses_the_first_answer(brokers)
    async with brokers.client() as client:
        with pytest.raises(InvalidPartitions, match="it has 2"):
            await client.admin.add_partitions("orders", count, validate_only=validate_only)


@in_virtual_time
async def test_a_topic_is_deleted_when_every_live_broker_has_read_so() -> None:
    brokers = Scripted(2)
    brokers.handler = lambda _broker, incoming: incoming.reply(
        DeleteTopicsReply((RemovedTopic("orders"),), metadata_offset=11)
    )
    behind = {ONE: 1, TWO: 2}

    def metadata(broker: BrokerId, incoming: Incoming) -> None:
        """Each looks at its log a little later than the other."""
        assert isinstance(incoming.message, Metadata)
        reply = brokers.metadata(incoming.message)
        if brokers.count(DeleteTopics):
            behind[broker] -= 1
        incoming.reply(msgspec.structs.replace(reply, metadata_offset=10 if behind[broker] > 0 else 11))

    brokers.on_metadata = metadata
    async with brokers, brokers.client() as client:
        await client.admin.delete_topics("orders")
        assert max(behind.values()) <= 0
        behind |= {ONE: 99, TWO: 99}
        await client.admin.delete_topics("orders", wait=False)
        with pytest.raises(
            RequestTimedOut, match="orders is deleted, and not every broker has read so: broker "
        ):
            await client.admin.delete_topics("orders", timeout=0.3)


async def test_an_answer_with_too_few_entries_is_an_error_and_no_riddle(brokers: Scripted) -> None:
    brokers.handler = lambda _broker, incoming: incoming.reply(CreateTopicsReply())
    async with brokers.client() as client:
        with pytest.raises(UnknownServerError, match="0 entries were answered, 1 were asked for"):
            await client.admin.create_topics("orders")


async def test_a_leader_that_answers_too_little_keeps_nobody_elses_answer_back(brokers: Scripted) -> None:
    def handle(broker: BrokerId, incoming: Incoming) -> None:
        assert isinstance(incoming.message, ListOffsets)
        found = (OffsetFound(each.topic_id, each.index, offset=7) for each in incoming.message.partitions)
        incoming.reply(ListOffsetsReply(() if broker == ONE else tuple(found)))

    brokers.handler = handle
    brokers.topics["orders"] = msgspec.structs.replace(
        brokers.topics["orders"], partitions=(partition(0), partition(1, leader=2))
    )
    async with brokers.client() as client:
        consumer = client.consumer()
        with pytest.raises(SeveralErrors, match="broker 1 answered 0 of 1 partitions") as caught:
            await consumer.end_offsets([FIRST, SECOND])
        assert list(caught.value.errors) == ["orders-0"]
        assert (await consumer.end_offsets([SECOND]))[SECOND] == 7


async def test_what_one_broker_refuses_ends_what_others_were_asked(brokers: Scripted) -> None:
    waiting: list[Incoming] = []

    def ask(broker: BrokerId, incoming: Incoming) -> None:
        if broker == ONE:
            waiting.append(incoming)
        else:
            brokers.unanswered.append(incoming)
        if len(waiting) == len(brokers.unanswered) == 1:
            waiting[0].reply(ListGroupsReply(InvalidRequest.code, "no"))

    brokers.handler = ask
    async with brokers.client() as client:
        tasks = len(asyncio.all_tasks())
        with pytest.raises(InvalidRequest, match="no"):
            await client.admin.list_groups()
        assert len(asyncio.all_tasks()) <= tasks, "nobody waits for the other one any more"


@in_virtual_time
async def test_a_list_of_groups_with_gaps_is_refused() -> None:
    brokers = Scripted(2)
    brokers.handler = lambda broker, incoming: incoming.reply(
        ListGroupsReply(partitions=(broker,), partition_count=4)
    )
    async with brokers, brokers.client() as client:
        with pytest.raises(CoordinatorNotAvailable, match=r"no broker leads partitions \[0, 3\]"):
            await client.admin.list_groups(timeout=0.3)


# ── questions to leaders ──────────────────────────────────────────────────────────────────────────────


def answers_offsets(brokers: Scripted, leaders: dict[int, BrokerId], *, hints: bool = False) -> None:
    """These brokers lead these partitions really, whatever the metadata says."""

    def found(broker: BrokerId, query: OffsetQuery) -> OffsetFound:
        where = query.topic_id, query.index
        leader = leaders.get(query.index)
        if leader is None:
            return OffsetFound(*where, error=InvalidRequest.code, message="never")
        if leader != broker:
            hint = Leader(leader, 1) if hints else None
            return OffsetFound(
                *where, error=NotLeaderOrFollower.code, message="not here", current_leader=hint
            )
        return OffsetFound(*where, offset=100 + query.index)

    def handle(broker: BrokerId, incoming: Incoming) -> None:
        assert isinstance(incoming.message, ListOffsets)
        incoming.reply(ListOffsetsReply(tuple(found(broker, query) for query in incoming.message.partitions)))

    brokers.handler = handle


async def test_a_hint_leads_to_the_leader_though_all_metadata_is_old(brokers: Scripted) -> None:
    answers_offsets(brokers, {0: ONE, 1: TWO}, hints=True)
    async with brokers.client() as client:
        found = await client.admin.list_offsets("orders")
        assert {where: one.offset for where, one in found.items()} == {FIRST: 100, SECOND: 101}
        asked = [broker for broker, request in brokers.asked if isinstance(request, ListOffsets)]
        assert asked == [ONE, TWO], "what is done is not asked again"


async def test_without_a_hint_the_metadata_is_looked_at_until_it_knows(brokers: Scripted) -> None:
    answers_offsets(brokers, {0: ONE, 1: TWO})
    async with brokers.client() as client:
        await client.topic("orders")
        moved = TopicMetadata(0, None, "orders", ORDERS, (partition(0), partition(1, 2, 1)))
        brokers.offset, brokers.topics["orders"] = 11, moved
        found = await client.admin.list_offsets([SECOND])
        assert found[SECOND].offset == 101


async def test_one_that_can_never_be_answered_does_not_keep_the_others_from_theirs(brokers: Scripted) -> None:
    answers_offsets(brokers, {0: ONE})
    async with brokers.client() as client:
        with pytest.raises(SeveralErrors, match="orders-1: INVALID_REQUEST: never") as caught:
            await client.admin.list_offsets("orders")
        assert list(caught.value.errors) == ["orders-1"]
        assert brokers.count(ListOffsets) == 1
