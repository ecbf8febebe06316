"""Flushed: a follower's disk has caught up (one-way; `flush.mode=group`)."""

import contextlib
from typing import cast

from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import Flushed
from tidelog.replication.fetch import is_prefix


def flushed(context: Context, incoming: Incoming) -> None:
    """Count what the follower has on stable storage; whatever is out of date is ignored, nobody waits for an answer."""
    request = cast("Flushed", incoming.message)
    now_ms = context.clocks.now_ms()
    for entry in request.partitions:
        with contextlib.suppress(TidelogError):
            partition = context.replicas.at(entry.topic_id, entry.index)
            leadership = partition.led(entry.current_leader_epoch, to_replica=True)
            leadership.check_replica(request.broker_id, request.broker_epoch)
            if not is_prefix(partition.log, entry.durable_offset, entry.last_epoch):
                continue  # it was said of records that were cut off since (ADR 0073)
            if leadership.on_flushed(request.broker_id, request.broker_epoch, entry.durable_offset, now_ms):
                context.replicas.touched((entry.topic_id, entry.index))
            context.replicas.look_at(partition)
