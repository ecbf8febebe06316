"""Members join, stay, give up, get and leave: each sentence is a rule of docs/GROUPS.md (design 5.7, KIP-848)."""

import pytest

from tests.broker.groups_desk import IDS, SESSION_MS, Desk, of, told
from tests.broker.groups_world import replayed, same, storm, topic_id
from tidelog.broker.groups.image import Groups
from tidelog.broker.groups.records import AnyKey, Record, TargetKey
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.topics import Topic
from tidelog.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidConfig,
    InvalidRequest,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)

ALL = of("orders", 0, 1, 2, 3)


def two() -> tuple[Desk, set[tuple[str, int]], set[tuple[str, int]]]:
    """Members a and b share `orders`, and both know."""
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    keeps = desk.has("a")
    desk.say("a", 1, owned=keeps)
    desk.say("b", 2)
    assert desk.has("a") | desk.has("b") == ALL
    return desk, desk.has("a"), desk.has("b")


# ── to come ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_member_gets_everything_in_its_first_answer() -> None:
    desk = Desk()
    reply = desk.say("a", 0, ["orders"])
    assert (reply.member_epoch, told(reply)) == (1, ALL)
    assert reply.heartbeat_interval_ms == 5000


def test_three_heartbeats_fit_into_the_session_that_a_member_has_chosen() -> None:
    desk = Desk()
    assert desk.say("a", 0, ["orders"], session_ms=6000).heartbeat_interval_ms == 2000
    assert desk.shard.heartbeat_interval_ms("g", "a") == 2000, "so long one may lie at the coordinator"


def test_the_second_member_waits_until_the_first_has_given_up() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    second = desk.say("b", 0, ["orders"])
    assert (second.member_epoch, told(second)) == (2, set())
    assert second.heartbeat_interval_ms < 1000, "who waits asks again soon"
    asked = desk.say("a", 1)
    kept = told(asked)
    assert asked.member_epoch == 1
    assert kept is not None
    assert len(kept) == 2
    assert told(desk.say("b", 2)) is None, "nothing new: it is not given up yet"
    assert desk.say("a", 1, owned=ALL).member_epoch == 1, "it still has all"
    confirmed = desk.say("a", 1, owned=kept)
    assert confirmed.member_epoch == 2
    assert told(desk.say("b", 2)) == ALL - kept


def test_who_joins_twice_because_the_answer_was_lost_gets_the_same_answer() -> None:
    desk = Desk()
    first = desk.say("a", 0, ["orders"])
    assert desk.say("a", 0, ["orders"]) == first


def test_a_member_that_joins_anew_has_given_up_what_it_was_asked_for() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    assert desk.group.current("a").pending
    desk.say("a", 0, ["orders"])
    desk.say("b", 2)
    assert desk.has("a") | desk.has("b") == ALL


def test_a_heartbeat_without_changes_writes_nothing() -> None:
    desk, _, _ = two()
    before = len(desk.log)
    for _ in range(3):
        reply = desk.say("a", 2)
        assert (reply.error, reply.assignment, reply.heartbeat_interval_ms) == (0, None, 5000)
    assert len(desk.log) == before


def test_a_topic_that_does_not_exist_yet_is_consumed_when_it_does() -> None:
    desk = Desk()
    assert told(desk.say("a", 0, ["later"])) == set()
    assert told(desk.say("a", 1)) is None
    desk.topics.put(Topic(topic_id(9), "later", 2))
    assert told(desk.say("a", 1)) == of("later", 0, 1)


def test_a_topic_that_somebody_waited_for_is_read_from_its_start_whoever_comes_first_when_it_is_there() -> (
    None
):
    desk = Desk()
    desk.say("a", 0, ["later"])
    desk.topics.put(Topic(topic_id(9), "later", 2))
    desk.say("b", 0, ["later"])
    assert desk.is_from_beginning(topic_id(9))


def test_a_topic_that_a_member_waited_for_is_read_from_its_start_also_when_it_wants_another_as_well() -> None:
    desk = Desk()
    desk.say("a", 0, ["later"])
    desk.topics.put(Topic(topic_id(9), "later", 2))
    desk.say("a", 1, ["later", "orders"], owned=[])
    assert desk.is_from_beginning(topic_id(9))
    assert not desk.is_from_beginning(IDS["orders"]), "that was there when it was first wanted"


