"""What a fetcher makes of an answer: it counts for who asked, and one partition's trouble is its own."""

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Node
from tests.broker.test_partition import at
from tidelog.broker.fetcher import Fetcher, FetchSettings, Follow
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import LOOKS
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    DamagedLog,
    DiskFull,
    FencedLeaderEpoch,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from tidelog.protocol.io import Connection
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import (
    EndWait,
    EpochEnd,
    Fetch,
    FetchReply,
    PartitionFetch,
    PartitionFetched,
    Request,
)
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import Place
from tidelog.storage.log import Log

OTHER: Place = (TOPIC_ID, 1)


class Following:
    """Broker 1 follows broker 2 with two partitions, and has asked for both."""

    def __init__(self) -> None:
        self.node = Node()
        self.appended: list[tuple[Partition, int, int]] = []
        self.called: list[str] = []
        for place in (PLACE, OTHER):
            self.node.follow(2, place=place)
        self.fetcher = Fetcher(
            BrokerId(2),
            Follow(
                self.node.replicas,
                self.node.context.clocks,
                lambda _: None,
                Bounds(DEFAULT),
                FetchSettings(),
                Random(1),
                lambda *told: self.appended.append(told),
                lambda: self.called.append("save"),
                lambda: self.called.append("check"),
            ),
        )
        self.node.replicas.asks_anew = self.fetcher.moved
        self.ask()

    def ask(self) -> dict[Place, PartitionFetch]:
        """As a fetch does before it is sent: what is new in it."""
        self.fetcher._update()
        self.news, _ = self.fetcher._wanted.take()
        return self.news

    @property
    def asked(self) -> dict[Place, PartitionFetch]:
        """What the leader is asked for, when that is brought up to date."""
        self.ask()
        return {place: said for place, (_, said) in self.fetcher._wanted.asked.items()}

    def hear(self, *entries: PartitionFetched, data: bytes = b"") -> None:
        """The answer comes; nothing in it has to be waited for."""
        processing = self.fetcher._process(FetchReply(entries), data, self.news)
        with pytest.raises(StopIteration):
            processing.send(None)

    def partition(self, place: Place = PLACE) -> Partition:
        return self.node.replicas.partitions[place]

    def shows(self, place: Place = PLACE) -> bool:
        """Whether consumers may read from this replica."""
        asked = self.node.consume(0, place=place, client_rack="r", epoch=0, wait_ms=0)
        return not asked.error


def entry(place: Place = PLACE, **fields: Any) -> PartitionFetched:
    return PartitionFetched(*place, **{"high_watermark": 0, "log_start": 0, **fields})


def test_records_are_appended_and_to_be_flushed() -> None:
    following, batches = Following(), at(0, 3) + at(3)
    following.hear(entry(records_size=len(batches), high_watermark=2), data=batches)
    assert following.partition().high_watermark == 2
    assert following.appended == [(following.partition(), len(batches), 2)]


def test_an_answer_to_an_older_leadership_says_nothing() -> None:
    following, batch = Following(), at(0)
    following.node.follow(3)
    following.hear(entry(records_size=len(batch)), data=batch)
    assert following.partition().log.end_offset == 0
    assert not following.shows()


class Line:
    """A connection on which nothing is answered."""

    writable = True

    def __init__(self) -> None:
        self.sent: list[Request] = []

    def send(self, message: Request) -> None:
        self.sent.append(message)


def test_a_partition_that_the_leader_was_not_asked_for_ends_the_poll() -> None:
    following, line = Following(), Line()
    fetcher = following.fetcher
    fetcher._connection = cast("Connection", line)
    fetcher._may_hurry = True
    fetcher.moved(OTHER)
    fetcher.wake()
    assert line.sent == [], "all that is followed was asked for"
    fetcher._may_hurry = False
    following.node.follow(2, place=OTHER)
    fetcher.wake()
    assert line.sent == [], "nothing is asked yet, and what will be names every partition"
    fetcher._may_hurry = True
    fetcher.wake()
    assert line.sent == [EndWait()]
    fetcher.wake()
    assert line.sent == [EndWait()], "once is enough"


def test_silence_in_a_session_means_that_there_is_nothing_new() -> None:
    following = Following()
    following.hear()
    assert following.shows()
    assert following.shows(OTHER)


def test_silence_about_another_leadership_means_nothing() -> None:
    following = Following()
    following.node.follow(3, epoch=1)
    following.hear()
    assert following.partition()._heard_from_leader_ms is None


def test_where_the_logs_part_the_log_is_cut() -> None:
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch)), data=batch)
    following.node.follow(2)
    following.ask()
    following.hear(entry(diverging=EpochEnd(0, 0), high_watermark=-1))
    assert following.partition().log.end_offset == 0


