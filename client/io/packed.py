"""A consumer whose batches keep their keys and values packed, for who makes other columns of them: Spark's source does.

What it keeps true: users of its batches see no difference; what cannot be unpacked is told when it is asked for.
"""

from typing import TYPE_CHECKING

from tidelog.client.io.consumer import Consumer
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.records import decode_packed

if TYPE_CHECKING:
    from tidelog.client.io.session import Session


class PackedConsumer(Consumer):
    """See the module. It reads what it is assigned."""

    def __init__(self, client: "Session", config: ConsumerConfig) -> None:
        super().__init__(client, (), config)
        self._fetching.unpack = decode_packed
