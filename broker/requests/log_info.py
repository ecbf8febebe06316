"""GetReplicaLogInfo: the controller asks what this broker has of partitions that nobody leads (KIP-966; design 4.8)."""

from typing import cast

from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import FencedLeaderEpoch, StorageError, TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    GetReplicaLogInfo,
    GetReplicaLogInfoReply,
    PartitionIndex,
    ReplicaLogInfo,
)


def log_info(context: Context, incoming: Incoming) -> None:
    """What there is of each replica, in the name of this very process. No lease is needed: nothing is promised."""
    request, heard = cast("GetReplicaLogInfo", incoming.message), context.quorum_epoch()
    if request.quorum_epoch < heard:
        raise FencedLeaderEpoch(
            f"the controller that asks led in epoch {request.quorum_epoch} of the quorum, this broker has heard of "
            f"epoch {heard}"
        )
    incoming.reply(
        GetReplicaLogInfoReply(
            broker_epoch=context.replicas.around.my_epoch,
            crash_kind=context.crash_kind(),
            partitions=tuple(_entry(context, asked) for asked in request.partitions),
        )
    )


def _entry(context: Context, asked: PartitionIndex) -> ReplicaLogInfo:
    try:
        partition = context.replicas.at(asked.topic_id, asked.index)
        if partition.offline is not None:
            raise StorageError(f"{partition.name} is not served here: {partition.offline}")
    except TidelogError as error:
        return ReplicaLogInfo(asked.topic_id, asked.index, error.code, str(error))
    log = partition.log
    return ReplicaLogInfo(
        asked.topic_id,
        asked.index,
        last_epoch=log.epochs.latest,
        end_offset=log.end_offset,
        durable_offset=log.durable_offset,
    )
