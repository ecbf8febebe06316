"""Partitions move: begun, begun anew, cancelled, refused, throttled (design 4.11; ADR 76; KAFKA-15665, 9672, 13392)."""

from typing import Any

import pytest

from tests.controller.book import TOPIC, Book, ids, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import reassignment
from tidelog.controller.election import alive_for, change_in, fence, unfence
from tidelog.controller.facts import ConfigChanged
from tidelog.controller.image import PartitionState
from tidelog.controller.reassignment import alter_reassignments, list_reassignments, throttle_ends
from tidelog.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    TidelogError,
    UnknownTopicId,
)
from tidelog.protocol.messages import (
    AlterReassignments,
    ListReassignments,
    ListReassignmentsReply,
    PartitionIndex,
    PartitionMove,
    PartitionMoved,
)
from tidelog.protocol.settings import MOVE_RATE
from tidelog.protocol.types import BrokerId

RATE = ("cluster", "", MOVE_RATE)
FIVE = (1, 2, 3, 4, 5)


def to(*target: int, index: int = 0) -> PartitionMove:
    return PartitionMove(TOPIC, index, ids(*target))


def back(index: int = 0) -> PartitionMove:
    return PartitionMove(TOPIC, index, None)


def alter(book: Book, *moves: PartitionMove, **more: Any) -> tuple[PartitionMoved, ...]:
    answer = alter_reassignments(book.image, AlterReassignments(moves, **more))
    for facts in answer.batches:
        book.carry_out(facts)
    return answer.reply.partitions


def ok(book: Book, *moves: PartitionMove, **more: Any) -> PartitionState:
    assert [entry.message for entry in alter(book, *moves, **more)] == [None] * len(moves)
    return book.state()


def in_sync(book: Book, *isr: int, index: int = 0) -> PartitionState:
    """The leader proposes this ISR."""
    p = book.state(index)
    then = change_in(book.image, p, ids(*isr), alive_for(book.image, p.place))
    book.carry_out([then.changed()])
    return then


def who(p: PartitionState) -> tuple[tuple[int, ...], ...]:
    return p.replicas, p.adding, p.removing


# ── begin, go on, end ─────────────────────────────────────────────────────────────────────────────────


def test_a_move_begins_with_the_target_before_those_who_leave() -> None:
    p = ok(Book(partition((1, 2, 3)), live=FIVE), to(4, 3))
    assert who(p) == ((4, 3, 1, 2), (4,), (1, 2))
    assert (p.isr, p.leader, p.leader_epoch, p.partition_epoch) == ((1, 2, 3), 1, 5, 10)


def test_a_move_ends_when_all_of_its_target_are_in_sync() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    ok(book, to(4, 3))
    p = in_sync(book, 1, 2, 3, 4)
    assert who(p) == ((4, 3), (), ())
    assert (p.isr, p.leader, p.leader_epoch) == ((3, 4), 4, 6)


def test_a_move_to_who_is_in_sync_already_ends_at_once() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    [entry] = alter(book, to(2))
    assert (entry.replicas, entry.adding, entry.removing) == ((2,), (), ())
    p = book.state()
    assert (p.replicas, p.isr, p.leader, p.min_isr, p.leader_epoch) == ((2,), (2,), 2, 1, 6)


def test_another_order_is_another_preferred_leader_and_nothing_else() -> None:
    p = ok(Book(partition((1, 2, 3)), live=FIVE), to(3, 2, 1))
    assert (who(p), p.leader, p.leader_epoch, p.isr) == (((3, 2, 1), (), ()), 1, 5, (1, 2, 3))


def test_a_move_to_where_everything_is_says_nothing() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    assert alter_reassignments(book.image, AlterReassignments((to(1, 2, 3),))).batches == []


def test_more_replicas_raise_min_isr_to_what_is_configured_when_they_are_there() -> None:
    book = Book(partition((1,), replicas=(1,), min_isr=1), live=FIVE)
    assert ok(book, to(1, 2, 3)).min_isr == 1
    assert in_sync(book, 1, 2, 3).min_isr == 2


def test_a_new_target_that_is_there_already_ends_the_move_with_the_min_isr_that_is_configured() -> None:
    book = Book(partition((1, 2), replicas=(1, 2, 3), adding=(2, 3), min_isr=1), live=FIVE)
    p = ok(book, to(1, 2))
    assert (who(p), p.isr, p.min_isr) == (((1, 2), (), ()), (1, 2), 2)


