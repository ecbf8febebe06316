"""What a client was told to be deleted stays deleted, whoever dies right then (ADR 0079, I-76)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation.cluster import BROKER_PORT
from tests.simulation.stage import Stage, new_world, open_stage
from tidelog.broker import partition, wanted
from tidelog.broker.flusher import Flusher
from tidelog.broker.wanted import Wanted
from tidelog.protocol.batch import walk
from tidelog.protocol.messages import DeleteBefore, DeleteRecords, DeleteRecordsReply, PartitionFetch
from tidelog.protocol.records import decode
from tidelog.storage.files import read_whole


@contextmanager
def three_records() -> Iterator[Stage]:
    """Three brokers with three records; log starts are written down only where somebody waits for it."""
    world = new_world()
    with world.running():
        stage = open_stage("3", "min.insync.replicas=2", world=world, lenient=False, strict=True)
        for value in "abc":
            stage.produce(value, "")
        yield stage


def delete_before(stage: Stage, offset: int) -> None:
    """Wait for the answer."""
    leader = stage.cluster.hosts[int(stage.watch.state.leader)]
    request = DeleteRecords((DeleteBefore(*stage.watch.place, offset),), 3000)
    reply, _ = stage._ask(leader, BROKER_PORT, request)
    assert isinstance(reply, DeleteRecordsReply), reply
    assert [entry.error for entry in reply.partitions] == [0]


def starts_after(stage: Stage, end: Any) -> list[int]:
    """Where each broker's log begins when all have died and each has come back alone."""
    for number in "123":
        end(number)
    starts = []
    for number in "123":
        stage.restart(number)
        replica = stage.watch.partition(int(number))
        assert replica is not None
        starts.append(replica.log.log_start)
        stage.kill(number)
    return starts


@pytest.mark.parametrize("end", [Stage.kill, Stage.power_cut], ids=["killed", "power_cut"])
def test_every_replica_begins_behind_what_was_deleted(end: Any) -> None:
    with three_records() as stage:
        delete_before(stage, 2)
        assert starts_after(stage, lambda number: end(stage, number)) == [2, 2, 2]


def test_a_log_start_that_is_reported_before_it_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Wanted, place: Any, sent: Any) -> PartitionFetch:
        return replace(entry(self, place, sent), log_start=sent.partition.log.log_start)

    entry = Wanted._entry
    monkeypatch.setattr(Wanted, "_entry", planted)
    monkeypatch.setattr(wanted, "_is_as_before", lambda *_: False)  # it looks at what is durable
    monkeypatch.setattr(Flusher, "save_log_starts_soon", lambda _: None)
    with three_records() as stage:
        delete_before(stage, 2)
        assert starts_after(stage, stage.kill) == [2, 0, 0]


def old_leader_after_a_deletion() -> list[bytes]:
    """What the disk of an old leader has of the others' offsets, all of them deleted, when it has heard of that.

    It was cut off with three records of its own; meanwhile the others wrote two at these offsets, and deleted all.
    """
    with three_records() as stage:
        stage.isolate("1")
        for value in "xyz":
            stage.send(value, "acks=1 to 1")
        stage.wait("2 leads")
        for value in "de":
            stage.produce(value, "")
        delete_before(stage, 5)
        stage.heal()
        replica = stage.watch.partition(1)
        assert replica is not None
        stage.cluster.until(lambda: replica.log.log_start == 5, 10)
        assert replica.log.end_offset == 5
        files = [read_whole(replica.log.directory, segment.name) for segment in replica.log.segments]
        stage.produce("f", "")
        stage.wait("all agree")
        return [
            value or b""
            for data in files
            for at, header in walk(data)
            for value in decode(data[at : at + header.size]).values
        ]


def test_an_old_leader_keeps_nothing_of_its_own_below_what_was_deleted() -> None:
    """Its disk may forget where the log starts: what comes back then must have been committed once (ADR 0116)."""
    assert old_leader_after_a_deletion() == []


def test_an_old_leader_that_only_cuts_its_log_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "cannot_compare", lambda *_: False)
    assert old_leader_after_a_deletion() == [b"a", b"b", b"c", b"x", b"y"]
