"""Metadata: who leads what, as this broker's image of the cluster says; it may be behind."""

import logging
from typing import Final, cast

from tidelog.broker.requests.context import Context
from tidelog.broker.requests.endpoints import endpoint
from tidelog.controller.image import Image, PartitionState, TopicState
from tidelog.protocol.errors import (
    LeaderNotAvailable,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    BrokerEndpoint,
    CreateTopics,
    CreateTopicsReply,
    Metadata,
    MetadataReply,
    NewTopic,
    PartitionMetadata,
    Reply,
    TopicMetadata,
)
from tidelog.protocol.settings import AUTO_CREATE, CLUSTER, flag
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch

logger = logging.getLogger(__name__)

CREATE_MS: Final = 10_000
"""How long the controller is asked to make a topic that somebody has asked for."""


def metadata(context: Context, incoming: Incoming) -> None:
    """Describe the brokers that are alive, at the addresses of the listener that asks, and the topics that are asked for."""
    request, image = cast("Metadata", incoming.message), context.image
    if request.all_topics:
        topics = [_topic(context, topic) for topic in image.topics.values()]
    else:
        topics = [_by_name(context, name) for name in request.names]
        if request.allow_create and flag(image.configs, CLUSTER, "", AUTO_CREATE):
            _create(context, [name for name in request.names if name not in image.topic_ids])
        topics += [_by_id(context, topic_id) for topic_id in request.ids]
    incoming.reply(
        MetadataReply(
            cluster_id=image.cluster_id.hex() if image.cluster_id is not None else "",
            controller_id=context.controller_id(),
            metadata_offset=image.end_offset,
            brokers=tuple(
                BrokerEndpoint(broker.id, *endpoint(broker, incoming), broker.rack)
                for broker in image.brokers.values()
                if not broker.fenced
            ),
            topics=tuple(topics),
        )
    )


def _create(context: Context, names: list[str]) -> None:
    """Have them made, each once at a time; whoever asked is told that they are missing, and asks again."""
    wanted = [name for name in names if name not in context.creating and not name.startswith("__")]
    if not wanted:
        return
    context.creating.update(wanted)

    def build(quorum_epoch: Epoch) -> CreateTopics:
        return CreateTopics(tuple(map(NewTopic, wanted)), quorum_epoch=quorum_epoch)

    def told(answer: Reply | TidelogError) -> None:
        context.creating.difference_update(wanted)
        said = [(",".join(wanted), str(answer))] if isinstance(answer, TidelogError) else []
        if isinstance(answer, CreateTopicsReply):
            said = [(one.name, one.message or "") for one in answer.topics if one.error]
        for name, why in said:
            logger.warning("topic.not_created topic=%s reason=%s", name, why)

    context.ask_controller(build, CREATE_MS, told)


def _by_name(context: Context, name: str) -> TopicMetadata:
    topic_id = context.image.topic_ids.get(name)
    if topic_id is None:
        return TopicMetadata(UnknownTopicOrPartition.code, f"there is no topic {name!r}", name)
    return _topic(context, context.image.topics[topic_id])


def _by_id(context: Context, topic_id: bytes) -> TopicMetadata:
    topic = context.image.topics.get(topic_id)
    if topic is None:
        return TopicMetadata(UnknownTopicId.code, f"no topic has the id {topic_id.hex()}", topic_id=topic_id)
    return _topic(context, topic)


def _topic(context: Context, topic: TopicState) -> TopicMetadata:
    image = context.image
    states = (image.partitions[topic.id, index] for index in range(topic.partitions))
    return TopicMetadata(
        name=topic.name,
        topic_id=topic.id,
        partitions=tuple(_partition(image, state) for state in states),
        internal=topic.name.startswith("__"),
        batch_bytes_max=context.replicas.batch_bytes_max(topic.name),
    )


def _partition(image: Image, state: PartitionState) -> PartitionMetadata:
    led = state.leader != NO_BROKER
    return PartitionMetadata(
        state.index,
        error=0 if led else LeaderNotAvailable.code,
        message=None if led else f"nobody leads since epoch {state.leader_epoch}",
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        offline=tuple(replica for replica in state.replicas if not _serves(image, replica, state)),
        elr=state.elr,
    )


def _serves(image: Image, replica: BrokerId, state: PartitionState) -> bool:
    """Also one that is about to stop does, until it has."""
    broker = image.brokers.get(replica)
    return broker is not None and not broker.fenced and state.place not in broker.offline
