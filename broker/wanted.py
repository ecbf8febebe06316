"""What to ask of one leader: of all that is followed from it, only what has moved is looked at (ADR 115).

    moved, come_back, stop ──► update ──► asked: everything, as the next fetch asks for it
                                      └─► take: what is new in that, and what is gone

What it keeps true:

* Whatever may change what is to be asked is said here (`Replicas.asks_anew`, and whatever an answer spoke of). All is
  looked at from time to time, so that what somebody has not said is late, and never lost.
* A partition is asked for as its `Followership` asks, and anew where that is another one than before.
"""

from typing import Final, NamedTuple

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import LOOKS, Replicas
from tidelog.protocol.messages import PartitionFetch
from tidelog.protocol.types import BrokerId
from tidelog.replication.followership import Asked, Followership
from tidelog.replication.sessions import Place

_TOGETHER_MS: Final = 25
"""Delays end at multiples of this: a thousand that end one by one would end as many fetches."""


class Sent(NamedTuple):
    """Who asks, and for what: an answer counts for nobody else."""

    partition: Partition
    followership: Followership
    asked: Asked


class Wanted:
    """All that a leader is asked for."""

    def __init__(self, leader: BrokerId, replicas: Replicas, partition_max_bytes: int) -> None:
        self.asked: dict[Place, tuple[Sent, PartitionFetch]] = {}
        """For what, and in which words: most of the next request is as the last one."""
        self._leader = leader
        self._replicas = replicas
        self._partition_max_bytes = partition_max_bytes
        self._moved: dict[Place, None] = {}
        self._news: dict[Place, PartitionFetch] = {}
        self._gone: dict[Place, None] = {}
        self._not_before: dict[Place, int] = {}
        self._stopped: dict[Place, Followership] = {}
        self._looked_ms: int | None = None

    def moved(self, place: Place) -> None:
        """What is to be asked there may be something else."""
        self._moved[place] = None

    def come_back(self, place: Place, at_ms: int) -> None:
        """It is not asked for before that, and soon after."""
        self._not_before[place] = at_ms + -at_ms % _TOGETHER_MS
        self._moved[place] = None

    def stop(self, place: Place, followership: Followership) -> None:
        """In this leadership it is not asked for any more."""
        self._stopped[place] = followership
        self._moved[place] = None

    @property
    def back_ms(self) -> int | None:
        """When the next partition that waits may be asked for again."""
        return min(self._not_before.values(), default=None)

    def has_more(self) -> bool:
        """Whether there is something to ask for that is not asked for, or in another leadership."""
        for place in self._moved:
            partition, known = self._to_fetch(place), self.asked.get(place)
            if partition is not None and (
                known is None or known[0].followership is not partition.followership
            ):
                return True
        return False

    def update(self, now_ms: int, *, whole: bool) -> None:
        """Bring `asked` up to date. `whole`: look at everything, whether that is due or not."""
        for place in [place for place, at_ms in self._not_before.items() if at_ms <= now_ms]:
            del self._not_before[place]
            self._moved[place] = None
        last_ms, every_ms = self._looked_ms, self._replicas.around.lag_max_ms // LOOKS
        if whole or last_ms is None or now_ms - last_ms >= every_ms:
            self._looked_ms = now_ms
            self._moved |= dict.fromkeys(self.asked) | dict.fromkeys(self._replicas.followed(self._leader))
        moved, self._moved = self._moved, {}
        for place in moved:
            self._update(place)

    def take(self) -> tuple[dict[Place, PartitionFetch], dict[Place, None]]:
        """What the leader has not been told of `asked`, and what it is not asked for any more."""
        told, self._news, self._gone = (self._news, self._gone), {}, {}
        return told

    def _update(self, place: Place) -> None:
        partition, known = self._to_fetch(place), self.asked.get(place)
        if partition is None:
            if known is not None:
                del self.asked[place]
                self._gone[place] = None
                self._news.pop(place, None)
            return
        if known is not None and _is_as_before(*known, partition):
            return
        followership = partition.followership
        assert followership is not None, partition
        if known is not None and known[0].followership is not followership:
            self._gone[place] = None  # it began anew here, and may ask what was asked before
        sent = Sent(partition, followership, followership.ask(partition.view()))
        entry = self._entry(place, sent)
        self.asked[place], self._news[place] = (sent, entry), entry

    def _to_fetch(self, place: Place) -> Partition | None:
        """The partition, if this leader is to be asked for it now."""
        partition = self._replicas.partitions.get(place)
        if partition is None or not partition.fetches_from(self._leader):
            self._not_before.pop(place, None)
            self._stopped.pop(place, None)
            return None
        stopped = self._stopped.get(place) is partition.followership
        return None if stopped or place in self._not_before else partition

    def _entry(self, place: Place, sent: Sent) -> PartitionFetch:
        log = sent.partition.log
        return PartitionFetch(
            place[0],
            place[1],
            sent.asked.fetch_offset,
            self._partition_max_bytes,
            current_leader_epoch=sent.asked.leader_epoch,
            last_fetched_epoch=sent.asked.last_fetched_epoch,
            durable_offset=log.durable_offset,
            log_start=sent.partition.saved_log_start,
        )


def _is_as_before(sent: Sent, said: PartitionFetch, partition: Partition) -> bool:
    """Whether it would ask the same once more."""
    log, followership = partition.log, sent.followership
    return (
        partition is sent.partition
        and partition.followership is followership
        and followership.leading.leader_epoch == said.current_leader_epoch
        and log.end_offset == said.fetch_offset
        and log.epochs.latest == said.last_fetched_epoch
        and log.durable_offset == said.durable_offset
        and partition.saved_log_start == said.log_start
    )