def test_a_topic_that_the_last_process_waited_for_is_read_from_its_start_by_the_next() -> None:
    desk = Desk()
    desk.say("a1", 0, ["later"], instance="a")
    desk.say("a1", -2, instance="a")
    desk.topics.put(Topic(topic_id(9), "later", 2))
    desk.say("a2", 0, ["later"], instance="a")
    assert desk.is_from_beginning(topic_id(9))


def test_partitions_that_are_added_are_noticed() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.topics.put(Topic(IDS["orders"], "orders", 6))
    assert told(desk.say("a", 1)) == of("orders", 0, 1, 2, 3, 4, 5)


def test_a_topic_that_was_created_anew_is_another_one() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.topics.put(Topic(topic_id(9), "orders", 1))
    reply = desk.say("a", 1)
    assert told(reply) == set(), "it has to give up the old one first"
    again = desk.say("a", 1, owned=[])
    assert again.assignment is not None
    assert [(entry.topic_id, entry.indexes) for entry in again.assignment] == [(topic_id(9), (0,))]


def test_another_wish_is_another_assignment() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    assert told(desk.say("a", 1, ["events", "orders"])) == ALL | of("events", 0, 1)


def test_most_wishes_decide_who_shares_out() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    assert desk.group.state.assignor == "uniform"
    desk.say("b", 0, ["orders"], assignor="range")
    assert desk.group.state.assignor == "range"


# ── who is refused ────────────────────────────────────────────────────────────────────────────────────


def test_refusals_of_who_joins() -> None:
    desk = Desk(GroupSettings(group_max_size=1))
    assert desk.say("a", 0).error == InvalidRequest.code, "it says what it wants"
    assert desk.say("", 0, ["orders"]).error == InvalidRequest.code
    assert desk.say("a" * 256, 0, ["orders"]).error == InvalidRequest.code
    assert desk.say("a", 0, ["orders"], owned=ALL).error == InvalidRequest.code
    assert desk.say("a", 0, ["orders"], assignor="sticky").error == UnsupportedAssignor.code
    assert desk.say("a", 0, ["orders"]).error == 0
    assert desk.say("b", 0, ["orders"]).error == GroupMaxSizeReached.code
    assert desk.say("a", 0, ["orders"]).error == 0, "who is a member is not one too many"


def test_refusals_of_who_is_no_member() -> None:
    desk = Desk()
    assert desk.say("a", 1).error == GroupIdNotFound.code
    desk.say("a", 0, ["orders"])
    assert desk.say("b", 1).error == UnknownMemberId.code
    assert desk.say("b", -1).error == UnknownMemberId.code
    assert desk.say("a", 1, instance="i").error == InvalidRequest.code


def test_a_member_that_says_an_epoch_of_long_ago_is_fenced() -> None:
    desk, of_a, _ = two()
    assert desk.say("a", 3).error == FencedMemberEpoch.code, "it is not told yet"
    assert desk.say("a", 1).error == FencedMemberEpoch.code, "it does not say what it has"
    assert desk.say("a", 1, owned=ALL).error == FencedMemberEpoch.code, "it has what is b's"
    lost = desk.say("a", 1, owned=of_a)
    assert (lost.error, lost.member_epoch, told(lost)) == (0, 2, of_a), "the last answer was lost"
    desk.say("b", -1)
    desk.say("a", 2)
    assert desk.say("a", 1, owned=of_a).error == FencedMemberEpoch.code


def test_a_member_may_lose_several_answers_in_a_row() -> None:
    desk, of_a, _ = two()
    desk.say("b", -1)
    for size in (5, 6, 7):
        desk.topics.put(Topic(IDS["orders"], "orders", size))
        assert desk.say("a", 2, owned=of_a).error == 0
    reply = desk.say("a", 2, owned=of_a)
    assert told(reply) == set(desk.has("a"))


# ── what is late ──────────────────────────────────────────────────────────────────────────────────────


def test_a_late_heartbeat_confirms_nothing() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    kept = desk.has("a")
    desk.sequence += 1
    held_up = desk.sequence  # a heartbeat of b that says, at epoch 2, that it has nothing yet
    desk.say("a", 1, owned=kept)
    desk.say("b", 2)
    assert desk.has("b") == ALL - kept
    desk.say("c", 0, ["orders"])
    desk.say("d", 0, ["orders"])
    desk.say("b", 2)
    pending = desk.group.current("b").pending
    assert pending, "b is asked to give something up for c"
    desk.say("b", 2, owned=[], sequence=held_up)
    assert desk.group.current("b").pending == pending, "what it said before it was asked confirms nothing"


