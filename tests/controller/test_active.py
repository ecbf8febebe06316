"""What the active controller makes of requests that are served at the same time (design 4.2)."""

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.controller.book import TOPIC, Book, ids, named, partition
from tidelog.controller.active import Active, ActiveConfig
from tidelog.controller.election import STEP, elect_unclean, leave
from tidelog.controller.facts import (
    FACTS_MAX,
    BrokerChanged,
    Fact,
    TopicCreated,
    TopicRemoved,
    decode_facts,
)
from tidelog.controller.image import Image
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.topics import PARTITIONS_MAX
from tidelog.controller.turns import HOLDS, Steps
from tidelog.protocol.errors import (
    DuplicateBrokerRegistration,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    RequestTimedOut,
    StaleBrokerEpoch,
)
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterPartition,
    AlterReassignments,
    BrokerHeartbeat,
    ConfigAlter,
    CreateTopics,
    CreateTopicsReply,
    IsrMember,
    NewTopic,
    PartitionAlter,
    PartitionIndex,
    PartitionMove,
    PlanMoves,
    RegisterBroker,
    Reply,
    ResourceAlter,
)
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.settings import MOVE_RATE
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, Offset
from tidelog.storage.crashes import CrashKind

EPOCH = Epoch(7)


class Log:
    """A metadata log in memory: batches are added up as they are appended."""

    def __init__(self) -> None:
        self.book = Book()
        self.log = self

    @property
    def working(self) -> Image:
        return self.book.image

    @property
    def end_offset(self) -> Offset:
        return self.book.image.end_offset

    def append(self, facts: Sequence[Fact], _epoch: Epoch, _now_ms: int) -> None:
        self.book.say(*facts)

    def appending(
        self, facts: Sequence[Fact], epoch: Epoch, now_ms: int
    ) -> Generator[None, None, Callable[[], None]]:
        yield
        return lambda: self.append(facts, epoch, now_ms)


def active(log: Log) -> Active:
    ids = iter(range(1, 100))
    return Active(
        cast("MetadataLog", log),
        EPOCH,
        Offset(0),
        ActiveConfig(),
        now_ms=0,
        wall_ms=lambda: 0,
        new_id=lambda: next(ids).to_bytes(16, "big"),
    )


def create(partitions: int, *, validate_only: bool = False) -> CreateTopics:
    return CreateTopics((NewTopic("wide", partitions, 3),), validate_only, quorum_epoch=EPOCH)


def finish(steps: Steps[Reply]) -> CreateTopicsReply:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("CreateTopicsReply", done.value)


def one_more(steps: Steps[Reply]) -> Any:
    """One step; what is answered, if it was the last one."""
    try:
        next(steps)
    except StopIteration as done:
        return done.value
    return None


def steps_until(log: Log, steps: Steps[Any], *, end: Offset) -> int:
    """How many it takes until the log has grown beyond there."""
    taken = 0
    while log.end_offset <= end:
        next(steps)
        taken += 1
    return taken


def test_a_topic_of_many_partitions_is_decided_tried_and_appended_in_turns_of_their_own() -> None:
    log = Log()
    begins = log.end_offset
    assert steps_until(log, active(log).serve(create(1), 0), end=begins) == 1
    log = Log()
    many = active(log).serve(create(STEP + 1), 0)
    assert steps_until(log, many, end=begins) == 4  # to let others go first, to decide, to try, to append
    assert log.end_offset == begins + 1 + STEP + 1, "in one batch, or not at all"


def test_of_two_heartbeats_of_a_broker_at_once_the_later_one_holds() -> None:
    """They came over two connections, and say different things: each would undo what the other has done."""
    log = Log()
    node = active(log)
    epoch = log.working.brokers[BrokerId(1)].epoch
    said = BrokerHeartbeat(BrokerId(1), epoch, EPOCH, log.end_offset + 100, low_space=True)
    one, other = node.serve(said, 0), node.serve(replace(said, low_space=False), 0)
    for steps in (one, other):
        next(steps)
    waiting, answers, turns = [one, other], [], 0
    while waiting:
        turns += 1
        assert turns < 20, "they go on for ever"
        for steps in list(waiting):
            try:
                next(steps)
            except StopIteration as done:
                waiting.remove(steps)
                answers.append(done.value.error)
    assert answers == [RequestTimedOut.code, 0]
    assert not log.working.brokers[BrokerId(1)].low_space


