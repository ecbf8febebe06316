"""What is wrong with a cluster, and the way out of it. Pure: what was found is an argument.

What it keeps true: a problem is named once, by what it does to users: a partition that nobody leads is not also said
to lack replicas. The gravest stand first.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tidelog.cli.options import Address
from tidelog.client.cluster import Partition, Topic
from tidelog.protocol.messages import BrokerDescribed, DescribeQuorumReply, PossibleLoss
from tidelog.protocol.types import NO_BROKER, NO_OFFSET

SILENT_MS: Final = 5000
"""A controller that was not heard for longer is worth a look: twice a second there is something to fetch."""


class Kind(Enum):
    """What is wrong; the gravest first."""

    NO_CONTROLLER = "no_controller"
    NO_LEADER = "no_leader"
    UNDER_MIN_ISR = "under_min_isr"
    BROKER_DOWN = "broker_down"
    REPLICA_DAMAGED = "replica_damaged"
    REPLICA_FAILED = "replica_failed"
    LOW_SPACE = "low_space"
    UNDER_REPLICATED = "under_replicated"
    CONTROLLER_SILENT = "controller_silent"
    POSSIBLE_LOSS = "possible_loss"


class Problem(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    what: str
    way_out: str
    topic: str | None = None
    partition: int | None = None
    node: int | None = None
    """The broker, or for CONTROLLER_SILENT the controller."""


class Found(NamedTuple):
    """What was found out about a cluster."""

    brokers: Sequence[BrokerDescribed]
    topics: Sequence[Topic]
    min_isr: Mapping[str, int]
    """Of topics that lack replicas: how many a write with acks=all needs."""
    quorum: DescribeQuorumReply | None
    quorum_error: str = ""
    """Why nobody could describe the quorum."""
    losses: Sequence[PossibleLoss] = ()
    """Partitions that may have lost committed records, as far as they are named."""


def problems(found: Found) -> list[Problem]:
    """All that is wrong; nothing: all is well."""
    every = [*_controllers(found), *_brokers(found.brokers)]
    for topic in found.topics:
        for one in topic.partitions:
            every += _partition(topic.name, one, found.min_isr.get(topic.name, 1))
    order = list(Kind)
    return sorted(every, key=lambda problem: order.index(problem.kind))


def losses(found: Found) -> list[Problem]:
    """What may have been lost: it is told for as long as the leadership lasts, and there is nothing to wait for."""
    return [
        Problem(
            Kind.POSSIBLE_LOSS,
            f"{one.topic}-{one.index} may have lost committed records: its leader in epoch {one.leader_epoch}"
            f"{f', broker {one.leader},' if one.leader != NO_BROKER else ''} was elected without having to have them all",
            "its producers know what they sent; flush.mode=group with three replicas survives the loss of power",
            one.topic,
            one.index,
            one.leader if one.leader != NO_BROKER else None,
        )
        for one in found.losses
    ]


def _controllers(found: Found) -> Iterable[Problem]:
    if found.quorum is None:
        yield Problem(
            Kind.NO_CONTROLLER,
            f"no controller leads: {found.quorum_error}",
            "see that a majority of the controllers runs; `tidelog cluster quorum` asks them",
        )
        return
    voters = found.quorum.voters
    silent = [one for one in voters if one.silent_ms > SILENT_MS or one.end_offset == NO_OFFSET]
    spare = (len(voters) - 1) // 2 - len(silent)
    for one in silent:
        where = f" ({Address(one.host, one.port)})" if one.host else ""
        yield Problem(
            Kind.CONTROLLER_SILENT,
            f"controller c{one.id}{where} is not heard; {max(spare, 0)} more may fail before nothing can be changed",
            "start it, or see what its log says",
            node=one.id,
        )


def _brokers(brokers: Sequence[BrokerDescribed]) -> Iterable[Problem]:
    for one in brokers:
        where = f"broker {one.id} ({Address(one.host, one.port)})"
        if one.fenced:
            yield Problem(
                Kind.BROKER_DOWN,
                f"{where} is fenced: it is not heard, and leads nothing",
                f"start it (`tidelog up --detach` does, where `up` began it), or see what its log says; if it will not come back, {_leave(one)}",
                node=one.id,
            )
        elif one.offline:
            yield Problem(
                Kind.REPLICA_FAILED,
                f"{where} cannot serve {one.offline} of its {one.replicas} replicas: their disk or log has failed",
                "see what its log says; once the disk is well, restart it",
                node=one.id,
            )
        if one.low_space and not one.fenced:
            yield Problem(
                Kind.LOW_SPACE,
                f"{where} is low on disk space: it refuses records, and leads only what nobody else can",
                "make room on its disk, delete records or lower retention.bytes or retention.ms; it goes on by itself",
                node=one.id,
            )
        if one.damaged and not one.fenced:
            yield Problem(
                Kind.REPLICA_DAMAGED,
                f"{where} has {one.damaged} of its {one.replicas} replicas damaged, and nobody else is in sync there: "
                "some records cannot be read",
                "start the other brokers that have them; if there is none, its log says which offsets those are, and "
                "`tidelog topic trim` gives them up",
                node=one.id,
            )


def _leave(one: BrokerDescribed) -> str:
    off = f"`tidelog broker unregister {one.id}`"
    return f"`tidelog broker drain {one.id}` and then {off}" if one.replicas else off


def _partition(topic: str, one: Partition, min_isr: int) -> Iterable[Problem]:
    name, isr = f"{topic}-{one.index}", len(one.isr)
    if one.leader == NO_BROKER:
        yield Problem(
            Kind.NO_LEADER,
            f"{name} has no leader: it can be neither written nor read",
            _lead_again(f"{topic}:{one.index}", one),
            topic,
            one.index,
        )
    elif isr < min(min_isr, len(one.replicas)):
        yield Problem(
            Kind.UNDER_MIN_ISR,
            f"{name} has {isr} in sync of {min_isr} that a write with acks=all needs: such writes are refused",
            _catch_up(one),
            topic,
            one.index,
        )
    elif isr < len(one.replicas):
        yield Problem(
            Kind.UNDER_REPLICATED,
            f"{name} has {isr} of {len(one.replicas)} replicas in sync, not {_ids(_missing(one))}",
            _catch_up(one),
            topic,
            one.index,
        )


def _lead_again(place: str, one: Partition) -> str:
    elect = f"`tidelog partition elect unclean {place}`"
    have = [*one.isr, *(each for each in one.elr if each not in one.isr)]
    if not have:
        return (
            f"nobody is known to have every committed record: start those of {_ids(one.replicas)} that do not run; then "
            f"{elect} lets one lead with what it has, and gives up what only others have"
        )
    alone = len(have) == 1
    return (
        f"start {_ids(have)}, which {'has' if alone else 'have'} every committed record; "
        f"{elect} gives up what only {'it has' if alone else 'they have'}"
    )


def _missing(one: Partition) -> list[int]:
    return [broker for broker in one.replicas if broker not in one.isr]


def _catch_up(one: Partition) -> str:
    down = [broker for broker in _missing(one) if broker in one.offline]
    return f"start {_ids(down)}" if down else f"wait for {_ids(_missing(one))} to catch up"


def _ids(brokers: Sequence[int]) -> str:
    """`broker 1`; `brokers 1 and 2`."""
    *others, last = map(str, brokers)
    return f"brokers {', '.join(others)} and {last}" if others else f"broker {last}"
