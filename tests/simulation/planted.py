"""Bugs for the simulator to find: each undoes one rule of the product, from outside; the product has no switches."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from tidelog.broker import partition as partitions
from tidelog.broker.leadership import Follower, Leadership
from tidelog.broker.partition import Partition
from tidelog.controller import alterations, election, liveness
from tidelog.controller.alterations import Alterations
from tidelog.controller.observer import Observer
from tidelog.protocol.errors import DiskFull, OffsetOutOfRange
from tidelog.protocol.types import NO_OFFSET, BrokerId, Offset
from tidelog.replication import followership
from tidelog.replication.followership import Followership, LogView
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.flushing import Flush
from tidelog.storage.log import Log
from tidelog.storage.producers import APPEND, Producers
from tidelog.storage.recovery import Checkpointed, Opening
from tidelog.storage.segment import Segment
from tidelog.testing.simulation.seeds import Outcome

Plant = Callable[[pytest.MonkeyPatch], None]

_MISTAKES = re.compile(r"^[ |]*(\w+\.)*(TypeError|AttributeError|NameError|ImportError): ", re.MULTILINE)


def caught(outcome: Outcome) -> bool:
    """Whether the checks have failed: not the plant itself, which the product has outgrown."""
    told = (outcome.failure or "").partition("the last events:")[0]
    return outcome.failure is not None and not _MISTAKES.search(told)


def high_watermark_without_enough_replicas(plant: pytest.MonkeyPatch) -> None:
    """KIP-966: the last replica standing commits by itself."""
    advance = Leadership._advance

    def planted(self: Leadership, now_ms: int) -> bool:
        self.state = with_fields(self.state, min_isr=0)
        return advance(self, now_ms)

    plant.setattr(Leadership, "_advance", planted)


def high_watermark_without_the_proposed(plant: pytest.MonkeyPatch) -> None:
    """KIP-497: a member that the controller may already count as in sync is not waited for."""
    advance = Leadership._advance

    def planted(self: Leadership, now_ms: int) -> bool:
        pending, self.pending = self.pending, None
        try:
            return advance(self, now_ms)
        finally:
            self.pending = pending

    plant.setattr(Leadership, "_advance", planted)


def acknowledged_before_replication(plant: pytest.MonkeyPatch) -> None:
    """acks=all answered when the leader has it."""
    produce = Partition.produce

    def planted(self: Partition, *args: object, **kwargs: object) -> object:
        appended = produce(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.leadership is not None:
            self.leadership.high_watermark = self.log.end_offset
        return appended

    plant.setattr(Partition, "produce", planted)


def joining_by_the_high_watermark_alone(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-7128: after an election it may be stale, and who joins by it lacks committed records."""
    maybe_expand = Leadership._maybe_expand

    def planted(self: Leadership, follower: BrokerId, now_ms: int) -> None:
        start, self._start = self._start, 0
        try:
            maybe_expand(self, follower, now_ms)
        finally:
            self._start = start

    plant.setattr(Leadership, "_maybe_expand", planted)


def no_divergence_check(plant: pytest.MonkeyPatch) -> None:
    """KIP-101: a follower goes on behind records that its leader does not have."""

    def planted(log: Log, fetch_offset: Offset, _epoch: int) -> None:
        if fetch_offset > log.end_offset or fetch_offset < log.log_start:
            raise OffsetOutOfRange("planted")

    plant.setattr(partitions, "check_place", planted)


