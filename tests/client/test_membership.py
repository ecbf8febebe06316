"""A member says what it has, gives up what it is told to, and joins again when the group has gone on without it."""

from random import Random

import pytest

from tests.broker.groups_world import World
from tidelog.client.membership import (
    NOTHING,
    Assigned,
    Failed,
    Lose,
    Member,
    Membership,
    News,
    Revoke,
    Standing,
)
from tidelog.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    NotCoordinator,
    StaleMemberEpoch,
    TidelogError,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from tidelog.protocol.messages import GroupHeartbeat, GroupHeartbeatReply, TopicPartitions
from tidelog.protocol.types import NO_BROKER, BrokerId

TOPIC = bytes(15) + b"\x01"


def places(*indexes: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((TOPIC, index) for index in indexes)


class Talk:
    """A member, and somebody who answers for the coordinator."""

    def __init__(self, **options: str) -> None:
        self.now_ms = 0
        self.membership = Membership(Member(group_id="g", member_id="m", **options), Random(1))  # type: ignore[arg-type]
        self.membership.subscribe(["orders"], 0)

    def said(self) -> GroupHeartbeat:
        """What it says now."""
        request = self.membership.poll(self.now_ms)
        assert request is not None, self.membership
        return request

    def silent(self) -> bool:
        return self.membership.poll(self.now_ms) is None

    def hear(self, epoch: int, *indexes: int, sequence: int | None = None, unchanged: bool = False) -> None:
        assignment = None if unchanged else (TopicPartitions(TOPIC, indexes, "orders"),) if indexes else ()
        reply = GroupHeartbeatReply(member_epoch=epoch, heartbeat_interval_ms=5000, assignment=assignment)
        self.membership.answered(
            self.membership._sequence if sequence is None else sequence, reply, self.now_ms
        )

    def refuse(self, error: TidelogError) -> None:
        self.membership.unanswered(self.membership._sequence, error, self.now_ms)

    def news(self) -> News:
        news = self.membership.take()
        assert news is not None
        return news

    def done(self, news: News) -> None:
        assert isinstance(news, Revoke | Lose)
        self.membership.released(news, self.now_ms)


def having(*indexes: int, **options: str) -> Talk:
    """It has joined, and the user has heard of these partitions."""
    talk = Talk(**options)
    talk.said()
    talk.hear(1, *indexes)
    assert talk.news() == Assigned(places(*indexes), {TOPIC: "orders"})
    return talk


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────


def test_who_subscribes_joins_at_once_and_says_what_it_wants() -> None:
    request = Talk().said()
    assert (request.member_epoch, request.owned) == (0, None)
    assert request.subscription is not None
    assert request.subscription.topics == ("orders",)


def test_one_heartbeat_is_on_its_way_at_a_time() -> None:
    talk = Talk()
    talk.said()
    talk.now_ms = 99_999
    assert talk.silent()


def test_the_next_one_follows_after_the_interval_and_says_nothing_twice() -> None:
    talk = having(0)
    assert talk.membership.deadline_ms == 5000
    talk.now_ms = 4999
    assert talk.silent()
    talk.now_ms = 5000
    request = talk.said()
    assert (request.member_epoch, request.subscription, request.owned) == (1, None, None)


@pytest.mark.parametrize("known", [BrokerId(2), NO_BROKER])
def test_another_coordinator_is_told_everything_though_nothing_has_failed(known: BrokerId) -> None:
    """A commit was told who it is, say: what an older heartbeat has led to there, nobody has heard."""
    talk = having(0)
    wholes = []
    for coordinator in (BrokerId(1), BrokerId(1), known, BrokerId(2)):
        talk.now_ms += 5000
        request = talk.membership.poll(talk.now_ms, coordinator)
        assert request is not None
        assert (request.subscription is None) is (request.owned is None)
        wholes.append(request.owned is not None)
        talk.hear(1, unchanged=True)
    assert wholes == [False, False, True, False]


def test_another_wish_is_said_at_once_even_if_an_answer_is_awaited() -> None:
    talk = Talk()
    first = talk.said()
    talk.membership.subscribe(["events"], talk.now_ms)
    second = talk.said()
    assert second.sequence > first.sequence
    assert second.subscription is not None
    assert second.subscription.topics == ("events",)
    talk.hear(1, 0, sequence=first.sequence)
    assert talk.membership.owned == NOTHING, "that answers what it does not want any more"


def test_after_a_failure_everything_is_said_again_a_little_later() -> None:
    talk = having(0)
    talk.now_ms = 5000
    talk.said()
    waits = []
    for _ in range(12):
        talk.refuse(NotCoordinator())
        assert talk.membership.deadline_ms is not None
        waits.append(talk.membership.deadline_ms - talk.now_ms)
        talk.now_ms = talk.membership.deadline_ms
        request = talk.said()
        assert request.owned == (TopicPartitions(TOPIC, (0,)),)
        assert request.subscription is not None
    assert 25 <= waits[0] <= 50
    assert 500 <= waits[-1] <= 1000
    assert talk.membership.owned == places(0), "nobody has said that it is lost"


# ── to give up ────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_to_be_given_up_is_had_until_the_user_is_done_and_then_said_at_once() -> None:
    talk = having(0, 1)
    talk.now_ms = 5000
    talk.said()
    talk.hear(1, 0)
    news = talk.news()
    assert news == Revoke(places(1))
    assert (talk.membership.standing, talk.membership.owned) == (Standing.REVOKING, places(0, 1))
    talk.now_ms = 10_000
    request = talk.said()
    assert request.owned is None, "it lives, and has as much as it was given"
    talk.hear(1, unchanged=True)
    talk.done(news)
    request = talk.said()
    assert request.owned == (TopicPartitions(TOPIC, (0,)),)
    assert talk.membership.standing is Standing.STABLE


def test_the_user_is_asked_for_one_thing_after_the_other() -> None:
    talk = having(0, 1, 2)
    talk.now_ms = 5000
    talk.said()
    talk.hear(1, 0, 1)
    first = talk.news()
    talk.now_ms = 10_000
    talk.said()
    talk.hear(1, 0)
    assert talk.membership.take() is None
    talk.done(first)
    assert talk.news() == Revoke(places(1))


def test_what_is_new_is_told_once() -> None:
    talk = having(0)
    for _ in range(2):
        talk.now_ms += 5000
        talk.said()
        talk.hear(2, 0, 1)
    assert talk.news() == Assigned(places(1), {TOPIC: "orders"})
    assert talk.membership.take() is None


# ── to lose ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [FencedMemberEpoch(), UnknownMemberId(), GroupIdNotFound()])
def test_who_is_put_out_loses_all_and_joins_again_when_the_user_knows(error: TidelogError) -> None:
    talk = having(0, 1)
    talk.now_ms = 5000
    talk.said()
    talk.refuse(error)
    talk.now_ms = 50_000
    assert talk.silent()
    news = talk.news()
    assert news == Lose(places(0, 1), error)
    talk.done(news)
    request = talk.said()
    assert (request.member_epoch, request.owned) == (0, None)
    assert request.subscription is not None


def test_who_loses_while_it_gives_up_need_not_give_up() -> None:
    talk = having(0, 1)
    talk.now_ms = 5000
    talk.said()
    talk.hear(1, 0)
    revoke = talk.news()
    talk.now_ms = 10_000
    talk.said()
    talk.refuse(UnknownMemberId())
    talk.done(revoke)
    assert talk.membership.standing is Standing.LOSING, "that was another thing to be done with"
    talk.done(talk.news())
    assert talk.said().member_epoch == 0


def test_a_commit_that_is_refused_tells_a_member_that_it_was_put_out() -> None:
    talk = having(0)
    epoch, first = talk.membership.next_commit()
    assert (epoch, first, talk.membership.next_commit()) == (1, 1, (1, 2))
    assert not talk.membership.commit_refused(UnknownMemberId(), epoch, 0)
    assert isinstance(talk.news(), Lose)


def test_a_commit_of_a_stale_epoch_asks_the_coordinator_and_is_worth_another_try() -> None:
    talk = having(0)
    assert talk.membership.commit_refused(StaleMemberEpoch(), 1, 0)
    assert talk.said().owned is not None
    assert not talk.membership.commit_refused(InvalidRequest(), 1, 0)
    assert talk.membership.owned == places(0)


@pytest.mark.parametrize("error", [InvalidRequest(), UnsupportedAssignor(), FencedInstanceId()])
def test_what_nothing_mends_ends_it_and_reaches_the_user(error: TidelogError) -> None:
    talk = having(0)
    talk.now_ms = 5000
    talk.said()
    talk.refuse(error)
    assert talk.news() == Lose(places(0), error)
    assert talk.news() == Failed(error)
    talk.now_ms = 99_999
    assert talk.silent()
    assert talk.membership.standing is Standing.FAILED


def test_a_static_member_waits_for_the_process_before_it() -> None:
    talk = Talk(instance_id="i")
    talk.said()
    talk.refuse(UnreleasedInstanceId())
    assert talk.membership.standing is Standing.JOINING
    assert talk.membership.deadline_ms is not None


# ── to leave ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("options", "epoch"), [({}, -1), ({"instance_id": "i"}, -2)])
def test_who_closes_gives_everything_up_first(options: dict[str, str], epoch: int) -> None:
    talk = having(0, 1, **options)
    talk.membership.close(talk.now_ms)
    news = talk.news()
    assert news == Revoke(places(0, 1))
    talk.now_ms = 5000
    assert talk.said().member_epoch == 1, "it lives until it is done"
    talk.done(news)
    assert talk.said().member_epoch == epoch
    talk.hear(epoch)
    assert talk.membership.standing is Standing.LEFT
    talk.now_ms = 99_999
    assert talk.silent()


def test_who_closes_while_it_gives_something_up_gives_up_the_rest_as_well() -> None:
    talk = having(0, 1)
    talk.now_ms = 5000
    talk.said()
    talk.hear(1, 0)
    first = talk.news()
    talk.membership.close(talk.now_ms)
    talk.done(first)
    second = talk.news()
    assert second == Revoke(places(0))
    talk.done(second)
    assert talk.said().member_epoch == -1


def test_a_farewell_is_repeated_until_somebody_knows() -> None:
    talk = Talk()
    talk.said()
    talk.hear(1)
    talk.membership.close(talk.now_ms)
    assert talk.said().member_epoch == -1
    talk.refuse(NotCoordinator())
    assert talk.membership.deadline_ms is not None
    talk.now_ms = talk.membership.deadline_ms
    assert talk.said().member_epoch == -1
    talk.refuse(UnknownMemberId())
    assert talk.membership.standing is Standing.LEFT


def test_who_closes_and_loses_meanwhile_is_gone() -> None:
    talk = having(0)
    talk.membership.close(talk.now_ms)
    talk.news()
    talk.now_ms = 5000
    talk.said()
    talk.refuse(UnknownMemberId())
    assert isinstance(talk.news(), Lose)
    assert talk.membership.standing is Standing.LEFT


# ── with the coordinator ──────────────────────────────────────────────────────────────────────────────


def test_without_faults_everybody_is_content_within_two_heartbeats_of_a_change() -> None:
    world = World(1, faults=False)
    for name in "abcde":
        world.join(name)
    assert world.until_content(8_000) < 8_000
    world.living()[0].membership.close(world.now_ms)
    assert world.until_content(8_000) < 5_000, (
        "who leaves says so, and the others hear it at their next heartbeat"
    )