def test_a_late_wish_does_not_undo_a_newer_one() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.sequence += 1
    held_up = desk.sequence
    desk.say("a", 1, ["events"], owned=ALL)
    desk.say("a", 1, ["orders"], sequence=held_up)
    assert desk.group.members["a"].topics == ("events",)


def test_a_late_farewell_does_not_end_who_has_joined_again() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"], sequence=7)
    assert desk.say("a", -1, sequence=6).error == 0
    assert "a" in desk.group.members


def test_a_late_heartbeat_is_given_nothing_also_when_the_newer_one_changed_nothing() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    desk.sequence += 1
    held_up = desk.sequence  # b has given this one up: it would not hear what is answered
    assert told(desk.say("b", 2, owned=[])) == set()
    desk.say("a", 1, owned=desk.has("a"))
    desk.say("b", 2, sequence=held_up)
    assert told(desk.say("b", 2)) == ALL - desk.has("a"), "what it is given it is told"


def test_a_late_heartbeat_is_asked_for_nothing_also_when_the_newer_one_changed_nothing() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.sequence += 1
    held_up = desk.sequence
    assert told(desk.say("a", 1, owned=ALL)) == ALL
    desk.say("b", 0, ["orders"])
    desk.say("a", 1, sequence=held_up)
    kept = told(desk.say("a", 1))
    assert kept is not None, "what it is to give up it is told"
    assert kept < ALL


def test_a_heartbeat_is_asked_again_for_a_member_that_said_nothing_since() -> None:
    desk, _, _ = two()
    desk.say("b", 2)
    desk.say("a", -1)
    assert told(desk.say("b", 2, sequence=desk.sequence - 1)) == ALL


def test_what_was_heard_is_forgotten_with_its_member() -> None:
    desk, _, _ = two()
    desk.say("a", 2)
    desk.say("b", 2)
    assert len(desk.shard.heard) == 2
    desk.say("a", -1)
    desk.wait(SESSION_MS + 1000)
    assert not desk.group.members
    assert not desk.shard.heard


# ── to go ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_member_had_that_leaves_is_free_at_once() -> None:
    desk, _, _ = two()
    assert desk.say("a", -1).member_epoch == -1
    assert told(desk.say("b", 2)) == ALL


