"""A stream's progress in a group (`commitGroup`), where tools that know groups see its lag.

What it keeps true: only what Spark has finished is told; the stream itself never reads it: its place is the checkpoint. A
group that has members of its own is refused, for they would go on at the stream's offsets.
"""

import asyncio
import logging
from typing import Final

from tidelog.client.io.client import Client
from tidelog.client.io.coordinator import AtCoordinator
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import TidelogError, error_of
from tidelog.protocol.messages import OffsetCommit, OffsetCommitReply, OffsetToCommit
from tidelog.spark.offsets import StreamOffset

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 10.0


class Mirror:
    """One group, and what it was told."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: StreamOffset | None = None

    async def tell(self, client: Client, finished: StreamOffset) -> None:
        """All up to here is processed. What time may mend is tried again with the next micro-batch; what it cannot is raised."""
        if finished == self._told:
            return
        # A topic of an older checkpoint has no id until the next micro-batch is planned.
        entries = tuple(
            OffsetToCommit(finished.ids[name.topic], name.partition, offset)
            for name, offset in finished.offsets.items()
            if name.topic in finished.ids
        )
        if not entries:
            return
        deadline_ms = (asyncio.get_running_loop().time() + _PATIENCE_S) * 1000
        try:
            reply = await AtCoordinator(client, self._group).insist(
                lambda left_ms: OffsetCommit(self._group, entries, timeout_ms=left_ms),
                OffsetCommitReply,
                deadline_ms,
            )
            for entry in reply.partitions:
                if entry.error:
                    raise error_of(entry.error, f"commitGroup={self._group}: {entry.message or ''}")
        except TidelogError as error:
            if advice(error) is Advice.FATAL:
                raise
            logger.warning("spark.progress_not_mirrored group=%s reason=%s", self._group, error)
        else:
            self._told = finished
