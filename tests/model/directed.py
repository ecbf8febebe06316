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

TRUNCATION_UNDONE_BY_A_POWER_CUT = History(
    ("truncation_flushed",),
    "I-5",
    ASYNC,
    """
    produce_record 0
    produce_record 0            # 0 alone has two records of epoch 0
    flush_begins 0
    flush_ends 0                # on the medium
    fence_fast 0 1
    replay_metadata 1 3
    replay_metadata 0 3
    replay_metadata 2 3
    produce_record 1
    produce_record 1
    fetch_round 0               # diverges, truncates to 0; the medium still has the old tail
    fetch_round 0               # copies two records of epoch 1
    fetch_round 2
    fetch_round 2               # committed
    fetch_round 0
    checkpoint 0                # high watermark 2, durably
    cut_power 0 0 1             # truncation and copies were never flushed
    start_process 0             # two records of epoch 0 below a high watermark of 2
    """,
)

UNCLEAN_LEADER_SHOWS_WHAT_IT_NEVER_FLUSHED = History(
    ("unclean_leader_flushes",),
    "I-4",
    Settings(brokers=3, replicas=3, min_isr=1, group=True, unclean=2),
    """
    fence_fast 2 1
    fence_fast 1 1
    replay_metadata 0 3
    replay_metadata 1 3
    produce_record 0
    flush_begins 0
    flush_ends 0                # committed by 0 alone
    fetch_round 1
    fetch_round 1               # 1 has the record and the high watermark, and flushed neither
    heartbeat 1 1
    fence_fast 0 1
    unclean_election 0 1        # 1 leads
    replay_metadata 1 3         # and shows its high watermark, which it keeps (2.3)
    cut_power 1
    start_process 1
    send_registration 1 0 1     # not lossy: the mode is group
    """,
)

RECOVERING = Settings(brokers=3, replicas=3, min_isr=1, group=False, unclean=2)

HOLE_BELOW_A_DAMAGED_LOG = History(
    ("empty_log_begins_at_log_start",),
    "I-4",
    RECOVERING,
    """
    fence_fast 2 1              # 2 falls behind, with nothing
    replay_metadata 0 3
    produce_record 0
    produce_record 0
    produce_record 0
    fetch_round 1
    fetch_round 1
    delete 0 1                  # log start 2
    fetch_round 1               # also at 1, durably
    kill_process 0
    fence_fast 0
    cut_power 1                 # 1 keeps its checkpoints and loses its records
    start_process 1             # an empty log at 2
    send_registration 1 0 1     # lossy: nobody complete is left
    heartbeat 2 1
    unclean_election 0 1        # 2 leads, from 0
    replay_metadata 2 3
    produce_record 2
    produce_record 2
    produce_record 2
    replay_metadata 1 3
    fetch_round 1               # from 2, without a last epoch; nothing contradicts
    fetch_round 1
    heartbeat 1 1
    replay_metadata 2 3
    propose_expansion 2 2
    alter_arrives 2             # no longer recovering
    replay_metadata 2 3
    propose_expansion 2 1
    alter_arrives 2             # 1 joins without offsets 0 and 1, which nobody deleted
    """,
)

DELETED_HERE_NEVER_WRITTEN_THERE = """
    produce_record 0
    fetch_round 2               # 2 has offset 0 of epoch 0, never committed
    fence_fast 0 1
    fence_fast 2 1
    replay_metadata 1 3
    produce_record 1
    produce_record 1
    produce_record 1            # committed by 1 alone, in epoch 1
    delete 1 1                  # log start 2
    kill_process 1
    fence_fast 1
    heartbeat 2 1
    unclean_election 0 1        # 2 leads
    replay_metadata 2 3
    produce_record 2
    start_process 1
    send_registration 1 0 1
    replay_metadata 1 3
    fetch_round 1               # must give up everything from 1 on, and begins at 2
"""