def test_a_move_away_from_the_dead_needs_nothing_of_them() -> None:
    book = Book(partition((1, 2), replicas=(1, 2, 3)), live=(1, 2, 4), fenced=(3,))
    ok(book, to(1, 2, 4))
    p = in_sync(book, 1, 2, 4)
    assert who(p) == ((1, 2, 4), (), ())


def test_a_move_to_somebody_who_is_fenced_waits_and_says_for_whom() -> None:
    book = Book(partition((1, 2, 3)), live=(1, 2, 3), fenced=(4,))
    ok(book, to(1, 2, 4))
    [entry] = list_reassignments(book.image, ListReassignments()).partitions
    assert entry.waiting_for == (4,)


def test_a_partition_that_nobody_leads_may_be_moved() -> None:
    book = Book(partition((), (1, 2)), live=(3, 4), fenced=(1, 2))
    assert who(ok(book, to(3, 4))) == ((3, 4, 1, 2), (4,), (1, 2))


def test_a_move_to_one_that_waits_in_the_elr_ends_when_it_is_back_and_elected() -> None:
    """Nothing else would happen to that partition any more: it would be moving for ever."""
    book = Book(partition((), (1, 2), replicas=(1, 2)), live=(3,), fenced=(1, 2))
    assert who(ok(book, to(2))) == ((2, 1), (), (1,))
    book.carry_out(unfence(book.image, BrokerId(2)))
    p = book.state()
    assert (who(p), p.isr, p.leader, p.elr, p.min_isr) == (((2,), (), ()), (2,), 2, (), 1)


# ── begin anew, cancel ────────────────────────────────────────────────────────────────────────────────


def test_a_new_target_is_computed_from_the_original_replicas() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    ok(book, to(4, 3))
    p = ok(book, to(5, 1, 2))
    assert who(p) == ((5, 1, 2, 3), (5,), (3,))
    assert (p.isr, p.leader_epoch) == ((1, 2, 3), 6)


def test_who_was_to_come_and_is_not_any_more_leaves_the_isr() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    ok(book, to(4, 5))
    in_sync(book, 1, 2, 3, 4)
    p = ok(book, to(5))
    assert (who(p), p.isr, p.leader) == (((5, 1, 2, 3), (5,), (1, 2, 3)), (1, 2, 3), 1)


def test_a_cancelled_move_leaves_who_was_there_before() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    ok(book, to(4, 5))
    in_sync(book, 1, 2, 3, 4)
    p = ok(book, back())
    assert (set(p.replicas), p.adding, p.removing, p.isr) == ({1, 2, 3}, (), (), (1, 2, 3))
    assert (p.leader, p.leader_epoch) == (1, 6)


def test_a_leader_that_is_to_leave_with_a_cancel_is_followed_by_somebody_in_sync() -> None:
    book = Book(
        partition((1, 2, 4), replicas=(4, 5, 1, 2, 3), leader=4, adding=(4, 5), removing=(1, 2, 3)), live=FIVE
    )
    p = ok(book, back())
    assert (p.leader, p.isr, p.leader_epoch) == (1, (1, 2), 6)


# ── the guard (ADR 76) ────────────────────────────────────────────────────────────────────────────────


def one_left(book: Book) -> None:
    """4.11's own example: the only original replica in sync, and somebody who came."""
    ok(book, to(3, 4))
    book.carry_out(fence(book.image, ids(2)[0]))
    in_sync(book, 1, 3)
    assert (book.state().isr, book.state().elr) == ((1, 3), ())


def moving() -> Book:
    return Book(partition((1, 2), replicas=(1, 2)), live=FIVE)


def test_what_keeps_enough_complete_replicas_is_not_taken_away() -> None:
    book = moving()
    one_left(book)
    before = book.state()
    [entry] = alter(book, back())
    assert [alter(book, to(4))[0].message, book.state()] == [entry.message, before]
    assert entry.error == InvalidReplicaAssignment.code
    assert entry.message == (
        "partition 0: of [1, 3], who have every record, [1] would stay; at least 2 must: wait until others are in "
        "sync, or allow unclean.recovery"
    )


