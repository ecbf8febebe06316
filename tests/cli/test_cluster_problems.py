"""What is wrong with a cluster: each rule by itself."""

import msgspec
import pytest
from msgspec.structs import replace

from tidelog.cli.cluster.folding import folded
from tidelog.cli.cluster.problems import Found, Kind, Problem, losses, problems
from tidelog.client.cluster import Partition, Topic
from tidelog.protocol.messages import BrokerDescribed, DescribeQuorumReply, PossibleLoss, QuorumMember
from tidelog.protocol.types import BrokerId, Epoch


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def broker(
    number: int, *, fenced: bool = False, offline: int = 0, low_space: bool = False
) -> BrokerDescribed:
    there = BrokerDescribed(BrokerId(number), "h", 9000 + number, replicas=4)
    return replace(there, fenced=fenced, offline=offline, low_space=low_space)


def partition(
    leader: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    offline: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
) -> Partition:
    return Partition(
        index=0,
        leader=BrokerId(leader),
        leader_epoch=Epoch(1),
        replicas=ids(1, 2, 3),
        isr=ids(*isr),
        offline=ids(*offline),
        elr=ids(*elr),
        shown_at=0,
    )


def voter(number: int, silent_ms: int = 0) -> QuorumMember:
    return QuorumMember(
        id=BrokerId(number), controller=True, host="h", port=9100 + number, end_offset=10, silent_ms=silent_ms
    )


QUORUM = DescribeQuorumReply(
    leader_id=BrokerId(1), quorum_epoch=Epoch(1), voters=(voter(1), voter(2), voter(3))
)


def found(
    *partitions: Partition, brokers: tuple[BrokerDescribed, ...] = (), min_isr: int = 2
) -> list[Problem]:
    topics = [Topic("orders", b"", partitions, False, 0)]
    return problems(Found(brokers, topics, {"orders": min_isr}, QUORUM))


def test_nothing_is_wrong_with_a_cluster_that_is_well() -> None:
    assert found(partition(), brokers=(broker(1), broker(2), broker(3))) == []


def test_a_partition_without_a_leader_says_who_has_its_records_and_what_an_unclean_election_costs() -> None:
    [one] = found(partition(-1, isr=(2,), elr=(3,), offline=(1, 2, 3)))
    assert (one.kind, one.topic, one.partition) == (Kind.NO_LEADER, "orders", 0)
    assert one.what == "orders-0 has no leader: it can be neither written nor read"
    assert one.way_out == (
        "start brokers 2 and 3, which have every committed record; `tidelog partition elect unclean orders:0` gives up "
        "what only they have"
    )


def test_where_nobody_is_known_to_have_everything_nobody_is_said_to() -> None:
    """After a loss of power everywhere all may run, and none surely has what was acknowledged."""
    [one] = found(partition(-1, isr=(), elr=()))
    assert one.way_out == (
        "nobody is known to have every committed record: start those of brokers 1, 2 and 3 that do not run; then "
        "`tidelog partition elect unclean orders:0` lets one lead with what it has, and gives up what only others have"
    )


def test_too_few_in_sync_for_a_write_is_graver_than_a_missing_replica() -> None:
    [one] = found(partition(isr=(1,), offline=(2,)))
    assert (one.kind, one.way_out) == (Kind.UNDER_MIN_ISR, "start broker 2")
    assert "1 in sync of 2 that a write with acks=all needs" in one.what
    [one] = found(partition(isr=(1, 2)))
    assert (one.kind, one.way_out) == (Kind.UNDER_REPLICATED, "wait for broker 3 to catch up")


def test_what_may_have_been_lost_is_told_and_is_no_problem_that_could_be_waited_for() -> None:
    lost = PossibleLoss("orders", 0, Epoch(5), BrokerId(2))
    there = Found((), [Topic("orders", b"", (partition(),), False, 0)], {}, QUORUM, losses=(lost,))
    assert problems(there) == []
    [one] = losses(there)
    assert (one.kind, one.topic, one.partition, one.node) == (Kind.POSSIBLE_LOSS, "orders", 0, 2)
    assert one.what == (
        "orders-0 may have lost committed records: its leader in epoch 5, broker 2, was elected without having to have "
        "them all"
    )


def test_min_isr_counts_no_more_than_there_are_replicas() -> None:
    assert found(partition(), min_isr=9) == []


