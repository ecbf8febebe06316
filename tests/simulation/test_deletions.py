"""What a client was told to be deleted stays deleted, whoever dies right then (ADR 0079, I-76)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation.cluster import BROKER_PORT
from tests.simulation.stage import Stage, new_world, open_stage
from tidelog.broker import wanted
from tidelog.broker.flusher import Flusher
from tidelog.broker.wanted import Wanted
from tidelog.protocol.messages import DeleteBefore, DeleteRecords, DeleteRecordsReply, PartitionFetch


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
        partition = stage.watch.partition(int(number))
        assert partition is not None
        starts.append(partition.log.log_start)
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
