"""Registration, heartbeats and fencing (design 4.3 to 4.6; DECISIONS 2, 4; I-18, I-51, I-52)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.controller.book import CLUSTER, TOPIC, Book, ids, named, partition
from tests.controller.planted import Bug, fails, planted
from tidelog.controller import liveness
from tidelog.controller.facts import BrokerChanged, BrokerRegistered, Fact, NothingHappened, TopicRemoved
from tidelog.protocol.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidConfig,
    InvalidRegistration,
    StaleBrokerEpoch,
    TidelogError,
)
from tidelog.protocol.messages import BrokerHeartbeat, ListenerEndpoint, PartitionIndex, RegisterBroker
from tidelog.protocol.types import NO_BROKER, BrokerId
from tidelog.storage.crashes import CrashKind

ONE, TWO = ids(1, 2)
OUTSIDE = ListenerEndpoint("outside", "h", 2)
SESSION, SILENCE = 9000, 9900
LEASES = 5000
"""What a controller that was replaced may give away: its fetch time-out, and until it looks at its quorum."""


def comes_back(book: Book, *, kind: CrashKind = CrashKind.PROCESS, **more: Any) -> RegisterBroker:
    """Broker 1 starts again, with everything on record."""
    fields: dict[str, Any] = {
        "broker_id": ONE,
        "quorum_epoch": 1,
        "incarnation_id": named("new process"),
        "directory_id": named("disk 1"),
        "host": "127.0.0.1",
        "port": 9001,
        "cluster_id": CLUSTER.hex(),
        "crash_kind": kind,
        "prev_broker_epoch": book.epoch(1) if ONE in book.image.brokers else -1,
        "incarnation_ids": (named("process 1"), named("new process")),
        "start": 2,
    }
    return RegisterBroker(**fields | more)


def registers(module: Any, book: Book, *, live: bool = True, **more: Any) -> list[Fact]:
    result = module.register(
        book.image, comes_back(book, **more), book.image.end_offset, session_is_live=live
    )
    book.carry_out(result.facts)
    assert book.epoch(1) == result.broker_epoch
    return result.facts  # type: ignore[no-any-return]


# ── registration ──────────────────────────────────────────────────────────────────────────────────────


def the_epoch_is_the_offset_of_the_record(module: Any) -> None:
    book = Book(partition((1, 2)), partition((2, 1), index=1))
    end = book.image.end_offset
    facts = registers(module, book)
    assert isinstance(facts[-1], BrokerRegistered)
    assert (len(facts), book.epoch(1), book.image.live_epoch(ONE)) == (3, end + 2, None)


def a_lost_answer_is_given_again(module: Any) -> None:
    book = Book(partition((1, 2)))
    assert registers(module, book, incarnation_id=named("process 1")) == []
    assert book.state().isr == (1, 2)


def an_earlier_start_that_comes_late_is_refused(module: Any) -> None:
    book = Book(partition((1, 2)))
    registers(module, book, start=5, incarnation_id=named("the fifth"))
    late = comes_back(book, start=4, incarnation_id=named("the fourth"))
    with pytest.raises(InvalidRegistration, match=r"start 4 .* comes too late, start 5 is registered"):
        module.register(book.image, late, book.image.end_offset, session_is_live=True)
    assert book.image.brokers[ONE].incarnation_id == named("the fifth")
    assert module.start_in_force(book.image, late) == 5


def the_same_start_is_registered_once(module: Any) -> None:
    book = Book(partition((1, 2)))
    assert registers(module, book, start=5) != []
    assert (registers(module, book, start=5), book.image.brokers[ONE].start) == ([], 5)


def a_start_that_could_not_be_counted_takes_over_from_its_like(module: Any) -> None:
    book = Book(partition((1, 2)))
    registers(module, book, start=5)
    names = (named("process 1"), named("on a full disk"))
    registers(module, book, start=5, incarnation_id=names[-1], incarnation_ids=names)
    assert book.state().elr == (), "its predecessor's name was not written down either"


def another_disk_counts_for_itself(module: Any) -> None:
    book = Book()
    registers(module, book, start=5)
    other = {"directory_id": named("another disk"), "incarnation_id": named("elsewhere")}
    registers(module, book, live=False, start=1, **other)
    assert book.image.brokers[ONE].start == 1


def who_comes_back_on_a_new_disk_while_the_old_process_lives_is_refused(module: Any) -> None:
    with pytest.raises(DuplicateBrokerRegistration):
        registers(module, Book(), directory_id=named("another disk"))


def who_has_the_lock_of_the_disk_takes_over(module: Any) -> None:
    book = Book(partition((1, 2)))
    registers(module, book)
    assert (book.state().isr, book.state().elr) == ((2,), (1,))


def who_is_silent_or_fenced_may_be_replaced(module: Any) -> None:
    registers(module, Book(), live=False, directory_id=named("another disk"))
    registers(module, Book(live=(2,), fenced=(1,)), live=True, directory_id=named("another disk"))


def a_disk_of_another_cluster_is_refused(module: Any) -> None:
    with pytest.raises(InconsistentClusterId):
        registers(module, Book(), cluster_id=named("elsewhere").hex())


def a_broker_that_cannot_be_reached_is_refused(module: Any) -> None:
    for wrong in ({"host": ""}, {"host": "broker..3"}, {"port": 0}, {"broker_id": NO_BROKER}):
        with pytest.raises(InvalidRegistration):
            module.register(Book().image, comes_back(Book(), **wrong), 9, session_is_live=False)


def the_other_listeners_are_registered_as_well(module: Any) -> None:
    book = Book()
    registers(module, book, listeners=(OUTSIDE,))
    assert book.image.brokers[ONE].listeners == (OUTSIDE,)


def a_listener_that_cannot_be_reached_is_refused(module: Any) -> None:
    nameless, nowhere = ListenerEndpoint("", "h", 1), ListenerEndpoint("inside", "h", 0)
    mistyped = ListenerEndpoint("inside", "broker..3", 1)
    for wrong in ((nameless,), (nowhere,), (mistyped,), (OUTSIDE, OUTSIDE)):
        with pytest.raises(InvalidRegistration, match="a name of its own, a host and a port"):
            module.register(Book().image, comes_back(Book(), listeners=wrong), 9, session_is_live=False)


# ── what the last end cost ────────────────────────────────────────────────────────────────────────────

LOSSES: dict[str, tuple[dict[str, Any], bool, bool]] = {
    # what is said: whether an asynchronous and a flushing partition count as lossy
    "a clean stop": ({"kind": CrashKind.CLEAN}, False, False),
    "a kill": ({"kind": CrashKind.PROCESS}, False, False),
    "the death of the machine": ({"kind": CrashKind.HOST}, True, False),
    "damage": ({"kind": CrashKind.DAMAGED}, True, True),
    "nothing is known of the end": ({"kind": CrashKind.NEW}, True, True),
    "another disk": ({"directory_id": named("another disk"), "live": False}, True, True),
    "whoever is registered is not known there": ({"incarnation_ids": (named("new process"),)}, True, True),
    "a copy from before knows the epoch and not the name": ({"incarnation_ids": (), "start": 9}, True, True),
    "a kill before the answer was on record": ({"prev_broker_epoch": -1}, False, False),
    "the death of the machine before the answer was on record": (
        {"prev_broker_epoch": -1, "kind": CrashKind.HOST},
        True,
        False,
    ),
}


def what_the_last_end_cost(module: Any, said: str) -> None:
    more, asynchronous, flushing = LOSSES[said]
    book = Book(partition((1, 2)), partition((1, 2), index=1, flush_group=True))
    registers(module, book, **more)
    assert [ONE not in book.state(index).elr for index in (0, 1)] == [asynchronous, flushing], said


@pytest.mark.parametrize("said", LOSSES)
def test_an_end_costs_each_partition_what_its_flush_mode_says(said: str) -> None:
    what_the_last_end_cost(liveness, said)


def a_broker_that_was_unregistered_has_lost_what_it_was_guaranteed_to_have(module: Any) -> None:
    book = Book(partition((2,), (4,), replicas=(2, 4)), fenced=(4,))
    request = comes_back(book, broker_id=BrokerId(4), directory_id=named("disk of yore"))
    book.carry_out(module.register(book.image, request, book.image.end_offset, session_is_live=False).facts)
    assert (book.state().elr, book.state().last_known_elr) == ((), ())


# ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────


class Beats:
    """A controller that hears heartbeats of broker 1."""

    def __init__(self, module: Any, book: Book, now_ms: int = 0) -> None:
        self.module = module
        self.book = book
        self.now_ms = now_ms
        unfenced = [broker for broker, state in book.image.brokers.items() if not state.fenced]
        self.sessions = module.Sessions(module.LivenessConfig(), unfenced, now_ms, book.image.end_offset)
        self.carry_out([NothingHappened()])

    def beat(self, number: int = 1, *, read: int | None = None, **more: Any) -> Any:
        end = self.book.image.end_offset if read is None else read
        request = BrokerHeartbeat(BrokerId(number), self.book.epoch(number), 1, end, **more)
        self.sessions.heard(request.broker_id, self.now_ms, request.metadata_offset)
        while (result := self.module.beat(self.book.image, self.sessions, request, self.now_ms)).goes_on:
            self.carry_out(result.facts)
        self.carry_out(result.facts)
        self.renewed = self.sessions.renews(request)
        assert result.fenced == self.book.image.brokers[BrokerId(number)].fenced
        if result.begins_shutdown:
            self.sessions.relieved(BrokerId(number), self.book.image.end_offset, self.now_ms)
        return result

    def carry_out(self, facts: list[Fact]) -> None:
        """What was decided is appended."""
        self.sessions.appended(facts, self.book.image.end_offset, self.book.image)
        self.book.carry_out(facts)

    def becomes(self, **changed: Any) -> None:
        """Something is decided about the partition."""
        state = self.book.state()
        self.carry_out([replace(state, partition_epoch=state.partition_epoch + 1, **changed).changed()])

    def renews(self, read: int, number: int = 1) -> bool:
        """Whether a heartbeat renews the lease of a broker that has read so far."""
        self.beat(number, read=read)
        return bool(self.renewed)


def who_has_read_its_registration_is_unfenced(module: Any) -> None:
    beats = Beats(module, Book(fenced=(1,), live=(2,)))
    assert beats.beat(read=beats.book.epoch(1)).fenced
    assert not beats.beat(read=beats.book.epoch(1) + 1).fenced


def who_wants_to_be_fenced_is_and_stays_so(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2))))
    assert beats.beat(want_fence=True).fenced
    end = beats.book.image.end_offset
    assert beats.beat(want_fence=True).fenced
    assert (beats.book.state().leader, beats.book.image.end_offset) == (2, end)


def who_is_fenced_may_stop_at_once(module: Any) -> None:
    beats = Beats(module, Book(fenced=(1,), live=(2,)))
    result = beats.beat(want_shutdown=True)
    assert (result.should_shutdown, result.fenced, result.facts) == (True, True, [])


def who_stops_waits_until_the_others_have_read_of_it(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    assert not beats.beat(want_shutdown=True).should_shutdown
    assert beats.book.state().leader == 2
    assert not beats.beat(want_shutdown=True).should_shutdown
    beats.beat(2)
    result = beats.beat(want_shutdown=True)
    assert (result.should_shutdown, result.fenced) == (True, True)


def who_stops_waits_for_nobody_longer_than_half_a_minute(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    beats.beat(want_shutdown=True)
    beats.now_ms += 29_999
    assert not beats.beat(want_shutdown=True).should_shutdown
    beats.now_ms += 1
    assert beats.beat(want_shutdown=True).should_shutdown


def another_controller_goes_on_with_a_shutdown(module: Any) -> None:
    book = Book(partition((1, 2)), live=(1, 2))
    Beats(module, book).beat(want_shutdown=True)
    successor = Beats(module, book)
    assert not successor.beat(want_shutdown=True).should_shutdown
    successor.beat(2)
    assert successor.beat(want_shutdown=True).should_shutdown


def what_cannot_be_served_is_led_by_others(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2))))
    offline = (PartitionIndex(TOPIC, 0),)
    assert not beats.beat(offline=offline).fenced
    assert beats.book.state().leader == 2
    assert beats.beat(offline=offline).facts == []


def what_cannot_be_served_is_known_before_its_broker_is_unfenced(module: Any) -> None:
    beats = Beats(module, Book(partition((), (1,)), fenced=(1,), live=(2,)))
    offline = (PartitionIndex(TOPIC, 0),)
    assert beats.beat(offline=offline).fenced
    assert not beats.beat(offline=offline).fenced
    assert beats.book.state().leader == NO_BROKER


def what_is_served_again_is_led_again(module: Any) -> None:
    beats = Beats(module, Book(partition((1,), replicas=(1,), min_isr=1)))
    beats.beat(offline=(PartitionIndex(TOPIC, 0),))
    assert (beats.book.state().leader, beats.book.image.brokers[ONE].offline) == (
        NO_BROKER,
        frozenset({(TOPIC, 0)}),
    )
    beats.beat()
    assert (beats.book.state().leader, beats.book.image.brokers[ONE].offline) == (ONE, frozenset())


def what_is_served_again_is_known_before_its_broker_is_unfenced(module: Any) -> None:
    beats = Beats(module, Book(partition((), (1,)), fenced=(1,), live=(2,)))
    beats.beat(offline=(PartitionIndex(TOPIC, 0),))
    assert beats.beat().fenced
    assert not beats.beat().fenced
    assert beats.book.state().leader == ONE


def who_has_not_read_its_registration_takes_nothing_back(module: Any) -> None:
    """It does not know yet what it should have, and names nothing."""
    beats = Beats(module, Book(partition((), (1,)), fenced=(1,), live=(2,)))
    beats.beat(offline=(PartitionIndex(TOPIC, 0),))
    beats.beat(read=beats.book.epoch(1))
    assert beats.book.image.brokers[ONE].offline == {(TOPIC, 0)}


def a_heartbeat_of_another_registration_is_refused(module: Any) -> None:
    book = Book()
    with pytest.raises(StaleBrokerEpoch):
        module.check_broker(book.image, ONE, book.epoch(1) - 1)
    with pytest.raises(BrokerIdNotRegistered):
        module.check_broker(book.image, BrokerId(9), 1)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────


def a_lease_needs_what_was_taken_to_be_read(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    taken = beats.book.image.end_offset
    assert beats.renews(taken)
    beats.becomes(leader=TWO, leader_epoch=6)
    beats.carry_out([NothingHappened()])
    assert not beats.renews(taken)
    assert beats.renews(taken + 1), "an offset is an end, and this one is behind the record"
    assert beats.renews(taken, 2), "nothing was taken from the other"


def the_last_record_that_took_something_counts(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), partition((1, 2), index=1), live=(1, 2)))
    first = beats.book.image.end_offset
    beats.carry_out(module.fence(beats.book.image, ONE))
    beats.carry_out(module.unfence(beats.book.image, ONE))
    assert [beats.renews(first + read) for read in (0, 1, 2)] == [False, False, True]


def a_leadership_that_changes_twice_in_a_batch_was_taken_twice(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    state, base = beats.book.state(), beats.book.image.end_offset
    two = replace(state, leader=TWO, leader_epoch=6, partition_epoch=10)
    one = replace(two, leader=ONE, leader_epoch=7, partition_epoch=11)
    beats.carry_out([two.changed(), one.changed()])
    assert [beats.renews(base + read) for read in (0, 1)] == [False, True]
    assert [beats.renews(base + read, 2) for read in (1, 2)] == [False, True]


def a_lease_needs_nothing_of_what_took_no_leadership(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2, 3)))
    end = beats.book.image.end_offset
    beats.becomes(isr=(ONE,), elr=(TWO,))
    beats.becomes(leader_epoch=6, flush_group=True)
    beats.carry_out(module.fence(beats.book.image, ids(3)[0]))
    assert beats.renews(end)


def a_partition_without_a_leader_was_taken_from_its_last_one(module: Any) -> None:
    beats = Beats(module, Book(partition((1,), (2,)), live=(1,), fenced=(2,)))
    end = beats.book.image.end_offset
    beats.becomes(isr=(), elr=(ONE, TWO), leader=NO_BROKER, leader_epoch=6)
    assert not beats.renews(end)


def a_topic_that_is_removed_is_taken_from_its_leaders(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    end = beats.book.image.end_offset
    beats.carry_out([TopicRemoved(TOPIC)])
    assert (beats.renews(end), beats.renews(end + 1), beats.renews(end, 2)) == (False, True, True)


def what_a_heartbeat_takes_counts_for_its_own_answer(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    beats.beat(want_shutdown=True)
    assert not beats.renewed
    beats.beat()
    assert beats.renewed


def a_new_controller_asks_for_its_own_first_record(module: Any) -> None:
    book = Book(partition((1, 2)), live=(1, 2))
    Beats(module, book).becomes(leader=TWO, leader_epoch=6)
    first = book.image.end_offset
    successor = Beats(module, book)
    assert [successor.renews(first), successor.renews(first + 1)] == [False, True]


def a_lease_is_not_needed_to_be_unfenced(module: Any) -> None:
    beats = Beats(module, Book(partition((1, 2)), live=(1, 2)))
    beats.carry_out(module.fence(beats.book.image, ONE))
    assert not beats.beat(read=beats.book.epoch(1) + 1).fenced
    assert not beats.renewed


# ── silence ───────────────────────────────────────────────────────────────────────────────────────────


def nobody_is_fenced_before_a_session_and_a_tenth(module: Any) -> None:
    beats = Beats(module, Book(live=(1, 2)))
    beats.now_ms = 20_000
    beats.beat(1)
    beats.now_ms += 1
    beats.beat(2)
    assert beats.sessions.overdue(beats.book.image, 20_000 + SILENCE - 1) is None
    assert beats.sessions.overdue(beats.book.image, 20_000 + SILENCE) == ONE
    assert beats.sessions.deadline_ms(beats.book.image) == 20_000 + SILENCE


def the_longest_silent_is_fenced_first(module: Any) -> None:
    beats = Beats(module, Book(live=(1, 2)))
    beats.now_ms = 20_000
    beats.beat(2)
    assert beats.sessions.overdue(beats.book.image, 60_000) == ONE
    beats.book.say(BrokerChanged(ONE, beats.book.epoch(1), True))
    assert beats.sessions.overdue(beats.book.image, 60_000) == TWO


def a_new_controller_waits_for_the_leases_of_its_predecessor(module: Any) -> None:
    beats = Beats(module, Book(live=(1,)), now_ms=1000)
    assert beats.sessions.overdue(beats.book.image, 1000 + LEASES + SILENCE - 1) is None
    assert beats.sessions.overdue(beats.book.image, 1000 + LEASES + SILENCE) == ONE
    assert beats.sessions.deadline_ms(beats.book.image) == 1000 + LEASES + SILENCE


def whoever_is_fenced_is_not_waited_for(module: Any) -> None:
    beats = Beats(module, Book(live=(), fenced=(1,)))
    beats.beat(1, want_fence=True)
    assert beats.sessions.overdue(beats.book.image, 10**9) is None
    assert beats.sessions.deadline_ms(beats.book.image) is None


def a_session_lives_as_long_as_a_lease(module: Any) -> None:
    beats = Beats(module, Book(live=(1,)))
    assert beats.sessions.is_live(ONE, SESSION - 1)
    assert not beats.sessions.is_live(ONE, SESSION)
    assert not beats.sessions.is_live(BrokerId(9), 0)


RULES: tuple[Callable[[Any], None], ...] = (
    the_epoch_is_the_offset_of_the_record,
    a_lost_answer_is_given_again,
    an_earlier_start_that_comes_late_is_refused,
    the_same_start_is_registered_once,
    a_start_that_could_not_be_counted_takes_over_from_its_like,
    another_disk_counts_for_itself,
    who_comes_back_on_a_new_disk_while_the_old_process_lives_is_refused,
    who_has_the_lock_of_the_disk_takes_over,
    who_is_silent_or_fenced_may_be_replaced,
    a_disk_of_another_cluster_is_refused,
    a_broker_that_cannot_be_reached_is_refused,
    the_other_listeners_are_registered_as_well,
    a_listener_that_cannot_be_reached_is_refused,
    a_broker_that_was_unregistered_has_lost_what_it_was_guaranteed_to_have,
    who_has_read_its_registration_is_unfenced,
    who_wants_to_be_fenced_is_and_stays_so,
    who_is_fenced_may_stop_at_once,
    who_stops_waits_until_the_others_have_read_of_it,
    who_stops_waits_for_nobody_longer_than_half_a_minute,
    another_controller_goes_on_with_a_shutdown,
    what_cannot_be_served_is_led_by_others,
    what_cannot_be_served_is_known_before_its_broker_is_unfenced,
    what_is_served_again_is_led_again,
    what_is_served_again_is_known_before_its_broker_is_unfenced,
    who_has_not_read_its_registration_takes_nothing_back,
    a_heartbeat_of_another_registration_is_refused,
    a_lease_needs_what_was_taken_to_be_read,
    the_last_record_that_took_something_counts,
    a_leadership_that_changes_twice_in_a_batch_was_taken_twice,
    a_lease_needs_nothing_of_what_took_no_leadership,
    a_partition_without_a_leader_was_taken_from_its_last_one,
    a_topic_that_is_removed_is_taken_from_its_leaders,
    what_a_heartbeat_takes_counts_for_its_own_answer,
    a_new_controller_asks_for_its_own_first_record,
    a_lease_is_not_needed_to_be_unfenced,
    nobody_is_fenced_before_a_session_and_a_tenth,
    the_longest_silent_is_fenced_first,
    a_new_controller_waits_for_the_leases_of_its_predecessor,
    whoever_is_fenced_is_not_waited_for,
    a_session_lives_as_long_as_a_lease,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_of_brokers(rule: Callable[[Any], None]) -> None:
    rule(liveness)


def test_a_quorum_that_takes_as_long_as_a_session_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        liveness.LivenessConfig(session_timeout_ms=4000, quorum_fetch_timeout_ms=2000)


def test_a_registration_under_a_wrong_offset_is_noticed_when_it_is_replayed() -> None:
    book = Book()
    facts = liveness.register(
        book.image, comes_back(book), book.image.end_offset + 5, session_is_live=True
    ).facts
    with pytest.raises(TidelogError):
        book.carry_out(facts)


BUGS = (
    Bug("anybody takes over", "and session_is_live and not same_disk", "and False"),
    Bug("nobody takes over", "and session_is_live and not same_disk", "and session_is_live"),
    Bug("the dead hold their id", "and session_is_live and not same_disk", "and not same_disk"),
    Bug("the fenced hold their id", "if known is not None and not known.fenced and", "if known is not None and"),
    Bug("a repetition registers anew", "known.incarnation_id == request.incarnation_id:", "False:"),
    Bug("the epoch is where the batch begins", "epoch = end_offset + len(facts)", "epoch = end_offset"),
    Bug("the cluster does not matter", 'if request.cluster_id not in {"", cluster_id}:', "if False:"),
    Bug("the address does not matter", "or not is_host(request.host) or not request.port", ""),
    Bug("other listeners are not kept", "        request.listeners,\n", ""),
    Bug("listeners need no names", '"" in names', "False"),
    Bug("a name is as good as two", "len({*names}) < len(names)", "False"),
    Bug("listeners need no address", "not all(is_host(each.host) and each.port", "not all(True"),
    Bug("the disk does not matter", "{*(known.directories or (known.directory_id,))} if known is not None else set()", "{request.directory_id}"),
    Bug("whoever is registered does not matter", "if disk.directory_id not in registered or known.incarnation_id not in disk.incarnation_ids:", "if disk.directory_id not in registered:"),
    Bug("epochs name a registration", "known.incarnation_id not in disk.incarnation_ids", "request.prev_broker_epoch != known.epoch"),
    Bug("starts are not counted", "if request.start < in_force:", "if False:"),
    Bug("the start in force is refused", "if request.start < in_force:", "if request.start <= in_force:"),
    Bug("disks are counted together", "if known is not None and known.directory_id == request.directory_id else 0", "if known is not None else 0"),
    Bug("the start is not kept", "        request.start,\n", ""),
    Bug("every heartbeat renews the lease", "return request.metadata_offset > self._taken.get(request.broker_id, self._first_offset)", "return True"),
    Bug("an end is taken for a position", "request.metadata_offset > self._taken", "request.metadata_offset >= self._taken"),
    Bug("a new controller has taken nothing", "self._taken.get(request.broker_id, self._first_offset)", "self._taken.get(request.broker_id, -1)"),
    Bug("the first that was taken counts", "self._taken[deposed] = offset", "self._taken.setdefault(deposed, offset)"),
    Bug("every record takes something", "if deposed not in {NO_BROKER, leader}:", "if deposed != NO_BROKER:"),
    Bug("what ends without a leader was not taken", "if deposed not in {NO_BROKER, leader}:", "if NO_BROKER not in {deposed, leader} and deposed != leader:"),
    Bug("batches take only once", "deposed = leaders.get(place, known.leader if known else NO_BROKER)", "deposed = known.leader if known else NO_BROKER"),
    Bug("removed topics are kept", "if isinstance(fact, TopicRemoved):", "if False:"),
    Bug("a kill costs", "{CrashKind.CLEAN, CrashKind.PROCESS}", "{CrashKind.CLEAN}"),
    Bug("the death of a machine costs nothing", "{CrashKind.CLEAN, CrashKind.PROCESS}", "{CrashKind.CLEAN, CrashKind.PROCESS, CrashKind.HOST}"),
    Bug("the death of a machine costs all", "return None if disk.crash_kind == CrashKind.HOST and p.flush_group else lost", "return lost"),
    Bug("damage is the death of a machine", "disk.crash_kind == CrashKind.HOST", "disk.crash_kind >= CrashKind.HOST"),
    Bug("unfenced before it has read", "return request.metadata_offset > request.broker_epoch", "return request.metadata_offset >= request.broker_epoch"),
    Bug("fenced and unfenced at once", "if request.want_fence or not caught_up(request):", "if not caught_up(request):"),
    Bug("a fenced broker waits to stop", "if request.want_shutdown:\n        return Beat(STAY", "if False:\n        return Beat(STAY"),
    Bug("stops before the others know", "all(self._sessions[o].metadata_offset >= told", "any(self._sessions[o].metadata_offset >= 0"),
    Bug("waits for ever to stop", "return known or now_ms - since_ms", "return known or False and now_ms - since_ms"),
    Bug("a shutdown is forgotten with its controller", "begins_shutdown=True)", "begins_shutdown=False)"),
    Bug("unfenced with what it cannot serve", "    if offline:\n        return Beat(offline, fenced=True)", "    if False:\n        return Beat(offline, fenced=True)"),
    Bug("what was offline stays so", "told if caught_up(request) else told | known.offline", "told | known.offline"),
    Bug("who knows nothing takes all back", "told if caught_up(request) else told | known.offline", "told"),
    Bug("an old registration speaks", "if known.epoch != epoch:", "if False:"),
    Bug("fenced at the end of the lease", "self.session_timeout_ms * 11 // 10", "self.session_timeout_ms"),
    Bug("a new controller does not wait", "if now_ms < self._not_before_ms:", "if False:"),
    Bug("the shortest silent first", "return min(silent)[1]", "return max(silent)[1]"),
    Bug("the fenced are fenced", "and _is_unfenced(image, broker)\n        ]", "]"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(liveness, bug)
    found = any(fails(partial(rule, module)) for rule in RULES)
    assert found or any(fails(partial(what_the_last_end_cost, module, said)) for said in LOSSES)
