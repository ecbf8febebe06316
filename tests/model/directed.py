"""Histories written by hand, for rules that random walks meet too rarely: a step, a broker, which and how much.

A line is `step broker x y`, with zeros left out. Each history ends in a violation when its rules are switched
off, and in none when they are on; `catalogue` says which rule has which.
"""

from dataclasses import dataclass

from tests.model.rules import Rules, all_but
from tests.model.state import Settings
from tests.model.walk import Choice


@dataclass(frozen=True, slots=True)
class History:
    """A story in which these rules, switched off together, break that invariant."""

    off: tuple[str, ...]
    invariant: str
    settings: Settings
    steps: str

    @property
    def rules(self) -> Rules:
        """Everything on, except what the story is about."""
        return all_but(*self.off)

    @property
    def choices(self) -> list[Choice]:
        """The story as a walk would have drawn it."""
        choices = []
        for line in self.steps.splitlines():
            if not line.strip():
                continue
            name, *numbers = line.split("#")[0].split()
            broker, x, y = (*map(int, numbers), 0, 0)[:3]
            choices.append((name, broker, x, y))
        return choices


ASYNC = Settings(brokers=3, replicas=3, min_isr=2, group=False, unclean=0)
STRICT = ASYNC._replace(min_isr=3)
GROUP_OF_TWO = Settings(brokers=3, replicas=2, min_isr=2, group=True, unclean=0)

FETCH_FROM_ANOTHER_EPOCH = History(
    ("epoch_checked_on_fetch",),
    "I-4",
    STRICT,
    """
    produce_record 0
    produce_record 0
    produce_record 0
    fetch_round 2
    send_fetch 2                # "I have 3 records of epoch 0"; it stays in the socket of a stopped process
    fence_fast 0 1              # 1 leads epoch 1, 0 is in the ELR
    replay_metadata 1 3
    replay_metadata 2 3
    fetch_round 2               # 2 diverges and truncates to 0
    produce_record 1
    fetch_round 2               # and holds what 1 wrote
    fence_fast 2 1
    fence_fast 1 1              # ISR empty, everybody in the ELR
    replay_metadata 0 3
    heartbeat 0 1               # 0 leads epoch 3 with its 3 records
    heartbeat 2 1
    config_changes 0 1          # min_isr 2
    replay_metadata 0 3
    fetch_arrives 2             # the old fetch
    propose_expansion 0 2
    alter_arrives 0
    replay_metadata 0 3         # 0 commits what only it has
    """,
)

REFUSED_THEN_ACCEPTED = """
    fence_fast 2 1
    replay_metadata 0 3
    heartbeat 2 1
    replay_metadata 0 3         # the leader's image: 2 is unfenced
    replay_metadata 2 3
    fetch_round 2
    fence_fast 2 1              # the controller's: it is not
    propose_expansion 0 2
    alter_arrives 0 0 3         # refused, and a copy stays on the way
    verdict_arrives 0           # the leader forgets the proposal
    heartbeat 2 1               # unfenced; the partition's version is the same
    {}
    alter_arrives 0             # the copy
"""

COPY_OF_A_REFUSED_ALTER = History(("alter_seq",), "I-14", ASYNC, REFUSED_THEN_ACCEPTED.format("tick 0"))
COPY_AFTER_FAILOVER = History(
    ("quorum_epoch_named",), "I-14", ASYNC, REFUSED_THEN_ACCEPTED.format("controller_fails_over 0")
)

FLUSH_THAT_RACED_WITH_A_WRITE = History(
    ("flush_covers_what_was_there",),
    "I-4",
    GROUP_OF_TWO,
    """
    produce_record 0
    fetch_round 1
    flush_begins 1              # notes 1
    produce_record 0
    fetch_round 1
    flush_ends 1                # claims 2
    flush_begins 0
    flush_ends 0
    fetch_round 1               # both records are committed
    cut_power 1                 # one comes back
    """,
)

OLD_TAIL = """
    produce_record 0
    produce_record 0            # 0 alone has two records of epoch 0
    fence_fast 0 1              # 1 leads epoch 1, 0 is in the ELR
    replay_metadata 1 3
    replay_metadata 0 3
    produce_record 1
    produce_record 1
"""

FLUSH_OVERTAKEN_BY_A_TRUNCATION = History(
    ("flush_forgets_truncated",),
    "I-4",
    GROUP_OF_TWO,
    OLD_TAIL
    + """
    flush_begins 0              # notes 2, of the old tail
    fetch_round 0               # diverges, truncates to 0
    fetch_round 0               # copies two records of epoch 1
    flush_ends 0                # claims 2
    heartbeat 0 1
    replay_metadata 1 3
    flush_begins 1
    flush_ends 1
    fetch_round 0
    propose_expansion 1 0
    alter_arrives 1
    replay_metadata 1 3         # commits both
    cut_power 0                 # none comes back
    """,
)

FLUSHED_OF_AN_OLD_TAIL = History(
    ("flushed_names_its_epoch",),
    "I-4",
    GROUP_OF_TWO,
    OLD_TAIL
    + """
    flush_begins 0
    flush_ends 0                # "2 are durable", of the old tail; the message is slow
    fetch_round 0               # diverges, truncates to 0
    fetch_round 0               # copies two records of epoch 1, not yet flushed
    fetch_round 0               # the leader knows: end 2, durable 0
    heartbeat 0 1
    replay_metadata 1 3
    flush_begins 1
    flush_ends 1
    flushed_arrives 0           # durable 2
    propose_expansion 1 0
    alter_arrives 1
    replay_metadata 1 3         # commits both
    cut_power 0                 # none comes back
    """,
)

MODES_DIFFER = """
    produce_record 0
    fetch_round 1
    config_changes 0 2 3        # flush.mode=group
    replay_metadata 2 3         # 2 knows, and flushes from here on
    fetch_round 2
    fetch_round 2               # the leader does not know, and counts what 2 fetched
    fetch_round 1               # committed
    cut_power 2                 # not lossy: the record says group
"""
LEADER_COUNTS_IN_THE_OLD_MODE = History(("mode_change_is_an_epoch",), "I-4", STRICT, MODES_DIFFER)

DELETION_UNDONE_BY_THE_ELR = History(
    ("deletion_waits_for_members",),
    "I-76",
    STRICT,
    """
    produce_record 0
    fetch_round 1
    fetch_round 2
    fetch_round 1
    fetch_round 2               # committed
    kill_process 2
    fence_fast 2                # in the ELR, with the record
    replay_metadata 0 3
    replay_metadata 1 3
    delete 0
    fetch_round 1
    fetch_round 1               # 1 has followed, nobody else is alive
    deletion_answered 0
    fence_fast 1 1
    fence_fast 0 1
    start_process 2
    send_registration 2 0 1
    replay_metadata 2 3
    heartbeat 2 1               # elected from the ELR
    replay_metadata 2 3
    heartbeat 2 1
    read 2
    """,
)

HISTORIES: tuple[History, ...] = (
    FETCH_FROM_ANOTHER_EPOCH,
    COPY_OF_A_REFUSED_ALTER,
    COPY_AFTER_FAILOVER,
    FLUSH_THAT_RACED_WITH_A_WRITE,
    FLUSH_OVERTAKEN_BY_A_TRUNCATION,
    FLUSHED_OF_AN_OLD_TAIL,
    LEADER_COUNTS_IN_THE_OLD_MODE,
    DELETION_UNDONE_BY_THE_ELR,
)