def test_what_the_cluster_is_told_reaches_many_partitions_in_steps_and_is_answered_then() -> None:
    log = Log()
    node = active(log)
    finish(node.serve(create(2 * STEP + 1), 0))
    change = ResourceAlter("cluster", "", (ConfigAlter("min.insync.replicas", "1"),))
    steps, ends = node.serve(AlterConfigs((change,), quorum_epoch=EPOCH), 0), [log.end_offset]
    while (reply := one_more(steps)) is None:
        ends.append(log.end_offset)
    assert max(after - before for before, after in pairwise(ends)) == STEP, ends
    assert {p.min_isr for p in log.working.partitions.values()} == {1}
    assert reply.metadata_offset == log.end_offset == ends[0] + 1 + 2 * STEP + 1


def test_moves_are_planned_in_steps_on_what_was_so_when_it_was_asked_for() -> None:
    log = Log()
    node = active(log)
    finish(node.serve(create(2 * STEP), 0))
    log.book.register(4)
    log.book.say(log.book.unfenced(4))
    end = log.end_offset
    steps, taken = node.serve(PlanMoves(quorum_epoch=EPOCH), 0), 0
    while (reply := one_more(steps)) is None:
        taken += 1
        if taken == 3:
            log.book.say(TopicRemoved(next(iter(log.working.topics))))
    assert taken > 5
    assert (reply.error, reply.metadata_offset, len(reply.moves)) == (0, end, 2 * STEP * 3 // 4)


def test_of_two_who_create_the_same_topic_at_once_the_later_one_is_told() -> None:
    log = Log()
    node = active(log)
    one, other = node.serve(create(STEP + 1), 0), node.serve(create(STEP + 2), 0)
    for _ in range(2):  # both have decided that it can be made
        next(one)
        next(other)
    (made,), (refused,) = finish(one).topics, finish(other).topics
    assert (made.error, made.partitions) == (0, STEP + 1)
    assert refused.message is not None
    assert "there is a topic wide already, with the id" in refused.message
    assert len(log.working.partitions_of(made.topic_id or b"")) == STEP + 1


@pytest.mark.parametrize("done", [2, 3], ids=["decided", "tried"])
def test_what_was_decided_is_decided_anew_when_a_broker_died_meanwhile(done: int) -> None:
    log = Log()
    steps = active(log).serve(create(STEP + 1), 0)
    for _ in range(done):
        next(steps)
    log.book.say(BrokerChanged(BrokerId(3), log.book.epoch(3), fenced=True))
    finish(steps)
    assert {3 in state.isr for state in log.working.partitions.values()} == {False}


def test_whoever_creates_a_large_topic_asks_that_nobody_decides_between_its_turns() -> None:
    steps = active(Log()).serve(create(STEP + 1), 0)
    assert [next(steps) for _ in range(3)] == [None, HOLDS, HOLDS]


def test_a_broker_of_many_partitions_is_fenced_in_steps_and_in_the_end_it_is() -> None:
    log = Log()
    node = active(log)
    finish(node.serve(create(2 * STEP + 1), 0))
    epoch = log.book.epoch(3)
    steps = node.fence(BrokerId(3), epoch)
    in_sync = [len(log.working.indexes.in_isr.get(BrokerId(3), ())) for _ in steps]
    assert max(before - after for before, after in pairwise(in_sync)) == STEP, in_sync
    assert not log.working.indexes.in_isr.get(BrokerId(3))
    assert log.working.brokers[BrokerId(3)].fenced


def alternating(log: Log, fencing: Steps[Any], others: Callable[[], Steps[Any]]) -> list[Any]:
    """A step of the fencing, a step of something else that begins anew when it ends; what that was answered."""
    other = others()
    answers: list[Any] = []
    for _ in range(100):
        try:
            next(fencing)
        except StopIteration:
            assert log.working.brokers[BrokerId(3)].fenced
            return answers
        try:
            next(other)
        except StopIteration as done:
            answers.append(done.value)
            other = others()
    raise AssertionError("they go on for ever")


def alone_on_a_broker(log: Log, partitions: int) -> None:
    """So many partitions that only broker 3 has."""
    log.book.say(
        TopicCreated(TOPIC, "alone"),
        *(partition((3,), replicas=(3,), min_isr=1, index=index).created() for index in range(partitions)),
    )


def test_a_heartbeat_does_not_take_back_what_a_fencing_of_its_broker_has_done_so_far() -> None:
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 5 * STEP)
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000)
    answers = alternating(log, node.fence(BrokerId(3), log.book.epoch(3)), lambda: node.serve(beat, 0))
    assert {answer.error for answer in answers} == {RequestTimedOut.code}
    finish(node.serve(beat, 0))
    assert not log.working.brokers[BrokerId(3)].fenced
    assert not log.working.indexes.leaderless


