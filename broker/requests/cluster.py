"""DescribeCluster: every broker that is registered, and how the partitions are, as this broker's image says."""

from collections import Counter
from typing import Final, cast

from tidelog.broker.requests.context import Context
from tidelog.broker.requests.endpoints import endpoint
from tidelog.controller.image import BrokerState
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import BrokerDescribed, DescribeCluster, DescribeClusterReply, PossibleLoss
from tidelog.protocol.types import NO_BROKER, NO_EPOCH

LOSSES_MAX: Final = 1000
"""So many partitions that may have lost something are named."""


def describe_cluster(context: Context, incoming: Incoming) -> None:
    """The cluster at a glance; it may be behind."""
    image, request = context.image, cast("DescribeCluster", incoming.message)
    partitions = () if request.brokers_only else tuple(image.partitions.values())
    leads = Counter(p.leader for p in partitions)
    keeps = Counter(broker for p in partitions for broker in p.replicas)
    unclean = [p for p in partitions if p.unclean_epoch == p.leader_epoch != NO_EPOCH]
    incoming.reply(
        DescribeClusterReply(
            cluster_id=image.cluster_id.hex() if image.cluster_id is not None else "",
            metadata_offset=image.end_offset,
            quorum_epoch=context.quorum_epoch(),
            brokers=tuple(
                _broker(image.brokers[number], incoming, leads[number], keeps[number])
                for number in sorted(image.brokers)
            ),
            topics=len(image.topics),
            partitions=len(partitions),
            without_leader=leads[NO_BROKER],
            under_min_isr=sum(len(p.isr) < p.min_isr for p in partitions),
            under_replicated=sum(not set(p.replicas) - set(p.adding) <= set(p.isr) for p in partitions),
            moving=sum(bool(p.adding or p.removing) for p in partitions),
            unclean=len(unclean),
            possible_losses=tuple(
                PossibleLoss(image.topics[p.topic_id].name, p.index, p.leader_epoch, p.leader)
                for p in unclean[:LOSSES_MAX]
            ),
        )
    )


def _broker(state: BrokerState, incoming: Incoming, leads: int, keeps: int) -> BrokerDescribed:
    return BrokerDescribed(
        state.id,
        *endpoint(state, incoming),
        state.rack,
        state.epoch,
        state.fenced,
        state.shutting_down,
        leads,
        keeps,
        len(state.offline),
        state.low_space,
        len(state.damaged),
    )