def test_who_is_in_the_elr_counts_as_complete() -> None:
    book = moving()
    one_left(book)
    book.carry_out(fence(book.image, ids(3)[0]))
    assert (book.state().isr, book.state().elr) == ((1,), (3,))
    assert alter(book, back())[0].error == InvalidReplicaAssignment.code


def test_who_allows_unclean_recovery_may_have_fewer() -> None:
    book = moving()
    one_left(book)
    book.say(ConfigChanged("topic", "orders", "unclean.recovery", "balanced"))
    assert ok(book, back()).isr == (1,)


def test_the_isr_is_never_emptied() -> None:
    book = Book(partition((4,), replicas=(4, 1), min_isr=1, adding=(4,), removing=(1,)), live=FIVE)
    book.say(ConfigChanged("topic", "orders", "unclean.recovery", "aggressive"))
    [entry] = alter(book, back())
    assert (entry.error, book.state().isr) == (InvalidReplicaAssignment.code, (4,))
    assert (
        entry.message
        == "partition 0: only [4] are in sync and would leave; at least one must stay: wait until others are"
    )


def test_who_leads_is_not_taken_away_where_nobody_could_follow() -> None:
    """A broker that shuts down is relieved in steps: it is in sync for a while, and will not lead."""
    book = Book(partition((1, 3), leader=1), live=FIVE)
    book.say(book.unfenced(3, shutting_down=True))
    [entry] = alter(book, to(3))
    assert entry.message == (
        "partition 0: broker 1 would leave, and of [3] nobody could lead: wait until they are back"
    )
    assert book.state().leader == 1


def test_where_there_was_less_already_no_more_is_asked() -> None:
    book = Book(partition((1,), replicas=(4, 1, 2), adding=(4,), removing=(1, 2)), live=FIVE)
    assert ok(book, back()).isr == (1,)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────

IMPOSSIBLE: dict[str, tuple[PartitionMove, type[TidelogError], str]] = {
    "nobody": (to(), InvalidReplicaAssignment, "distinct brokers, and at least one"),
    "somebody twice": (
        to(1, 1),
        InvalidReplicaAssignment,
        "cannot be kept by [1, 1]: it must be distinct brokers",
    ),
    "a stranger": (to(1, 9), InvalidReplicaAssignment, "brokers [9] are not registered, [1, 2, 3, 4] are"),
    "who shuts down": (
        to(1, 4),
        InvalidReplicaAssignment,
        "cannot go to brokers [4]: they are shutting down",
    ),
    "a cancel of nothing": (
        back(),
        NoReassignmentInProgress,
        "partition 0 is not being moved: [1, 2, 3] hold it",
    ),
    "no partition": (to(1, index=7), UnknownTopicId, "no partition 7 of orders: it has 1, numbered from 0"),
}