def truncation_to_the_high_watermark(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-1211: a follower that begins to follow cuts what it does not know to be committed."""
    follow = Partition._follow

    def planted(self: Partition, state: object) -> None:
        follow(self, state)  # type: ignore[arg-type]
        if not self.log.is_flushing:
            self.log.truncate_to(max(self._follower_hwm, self.log.log_start), 0)

    plant.setattr(Partition, "_follow", planted)


def high_watermark_above_the_end(plant: pytest.MonkeyPatch) -> None:
    """A follower believes what the leader says of records that it does not have."""

    class Planted(Followership):
        def new_high_watermark(self, told: followership.Append, log: LogView) -> int:
            return max(log.high_watermark, told.high_watermark)

    # Of a topic's partition: who reads the metadata log would wait for what it was told of, and never turn again.
    plant.setattr(partitions, "Followership", Planted)


def stale_answers_count(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-13207: an answer to a fetch of another leadership is used."""

    def planted(_: Followership, asked: followership.Asked, log: LogView) -> bool:
        return asked.fetch_offset == log.end_offset

    plant.setattr(Followership, "is_current", planted)


def roles_before_the_own_registration(plant: pytest.MonkeyPatch) -> None:
    """D8: an old image names this broker leader of what it has lost."""
    plant.setattr(Observer, "caught_up_to", property(lambda _: 1 << 60))


def unclean_restarts_keep_their_standing(plant: pytest.MonkeyPatch) -> None:
    """D6: a broker that lost power still counts as holding everything."""
    plant.setattr(liveness, "loss_of", lambda *_: lambda _: None)


def nobody_is_kept_in_the_elr(plant: pytest.MonkeyPatch) -> None:
    """Instead of eligible leader replicas, the last replica in sync stays in the ISR, fenced or not."""
    plant.setattr(election, "leave", lambda *_, **__: [])


def proposals_follow_any_state(plant: pytest.MonkeyPatch) -> None:
    """The compare in compare-and-set: a proposal made for an older state replaces a newer one."""
    plant.setattr(Alterations, "_check_epochs", staticmethod(lambda *_: None))


def members_of_any_registration(plant: pytest.MonkeyPatch) -> None:
    """KIP-903: who has come back from the dead, empty, is taken for who it was."""
    plant.setattr(alterations, "_eligible", lambda *_: True)
    plant.setattr(Leadership, "eligible", lambda *_: True)


def flushed_is_what_is_there_after_the_flush(plant: pytest.MonkeyPatch) -> None:
    """I-32, at the level of the cluster."""
    end_flush = Log.end_flush

    def planted(self: Log, flush: Flush) -> None:
        flush.upto = self.end_offset
        end_flush(self, flush)

    plant.setattr(Log, "end_flush", planted)


def reads_above_the_high_watermark(plant: pytest.MonkeyPatch) -> None:
    """A consumer sees what may yet be lost."""

    def planted(self: Partition, offset: Offset, max_bytes: int) -> memoryview:
        return self.log.read(offset, max_bytes).data if offset < self.log.end_offset else memoryview(b"")

    plant.setattr(Partition, "_committed", planted)


def duplicates_are_appended(plant: pytest.MonkeyPatch) -> None:
    """A retried batch is written once more."""
    plant.setattr(Producers, "check", lambda *_: APPEND)


def the_recovered_tail_is_forgotten(plant: pytest.MonkeyPatch) -> None:
    """After a kill only what was flushed is kept."""

    def planted(_: Opening, segment: Segment) -> Iterator[None]:
        yield
        segment.file().truncate(segment.size)

    plant.setattr(Opening, "_verify", planted)


def fenced_brokers_are_eligible(plant: pytest.MonkeyPatch) -> None:
    """KIP-841: a broker that is not alive joins the ISR."""
    plant.setattr(Leadership, "eligible", lambda *_: True)


def followers_remembered_from_the_last_epoch(plant: pytest.MonkeyPatch) -> None:
    """What a follower had in another leader epoch says nothing of what it has in this one."""
    init = Leadership.__init__
    known: dict[tuple[int, bytes, int], dict[BrokerId, Follower]] = {}

    def planted(self: Leadership, around: object, state: object, **kwargs: object) -> None:
        init(self, around, state, **kwargs)  # type: ignore[arg-type]
        place = self._me, self.state.topic_id, self.state.index
        for replica, follower in known.get(place, {}).items():
            if replica in self.followers:
                self.followers[replica] = follower
        known[place] = self.followers

    plant.setattr(Leadership, "__init__", planted)


def deletions_wait_for_nobody(plant: pytest.MonkeyPatch) -> None:
    """ADR 79: answered when the leader has deleted; the next leader may have not."""

    def planted(self: Partition) -> Offset:
        return self.log.log_start if self.leadership is not None else NO_OFFSET

    plant.setattr(Partition, "low_watermark", property(planted))


def log_starts_fall_back(plant: pytest.MonkeyPatch) -> None:
    """A restart brings back what was deleted: nobody reads where logs began."""
    init = Opening.__init__

    def planted(
        self: Opening, directory: object, config: object, keeper: object, checkpointed: Checkpointed
    ) -> None:
        init(self, directory, config, keeper, replace(checkpointed, log_start=None))  # type: ignore[arg-type]

    plant.setattr(Opening, "__init__", planted)


def a_stop_forgets_what_is_committed(plant: pytest.MonkeyPatch) -> None:
    """KAFKA-1647: the marker says that the last checkpoint is exact, and it is the one before."""
    close = DataDirectory.close

    def planted(self: DataDirectory, _committed: object) -> None:
        close(self, {})

    plant.setattr(DataDirectory, "close", planted)


def any_epoch_is_served(plant: pytest.MonkeyPatch) -> None:
    """KIP-320: whoever asks of another leadership is answered for this one."""
    plant.setattr(partitions, "check_leader_epoch", lambda *_, **__: None)


def a_full_disk_stays_full(plant: pytest.MonkeyPatch) -> None:
    """Nobody looks whether there is room again."""
    plant.setattr(Log, "probe", lambda self, *_: not isinstance(self._refusal, DiskFull))


PLANTS: list[Plant] = [
    high_watermark_without_enough_replicas,
    high_watermark_without_the_proposed,
    acknowledged_before_replication,
    joining_by_the_high_watermark_alone,
    no_divergence_check,
    truncation_to_the_high_watermark,
    high_watermark_above_the_end,
    stale_answers_count,
    roles_before_the_own_registration,
    unclean_restarts_keep_their_standing,
    nobody_is_kept_in_the_elr,
    proposals_follow_any_state,
    members_of_any_registration,
    reads_above_the_high_watermark,
    duplicates_are_appended,
    the_recovered_tail_is_forgotten,
    fenced_brokers_are_eligible,
    followers_remembered_from_the_last_epoch,
    deletions_wait_for_nobody,
    log_starts_fall_back,
    a_stop_forgets_what_is_committed,
    any_epoch_is_served,
    a_full_disk_stays_full,
]

CAUGHT: dict[Plant, tuple[int, ...]] = {
    high_watermark_without_enough_replicas: (0, 4, 11),
    acknowledged_before_replication: (101, 0, 5, 1),
    no_divergence_check: (4, 6, 9),
    truncation_to_the_high_watermark: (0, 1, 2),
    high_watermark_above_the_end: (103, 0, 2, 6),
    roles_before_the_own_registration: (0, 1, 2),
    nobody_is_kept_in_the_elr: (0, 1, 2),
    reads_above_the_high_watermark: (2, 3, 0),
    duplicates_are_appended: (4, 0, 9),
    the_recovered_tail_is_forgotten: (1, 2, 3),
    deletions_wait_for_nobody: (101, 7, 13, 26),
    log_starts_fall_back: (100, 1, 7, 13),
    a_stop_forgets_what_is_committed: (103, 6, 7, 12),
    any_epoch_is_served: (1, 0, 2),
    a_full_disk_stays_full: (110, 0, 4, 6),
}
"""Those that short storms catch, and by which seeds when it was looked up last, the surest first; a change of the
product changes what each seed brings. The rest have tests of their own: tests/rules, tests/broker, test_durability."""
