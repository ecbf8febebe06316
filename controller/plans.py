"""What would be moved where, for those who ask before they order it: nothing is changed here."""

from tidelog.controller.image import Image
from tidelog.controller.placement import balancing, draining
from tidelog.controller.turns import Steps
from tidelog.protocol.messages import PartitionMove, PlanMoves, PlanMovesReply
from tidelog.protocol.types import NO_BROKER


def plan_moves(image: Image, request: PlanMoves) -> Steps[PlanMovesReply]:
    """Where partitions would go so that a broker keeps nothing, or that all keep as many as any other.

    In steps, of an image that stays as it is meanwhile.
    """
    if request.drain != NO_BROKER:
        plan = yield from draining(image, request.drain, request.spare)
    else:
        plan = yield from balancing(image, spare=request.spare)
    yield
    moves = tuple(PartitionMove(*place, tuple(target)) for place, target in sorted(plan.items()))
    return PlanMovesReply(moves=moves, metadata_offset=image.end_offset)
