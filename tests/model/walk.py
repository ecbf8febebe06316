"""Walks: a seed draws settings and weights (swarm), then steps; a failing walk is told, replayed and shrunk."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.model import invariants, steps
from tests.model.follower import adopt
from tests.model.heal import heal
from tests.model.invariants import Violation, members
from tests.model.rules import Rules
from tests.model.state import Broker, Settings, World
from tests.model.steps import ALWAYS, BY_NAME, WEIGHTS, Step

SLOTS = 1024
"""Weights become a table of this many steps, so that drawing one is an index."""

FLOORS = (
    "acks",
    "elections",
    "elections from the ELR",
    "ISR expansions",
    "ISR shrinks",
    "AlterPartitions refused",
    "copies of AlterPartition refused",
    "fetches of another epoch refused",
    "truncations",
    "truncations below the high watermark",
    "logs begun anew",
    "damaged logs",
    "flushes",
    "Flushed heard",
    "Flushed of another history refused",
    "flush mode changes",
    "kills",
    "power cuts",
    "power cuts of all",
    "disks replaced",
    "lossy registrations of members",
    "old registrations refused",
    "living brokers fenced",
    "closing brokers fenced",
    "controlled shutdowns",
    "controller failovers",
    "unclean elections",
    "unclean elections that lost records",
    "single replicas recovered",
    "reassignments started",
    "reassignments replaced",
    "reassignments cancelled",
    "reassignments completed",
    "reassignments refused",
    "replicas deleted",
    "deletions answered",
    "retentions",
    "reads",
    "walks healed",
)
"""What a run must have met: a walk that never does a thing proves nothing about it."""

Choice = tuple[str, int, int, int]
"""A step that happened: its name, the broker, and the two numbers that said which and how much."""


@dataclass
class Outcome:
    """What a walk came to."""

    seed: int
    settings: Settings
    choices: list[Choice]
    counts: dict[str, int]
    violation: Violation | None = None
    steps: int = field(default=0)


FLUSHING: tuple[Step, ...] = (
    steps.flush_begins, steps.flush_ends, steps.flushed_arrives, steps.send_fetch, steps.fetch_arrives,
    steps.answer_arrives, steps.cut_power, steps.preferred_election,
)  # fmt: skip
THEMES: tuple[tuple[Step, ...], ...] = (
    (),
    (steps.delete, steps.deletion_answered, steps.read, steps.kill_process, steps.fence_fast),
    FLUSHING,
    (steps.reassignment_begins, steps.reassignment_cancelled, steps.fence_fast),
    (
        steps.propose_expansion,
        steps.propose_shrink,
        steps.alter_again,
        steps.verdict_arrives,
        steps.fence_fast,
    ),
    (steps.unclean_election, steps.retain, steps.cut_power, steps.cut_all_power, steps.checkpoint),
    (steps.cut_power, steps.cut_all_power, steps.config_changes, steps.flush_ends),
    (steps.send_fetch, steps.fetch_arrives, steps.answer_arrives, steps.preferred_election, steps.fence_fast),
    (steps.kill_process, steps.registration_arrives, steps.controller_fails_over, steps.cut_power),
)
"""Steps that a seed may take up together, four times as often as usual."""


def swarm(rng: random.Random) -> tuple[Settings, list[Step]]:
    """The seed's own world: how many brokers, which modes, and how often what happens; some things never do."""
    brokers = rng.choice((3, 3, 4))
    theme = rng.choice(THEMES)
    group = rng.random() < 0.4 or theme is FLUSHING
    settings = Settings(
        brokers, rng.choice((1, 2, 3, 3, 3)), rng.choice((1, 2, 2, 3)), group, rng.choice((0, 0, 1, 2))
    )
    weights = [
        weight
        * (rng.choice((0.5, 1, 2)) if step in ALWAYS else rng.choice((0, 0, 0.3, 1, 1, 3)) + (step in theme))
        * (4 if step in theme else 1)
        for step, weight in WEIGHTS.items()
    ]
    weights[list(WEIGHTS).index(steps.quiet_moment)] *= rng.choice((0.1, 0.3, 1, 1))
    total = sum(weights)
    table: list[Step] = []
    share = 0.0
    for step, weight in zip(WEIGHTS, weights, strict=True):
        share += weight
        table.extend([step] * (round(share * SLOTS / total) - len(table)))
    return settings, table


def born(rules: Rules, settings: Settings) -> World:
    """A world in which everybody has replayed the partition's creation."""
    world = World(rules, settings)
    for broker in world.brokers:
        adopt(world, broker)
    return world