def test_what_is_committed_there_says_nothing_of_records_that_part_from_it() -> None:
    """3.3: the high watermark comes with the next answer, when they are cut off."""
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch)), data=batch)
    following.node.follow(2)
    following.ask()
    following.hear(entry(diverging=EpochEnd(0, 0), high_watermark=3))
    log = following.partition().log
    assert (log.end_offset, following.partition().high_watermark, following.partition().offline) == (
        0,
        0,
        None,
    )


def test_trouble_with_one_partition_is_none_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch)), data=batch)
    following.node.follow(2)
    following.ask()

    def full(*_: Any) -> None:
        raise DiskFull("planted")

    monkeypatch.setattr(Log, "truncate_to", full)
    other = entry(OTHER, records_size=len(batch))
    following.hear(entry(diverging=EpochEnd(0, 0), high_watermark=-1), other, data=batch)
    assert following.partition(OTHER).log.end_offset == 3
    assert list(following.asked) == [OTHER]
    following.node.wait(1000)
    assert set(following.asked) == {PLACE, OTHER}


def test_who_is_behind_its_leader_asks_again_later() -> None:
    following = Following()
    following.hear(entry(error=UnknownLeaderEpoch.code))
    assert list(following.asked) == [OTHER]
    following.node.wait(100)
    assert set(following.asked) == {PLACE, OTHER}


def test_an_old_leadership_is_asked_for_no_more_until_there_is_a_new_one() -> None:
    following = Following()
    following.hear(entry(error=FencedLeaderEpoch.code))
    following.node.wait(60_000)
    assert list(following.asked) == [OTHER]
    following.node.follow(2)
    assert set(following.asked) == {PLACE, OTHER}


def test_who_hears_of_a_newer_process_with_its_id_asks_the_controller() -> None:
    following = Following()
    following.hear(entry(error=StaleBrokerEpoch.code))
    assert following.called == ["check"]


def test_a_log_start_that_was_raised_is_saved_before_it_is_told() -> None:
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch), high_watermark=3, log_start=2), data=batch)
    assert following.called == ["save"]
    assert following.partition().log.log_start == 2


def test_a_log_start_is_told_when_a_kill_would_not_take_it_back() -> None:
    """ADR 0079: the leader answers a deletion by what its followers tell."""
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch), high_watermark=3, log_start=2), data=batch)
    assert following.asked[PLACE].log_start == 0
    partition = following.partition()
    partition.log_start_saved(2, partition.begun_anew)
    following.node.replicas.log_start_saved(PLACE)
    assert following.asked[PLACE].log_start == 2


def test_what_is_told_to_be_durable_is_on_the_disk() -> None:
    """D7: in group mode the leader commits by it."""
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch), high_watermark=0), data=batch)
    told = following.asked[PLACE]
    assert (told.fetch_offset, told.durable_offset) == (3, 0)
    following.partition().log.flush()
    following.fetcher.moved(PLACE)
    assert following.asked[PLACE].durable_offset == 3


def test_whoever_has_nothing_new_to_say_asks_in_the_same_words_again() -> None:
    following = Following()
    first, news = following.asked, following.ask()
    assert news == {}
    assert all(following.asked[place] is first[place] for place in (PLACE, OTHER))


@pytest.mark.parametrize("what", ["appended", "durable", "log start", "leadership"])
def test_what_has_changed_is_asked_for_anew_and_nothing_else(what: str) -> None:
    following, batch = Following(), at(0, 3)
    following.hear(entry(records_size=len(batch), high_watermark=3, log_start=2), data=batch)
    before, partition = following.asked, following.partition()
    if what == "appended":
        more = at(3, 3)
        following.hear(entry(records_size=len(more), high_watermark=6), data=more)
    elif what == "durable":
        partition.log.flush()
        following.fetcher.moved(PLACE)
    elif what == "log start":
        partition.log_start_saved(2, partition.begun_anew)
        following.node.replicas.log_start_saved(PLACE)
    else:
        following.node.follow(2, epoch=7)
    assert list(following.ask()) == [PLACE]
    then = following.asked
    assert then[PLACE] != before[PLACE]
    assert then[OTHER] is before[OTHER]
    log = partition.log
    assert (then[PLACE].fetch_offset, then[PLACE].durable_offset) == (log.end_offset, log.durable_offset)
    assert then[PLACE].log_start == partition.saved_log_start
    assert then[PLACE].current_leader_epoch == partition.leader_epoch