def gives_back(node: Active, log: Log, what: str) -> Steps[Any]:
    """What lets a broker lead again whatever waits for it."""
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000)
    return node.serve(beat, 0) if what == "a heartbeat" else node.begin()


@pytest.mark.parametrize("what", ["a heartbeat", "a new controller"])
def test_what_gives_back_step_by_step_ends_when_the_broker_is_being_fenced(what: str) -> None:
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 5 * STEP)
    node.append(leave(log.working, BrokerId(3)))
    steps = gives_back(node, log, what)
    while len(log.working.indexes.leaderless) > 2 * STEP:
        next(steps)
    next(fencing := node.fence(BrokerId(3), log.book.epoch(3)))
    ended = one_more(steps)
    assert len(log.working.indexes.leaderless) == 2 * STEP
    assert ended is None or ended.error == RequestTimedOut.code
    for _ in fencing:
        pass
    assert log.working.brokers[BrokerId(3)].fenced


def registration(log: Log) -> RegisterBroker:
    """Broker 3 was killed and starts again at once."""
    known = log.working.brokers[BrokerId(3)]
    process = named("process 3 again")
    return RegisterBroker(
        known.id,
        EPOCH,
        process,
        known.directory_id,
        "127.0.0.1",
        9003,
        crash_kind=CrashKind.PROCESS,
        incarnation_ids=(known.incarnation_id, process),
        start=known.start,
    )


@pytest.mark.parametrize("what", ["a heartbeat", "a new controller"])
def test_what_gives_back_step_by_step_does_not_keep_a_broker_from_being_registered_anew(what: str) -> None:
    """The heartbeat is a late one of the process that was killed."""
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 5 * STEP)
    old = log.book.epoch(3)
    giving = gives_back(node, log, what)
    if what == "a new controller":
        for _ in range(5):  # what comes before that
            next(giving)
    alternating(log, node.serve(registration(log), 0), lambda: giving)
    assert log.book.epoch(3) > old


def test_a_fencing_that_ends_does_not_end_the_registration_that_goes_on_beside_it() -> None:
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 3 * STEP)
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000)
    next(registering := node.serve(registration(log), 0))
    for _ in node.fence(BrokerId(3), log.book.epoch(3)):
        pass
    assert one_more(node.serve(beat, 0)).error == RequestTimedOut.code
    assert one_more(registering).broker_epoch == log.book.epoch(3)


def test_a_registration_that_has_begun_is_not_refused_when_the_old_process_is_heard_again() -> None:
    """It comes with another disk: what it has begun to take would be given back to nobody."""
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 3 * STEP)
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000)
    next(registering := node.serve(from_another_disk(log), 100_000))
    assert one_more(node.serve(beat, 100_000)).error == RequestTimedOut.code
    reply: Any = finish(registering)
    assert (reply.error, reply.broker_epoch) == (0, log.book.epoch(3))
    assert finish(node.serve(beat, 100_000)).error == StaleBrokerEpoch.code


def from_another_disk(log: Log) -> RegisterBroker:
    """Broker 3 comes without what it had."""
    return replace(
        registration(log), incarnation_id=named("elsewhere"), directory_id=named("another disk"), start=1
    )


def test_a_registration_that_has_begun_is_refused_when_another_process_was_registered_meanwhile() -> None:
    log = Log()
    node = active(log)
    alone_on_a_broker(log, 3 * STEP)
    next(registering := node.serve(from_another_disk(log), 100_000))
    finish(node.serve(registration(log), 100_000))
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000)
    assert finish(node.serve(beat, 100_000)).error == 0
    assert one_more(registering).error == DuplicateBrokerRegistration.code
    assert not log.working.brokers[BrokerId(3)].fenced


