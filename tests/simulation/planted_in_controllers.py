"""Bugs for storms over controllers to find: each undoes one rule from outside; the product has no switches."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidelog.controller import contacts
from tidelog.controller import quorum as machine
from tidelog.controller.ballot import Ballot
from tidelog.controller.contacts import Contacts
from tidelog.controller.controller import Controller
from tidelog.controller.following import Following
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.observer import Observer
from tidelog.controller.own_copy import OwnCopy
from tidelog.controller.progress import Progress
from tidelog.controller.quorum import Leader, LogEnd, Quorum, QuorumState
from tidelog.controller.readers import _Waiting
from tidelog.protocol.types import NO_BROKER
from tidelog.replication.followership import Truncate

Plant = Callable[[pytest.MonkeyPatch], None]


def answered_before_the_commit(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-14457: what was said to exist may be lost with its leader."""
    plant.setattr(MetadataLog, "when_committed", lambda _, answer: answer(True))


def told_its_end_as_committed(plant: pytest.MonkeyPatch) -> None:
    """A leader tells those who follow that all it has is committed."""
    give_up = _Waiting.give_up

    def planted(self: _Waiting) -> None:
        known, self._quorum.high_watermark = self._quorum.high_watermark, self._metadata.log.end_offset
        try:
            give_up(self)
        finally:
            self._quorum.high_watermark = known

    plant.setattr(_Waiting, "give_up", planted)


def fetched_means_committed(plant: pytest.MonkeyPatch) -> None:
    """A follower believes that all it has read is committed."""
    fetched = OwnCopy.fetched

    def planted(self: OwnCopy, controller: Any, epoch: int, _: int) -> Iterator[None]:
        return fetched(self, controller, epoch, self.log.end_offset)

    plant.setattr(OwnCopy, "fetched", planted)


def read_means_committed(plant: pytest.MonkeyPatch) -> None:
    """A broker believes that all it has read is committed."""
    fetched = Observer.fetched

    def planted(self: Observer, controller: Any, epoch: int, _: int) -> Iterator[None]:
        return fetched(self, controller, epoch, self.log.end_offset)

    plant.setattr(Observer, "fetched", planted)


def followed_with_something_missing(plant: pytest.MonkeyPatch) -> None:
    """A broker's image is not what the log adds up to: it has forgotten which producer ids were taken."""
    take_in = Observer.fetched

    def planted(self: Observer, controller: Any, epoch: int, high_watermark: int) -> Iterator[None]:
        yield from take_in(self, controller, epoch, high_watermark)
        self.image.next_producer_id = 0

    plant.setattr(Observer, "fetched", planted)