def walk(rules: Rules, seed: int, length: int, *, healing: bool = True) -> Outcome:
    """`length` draws from this seed; only those that did something are kept."""
    rng = random.Random(seed)
    settings, table = swarm(rng)
    world = born(rules, settings)
    outcome = Outcome(seed, settings, [], world.counts)
    n = settings.brokers
    brokers = world.brokers
    draw = rng.getrandbits
    happened = outcome.choices
    try:
        for _ in range(length):
            bits = draw(28)
            step = table[bits & 1023]
            broker = brokers[(bits >> 10 & 1023) % n]
            x, y = bits >> 20 & 15, bits >> 24
            happened.append((step.__name__, broker.id, x, y))
            if not step(world, broker, x, y):
                happened.pop()
                continue
            for each in brokers:
                if not each.log_start <= each.hwm <= len(each.log) >= each.synced:
                    invariants.ordered_ends(each)
        if healing:
            heal(world)
    except Violation as violation:
        outcome.violation = violation
    outcome.steps = len(happened)
    return outcome


def replay(
    rules: Rules, settings: Settings, choices: Iterable[Choice], *, healing: bool = True
) -> Violation | None:
    """The same choices again, under these rules; what fails, or None."""
    return _replay(born(rules, settings), choices, healing=healing)


def _replay(world: World, choices: Iterable[Choice], *, healing: bool) -> Violation | None:
    try:
        for name, broker, x, y in choices:
            BY_NAME[name](world, world.brokers[broker], x, y)
            for each in world.brokers:
                invariants.ordered_ends(each)
        if healing:
            heal(world)
    except Violation as violation:
        return violation
    return None


def shrink(
    rules: Rules, settings: Settings, choices: Sequence[Choice], invariant: str, *, healing: bool = True
) -> list[Choice]:
    """Fewer steps that break the same invariant: halves go first, then quarters, down to single steps."""
    kept = list(choices)
    size = max(1, len(kept) // 2)
    while True:
        index = len(kept)
        removed = False
        while index > 0:
            begin = max(0, index - size)
            fewer = kept[:begin] + kept[index:]
            failure = replay(rules, settings, fewer, healing=healing)
            if failure is not None and failure.invariant == invariant:
                kept, removed = fewer, True
            index = begin
        if size == 1 and not removed:
            return kept
        size = max(1, size // 2)


def transcript(rules: Rules, settings: Settings, choices: Iterable[Choice], *, healing: bool = True) -> str:
    """The walk in columns: what happened, the record, and each broker; a dot where nothing changed."""
    world = born(rules, settings)
    rows = [
        ["step", "record", *(str(broker.id) for broker in world.brokers)],
        ["start", *_columns(world)],
    ]
    shown = rows[1][1:]
    failure: Violation | None = None
    for choice in choices:
        failure = _replay(world, [choice], healing=False)
        now = _columns(world)
        name, broker, x, y = choice
        told = ["." if old == new else new for old, new in zip(shown, now, strict=True)]
        rows.append([f"{name} {broker}" + (f" {x} {y}" if x or y else ""), *told])
        shown = now
        if failure is not None:
            break
    if failure is None and healing:
        failure = _replay(world, [], healing=True)
        rows.append(["heal", *_columns(world)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    scene = (
        f"{settings.brokers} brokers, min_isr {settings.min_isr}, {'group' if settings.group else 'async'}"
    )
    return "\n".join([scene, f"off: {', '.join(rules.off()) or 'nothing'}", *lines, str(failure)])


def _columns(world: World) -> list[str]:
    p = world.image.record
    moving = f" +{members(p.adding)} -{members(p.removing)}" if p.adding | p.removing else ""
    unclean = f" unclean {p.unclean_epoch}" if p.unclean_epoch >= 0 else ""
    group = " group" if p.group else ""
    leader = "-" if p.leader < 0 else str(p.leader)
    record = f"e{p.leader_epoch} leader {leader} isr {members(p.isr)} elr {members(p.elr)} min {p.min_isr}"
    record += f" of {''.join(map(str, p.replicas))}{moving}{unclean}{group}"
    return [record, *(_column(broker) for broker in world.brokers)]


def _column(broker: Broker) -> str:
    """`L3 2[0@2 3@5]7 h6`: leads in epoch 3, begins at 2, has epoch 0 from 2 on and 3 from 5 on, ends at 7."""
    role = "down" if not broker.up else "-LF"[broker.role] + (str(broker.leader_epoch) if broker.role else "")
    runs = " ".join(f"{epoch}@{begin}" for epoch, begin in invariants.cache_of(broker))
    waits = f" +{members(broker.pending)}?" if broker.pending else ""
    return f"{role} {broker.log_start}[{runs}]{len(broker.log)} h{broker.hwm}{waits}"