def test_a_broker_without_room_is_a_problem_and_one_that_is_down_has_only_that() -> None:
    low, down = broker(1, low_space=True), broker(2, low_space=True, fenced=True)
    first, second = problems(Found((low, down), [], {}, QUORUM))
    assert (first.kind, first.node) == (Kind.BROKER_DOWN, 2)
    assert (second.kind, second.node) == (Kind.LOW_SPACE, 1)
    assert "it refuses records" in second.what
    assert "make room on its disk" in second.way_out


def test_a_fenced_broker_and_a_failed_disk_are_told_apart() -> None:
    down, failed = found(brokers=(broker(1, fenced=True, offline=4), broker(2, offline=2)))
    assert (down.kind, down.node) == (Kind.BROKER_DOWN, 1)
    assert (
        "will not come back, `tidelog broker drain 1` and then `tidelog broker unregister 1`" in down.way_out
    )
    assert (failed.kind, failed.node) == (Kind.REPLICA_FAILED, 2)
    assert "2 of its 4 replicas" in failed.what


def test_damage_that_nobody_else_can_mend_is_loud() -> None:
    alone = msgspec.structs.replace(broker(1), damaged=2)
    [one] = problems(Found((alone,), [], {}, QUORUM))
    assert (one.kind, one.node) == (Kind.REPLICA_DAMAGED, 1)
    assert "2 of its 4 replicas damaged, and nobody else is in sync" in one.what
    assert "start the other brokers" in one.way_out


@pytest.mark.parametrize(("silent", "spare"), [(1, 0), (2, 0)])
def test_silent_controllers_say_how_many_more_may_fail(silent: int, spare: int) -> None:
    voters = tuple(voter(number, silent_ms=9000 if number > 3 - silent else 0) for number in (1, 2, 3))
    wrong = problems(
        Found((), (), {}, DescribeQuorumReply(leader_id=BrokerId(1), quorum_epoch=Epoch(1), voters=voters))
    )
    assert [one.kind for one in wrong] == [Kind.CONTROLLER_SILENT] * silent
    assert f"{spare} more may fail" in wrong[0].what


def test_the_gravest_stands_first() -> None:
    wrong = problems(
        Found(
            (broker(1, fenced=True),),
            [Topic("orders", b"", (partition(isr=(1, 2)), partition(-1)), False, 0)],
            {},
            None,
            "nobody answers",
        )
    )
    assert [one.kind for one in wrong] == [
        Kind.NO_CONTROLLER,
        Kind.NO_LEADER,
        Kind.BROKER_DOWN,
        Kind.UNDER_REPLICATED,
    ]
    assert wrong[0].what == "no controller leads: nobody answers"


def shrunk(topic: str, *partitions: Partition) -> Topic:
    return Topic(topic, b"", tuple(replace(one, index=n) for n, one in enumerate(partitions)), False, 0)


def test_what_one_dead_broker_does_to_many_partitions_is_one_entry_each_for_what_it_does() -> None:
    gone, lacking = partition(-1, isr=(2,), offline=(2,)), partition(isr=(1, 3), offline=(2,))
    topics = [
        shrunk("orders", *[lacking] * 9),
        shrunk("single", gone, gone),
        shrunk("users", *[lacking] * 10),
    ]
    every = problems(Found((broker(2, fenced=True),), topics, {}, QUORUM))
    assert len(every) == 1 + 2 + 19
    no_leader, down, under = folded(every)
    assert no_leader.what == "each of single-0 and single-1 has no leader: it can be neither written nor read"
    assert "`tidelog partition elect unclean TOPIC:PARTITION` gives up what only it has" in no_leader.way_out
    assert down == every[2]
    assert under.what == (
        "each of orders-0, orders-1, orders-2 and 16 more has 2 of 3 replicas in sync, not broker 2"
    )
    assert under.way_out == "start broker 2"


def test_what_is_not_the_same_is_told_one_by_one() -> None:
    """As it stands: with the partition in the command that is to be typed."""
    several = [
        *problems(Found((broker(1, fenced=True), broker(2, fenced=True)), [], {}, QUORUM)),
        *found(partition(-1, isr=(2,))),
        *found(partition(isr=(1, 2))),
        *found(partition(isr=(1, 3))),
    ]
    assert folded(several) == several
