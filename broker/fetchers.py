"""The fetchers of a broker: one for each leader that it follows in anything, and what they are told to tell."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tidelog.broker.fetcher import Fetcher, Follow
from tidelog.broker.partition import Partition
from tidelog.protocol.messages import Flushed, PartitionFlushed
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import Place


class Fetchers:
    """By leader."""

    def __init__(
        self, follow: Follow, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._follow = follow
        self._start = start
        self._running: dict[BrokerId, tuple[Fetcher, asyncio.Task[None]]] = {}
        follow.replicas.asks_anew = self._moved

    def fetch_from(self, leaders: set[BrokerId]) -> None:
        """Follow these and nobody else; each looks at once whether it is for other partitions than before."""
        for leader in [leader for leader in self._running if leader not in leaders]:
            self._running.pop(leader)[1].cancel()
        for leader in sorted(leaders):
            if leader not in self._running:
                fetcher = Fetcher(leader, self._follow)
                self._running[leader] = fetcher, self._start(fetcher.run())
            self._running[leader][0].wake()

    def _moved(self, place: Place) -> None:
        for fetcher, _ in self._running.values():
            fetcher.moved(place)

    def flushed(self, partitions: Iterable[Partition]) -> None:
        """Logs are durable further than before: tell the leaders that wait for it (DECISIONS 25)."""
        by_leader: dict[BrokerId, list[PartitionFlushed]] = {}
        for partition in partitions:
            following, state = partition.followership, partition.state
            if following is not None and state is not None and state.flush_group:
                log, leader_epoch = partition.log, following.leading.leader_epoch
                last_epoch = log.epochs.epoch_of(log.durable_offset - 1)
                told = PartitionFlushed(*state.place, leader_epoch, log.durable_offset, last_epoch)
                by_leader.setdefault(following.leading.leader, []).append(told)
                self._moved(state.place)  # should that be lost, the next fetch says it
        around = self._follow.replicas.around
        for leader, told_all in by_leader.items():
            known = self._running.get(leader)
            if known is not None:
                known[0].tell(Flushed(around.me, around.my_epoch, tuple(told_all)))