def votes_that_are_not_kept(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-10527: a vote is answered and not on the disk."""

    def planted(self: Ballot, state: QuorumState) -> None:
        self.state = state

    plant.setattr(Ballot, "write", planted)


def promises_forgotten_at_a_start(plant: pytest.MonkeyPatch) -> None:
    """The file is written, and nobody reads it."""
    plant.setattr(
        Ballot, "read", classmethod(lambda cls, directory, epoch: cls(directory, QuorumState(max(epoch, 0))))
    )
    plant.setattr(Ballot, "write", _write_anything(Ballot.write))


def _write_anything(write: Callable[..., None]) -> Callable[..., None]:
    def planted(self: Ballot, state: QuorumState) -> None:
        if state.epoch >= self.state.epoch:
            write(self, state)

    return planted


def a_leadership_that_does_not_end(plant: pytest.MonkeyPatch) -> None:
    """It goes on to append in an epoch that another one has ended."""
    plant.setattr(Controller, "_lead_no_more", Controller._follow)


def committed_without_the_first_record(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-12619, and figure 8 of Raft: copies of an earlier epoch's records are counted."""
    advance = Quorum._advance

    def planted(self: Quorum, role: Leader) -> bool:
        begins, role.begins = role.begins, 0
        try:
            return advance(self, role)
        finally:
            role.begins = begins

    plant.setattr(Quorum, "_advance", planted)


def active_before_its_first_record_is_committed(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-15345: it decides by an image that may lack what an earlier leader has committed."""
    lead = Controller._lead

    def planted(self: Controller, step: machine.Lead) -> None:
        lead(self, step)
        self._activate()

    plant.setattr(Controller, "_lead", planted)


def lost_leaderships_count_as_success(plant: pytest.MonkeyPatch) -> None:
    """Whoever waited when a leadership ended is told that it is done."""
    lead_no_more = Controller._lead_no_more

    def give_up(self: MetadataLog) -> None:
        while self._answers:
            self._answers.popleft()[1](True)

    def planted(self: Controller) -> None:
        self.metadata.give_up()
        lead_no_more(self)

    plant.setattr(MetadataLog, "give_up", give_up)
    plant.setattr(Controller, "_lead_no_more", planted)


def cut_below_what_is_committed(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-12460: where logs part, more is cut than differs."""
    carry_out = Following._carry_out

    async def planted(self: Following, followership: Any, step: Any, *more: Any) -> None:
        if isinstance(step, Truncate):
            step = Truncate(max(self._copy.log.log_start, step.offset - 20), loses_committed=False)
        await carry_out(self, followership, step, *more)

    plant.setattr(Following, "_carry_out", planted)


def a_new_disk_votes(plant: pytest.MonkeyPatch) -> None:
    """A controller with another disk acts as if it remembered."""
    plant.setattr(Quorum, "is_voter", property(lambda self: self.me in self.voters))


def leases_without_a_majority(plant: pytest.MonkeyPatch) -> None:
    """A leader that nobody follows any more extends leases of brokers."""
    plant.setattr(Quorum, "holds_lease", lambda self, _: self.leads)


def founded_by_a_majority(plant: pytest.MonkeyPatch) -> None:
    """DECISIONS 1: the rest could found another cluster."""
    plant.setattr(Quorum, "_needed", Quorum._majority)


def decided_on_what_was_cut(plant: pytest.MonkeyPatch) -> None:
    """The working image keeps what the log has lost."""
    plant.setattr(MetadataLog, "cut", lambda _: None)


def following_while_it_leads(plant: pytest.MonkeyPatch) -> None:
    """Who has won goes on to fetch from the one before."""
    lead = Controller._lead

    def planted(self: Controller, step: machine.Lead) -> None:
        follows, self._follows = self._follows, None
        lead(self, step)
        self._follows = follows

    plant.setattr(Controller, "_lead", planted)


def leading_whoever_listens(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-15489: a leader that a majority does not fetch from goes on."""
    plant.setattr(Quorum, "_resigns_at", lambda *_: [])


def votes_for_whoever_asks(plant: pytest.MonkeyPatch) -> None:
    """Logs are not compared: one wins that lacks what is committed."""
    on_vote = Quorum.on_vote

    def planted(self: Quorum, request: Any, now_ms: float, _: LogEnd) -> Any:
        return on_vote(self, request, now_ms, LogEnd())

    plant.setattr(Quorum, "on_vote", planted)


def committed_by_the_leader_alone(plant: pytest.MonkeyPatch) -> None:
    """Its own disk is enough."""
    advance = Quorum._advance

    def planted(self: Quorum, role: Leader) -> bool:
        others, role.voters = role.voters, {n: Progress(0, end_offset=role.durable) for n in role.voters}
        try:
            return advance(self, role)
        finally:
            role.voters = others

    plant.setattr(Quorum, "_advance", planted)


def fetches_that_claim_what_is_not_flushed(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-17332: a voter's fetch says what it has, and not what is on its disk."""

    async def planted(_: OwnCopy) -> None:
        pass

    plant.setattr(OwnCopy, "before_fetch", planted)


def two_votes_in_an_epoch(plant: pytest.MonkeyPatch) -> None:
    """Whoever asks last in an epoch has its vote."""
    plant.setattr(Quorum, "_may_vote", lambda self, _: self.state.leader_id == NO_BROKER)


def stale_requests_are_served(plant: pytest.MonkeyPatch) -> None:
    """DECISIONS 7: what was meant for another epoch changes something."""
    serve = Controller._serve

    def planted(self: Controller, message: Any, incoming: Any, now_ms: int) -> None:
        if hasattr(message, "quorum_epoch"):
            object.__setattr__(message, "quorum_epoch", self.epoch)
        serve(self, message, incoming, now_ms)

    plant.setattr(Controller, "_serve", planted)


def nobody_is_looked_for(plant: pytest.MonkeyPatch) -> None:
    """A connection that ends says nothing to the controller."""
    plant.setattr(Contacts, "_lost", lambda *_: None)


def whoever_hangs_up_is_dead(plant: pytest.MonkeyPatch) -> None:
    """DECISIONS 3: whether the port refuses is not asked."""

    async def planted(*_: object) -> bool:
        return True

    plant.setattr(contacts, "is_gone", planted)


def stopped_without_a_word(plant: pytest.MonkeyPatch) -> None:
    """A leader that stops in order goes on leading until it is gone."""

    async def planted(self: Controller) -> None:
        self.active = None

    plant.setattr(Controller, "_resign", planted)
    plant.setattr(Controller, "_lost", lambda *_: None)


def votes_against_a_living_leader(plant: pytest.MonkeyPatch) -> None:
    """KIP-996: pre-votes are granted by who hears the leader."""
    plant.setattr(Quorum, "_would_vote", lambda *_: True)


OF_BROKERS: list[Plant] = [read_means_committed, followed_with_something_missing]
"""What those get wrong who follow: storms over brokers meet it."""

IN_STORMS: list[Plant] = [
    answered_before_the_commit,
    told_its_end_as_committed,
    fetched_means_committed,
    read_means_committed,
    votes_that_are_not_kept,
    promises_forgotten_at_a_start,
    a_leadership_that_does_not_end,
    committed_without_the_first_record,
    active_before_its_first_record_is_committed,
    lost_leaderships_count_as_success,
    a_new_disk_votes,
    decided_on_what_was_cut,
    following_while_it_leads,
    votes_for_whoever_asks,
    committed_by_the_leader_alone,
    fetches_that_claim_what_is_not_flushed,
]