@pytest.mark.slow
def test_a_broker_may_lack_as_many_replicas_as_a_heartbeat_can_name() -> None:
    log = Log()
    node = active(log)
    log.book.say(TopicCreated(TOPIC, "wide"))
    for first in range(0, ENTRIES_MAX, 8192):
        log.book.say(*(partition((1,), replicas=(1, 3), index=first + n).created() for n in range(8192)))
    places = tuple(PartitionIndex(*place) for place in log.working.partitions)
    beat = BrokerHeartbeat(BrokerId(3), log.book.epoch(3), EPOCH, log.end_offset + 10_000, offline=places)
    assert finish(node.serve(beat, 0)).error == 0
    assert len(log.working.brokers[BrokerId(3)].offline) == len(places) == ENTRIES_MAX
    for _ in node.fence(BrokerId(3), log.book.epoch(3)):
        pass
    assert log.working.brokers[BrokerId(3)].fenced


def taken_out(node: Active, log: Log, how: str) -> Steps[Any]:
    """What takes broker 3 from many ISRs."""
    epoch = log.book.epoch(3)
    if how == "fenced":
        return node.fence(BrokerId(3), epoch)
    if how == "registered anew":
        return node.serve(registration(log), 0)
    beat = BrokerHeartbeat(BrokerId(3), epoch, EPOCH, log.end_offset + 10_000)
    if how == "as it wishes":
        return node.serve(replace(beat, want_fence=True), 0)
    failed = tuple(PartitionIndex(*place) for place in log.working.partitions)
    return node.serve(replace(beat, offline=failed), 0)


@pytest.mark.parametrize("how", ["fenced", "registered anew", "as it wishes", "without a disk"])
def test_no_leader_puts_back_who_is_being_taken_out_step_by_step(how: str) -> None:
    log = Log()
    node = active(log)
    states = [partition((1, 3), index=index) for index in range(3 * STEP)]
    log.book.say(TopicCreated(TOPIC, "wide"), *(state.created() for state in states))
    isr = tuple(IsrMember(BrokerId(member), log.book.epoch(member)) for member in (1, 3))
    steps, errors, turns = taken_out(node, log, how), set(), 0
    while one_more(steps) is None and not log.working.brokers[BrokerId(3)].fenced:
        turns += 1
        assert turns < 20, "they go on for ever"
        out = [p for p in log.working.partitions.values() if 3 not in p.isr][:STEP]
        alters = tuple(PartitionAlter(*p.place, p.leader_epoch, p.partition_epoch, turns, isr) for p in out)
        reply = one_more(node.serve(AlterPartition(BrokerId(1), log.book.epoch(1), EPOCH, alters), 0))
        errors |= {entry.error for entry in reply.partitions}
    assert errors == {IneligibleReplica.code}
    assert not log.working.indexes.in_isr.get(BrokerId(3))


def many(log: Log, partitions: int) -> None:
    """So many partitions that broker 1 leads, with nobody else in sync."""
    states = [partition((1,), min_isr=1, index=number) for number in range(partitions)]
    log.book.say(TopicCreated(TOPIC, "wide"))
    for first in range(0, partitions, PARTITIONS_MAX):
        log.book.say(*(state.created() for state in states[first : first + PARTITIONS_MAX]))


def proposals(log: Log, partitions: int) -> AlterPartition:
    """Broker 1 leads so many and proposes that broker 2 joins."""
    many(log, partitions)
    isr = tuple(IsrMember(BrokerId(member), log.book.epoch(member)) for member in (1, 2))
    alters = tuple(PartitionAlter(TOPIC, number, 5, 9, 1, isr) for number in range(partitions))
    return AlterPartition(BrokerId(1), log.book.epoch(1), EPOCH, alters)


@pytest.mark.slow
def test_a_proposal_for_more_partitions_than_a_batch_holds_is_decided_and_answered_in_steps() -> None:
    log = Log()
    node = active(log)
    steps = node.serve(proposals(log, FACTS_MAX + 1), 0)
    begins, before = log.end_offset, len(log.book.batches)
    while (reply := one_more(steps)) is None:
        pass
    assert [entry.metadata_offset for entry in reply.partitions] == [*range(begins, log.end_offset)]
    assert [entry.index for entry in reply.partitions] == [*range(FACTS_MAX + 1)]
    assert max(len(decode_facts(batch)) for batch in log.book.batches[before:]) == STEP
    assert {p.isr for p in log.working.partitions.values()} == {ids(1, 2)}


