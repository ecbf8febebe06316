"""Each rule of groups is undone, one at a time and from outside, and a storm finds it within seconds."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from tests.broker import test_groups, test_groups_requests, test_offsets_of_groups
from tests.broker import test_groups_on_brokers as on_brokers
from tests.broker.groups_world import storm
from tidelog.broker import offsets
from tidelog.broker.coordinator import Coordinator, Held
from tidelog.broker.coordinator_node import GroupsNode
from tidelog.broker.groups import heartbeats
from tidelog.broker.groups.deadlines import Deadlines
from tidelog.broker.groups.draft import Draft
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.records import CurrentState, spread_of
from tidelog.broker.groups.shard import Shard
from tidelog.broker.replicas import Replicas
from tidelog.client.membership import Membership, Revoke
from tidelog.controller.image import Changes
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.testing.simulation.world import World

SEEDS = 60
Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def instead(owner: Any, name: str, made: Any) -> Plant:
    return lambda plant: plant.setattr(owner, name, made)


def always(owner: Any, name: str, value: Any) -> Plant:
    return instead(owner, name, lambda *_, **__: value)


def _gives_up_for_it(draft: Draft, member: str, current: Any, _: Any, said: int) -> Any:
    """What a member is to give up is taken from it without asking."""
    target = draft.target(member)
    free = {place for place in target if draft.is_free(place) or draft.group.held.get(place) == member}
    return replace(
        current, epoch=draft.state.assignment_epoch, previous_epoch=said, assigned=spread_of(free), pending=()
    )


def _takes_any_answer(self: Membership, sequence: int, reply: Any, now_ms: int) -> None:
    self._in_flight = sequence
    ANSWERED(self, sequence, reply, now_ms)


def _gives_up_at_once(self: Membership) -> None:
    GIVE_UP(self)
    if isinstance(self._asked, Revoke):
        self.owned -= self._asked.places
        self._say(self._due_ms or 0)


def _loses_nothing(self: Membership, _: Any, now_ms: int) -> None:
    self.epoch, self._whole, self._in_flight, self._due_ms = 0, True, None, now_ms


def _without_sequence(group: Any, request: Any, entry: Any, at: Any) -> Any:
    return COMMIT_ONE(group, replace(request, commit_sequence=0), entry, at)


def _looks_at_news_once(self: Any, group_id: str, *rest: Any) -> Any:
    self._seen.setdefault(group_id, self.topics.version)
    self._seen[group_id] = self.topics.version
    return MOMENT(self, group_id, *rest)


def _commits_of_anybody(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(offsets, "_check_member", lambda *_: None)
    plant.setattr(offsets, "_check_holder", lambda *_: None)


def _loads_all_but_the_last(self: Any, records: Any) -> None:
    self.committed.replay(list(records)[:-1])


def _forgets_what_is_pending(self: Group, member: str, state: Any) -> None:
    SET_CURRENT(self, member, replace(state, pending=()) if state is not None else None)


ANSWERED = Membership.answered
GIVE_UP = Membership._give_up
COMMIT_ONE = offsets._commit_one
MOMENT = Shard._moment
SET_CURRENT = Group.set_current

BUGS: dict[str, Plant] = {
    "what others have is given as well": always(Draft, "is_free", True),
    "nothing is confirmed": instead(heartbeats, "_moved", _gives_up_for_it),
    "what is not given up yet is forgotten": instead(Group, "set_current", _forgets_what_is_pending),
    "anybody commits anything": _commits_of_anybody,
    "late commits count": instead(offsets, "_commit_one", _without_sequence),
    "answers do not wait": always(Shard, "rests_on", 0),
    "who is silent stays": always(Deadlines, "passed", []),
    "nobody is waited for after a failover": lambda plant: plant.setattr(
        Shard, "activate", _without_sessions
    ),
    "the group's epoch stays": always(Draft, "bump", None),
    "topics are looked at once": instead(Shard, "_moment", _looks_at_news_once),
    "the last record is not loaded": instead(Shard, "load", _loads_all_but_the_last),
    "any answer counts": instead(Membership, "answered", _takes_any_answer),
    "what is asked for is given up before the user is done": instead(
        Membership, "_give_up", _gives_up_at_once
    ),
    "who is put out keeps what it had": instead(Membership, "_lose", _loses_nothing),
    "nothing is said when the user is done": always(Membership, "_say", None),
}


def _without_sessions(self: Shard, now_ms: int) -> None:
    ACTIVATE(self, now_ms)
    self.deadlines = Deadlines()


ACTIVATE = Shard.activate


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_storm_finds_the_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in range(SEEDS):
        try:
            storm(seed)
        except AssertionError:
            return
    pytest.fail(f"{SEEDS} storms did not find: {bug}")


def _activates_what_is_loaded(self: Coordinator, held: Held) -> None:
    if held.is_loaded and not held.shard.is_active:
        held.shard.activate(self.context.clocks.now_ms())


def _never_unloads(self: Coordinator) -> None:
    if not self.held:
        LOOK_AT_ROLES(self)
    for held in self.held.values():
        held.leader_epoch = held.partition.leader_epoch


def _skips_it(held: Held) -> None:
    try:
        LOAD_SLICE(held)
    except UnsupportedFormat:
        held.next_offset = held.end


def _wakes_for_loads_only(node: GroupsNode, changes: Changes) -> None:
    if node.coordinator.adopt(changes):
        node._to_do.set()


def _somebody_dies() -> None:
    with World(7).running() as world:
        on_brokers.test_who_dies_is_put_out_also_by_a_coordinator_that_had_nothing_to_load(
            on_brokers.Play(world)
        )


def _goes_on_with_the_time_of_the_last(
    self: Shard, record: Any, group: Any, before: dict[str, CurrentState], now_ms: int
) -> None:
    if isinstance(record.value, CurrentState) and record.value.pending and before[record.key.member].pending:
        before = {record.key.member: record.value}
    FOLLOW(self, record, group, before, now_ms)


def _without_an_id(group: Any, request: Any, entry: Any, at: Any) -> Any:
    return COMMIT_ONE(group, replace(request, member_id=""), entry, at)


def _hears_nothing(self: Shard, *rest: Any) -> None:
    HEARD(self, *rest)
    self.heard.clear()


FOLLOW = Shard._follow
HEARD = Shard._heard
LOOK_AT_ROLES = Coordinator._look_at_roles
LOAD_SLICE = Coordinator._load_slice

TOLD: dict[str, tuple[Plant, Callable[[], None]]] = {
    "a late heartbeat counts": (
        always(heartbeats, "_is_late", False),
        test_groups.test_a_late_heartbeat_confirms_nothing,
    ),
    "what changed nothing was not heard": (
        instead(Shard, "_heard", _hears_nothing),
        test_groups.test_a_late_heartbeat_is_given_nothing_also_when_the_newer_one_changed_nothing,
    ),
    "a member's epoch is not looked at in heartbeats": (
        always(heartbeats, "_check_epoch", None),
        test_groups.test_a_member_that_says_an_epoch_of_long_ago_is_fenced,
    ),
    "a member's epoch is not looked at in commits": (
        always(offsets, "_check_member", None),
        test_offsets_of_groups.test_a_commit_of_an_older_epoch_is_refused,
    ),
    "what others have is committed": (
        always(offsets, "_check_holder", None),
        test_offsets_of_groups.test_nobody_commits_what_another_member_has,
    ),
    "a broker that was stopped puts everybody out": (
        instead(Deadlines, "_listen", lambda *_: None),
        test_groups.test_a_broker_that_was_stopped_puts_nobody_out_for_its_own_silence,
    ),
    "who does not give up is waited for for ever": (
        instead(Shard, "_await_revocation", lambda *_: None),
        test_groups.test_who_does_not_give_up_in_time_is_put_out,
    ),
    "who holds on when the log refuses is waited for for ever": (
        instead(Shard, "_retry_soon", lambda *_: None),
        test_groups.test_who_does_not_give_up_in_time_is_put_out_also_when_the_log_refused_that_at_first,
    ),
    "what is asked for next has the time of what was asked for before": (
        instead(Shard, "_follow", _goes_on_with_the_time_of_the_last),
        test_groups.test_each_thing_that_is_to_be_given_up_has_its_own_time,
    ),
    "commits of who is no member have no order": (
        instead(offsets, "_commit_one", _without_an_id),
        test_offsets_of_groups.test_who_is_no_member_and_says_an_id_commits_in_order,
    ),
    "what was loaded is served before it is committed": (
        instead(Coordinator, "_look_at", _activates_what_is_loaded),
        test_groups_requests.test_nothing_is_served_before_what_was_loaded_is_committed,
    ),
    "a coordinator without a lease answers": (
        always(Replicas, "has_lease", True),
        test_groups_requests.test_nothing_is_served_without_a_lease,
    ),
    "carried answers do not wait": (
        always(Shard, "rests_on", 0),
        test_groups_requests.test_an_answer_waits_for_the_replicas,
    ),
    "a shard outlives its leadership": (
        instead(Coordinator, "_look_at_roles", _never_unloads),
        test_groups_requests.test_another_broker_and_the_next_process_load_the_same,
    ),
    "who had nothing to load is not told the time": (
        instead(GroupsNode, "adopt", _wakes_for_loads_only),
        _somebody_dies,
    ),
    "what is not understood is skipped": (
        instead(Coordinator, "_load_slice", staticmethod(_skips_it)),
        test_groups_requests.test_a_log_that_is_not_understood_is_not_served_and_read_anew_later,
    ),
}
"""Rules that storms seldom meet: each is undone, and the sentence about it fails."""


@pytest.mark.parametrize("bug", TOLD)
def test_a_sentence_finds_the_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, sentence = TOLD[bug]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        sentence()


@pytest.mark.parametrize("bug", TOLD)
def test_without_the_bug_the_sentence_holds(bug: str) -> None:
    TOLD[bug][1]()