@pytest.mark.parametrize("what", ["leadership", "another leader", "gone", "damage", "offline"])
def test_what_the_cluster_decides_and_what_is_found_out_is_looked_at_by_itself(what: str) -> None:
    """Nobody looks at all that is followed for it (ADR 115)."""
    following = Following()
    following.fetcher._session.answered(1)
    if what == "leadership":
        following.node.follow(2, epoch=7)
        assert following.asked[PLACE].current_leader_epoch == 7
        return
    if what == "another leader":
        following.node.follow(3)
    elif what == "gone":
        following.node.remove()
    elif what == "offline":
        following.partition().go_offline("planted")
    else:
        following.partition().found_damage(DamagedLog("planted", 0))
    assert list(following.asked) == [OTHER]


def test_what_nobody_has_told_is_found_when_all_is_looked_at_from_time_to_time() -> None:
    following, batch = Following(), at(0, 3)
    following.fetcher._session.answered(1)
    following.hear(entry(records_size=len(batch)), data=batch)
    following.ask()
    following.partition().log.flush()
    assert following.ask() == {}
    following.node.wait(following.node.replicas.around.lag_max_ms // LOOKS)
    assert following.ask()[PLACE].durable_offset == 3


# ── how long the leader may wait ──────────────────────────────────────────────────────────────────────


class Patient:
    """The leader, at the other end: it answers at once with these entries, and knows how long it could have waited."""

    closed = False

    def __init__(self) -> None:
        self.waits_ms: list[int] = []
        self.entries: tuple[PartitionFetched, ...] = ()

    async def call(self, request: Fetch, *, timeout_ms: int) -> tuple[FetchReply, bytes]:
        assert timeout_ms > request.max_wait_ms
        self.waits_ms.append(request.max_wait_ms)
        entries, self.entries = self.entries, ()
        return FetchReply(entries, session_id=1), b""


def poll(following: Following, times: int, **entries: Any) -> list[int]:
    """Fetch so often; for how long the leader could have waited."""
    fetcher, leader = following.fetcher, Patient()
    leader.entries = (entry(**entries),) if entries else ()
    fetcher._connection = cast("Connection", leader)
    fetcher._wanted._news |= following.news
    following.news = {}
    for _ in range(times):
        fetcher._update()
        fetching = fetcher._fetch()
        with pytest.raises(StopIteration):
            fetching.send(None)
    return leader.waits_ms


def test_the_leader_may_wait_the_longer_the_longer_there_are_no_news() -> None:
    assert poll(Following(), 6) == [500, 500, 1000, 2000, 2000, 2000]


def test_whatever_one_side_tells_the_other_is_followed_by_a_short_wait() -> None:
    following = Following()
    poll(following, 6)
    assert poll(following, 4, high_watermark=0) == [2000, 500, 1000, 2000]
    following.partition().log_start_saved(0, following.partition().begun_anew)
    following.node.follow(2, epoch=7)
    assert poll(following, 4) == [500, 500, 1000, 2000]


def test_who_is_not_in_sync_or_was_told_to_come_again_lets_nobody_wait_long() -> None:
    following = Following()
    poll(following, 6)
    following.node.adopt(place=OTHER, isr=(2, 3))
    assert poll(following, 3) == [500] * 3
    following.node.adopt(place=OTHER, isr=(1, 2, 3))
    assert poll(following, 1) == [2000]
    following.fetcher._wanted.come_back(OTHER, following.node.now_ms + 700)
    assert poll(following, 1) == [500]
    following.node.now_ms += 700
    assert poll(following, 4) == [500, 500, 1000, 2000], "what is over is forgotten"


def test_what_was_refused_is_asked_for_again_as_soon_as_its_delay_is_over() -> None:
    """A record of it that is there by then would wait for the end of this fetch, and its producer with it."""
    following = Following()
    following.fetcher._wanted.come_back(OTHER, following.node.now_ms + 50)
    assert poll(following, 1) == [50]
    assert OTHER not in following.asked
    following.node.now_ms += 50
    assert OTHER in following.asked


def test_delays_that_end_one_by_one_end_together_in_a_few_fetches() -> None:
    """A thousand partitions that were refused one after the other would end a thousand fetches."""
    following, ends_ms = Following(), set()
    for late_ms in range(100):
        at_ms = following.node.now_ms + late_ms
        following.fetcher._wanted.come_back(PLACE, at_ms)
        end_ms = following.fetcher._wanted.back_ms
        assert end_ms is not None
        assert at_ms <= end_ms < at_ms + 25
        ends_ms.add(end_ms)
    assert len(ends_ms) <= 5


def test_a_wait_is_never_longer_than_a_quarter_of_the_lag_allowed() -> None:
    following = Following()
    following.node.replicas.around = replace(following.node.replicas.around, lag_max_ms=2800)
    assert poll(following, 5) == [500, 500, 700, 700, 700]
