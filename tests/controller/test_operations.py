"""Operators do what they can, in random lives of a cluster: nothing that counts is lost by it (I-3, I-53; ADR 76)."""

from collections import Counter
from functools import partial

import pytest

from tests.controller.operations import Modules, Operations
from tests.controller.planted import Bug, fails, planted

SEEDS, STEPS = 25, 250


def lives(modules: Modules, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        life = Operations(modules, seed)
        life.run(STEPS)
        life.heal()
        seen += life.seen
    return seen


def test_no_operation_loses_what_was_committed_or_leaves_fewer_complete_replicas_than_it_may() -> None:
    seen = lives(Modules(), range(SEEDS))
    expected = {"unclean", "ended", "refused", "moves", "cancels", "unregistered", "recovered aggressive"}
    assert all(seen[word] > SEEDS // 4 for word in expected), seen


IN_MOVES = (
    Bug("no guard", "    _check_guard(image, p, assignment.replicas)\n", ""),
    Bug("a guard for cancels alone", "    _check_guard(image, p, assignment.replicas)\n", "    if not assignment.adding:\n        _check_guard(image, p, assignment.replicas)\n"),
    Bug("a guard for new targets alone", "    _check_guard(image, p, assignment.replicas)\n", "    if assignment.adding:\n        _check_guard(image, p, assignment.replicas)\n"),
    Bug("the elr does not count as complete", "complete = {*p.isr, *p.elr}", "complete = {*p.isr}"),
    Bug("unclean recovery empties the isr", "if p.isr and not set(p.isr) & left:", "if False:"),
    Bug("a new target follows the one before", "    before = original(p)\n", "    before = p.replicas\n"),
    Bug("a cancel keeps who was to come", "_assigned(image, p, Assignment(original(p)))", "_assigned(image, p, Assignment(p.replicas))"),
    Bug("who comes is in sync at once", "then = change(p, p.isr, alive", "then = change(p, (*p.isr, *assignment.adding), alive"),
    Bug("who goes has gone at once", "Assignment((*target, *removing), adding, removing)", "Assignment(tuple(target), adding, ())"),
    Bug("a throttle for ever", "not in image.configs or image.indexes.moving:", "not in image.configs or True:"),
    Bug("a throttle that ends with the first move", "not in image.configs or image.indexes.moving:", "not in image.configs:"),
)  # fmt: skip
IN_CONFIGS = (
    Bug("the cluster goes before the topic", "find(settings, TOPIC, topic, MIN_ISR)", 'find(settings, CLUSTER, "", MIN_ISR)'),
    Bug("min_isr only grows", "if p.min_isr != least_of(p, configured):", "if p.min_isr < least_of(p, configured):"),
    Bug("min_isr only shrinks", "if p.min_isr != least_of(p, configured):", "if p.min_isr > least_of(p, configured):"),
    Bug("what was left undone stays so", "for place, configured in behind)", "for place, configured in [*behind][:0])"),
    Bug("the cluster's topics are forgotten", "return not request.validate_only and any(", "return False and any("),
)  # fmt: skip
ELSEWHERE = (
    ("partitions", Bug("min_isr of the neighbour", "min_isr = configured_min_isr(image, first)", "min_isr = first.min_isr")),
    ("partitions", Bug("a number too many", "enumerate(replicas, len(there)):", "enumerate(replicas, len(there) + 1):")),
    ("leaders", Bug("unclean unasked", "best_first) if unclean else", "best_first) if image.partitions[place].leader < 0 else")),
    ("leaders", Bug("unclean and not told", "unclean = then.unclean_epoch != image.partitions[place].unclean_epoch", "unclean = False")),
    ("departures", Bug("sent away alive", "if not known.fenced:", "if False:")),
    ("departures", Bug("sent away with what it has", "if kept and not request.force:", "if False:")),
    ("departures", Bug("gone and guaranteed to have everything", "leave(image, broker, lambda _: gone)", "leave(image, broker)")),
    ("recovery", Bug("unclean where it is not allowed", "return None\n\n\ndef _alive", "return p.replicas, 1\n\n\ndef _alive")),
    ("recovery", Bug("balanced over the elr", "if p.last_known_elr and not p.isr and not p.elr:", "if p.last_known_elr:")),
)  # fmt: skip
BUGS = [*(("reassignment", bug) for bug in IN_MOVES), *(("configs", bug) for bug in IN_CONFIGS), *ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "bug"), BUGS, ids=[f"{module}: {bug}" for module, bug in BUGS])
def test_a_planted_bug_is_found(module: str, bug: Bug) -> None:
    modules = Modules()._replace(**{module: planted(getattr(Modules(), module), bug)})
    assert any(fails(partial(lives, modules, range(seed, seed + 1))) for seed in range(4 * SEEDS))
