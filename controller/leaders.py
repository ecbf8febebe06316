"""Operators let somebody lead: the preferred replica, or anybody at all (design 4.8).

    preferred    the first replica, alive and in sync, where somebody else leads or nobody
    unclean      of partitions that nobody leads: who can without loss, or else whoever has most of those that are
                 alive, who are asked (`recovery`); an operator's word is enough, whatever `unclean.recovery` says

What it keeps true: each partition is decided by itself, by `election`; what is refused says why. Of "all" partitions
those are answered where something was to be done.
"""

from collections.abc import Mapping, Sequence

from tidelog.controller.batches import Answer, check_distinct, in_batches, label
from tidelog.controller.election import elect_anyway, elect_preferred
from tidelog.controller.facts import Fact, PartitionChanged, Place
from tidelog.controller.image import Image
from tidelog.controller.reassignment import partition_of
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import ElectLeaders, ElectLeadersReply, PartitionElected
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.types import BrokerId

BestFirst = Mapping[Place, Sequence[BrokerId]]
"""Replicas by what they were found to hold, where they were asked (`recovery`)."""


def elect_leaders(
    image: Image, request: ElectLeaders, best_first: BestFirst | None = None
) -> Answer[ElectLeadersReply]:
    """The leaders of some partitions, or of all."""
    places = _places(image, request)
    entries = []
    units: list[list[Fact]] = []
    for place in places[:ENTRIES_MAX]:
        try:
            facts = _elect(image, place, (best_first or {}).get(place, ()), unclean=request.unclean)
        except TidelogError as error:
            entries.append(PartitionElected(*place, error.code, str(error)))
            continue
        units.append(facts)
        entries.append(_entry(image, place, facts))
    left = len(places) - len(entries)
    message = f"{left} more partitions are left as they are: ask again" if left else None
    batches = [] if request.validate_only else in_batches(units)
    return Answer(batches, ElectLeadersReply(tuple(entries), message=message))


def in_question(image: Image, request: ElectLeaders) -> list[Place]:
    """The partitions of which it is to be known who has most, before an unclean election is served."""
    leaderless = image.indexes.leaderless
    if request.partitions is None:
        return sorted(leaderless)[:ENTRIES_MAX]
    return sorted(leaderless.intersection((entry.topic_id, entry.index) for entry in request.partitions))


def _places(image: Image, request: ElectLeaders) -> list[Place]:
    if request.partitions is not None:
        places = [(entry.topic_id, entry.index) for entry in request.partitions]
        check_distinct(label(image, place) for place in places)
        return places
    if request.unclean:
        return sorted(image.indexes.leaderless)
    return sorted(p.place for p in image.partitions.values() if p.leader != p.replicas[0])


def _elect(image: Image, place: Place, best_first: Sequence[BrokerId], *, unclean: bool) -> list[Fact]:
    partition_of(image, place)
    return elect_anyway(image, place, best_first) if unclean else elect_preferred(image, place)


def _entry(image: Image, place: Place, facts: list[Fact]) -> PartitionElected:
    [then] = facts
    assert isinstance(then, PartitionChanged), then
    unclean = then.unclean_epoch != image.partitions[place].unclean_epoch
    return PartitionElected(*place, leader=then.leader, leader_epoch=then.leader_epoch, unclean=unclean)