BEGUN_ANEW_IN_THE_MIDDLE = History(
    ("refetch_below_log_start", "empty_log_begins_at_log_start"),
    "I-4",
    RECOVERING,
    DELETED_HERE_NEVER_WRITTEN_THERE
    + """
    fetch_round 1               # from 1: offset 0 of the leader is missing for ever
    heartbeat 1 1
    replay_metadata 2 3
    propose_expansion 2 2
    alter_arrives 2             # no longer recovering
    replay_metadata 2 3
    propose_expansion 2 1
    alter_arrives 2
    """,
)

CHECKPOINT_ABOVE_THE_NEW_END = History(
    ("checkpoints_lowered_first",),
    "kill is harmless",
    RECOVERING,
    DELETED_HERE_NEVER_WRITTEN_THERE
    + """
    kill_process 1              # the log begins at 0 again, its checkpoints say 2
    start_process 1
    """,
)

DELETION_UNDONE_BY_A_KILL = History(
    ("log_start_durable",),
    "I-76",
    STRICT,
    """
    produce_record 0
    produce_record 0
    fetch_round 1
    fetch_round 2
    fetch_round 1
    fetch_round 2               # committed
    delete 0
    fetch_round 1
    fetch_round 2
    fetch_round 1
    fetch_round 2               # both report log start 1
    deletion_answered 0
    kill_process 1
    start_process 1             # the checkpoint says 0
    send_registration 1 0 1
    fence_fast 2 1
    fence_fast 0 1
    replay_metadata 1 3
    heartbeat 1 1               # elected from the ELR
    replay_metadata 1 3
    heartbeat 1 1
    read 1
    """,
)

OLD_REGISTRATION = History(
    ("starts_counted",),
    "I-24",
    STRICT,
    """
    kill_process 0
    start_process 0
    send_registration 0         # slow
    kill_process 0
    start_process 0
    send_registration 0 0 1     # registered, and in the ELR
    replay_metadata 0 3
    registration_arrives 0      # of the process that was killed: neither name matches, so "lossy"
    """,
)

LEASE_WITHOUT_METADATA = History(
    ("lease_needs_metadata",),
    "I-79",
    ASYNC,
    """
    fence_fast 0 1              # something refuses for 0; 1 leads
    tick 0
    tick 0
    tick 0
    tick 0
    tick 0
    tick 0
    tick 0                      # its lease is over
    heartbeat 0 1               # unfenced, and a new lease; it has replayed nothing since
    read 0
    """,
)

MOVING_TO_TWO_AND_THREE = Settings(brokers=4, replicas=2, min_isr=2, group=False, unclean=0)

TARGET_REPLACED = History(
    ("replace_keeps_members",),
    "I-53",
    MOVING_TO_TWO_AND_THREE,
    """
    fence_fast 1 1
    reassignment_begins 0 4 1   # to 2 and 3
    replay_metadata 0 3
    replay_metadata 2 3
    fetch_round 2
    propose_expansion 0 2
    alter_arrives 0             # ISR 0 and 2: enough, so the ELR is empty
    reassignment_begins 0 3     # no, to 3: 2 leaves, and 0 is alone
    """,
)

CANCELLED_WITHOUT_THE_ELR = History(
    ("guard_counts_eligible",),
    "I-53",
    MOVING_TO_TWO_AND_THREE,
    """
    reassignment_begins 0 4 1   # to 2 and 3
    replay_metadata 3 3
    fence_fast 1 1
    replay_metadata 0 3
    fetch_round 3
    propose_expansion 0 3
    alter_arrives 0             # ISR 0 and 3
    fence_fast 3 1              # ISR 0, ELR 3
    reassignment_cancelled 0    # 3 leaves; the ISR has not become smaller
    """,
)

STOPPING_LEADER_DEPOSED = History(
    ("stopping_leader_stays",),
    "I-79",
    ASYNC,
    """
    fence_fast 0 1
    fence_fast 1 1              # ISR 2, ELR 1
    replay_metadata 2 3
    stop_politely 2             # the only member stays until the end (4.6)
    kill_process 1
    start_process 1
    send_registration 1 0 1     # any change() finds that 2 is not "alive"
    read 2
    """,
)

