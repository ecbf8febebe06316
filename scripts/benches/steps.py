"""What a step of the replication machines costs: a leader told of a fetch, a follower told of its answer.

CPU time, next to making a named tuple and putting it into a dict. Of a leader's steps one in three is an append,
and two are followers' fetches, the second of which moves the high watermark.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, cpu_us, interleave

from tidelog.broker.leadership import Leadership, Surroundings
from tidelog.controller.image import PartitionState
from tidelog.protocol.messages import PartitionFetched
from tidelog.protocol.types import BrokerId, Epoch, Offset
from tidelog.replication.followership import Append, Followership, Leading, LogView
from tidelog.storage.epochs import LeaderEpochs

ME, FOLLOWERS = BrokerId(1), (BrokerId(2), BrokerId(3))
BROKER_EPOCH: Epoch = 7
EPOCH: Epoch = 3

_STEPS = Goal("figure", True, 100, "this bench: at a tenth of a core, 10,000 a second")


class _Entered(NamedTuple):
    """As small as a step can be."""

    offset: int
    epoch: int


def _leader() -> Leadership:
    return Leadership(
        Surroundings(ME, BROKER_EPOCH, lambda _: BROKER_EPOCH, lambda _: BROKER_EPOCH, 10_000),
        PartitionState(bytes(16), 0, (ME, *FOLLOWERS), (ME, *FOLLOWERS), ME, leader_epoch=EPOCH, min_isr=2),
        log_start=0,
        end_offset=0,
        durable_offset=0,
        high_watermark=0,
        now_ms=0,
    )


def _lead(count: int) -> None:
    """So many steps of a leader with two followers that keep up."""
    leader = _leader()
    for end in range(1, count // 3 + 1):
        leader.appended(end, end)
        for follower in FOLLOWERS:
            leader.on_fetch(
                follower,
                broker_epoch=BROKER_EPOCH,
                fetch_offset=end,
                durable_offset=end,
                log_start=0,
                now_ms=end,
            )
    assert leader.high_watermark == count // 3, leader


@dataclass(slots=True)
class _Log:
    """The log of a follower, as far as its rules look at it."""

    end_offset: Offset = 0
    high_watermark: Offset = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    def view(self) -> LogView:
        """As it is now."""
        return LogView(0, self.end_offset, self.high_watermark, self.epochs)


def _follow(count: int) -> None:
    """So many rounds of a follower: what to ask, and what the answer means."""
    log, follower = _Log(), Followership(Leading(ME, EPOCH))
    log.epochs.assign(EPOCH, 0)
    for end in range(1, count + 1):
        asked = follower.ask(log.view())
        answer = PartitionFetched(bytes(16), 0, high_watermark=end, log_start=0, records_size=100)
        assert follower.is_current(asked, log.view())
        step = follower.on_fetched(asked, answer, log.view())
        assert isinstance(step, Append)
        log.end_offset = end
        log.high_watermark = follower.new_high_watermark(step, log.view())
    assert log.high_watermark == count


def _enter(count: int) -> None:
    entered = {}
    for number in range(count):
        entered[number % 100] = _Entered(number, EPOCH)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    count = settings.count(60_000, 600)

    def rate(work: Callable[[int], None]) -> Callable[[], float]:
        return lambda: count * 1000 / cpu_us(lambda: work(count), 1)

    probes = {"lead": rate(_lead), "follow": rate(_follow), "enter": rate(_enter)}

    def take(number: int) -> Readings:
        return interleave(number, probes)

    yield take


_TUPLE = "a named tuple in a dict"
ROWS = (
    Row("leader: append or fetch", "k steps/s", "lead", "enter", _TUPLE, _STEPS),
    Row("follower: ask and take the answer", "k steps/s", "follow", "enter", _TUPLE, _STEPS),
)
BENCH = Bench("steps", "what the machines of replication cost", ROWS, _begin)