def test_who_is_silent_for_a_session_is_put_out() -> None:
    desk, _, _ = two()
    for _ in range(SESSION_MS // 5000):
        desk.wait(5000)
        desk.say("b", desk.group.current("b").epoch)
    desk.wait(1000)
    assert set(desk.group.members) == {"b"}
    desk.say("b", desk.group.current("b").epoch)
    assert desk.has("b") == ALL
    assert desk.say("a", 2).error == UnknownMemberId.code


def test_a_broker_that_was_stopped_puts_nobody_out_for_its_own_silence() -> None:
    desk, _, _ = two()
    desk.tick()
    desk.now_ms += 10 * SESSION_MS
    desk.tick()
    assert set(desk.group.members) == {"a", "b"}
    desk.wait(SESSION_MS + 2000)
    assert not desk.group.members


def test_who_does_not_give_up_in_time_is_put_out() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    for _ in range(300 // 5):
        desk.wait(5000)
        if "a" in desk.group.members:
            assert desk.say("a", 1).error == 0, "it lives, and keeps what it was asked for"
        desk.say("b", desk.group.current("b").epoch)
    desk.wait(1000)
    assert set(desk.group.members) == {"b"}
    desk.say("b", desk.group.current("b").epoch)
    assert desk.has("b") == ALL


def test_who_does_not_give_up_in_time_is_put_out_also_when_the_log_refused_that_at_first() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    for second in range(310):
        desk.refuses = 299 <= second < 303  # too few replicas, say, just when its time is over
        desk.wait(1000)
        if "a" in desk.group.members:
            desk.say("a", 1)
        desk.say("b", desk.group.current("b").epoch)
    assert set(desk.group.members) == {"b"}
    assert desk.has("b") == ALL


def test_each_thing_that_is_to_be_given_up_has_its_own_time() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("b", 0, ["orders"])
    assert told(desk.say("a", 1)) == of("orders", 0, 1)
    for _ in range(280):
        desk.wait(1000)
        desk.say("a", 1)
        desk.say("b", 2)
    desk.say("c", 0, ["orders"])
    # It has given up two of them at last, and is asked for a third.
    reply = desk.say("a", 1, owned=of("orders", 0, 1))
    assert (reply.error, told(reply)) == (0, of("orders", 0))
    for _ in range(280):
        desk.wait(1000)
        assert desk.say("a", reply.member_epoch).error == 0
        desk.say("b", 2)
        desk.say("c", 3)
    assert desk.say("a", reply.member_epoch, owned=of("orders", 0)).error == 0


def test_long_processing_puts_nobody_out() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    for _ in range(720):  # an hour in which the user commits nothing
        desk.wait(5000)
        assert desk.say("a", 1).error == 0
    assert desk.has("a") == ALL


def test_fifty_that_leave_at_once_leave_everything_to_who_stays() -> None:
    desk = Desk()
    desk.topics.put(Topic(IDS["orders"], "orders", 60))
    names = [f"m{number}" for number in range(51)]
    epochs = dict.fromkeys(names, 0)
    for name in names:
        epochs[name] = desk.say(name, 0, ["orders"]).member_epoch
    for _ in range(4):
        for name in names:
            owned = {(topic, index) for topic, index in desk.has(name)}
            epochs[name] = desk.say(name, epochs[name], owned=owned).member_epoch
        desk.wait(100, 100)
    assert sorted(len(desk.has(name)) for name in names) == [1] * 42 + [2] * 9
    for name in names[1:]:
        assert desk.say(name, -1).error == 0
    desk.wait(1000, 100)
    last = desk.say(names[0], epochs[names[0]])
    assert last.error == 0
    assert desk.has(names[0]) == of("orders", *range(60))
    assert set(desk.group.members) == {names[0]}


def test_the_last_one_leaves_an_empty_group() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    desk.say("a", -1)
    assert not desk.group.members
    assert desk.group.state.empty_since_ms == desk.wall_ms
    desk.say("b", 0, ["orders"])
    assert desk.group.state.empty_since_ms == -1
    assert desk.has("b") == ALL


# ── static members ────────────────────────────────────────────────────────────────────────────────────


def static() -> tuple[Desk, set[tuple[str, int]]]:
    """Two static members share `orders`."""
    desk = Desk()
    desk.say("a1", 0, ["orders"], instance="a")
    desk.say("b1", 0, ["orders"], instance="b")
    desk.say("a1", 1, instance="a")
    desk.say("a1", 1, instance="a", owned=desk.has("a1"))
    desk.say("b1", 2, instance="b")
    return desk, desk.has("a1")


def test_the_next_process_of_a_static_member_gets_what_the_last_one_had_and_nobody_else_notices() -> None:
    desk, had = static()
    epoch = desk.group.state.epoch
    assert desk.say("a1", -2, instance="a").member_epoch == -2
    reply = desk.say("a2", 0, ["orders"], instance="a")
    assert told(reply) == had
    assert desk.group.state.epoch == epoch
    assert set(desk.group.members) == {"a2", "b1"}


def test_the_older_process_of_a_static_member_is_fenced() -> None:
    desk, _ = static()
    desk.say("a1", -2, instance="a")
    desk.say("a2", 0, ["orders"], instance="a")
    assert desk.say("a1", 2, instance="a").error == FencedInstanceId.code
    assert desk.say("a1", -1, instance="a").error == FencedInstanceId.code


def test_a_second_process_waits_while_the_first_one_lives() -> None:
    desk, had = static()
    assert desk.say("a2", 0, ["orders"], instance="a").error == UnreleasedInstanceId.code
    assert desk.has("a1") == had


def test_what_a_static_member_had_that_does_not_return_goes_to_others() -> None:
    desk, _ = static()
    desk.say("a1", -2, instance="a")
    for _ in range(SESSION_MS // 5000 + 1):
        desk.wait(5000)
        desk.say("b1", desk.group.current("b1").epoch, instance="b")
    assert desk.has("b1") == ALL


def test_who_is_away_keeps_nothing_from_who_comes() -> None:
    desk, had = static()
    desk.say("a1", -2, instance="a")
    desk.say("c", 0, ["orders"])
    assert desk.has("a1") < had or desk.group.current("b1").pending or desk.has("c")
    desk.say("b1", 2, instance="b")
    desk.say("b1", 2, instance="b", owned=desk.has("b1"))
    desk.say("c", 3)
    assert desk.has("a1") | desk.has("b1") | desk.has("c") == ALL


def test_what_others_are_to_have_is_free_when_who_has_it_goes_away_before_it_hears_so() -> None:
    desk = Desk()
    desk.say("a1", 0, ["orders"], instance="a")
    desk.say("b", 0, ["orders"])
    desk.say("a1", -2, instance="a")
    kept = desk.has("a1")
    assert told(desk.say("b", 2)) == ALL - kept
    assert len(kept) == 2
    assert told(desk.say("a2", 0, ["orders"], instance="a")) == kept


def test_only_a_static_member_leaves_for_a_while() -> None:
    desk, _, _ = two()
    assert desk.say("a", -2).error == InvalidRequest.code


# ── what is written ───────────────────────────────────────────────────────────────────────────────────


def test_a_decision_that_the_log_refuses_has_not_happened() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"])
    before = desk.group.copy()
    write, desk.write = desk.write, lambda decision: decision  # type: ignore[method-assign]
    desk.say("b", 0, ["orders"])
    desk.write = write  # type: ignore[method-assign]
    assert desk.group.currents == before.currents
    assert set(desk.group.members) == {"a"}


def test_the_same_records_lead_to_the_same_groups_also_when_older_ones_were_compacted_away() -> None:
    for seed in range(10):
        log = [record for batch in storm(seed, 300).log for record in batch]
        last = {record.key: at for at, record in enumerate(log)}
        compacted = [record for at, record in enumerate(log) if last[record.key] == at]
        without_tombstones = [record for record in compacted if record.value is not None]
        whole = replayed([tuple(log)])
        assert same(replayed([tuple(compacted)]), whole)
        assert same(replayed([tuple(without_tombstones)]), whole)


def test_every_prefix_of_a_decision_is_safe() -> None:
    """A large decision may be cut behind a target, and only its beginning survive."""
    cuts = 0
    for seed in range(10):
        groups, values = Groups(), dict[AnyKey, Record]()
        for batch in storm(seed, 300).log:
            for at, record in enumerate(batch):
                if isinstance(record.key, TargetKey) and at + 1 < len(batch):
                    cuts += 1
                    check_can_go_on(groups, batch[: at + 1])
                    check_can_go_on(Groups(), compacted(values, batch[: at + 1]))
            groups.replay(batch)
            values = {each.key: each for each in compacted(values, batch)}
    assert cuts > 100


def compacted(before: dict[AnyKey, Record], records: tuple[Record, ...]) -> tuple[Record, ...]:
    """What is left of them when compaction has done all that it may: the last value of each key, in their order."""
    last = dict(before)
    for each in records:
        last.pop(each.key, None)
        last[each.key] = each
    return tuple(each for each in last.values() if each.value is not None)


def check_can_go_on(before: Groups, records: tuple[Record, ...]) -> None:
    groups = before.copy()
    groups.replay(records)
    for group in groups.by_id.values():
        group.check()
        targets = {name: group.target(name) for name in group.members}
        found = [
            (topic, index) for target in targets.values() for topic, indexes in target for index in indexes
        ]
        done = group.state.epoch == group.state.assignment_epoch
        assert not done or len(found) == len(set(found)), "twice in targets, and nobody would share out again"


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(0, 45_000), (1, 1000), (6000, 6000), (10**9, 1_800_000)])
def test_a_session_is_as_long_as_asked_for_within_what_the_broker_allows(
    asked_ms: int, given_ms: int
) -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"], session_ms=asked_ms)
    assert desk.group.members["a"].session_timeout_ms == given_ms


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"45000: it must lie between .*=1000 and .*=44000"):
        GroupSettings(group_consumer_max_session_timeout_ms=44_000)
    with pytest.raises(InvalidConfig, match=r"45000: it must lie between .*=46000 and"):
        GroupSettings(group_consumer_min_session_timeout_ms=46_000)
    with pytest.raises(InvalidConfig, match=r"three of them must fit"):
        GroupSettings(group_consumer_heartbeat_interval_ms=20_000)
    with pytest.raises(InvalidConfig, match=r"group.max.size=0"):
        GroupSettings(group_max_size=0)


# ── a thousand members ────────────────────────────────────────────────────────────────────────────────


def test_a_thousand_members_that_come_at_once_are_shared_out_to_a_few_times() -> None:
    desk = Desk()
    desk.topics.put(Topic(IDS["orders"], "orders", 1000))
    for number in range(1000):
        desk.now_ms += 1
        desk.say(f"m{number}", 0, ["orders"])
    desk.wait(2000, step_ms=100)
    times = sum(
        record.key.__class__.__name__ == "GroupKey" and record.value.assignment_epoch == record.value.epoch  # type: ignore[union-attr]
        for decision in desk.log
        for record in decision.records
    )
    assert times < 100, "not for each of them"
    assert desk.group.state.assignment_epoch == desk.group.state.epoch
    assert {len(target.partitions[0][1]) for target in desk.group.targets.values() if target.partitions} == {
        1
    }