@pytest.mark.parametrize(("move", "error", "told"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_not_possible_is_refused(move: PartitionMove, error: type[TidelogError], told: str) -> None:
    book = Book(partition((1, 2, 3)), live=(1, 2, 3, 4))
    book.say(book.unfenced(4, shutting_down=True))
    before = book.image.to_bytes()
    [entry] = alter(book, move)
    assert (entry.error, book.image.to_bytes()) == (error.code, before)
    assert told in (entry.message or "")


def test_who_shuts_down_may_keep_what_it_has() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    book.say(book.unfenced(3, shutting_down=True))
    assert who(ok(book, to(3, 4))) == ((3, 4, 1, 2), (4,), (1, 2))


def test_a_partition_is_moved_once_in_a_request() -> None:
    with pytest.raises(InvalidRequest, match="orders-0 is named twice: once is accepted"):
        alter(Book(partition((1, 2)), live=FIVE), to(1), to(2))


def test_each_move_is_decided_by_itself() -> None:
    book = Book(partition((1, 2, 3)), partition((1, 2, 3), index=1), live=FIVE)
    assert [entry.error for entry in alter(book, to(9), to(4, index=1))] == [InvalidReplicaAssignment.code, 0]
    assert [bool(book.state(index).adding) for index in (0, 1)] == [False, True]


def test_what_is_only_validated_is_told_and_not_done() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    before = book.image.to_bytes()
    [entry] = alter(book, to(4, 3), throttle_bytes_s=7, validate_only=True)
    assert (entry.replicas, entry.adding, entry.removing) == ((4, 3, 1, 2), (4,), (1, 2))
    assert book.image.to_bytes() == before


# ── what goes on ──────────────────────────────────────────────────────────────────────────────────────


def listed(book: Book, *partitions: int) -> ListReassignmentsReply:
    asked = tuple(PartitionIndex(TOPIC, index) for index in partitions) or None
    return list_reassignments(book.image, ListReassignments(asked))


def test_what_is_being_moved_is_listed() -> None:
    book = Book(*(partition((1, 2, 3), index=index) for index in range(3)), live=FIVE)
    ok(book, to(4, 3), to(5, index=2))
    assert [entry.index for entry in listed(book).partitions] == [0, 2]
    assert [entry.index for entry in listed(book, 1, 2).partitions] == [2]
    first = listed(book).partitions[0]
    assert (first.replicas, first.adding, first.removing, first.isr) == (
        (4, 3, 1, 2),
        (4,),
        (1, 2),
        (1, 2, 3),
    )


def test_a_throttle_begins_with_a_move_and_ends_with_the_last() -> None:
    book = Book(partition((1, 2, 3)), partition((1, 2, 3), index=1), live=FIVE)
    ok(book, to(4), to(5, index=1), throttle_bytes_s=1000)
    assert (book.image.configs, listed(book).throttle_bytes_s) == ({RATE: "1000"}, 1000)
    in_sync(book, 1, 2, 3, 4)
    known, book.image.partitions = book.image.partitions, {}  # what it costs does not grow with them
    assert throttle_ends(book.image) == []
    book.image.partitions = known
    ok(book, back(index=1))
    book.carry_out(throttle_ends(book.image))
    assert book.image.configs == {}
    assert throttle_ends(book.image) == []


def test_a_throttle_is_changed_while_partitions_move() -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    ok(book, to(4), throttle_bytes_s=1000)
    alter(book, throttle_bytes_s=2000)
    assert listed(book).throttle_bytes_s == 2000
    alter(book)
    assert listed(book).throttle_bytes_s == 2000
    alter(book, throttle_bytes_s=0)
    assert book.image.configs == {}


@pytest.mark.parametrize("moves", [(), (to(9),), (to(2),)], ids=["none", "refused", "ended at once"])
def test_where_nothing_moves_there_is_no_throttle(moves: tuple[PartitionMove, ...]) -> None:
    book = Book(partition((1, 2, 3)), live=FIVE)
    alter(book, *moves, throttle_bytes_s=1000)
    assert book.image.configs == {}


BUGS = (
    Bug("no guard", "    _check_guard(image, p, assignment.replicas)\n", ""),
    Bug("the elr does not count as complete", "complete = {*p.isr, *p.elr}", "complete = {*p.isr}"),
    Bug("who has less may not cancel", "least = min(p.min_isr, len(complete))", "least = p.min_isr"),
    Bug("unclean recovery is not asked for", ' and unclean_recovery(image.configs, image.topics[p.topic_id].name) == "none"', ""),
    Bug("unclean recovery empties the isr", "if p.isr and not set(p.isr) & left:", "if False:"),
    Bug("min_isr as it was", "min_isr=configured_min_isr(image, p), ", ""),
    Bug("a new target follows the one before", "    before = original(p)\n", "    before = p.replicas\n"),
    Bug("the lead is taken from all", "if then.leader == NO_BROKER != p.leader:", "if False:"),
    Bug("strangers hold it", "    if strangers:", "    if False:"),
    Bug("who shuts down gets more", "    if stopping:", "    if False:"),
    Bug("who shuts down loses what it has", "if r not in p.replicas and image.brokers[r].shutting_down", "if image.brokers[r].shutting_down"),
    Bug("validated and done", "[] if request.validate_only else in_batches([throttle, *begun, *ended])", "in_batches([throttle, *begun, *ended])"),
    Bug("a throttle without a move", "if value is not None and not begun and", "if False and"),
    Bug("a throttle for ever", "or image.indexes.moving:", "or True:"),
    Bug("a throttle that ends with the first move", " or image.indexes.moving:", ":"),
    Bug("who is waited for is not told", "not image.can_lead(r, p.place)", "False"),
    Bug("those who leave are preferred", "Assignment((*target, *removing), adding, removing)", "Assignment((*removing, *target), adding, removing)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), reassignment, bug, monkeypatch)
