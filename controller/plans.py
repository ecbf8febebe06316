"""What would be moved where, for those who ask before they order it: nothing is changed here."""

from tidelog.controller.image import Image
from tidelog.controller.placement import balance, drain
from tidelog.protocol.messages import PartitionMove, PlanMoves, PlanMovesReply
from tidelog.protocol.types import NO_BROKER


def plan_moves(image: Image, request: PlanMoves) -> PlanMovesReply:
    """Where partitions would go so that a broker keeps nothing, or that all keep as many as any other."""
    if request.drain != NO_BROKER:
        plan = drain(image, request.drain, request.spare)
    else:
        plan = balance(image, spare=request.spare)
    moves = tuple(PartitionMove(*place, tuple(target)) for place, target in sorted(plan.items()))
    return PlanMovesReply(moves=moves, metadata_offset=image.end_offset)
