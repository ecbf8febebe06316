"""What leaders propose for the ISR, and whether it may be: AlterPartition, check by check (design 2.10, 4.7; D3).

The order of the checks is part of the rule: who is older than the other comes first, then whether this is the copy
of a proposal that was decided already, then whether the proposal is one.

What it keeps true (I-15, I-16, I-18):

* A proposal follows the very state that it names, or nothing happens.
* Each `alter_seq` of a leadership is decided once, also when it is refused: a late copy of a proposal that its
  leader has given up finds that out here. One controller remembers them as long as it is active, which is enough:
  a proposal names the controller's epoch, so none that was sent to an earlier one gets this far (DECISIONS 7).
  What is forgotten is refused without its number: of older leaderships, and of partitions that are gone.
* Whoever joins the ISR is alive, in the registration under which it fetched (KIP-903).
* Nobody comes back from where it is being taken: what says so in the image is the last fact of a decision in steps,
  and leaders propose again in the turn in which they read the first.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tidelog.controller.batches import check_distinct, label
from tidelog.controller.election import STEP, alive_for, change_in
from tidelog.controller.facts import Place
from tidelog.controller.image import Image, PartitionState
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    NotController,
    StaleBrokerEpoch,
    TidelogError,
    UnknownTopicId,
)
from tidelog.protocol.messages import AlterPartition, IsrMember, PartitionAlter
from tidelog.protocol.types import NO_EPOCH, BrokerId, Epoch

IsGoing: TypeAlias = Callable[[BrokerId, Place], bool]
"""Whether a broker is being taken from the ISR of a partition, in steps of which the image does not know the last."""


def nobody_is_going(_broker: BrokerId, _place: Place) -> bool:
    """No such decision goes on."""
    return False


class Decision(NamedTuple):
    """About one partition."""

    asked: PartitionAlter
    state: PartitionState | None = None
    """What becomes of it; None: nothing changes."""
    error: TidelogError | None = None
    """What its leader is told; NewLeaderElected comes with a state."""


class Alterations:
    """The proposals that an active controller has seen. A new controller begins with none."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[Epoch, int]] = {}
        """The highest number seen in the newest leadership of each partition: older ones are refused as such."""

    def decide(
        self, image: Image, request: AlterPartition, first: int = 0, is_going: IsGoing = nobody_is_going
    ) -> list[Decision]:
        """The step of a request that begins there: one decision per partition, in its order; or an error of the whole.

        A step has `STEP` of them; the next ones are decided on what is so then.
        """
        known = image.brokers.get(request.broker_id)
        if known is None or known.epoch != request.broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {request.broker_id} proposed under epoch {request.broker_epoch}, {known} is registered"
            )
        if not first:
            check_distinct(label(image, (alter.topic_id, alter.index)) for alter in request.partitions)
        step = request.partitions[first : first + STEP]
        decisions = [self._decide(image, request.broker_id, alter, is_going) for alter in step]
        self._forget(image)
        return decisions

    def _forget(self, image: Image) -> None:
        """The numbers that nobody asks for any more, when that may be half of them: to look costs as much as all."""
        if len(self._seen) > 2 * len(image.partitions):
            known = image.partitions
            self._seen = {
                place: seen
                for place, seen in self._seen.items()
                if place in known and seen[0] == known[place].leader_epoch
            }

    def _decide(self, image: Image, sender: BrokerId, alter: PartitionAlter, is_going: IsGoing) -> Decision:
        try:
            p = self._check(image, sender, alter, is_going)
        except TidelogError as error:
            return Decision(alter, error=error)
        proposed = [member.broker_id for member in alter.new_isr]
        then = change_in(image, p, proposed, alive_for(image, p.place), recovered=alter.recovered)
        told = None
        if then.leader != sender:
            told = NewLeaderElected(f"the change was made, and broker {then.leader} leads")
        return Decision(alter, None if then is p else then, told)

    def _check(
        self, image: Image, sender: BrokerId, alter: PartitionAlter, is_going: IsGoing
    ) -> PartitionState:
        p = image.partitions.get((alter.topic_id, alter.index))
        if p is None:
            raise UnknownTopicId(f"there is no partition {alter.index} of topic {alter.topic_id.hex()}")
        self._check_epochs(p, sender, alter)
        self._check_number(p, alter)
        self._check_members(image, p, alter, is_going)
        return p

    @staticmethod
    def _check_epochs(p: PartitionState, sender: BrokerId, alter: PartitionAlter) -> None:
        if alter.leader_epoch > p.leader_epoch or alter.partition_epoch > p.partition_epoch:
            # The leader has read what I have not: I am the one who is behind (KAFKA-14154).
            raise NotController(
                f"the leader knows epochs {alter.leader_epoch} and {alter.partition_epoch}, this controller "
                f"{p.leader_epoch} and {p.partition_epoch}"
            )
        if alter.leader_epoch < p.leader_epoch:
            raise FencedLeaderEpoch(f"the leader epoch is {p.leader_epoch}, not {alter.leader_epoch}")
        if sender != p.leader:
            raise InvalidRequest(
                f"broker {p.leader} leads in epoch {p.leader_epoch}, broker {sender} proposed"
            )
        if alter.partition_epoch < p.partition_epoch:
            raise InvalidUpdateVersion(
                f"the partition epoch is {p.partition_epoch}, not {alter.partition_epoch}"
            )

    def _check_number(self, p: PartitionState, alter: PartitionAlter) -> None:
        epoch, highest = self._seen.get(p.place, (NO_EPOCH, -1))
        if epoch == alter.leader_epoch and alter.alter_seq <= highest:
            raise InvalidUpdateVersion(f"proposal {alter.alter_seq} comes after {highest}")
        self._seen[p.place] = (alter.leader_epoch, alter.alter_seq)

    @staticmethod
    def _check_members(image: Image, p: PartitionState, alter: PartitionAlter, is_going: IsGoing) -> None:
        proposed = [member.broker_id for member in alter.new_isr]
        if (
            len(set(proposed)) != len(proposed)
            or not set(proposed) <= set(p.replicas)
            or p.leader not in proposed
        ):
            raise InvalidRequest(
                f"the ISR {proposed} is not some of the replicas {list(p.replicas)} with the leader {p.leader}"
            )
        ineligible = [m.broker_id for m in alter.new_isr if not _eligible(image, p, m, is_going)]
        if ineligible:
            raise IneligibleReplica(
                f"brokers {ineligible} are fenced, stopping, registered anew or without their replica, or about to be"
            )


def _eligible(image: Image, p: PartitionState, member: IsrMember, is_going: IsGoing) -> bool:
    if not image.can_lead(member.broker_id, p.place):
        return False
    if member.broker_id not in p.isr and is_going(member.broker_id, p.place):
        return False  # where it is in sync still, its step is to come: other proposals need not wait for that
    if member.broker_epoch == NO_EPOCH:
        return member.broker_id in p.isr
    return member.broker_epoch == image.live_epoch(member.broker_id)
