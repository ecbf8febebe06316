"""What scripted brokers answer to consumers."""

import asyncio
from typing import Any

from tests.client.scripted import ORDERS, Scripted
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    Fetch,
    FetchReply,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    PartitionFetched,
)
from tidelog.protocol.types import BrokerId


def offsets(brokers: Scripted, incoming: Incoming) -> None:
    """Partitions begin at 0; nothing else is answered."""
    if isinstance(incoming.message, ListOffsets):
        found = tuple(
            OffsetFound(each.topic_id, each.index, offset=0) for each in incoming.message.partitions
        )
        incoming.reply(ListOffsetsReply(found))
    else:
        brokers.unanswered.append(incoming)


def fetched(brokers: Scripted, *answers: tuple[FetchReply, bytes]) -> None:
    """Answer one fetch of partition 0 after the other so; others are told soon that there is nothing."""
    left = list(answers)

    def handle(_broker: BrokerId, incoming: Incoming) -> None:
        asked = incoming.message
        if not isinstance(asked, Fetch):
            offsets(brokers, incoming)
        elif left and any(each.index == 0 and each.fetch_offset < 4 for each in asked.partitions):
            reply, data = left.pop(0)
            incoming.reply(reply, data)
        else:
            asyncio.get_running_loop().call_later(0.02, nothing, incoming)

    brokers.handler = handle


def nothing(incoming: Incoming) -> None:
    """There is nothing to fetch."""
    if not incoming.closed:
        incoming.reply(FetchReply())


def entry(data: bytes = b"", **more: Any) -> tuple[FetchReply, bytes]:
    """An answer about partition 0."""
    told = PartitionFetched(ORDERS, 0, records_size=len(data), **{"high_watermark": 10, **more})
    return FetchReply((told,)), data