def test_each_step_of_a_proposal_follows_what_was_decided_before_it() -> None:
    log = Log()
    node = active(log)
    steps = node.serve(proposals(log, 3 * STEP), 0)
    next(steps)
    moved = log.book.state(STEP)
    node.append([replace(moved, partition_epoch=moved.partition_epoch + 1, recovering=True).changed()])
    next(steps)
    node.append([BrokerChanged(BrokerId(2), log.book.epoch(2), False, True)])  # it shuts down
    reply = one_more(steps)
    expected = [0] * STEP + [InvalidUpdateVersion.code] + [0] * (STEP - 1) + [IneligibleReplica.code] * STEP
    assert [entry.error for entry in reply.partitions] == expected
    assert log.book.state(STEP).isr == ids(1)


def test_a_proposal_ends_when_its_sender_is_registered_anew_between_two_steps() -> None:
    log = Log()
    node = active(log)
    steps = node.serve(proposals(log, 2 * STEP), 0)
    next(steps)
    node.append(leave(log.working, BrokerId(1)))
    log.book.register(1, process="the next one")
    end = log.end_offset
    reply = one_more(steps)
    assert (reply.error, reply.partitions, log.end_offset) == (StaleBrokerEpoch.code, (), end)


def test_a_partition_that_is_named_twice_in_different_steps_is_named_twice() -> None:
    log = Log()
    node = active(log)
    request = proposals(log, STEP)
    end = log.end_offset
    twice = replace(request, partitions=(*request.partitions, request.partitions[0]))
    reply = one_more(node.serve(twice, 0))
    assert (reply.error, log.end_offset) == (InvalidRequest.code, end)


def test_a_throttle_holds_for_moves_that_go_on_after_more_have_ended_than_a_batch_holds() -> None:
    log = Log()
    node = active(log)
    many(log, FACTS_MAX + 1)
    log.book.register(4)
    at_once = [PartitionMove(TOPIC, index, ids(3, 2, 1)) for index in range(FACTS_MAX)]
    moves = (*at_once, PartitionMove(TOPIC, FACTS_MAX, ids(1, 2, 4)))
    finish(node.serve(AlterReassignments(moves, throttle_bytes_s=1000, quorum_epoch=EPOCH), 0))
    assert log.working.indexes.moving == {(TOPIC, FACTS_MAX)}
    assert log.working.configs == {("cluster", "", MOVE_RATE): "1000"}


def test_a_topic_that_is_removed_while_a_broker_is_fenced_does_not_keep_it_from_being() -> None:
    log = Log()
    node = active(log)
    (made,) = finish(node.serve(create(2 * STEP + 1), 0)).topics
    steps = node.fence(BrokerId(3), log.book.epoch(3))
    next(steps)
    log.book.say(TopicRemoved(made.topic_id or b""))
    for _ in steps:
        pass
    assert log.working.brokers[BrokerId(3)].fenced


def test_who_asks_only_whether_a_topic_could_be_made_hears_what_it_would_be() -> None:
    log = Log()
    node = active(log)
    (told,) = finish(node.serve(create(4, validate_only=True), 0)).topics
    assert (told.error, told.partitions, told.replication_factor, told.topic_id) == (0, 4, 3, None)
    assert node.image.topics == {}
    (made,) = finish(node.serve(create(4), 0)).topics
    assert (made.partitions, made.replication_factor) == (4, 3)


def test_an_election_that_may_lose_committed_records_is_told_loudly_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
    node = active(log)
    (made,) = finish(node.serve(create(1), 0)).topics
    place = made.topic_id or b"", 0
    state = node.image.partitions[place]
    epochs = {"leader_epoch": state.leader_epoch + 1, "partition_epoch": state.partition_epoch + 1}
    node.append([replace(state, isr=(), elr=(), leader=NO_BROKER, **epochs).changed()])
    assert caplog.messages == []
    node.append([elect_unclean(node.image.partitions[place], BrokerId(2)).changed()])
    state = node.image.partitions[place]
    assert state.unclean_epoch == state.leader_epoch
    told = f"partition.possible_loss partition=wide-0 leader={state.leader} epoch={state.leader_epoch}"
    assert caplog.messages == [told]
    node.append([replace(state, partition_epoch=state.partition_epoch + 1, recovering=False).changed()])
    assert caplog.messages == [told]
