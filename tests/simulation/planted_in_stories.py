"""More bugs to plant: what a story needs at one moment, and what random storms would hardly meet or not mind."""

import pytest

from tidelog.broker.leadership import Leadership
from tidelog.broker.replicas import Replicas
from tidelog.controller import election, liveness
from tidelog.controller.facts import Fact
from tidelog.controller.image import Image
from tidelog.protocol.types import BrokerId


def high_watermark_of_the_decided_alone(plant: pytest.MonkeyPatch) -> None:
    """KIP-497, and nobody who is about to join is waited for either: only the ISR that the leader has read."""

    def planted(self: Leadership, _now_ms: int) -> bool:
        members = [known for replica, known in self.followers.items() if replica in self.state.isr]
        reached = min([self._end, *(known.ack_offset for known in members)])
        moved = len(self.state.isr) >= self.state.min_isr and reached > self.high_watermark
        self.high_watermark = max(reached, self.high_watermark) if moved else self.high_watermark
        return moved

    plant.setattr(Leadership, "_advance", planted)


def high_watermarks_told_too_early(plant: pytest.MonkeyPatch) -> None:
    """KIP-207: what one leader has told to be committed, the next one takes back for a while."""
    plant.setattr(Leadership, "known_high_watermark", property(lambda self: self.high_watermark))


def leases_that_never_end(plant: pytest.MonkeyPatch) -> None:
    """D9: a leader that nobody has heard of for long serves on, beside its successor."""
    plant.setattr(Replicas, "has_lease", lambda *_: True)


def elections_of_whoever_is_alive(plant: pytest.MonkeyPatch) -> None:
    """Rather than wait for who holds everything, whoever is there leads."""
    unfence = election.unfence

    def planted(image: Image, broker: BrokerId) -> list[Fact]:
        leaderless = [image.partitions[place] for place in sorted(image.indexes.leaderless)]
        return [
            *unfence(image, broker),
            *(election.elect_unclean(p, broker).changed() for p in leaderless if broker in p.replicas),
        ]

    plant.setattr(liveness, "unfence", planted)
