"""The end of a move, against the words of 4.11: of any partition that can be, `change` makes what is written there."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.controller.planted import Bug, fails, planted
from tidelog.controller import election
from tidelog.controller.image import PartitionState, flaw_of
from tidelog.protocol.types import NO_BROKER, BrokerId

BROKERS = tuple(BrokerId(number) for number in range(1, 6))
SAMPLES = 5_000


def any_partition(rng: random.Random) -> PartitionState:
    """A partition that is being moved, or not, in any state that contradicts no rule."""
    replicas = tuple(rng.sample(BROKERS, rng.randint(1, 5)))
    roles = {r: rng.choice(("stays", "stays", "comes", "goes")) for r in replicas}
    if set(roles.values()) in ({"comes"}, {"goes"}):
        roles[replicas[0]] = "stays"  # there is a target, and there were replicas before
    adding = tuple(r for r in replicas if roles[r] == "comes")
    removing = tuple(r for r in replicas if roles[r] == "goes")
    least = rng.randint(1, max(1, len(replicas) - len(adding)))
    isr = tuple(rng.sample(replicas, rng.randint(0, len(replicas))))
    others = [r for r in replicas if r not in isr]
    elr = tuple(rng.sample(others, rng.randint(0, len(others)))) if len(isr) < least else ()
    leader = rng.choice(isr) if isr and rng.random() < 0.8 else NO_BROKER
    state = PartitionState(b"t" * 16, 0, replicas, isr, leader, 5, 9, least, elr, (), adding, removing)
    assert flaw_of(state) is None, state
    return state


def check(module: Any, rng: random.Random) -> str:
    """One change of one partition; the answer says what it was a case of."""
    p = any_partition(rng)
    target = tuple(rng.sample(p.replicas, rng.randint(0, len(p.replicas))))
    living = set(rng.sample(BROKERS, rng.randint(0, 5)))
    configured = rng.randint(1, 5)
    then = module.change(p, target, living.__contains__, min_isr=configured)
    assert flaw_of(then) is None, (p, target, then)
    goal = [r for r in p.replicas if r not in p.removing]
    # Where nobody is left in sync, whoever was complete and is alive is elected, and may be the end of the move.
    elected = [r for r in p.replicas if r in {*p.isr, *p.elr} & living][:1]
    left = tuple(r for r in target or elected if r not in p.removing)
    moved = bool(p.adding or p.removing)
    ends = moved and set(goal) <= set(left) and len(left) >= min(configured, len(goal))
    if ends:
        assert (then.replicas, then.adding, then.removing, then.isr or left) == (tuple(goal), (), (), left), (
            p,
            then,
        )
        assert not {*then.elr, *then.last_known_elr} & set(p.removing), (p, then)
        assert not p.removing or then.leader_epoch == p.leader_epoch + 1, (p, then)
        assert len(then.isr) >= then.min_isr or not then.isr, (p, then)
    else:
        assert (then.replicas, then.adding, then.removing) == (p.replicas, p.adding, p.removing), (p, then)
        assert set(then.isr) == set(target) or (not target and set(then.isr) <= set(p.elr) | set(p.isr)), (
            p,
            then,
        )
    assert then.min_isr == min(configured, max(1, len(then.replicas) - len(then.adding))), (p, then)
    _check_leader(p, then, living)
    complete = ({*p.isr, *p.elr} | set(target)) & set(then.replicas)
    assert {*then.isr, *then.elr} <= complete, (p, then)
    assert len(then.isr) >= then.min_isr or {*then.isr, *then.elr} == complete, (p, then)
    return "ends" if ends else "goes on" if moved else "is not moved"


def _check_leader(p: PartitionState, then: PartitionState, living: set[BrokerId]) -> None:
    if then.leader == NO_BROKER:
        assert not living & set(then.isr or then.elr), (p, then)
    else:
        assert then.leader in living or then.leader == p.leader, (p, then)
    changed = then.leader != p.leader or not set(p.replicas) <= set(then.replicas)
    assert then.leader_epoch == p.leader_epoch + changed, (p, then)
    assert then.partition_epoch == p.partition_epoch + (then != p), (p, then)


def samples(module: Any) -> Counter[str]:
    rng = random.Random(20)
    return Counter(check(module, rng) for _ in range(SAMPLES))


def test_of_any_partition_a_change_makes_what_is_written() -> None:
    assert min(samples(election)[word] for word in ("ends", "goes on", "is not moved")) > SAMPLES // 50


BUGS = (
    Bug("it ends before all are there", "set(goal) <= set(left) and", ""),
    Bug("who goes stays in sync", "return Assignment(goal), left", "return Assignment(goal), isr"),
    Bug("who goes keeps the lead", "if p.leader in isr and alive(p.leader):", "if p.leader != NO_BROKER and alive(p.leader):"),
    Bug("who comes counts at once", "- len(assigned.adding)", ""),
    Bug("an end is no new leadership", "or not set(p.replicas) <= set(then.replicas)", ""),
    Bug("who waited in the elr ends nothing", "        assigned, isr = _completed(assigned, isr, min_isr or p.min_isr)\n    least", "    least"),
    Bug("only what comes is waited for", "moving = assigned.adding or assigned.removing", "moving = assigned.adding"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(election, bug)
    assert fails(lambda: samples(module))
