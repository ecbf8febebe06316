"""Which partitions a consumer without a group reads: all of its topics, or those that it was assigned.

What it keeps true: a topic that is not known is looked for, for a bounded time, and then its absence is told to who
reads; partitions that appear later are read from their start; what is gone is told.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from tidelog.client.io.fetcher import Fetcher
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.errors import TidelogError, UnknownTopicOrPartition
from tidelog.protocol.messages import EARLIEST
from tidelog.protocol.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.client.io.session import Session


class Subscription:
    """See the module. `begin`: these partitions may be read."""

    def __init__(
        self,
        client: "Session",
        config: ConsumerConfig,
        fetcher: Fetcher,
        begin: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._config = config
        self._client = client
        self._fetcher = fetcher
        self._begin = begin
        self._topics: dict[str, int] = {}
        """What is wanted, and how many partitions of each are assigned; -1: it was not looked at yet."""
        self._by_hand = False
        self._discovering = False
        self._wanted = asyncio.Event()
        """A topic is wanted that is not known."""

    def want(self, topics: Iterable[str], *, by_hand: bool = False) -> None:
        """These topics and no others, all their partitions unless those are assigned by hand. Looked for by `discover`."""
        self._by_hand = by_hand
        self._topics = dict.fromkeys(topics, -1)

    @property
    def empty(self) -> bool:
        """Whether nothing is wanted."""
        return not self._topics

    @property
    def knows_all(self) -> bool:
        """Whether every topic was found."""
        return all(count >= 0 for count in self._topics.values())

    def discover(self) -> None:
        """Look for what is not known, now."""
        for name in [name for name, count in self._topics.items() if count < 0]:
            if name in self._client.cluster.topics:
                self.learn(name)
        self._wanted.set()
        if not self._discovering and self._topics:
            self._discovering = True
            self._fetcher.spawn(self._keep_discovering())
        self._fetcher.stir()

    async def _keep_discovering(self) -> None:
        """Learn the topics, and look for new partitions once in a while."""
        try:
            while self._topics:
                for name in [name for name, count in self._topics.items() if count < 0]:
                    await self._client.topic(name, timeout=self._config.default_api_timeout_ms / 1000)
                    self.learn(name)
                if not self.knows_all:
                    continue  # subscribed to meanwhile
                self._wanted.clear()
                try:
                    async with asyncio.timeout(self._config.topic_refresh_ms / 1000):
                        await self._wanted.wait()
                except TimeoutError:
                    await self._fetcher.refresh(self._topics)
        except TidelogError as error:
            self._topics = {name: count for name, count in self._topics.items() if count >= 0}
            self._fetcher.fail(error)
        finally:
            self._discovering = False

    def learn(self, name: str) -> None:
        """Take what is known of the topic: its leaders, and partitions that are new."""
        fetching = self._fetcher.fetching
        topic = self._client.cluster.topics.get(name)
        if topic is None:
            if name in self._client.cluster.absent:
                fetching.gone(name)
                self._fetcher.arrived.set()
            return
        before = self._topics.get(name)
        if before is None:
            return
        if not self._by_hand and len(topic.partitions) > before:
            new = [TopicPartition(name, index) for index in range(max(before, 0), len(topic.partitions))]
            # What appears later was empty when the reading began: nothing of it may be missed.
            fetching.assign(new, None if before < 0 else EARLIEST)
            self._begin(new)
        self._topics[name] = len(topic.partitions)
        fetching.learn(topic)
        if self._by_hand:
            for each in fetching.readers.values():
                if each.name.topic == name and each.name.partition >= len(topic.partitions):
                    count = len(topic.partitions)
                    each.fail(UnknownTopicOrPartition(f"{each.name}: the topic has {count} partitions"))
        self._fetcher.stir()
        self._fetcher.arrived.set()