UNFLUSHED_SINCE_ASYNC = History(
    ("mode_change_flushed",),
    "I-3",
    Settings(brokers=3, replicas=1, min_isr=1, group=False, unclean=0),
    """
    produce_record 0            # committed, in async
    config_changes 0 0 3        # flush.mode=group
    cut_power 0
    start_process 0
    send_registration 0 0 1     # a host crash in mode group is not lossy
    replay_metadata 0 3
    heartbeat 0 1
    """,
)

SAME_ANSWER_TWICE = History(
    ("one_answer_per_request",),
    "I-6",
    ASYNC,
    """
    produce_record 0
    fence_fast 0 1
    replay_metadata 0 3
    replay_metadata 1 3
    replay_metadata 2 3
    produce_record 1
    send_fetch 0
    fetch_arrives 0             # "you diverge at 0", slow
    fetch_round 0               # asked again, truncated
    fetch_round 0               # one record of epoch 1: the end is 1 again
    fetch_round 2
    fetch_round 2
    fetch_round 0               # committed
    answer_arrives 0            # same generation, same epoch, same end
    """,
)

REPLACED_DISK_LEADS = History(
    ("host_crash_alone_is_recovered",),
    "automatic recovery",
    Settings(brokers=3, replicas=1, min_isr=1, group=False, unclean=0),
    """
    produce_record 0
    kill_process 0
    fence_fast 0
    disk_replaced 0
    start_process 0
    send_registration 0 0 1
    replay_metadata 0 3
    heartbeat 0 1
    """,
)

OLD_FETCH_AFTER_BEGINNING_ANEW = History(
    ("fetches_in_order",),
    "I-4",
    RECOVERING,
    """
    produce_record 0
    fetch_round 1
    fetch_round 2
    fetch_round 1
    fetch_round 2               # committed, and 2 knows
    fence_fast 0 1
    fence_fast 2 1              # 1 leads, alone in its ISR
    heartbeat 2 1
    replay_metadata 1 3
    replay_metadata 2 3
    send_fetch 2                # "I end at 1, in epoch 0", slow
    retain 2                    # 2 deletes its only record
    fetch_round 2               # and, being no member, begins anew at 0
    fetch_arrives 2
    propose_expansion 1 2
    alter_arrives 1             # 2 joins with nothing
    """,
)

PROCESS_BEHIND_THE_NUMBER = History(
    ("broker_epochs_in_alter",),
    "I-4",
    ASYNC,
    """
    fence_fast 2 1              # out of the ISR, and back among the living
    heartbeat 2 1
    replay_metadata 0 3
    replay_metadata 2 3
    produce_record 0
    fetch_round 1
    fetch_round 1
    fetch_round 2
    fetch_round 2               # the leader knows: 2 ends at 1
    cut_power 2                 # it does not any more
    start_process 2
    send_registration 2 0 1
    replay_metadata 2 3
    heartbeat 2 1               # unfenced; the partition's version is the same
    propose_expansion 0 2
    alter_arrives 0
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
    TRUNCATION_UNDONE_BY_A_POWER_CUT,
    UNCLEAN_LEADER_SHOWS_WHAT_IT_NEVER_FLUSHED,
    HOLE_BELOW_A_DAMAGED_LOG,
    BEGUN_ANEW_IN_THE_MIDDLE,
    CHECKPOINT_ABOVE_THE_NEW_END,
    DELETION_UNDONE_BY_A_KILL,
    OLD_REGISTRATION,
    LEASE_WITHOUT_METADATA,
    TARGET_REPLACED,
    CANCELLED_WITHOUT_THE_ELR,
    STOPPING_LEADER_DEPOSED,
    UNFLUSHED_SINCE_ASYNC,
    SAME_ANSWER_TWICE,
    REPLACED_DISK_LEADS,
    OLD_FETCH_AFTER_BEGINNING_ANEW,
    PROCESS_BEHIND_THE_NUMBER,
)
