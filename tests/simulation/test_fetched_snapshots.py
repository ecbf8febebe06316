"""Who was away for so long that the log begins later than it had read is brought a snapshot (I-67; 4.14)."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from tests.simulation.controllers import Controllers
from tests.simulation.storm_faults import PLENTY
from tests.simulation.test_controllers import ONE, TWO, asked, settled
from tidelog.controller import archive
from tidelog.controller.facts import METADATA
from tidelog.controller.readers import Readers
from tidelog.controller.snapshots import FETCHED, SnapshotConfig
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import FetchSnapshot
from tidelog.protocol.types import Offset
from tidelog.storage.checkpoints import LOG_STARTS, OffsetCheckpoint
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

OFTEN = SnapshotConfig(metadata_log_max_record_bytes_between_snapshots=2000)


@pytest.fixture(params=range(2))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world that is running."""
    with World(request.param).running() as world:
        yield world


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[Offset]:
    """Where each piece begins that controllers are asked for."""
    asked_for: list[Offset] = []
    fetch_snapshot = Readers.fetch_snapshot

    def seen(self: Readers, request: FetchSnapshot, incoming: Incoming, now_ms: int) -> None:
        asked_for.append(request.position)
        fetch_snapshot(self, request, incoming, now_ms)

    monkeypatch.setattr(Readers, "fetch_snapshot", seen)
    return asked_for


def gone_for_long(quorum: Controllers, follower: int) -> Offset:
    """A follower and member TWO are killed; the others go on until their logs begin behind what those had read."""
    node, member = quorum.nodes[follower], quorum.members[TWO]
    quorum.hosts[follower].kill()
    quorum.member_hosts[TWO].kill()
    had = max(node.metadata.log.end_offset, member.observer.log.end_offset)
    for name in ("orders", "bills"):
        assert not asked(quorum, quorum.members[ONE], quorum.members[ONE].create(name)).topics[0].error
    quorum.until(lambda: quorum.leader.metadata.log.log_start > had, 60)
    assert quorum.world.counts["snapshots fetched"] == 0
    return had


def caught_up(quorum: Controllers, follower: int, had: Offset) -> None:
    """Both read all that there is, and know what the leader knows; neither has the log from where it was."""
    quorum.until(quorum.settled, 20)
    leader, copy = quorum.leader.metadata, quorum.nodes[follower].metadata
    observer = quorum.members[TWO].observer
    quorum.until(
        lambda: leader.committed.end_offset == copy.committed.end_offset == observer.image.end_offset
    )
    assert min(copy.log.log_start, observer.log.log_start) > had
    assert leader.committed.to_bytes() == copy.committed.to_bytes() == observer.image.to_bytes()
    assert set(leader.committed.topic_ids) == {"orders", "bills"}
    quorum.witness.folds(quorum.nodes[follower])
    assert quorum.world.counts["snapshots fetched"] == 1


def test_who_was_away_for_long_goes_on_from_a_snapshot_of_the_leaders(
    world: World, pieces: list[Offset]
) -> None:
    quorum = settled(world, snapshots=OFTEN)
    follower = quorum.others(quorum.until_active())[0]
    had = gone_for_long(quorum, follower)
    assert pieces == []
    quorum.start(follower)
    quorum.begin(TWO)
    caught_up(quorum, follower, had)
    assert pieces == [0, 0], "one for each of them"


def test_a_controller_with_a_new_disk_goes_on_from_a_snapshot_too(world: World, pieces: list[Offset]) -> None:
    quorum = settled(world, snapshots=OFTEN)
    follower = quorum.others(quorum.until_active())[0]
    had = gone_for_long(quorum, follower)
    quorum.replace_disk_of(follower)
    quorum.start(follower)
    quorum.begin(TWO)
    caught_up(quorum, follower, had)
    assert pieces == [0, 0]
    assert not quorum.nodes[follower].quorum.is_voter


def test_a_snapshot_that_is_interrupted_is_fetched_from_its_first_byte(
    world: World, pieces: list[Offset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PIECE_BYTES", 100)
    quorum = settled(world, snapshots=OFTEN)
    leader = quorum.until_active()
    follower = quorum.others(leader)[0]
    had = gone_for_long(quorum, follower)
    starts: tuple[Callable[[], object], ...] = (lambda: quorum.start(follower), lambda: quorum.begin(TWO))
    for start in starts:
        pieces.clear()
        start()
        quorum.until(lambda: len(pieces) == 3)
        for connection in world.network.connections(f"c{leader}"):
            connection.reset()
        quorum.until(lambda: pieces.count(0) == 2)
        again = pieces.index(0, 1)
        quorum.until(lambda again=again: len(pieces) == again + 3)  # type: ignore[misc]
        assert pieces[:3] == pieces[again:] == [0, 100, 200]
        quorum.until(lambda: world.counts["snapshots fetched"] == 1)
    caught_up(quorum, follower, had)


def test_who_has_no_room_for_a_snapshot_fetches_it_when_there_is_some(
    world: World, pieces: list[Offset]
) -> None:
    quorum = settled(world, snapshots=OFTEN, reserve_bytes=0)
    follower = quorum.others(quorum.until_active())[0]
    had = gone_for_long(quorum, follower)
    host, member = quorum.hosts[follower], quorum.member_hosts[TWO]
    quorum.start(follower)
    quorum.begin(TWO)
    disks = host.disk, quorum.members[TWO].host.disk
    for disk in disks:
        disk.capacity = disk.medium.used
    quorum.run_for(5)
    assert host.alive
    assert member.alive
    assert 4 <= len(pieces) <= 12, "each tries now and then"
    names = quorum.nodes[follower].metadata.log.directory.names()
    assert not any(name.endswith(FETCHED) for name in names), "what has come takes nobody's room"
    for disk in disks:
        disk.capacity = PLENTY
    caught_up(quorum, follower, had)


@pytest.mark.slow
def test_who_has_no_room_for_a_snapshot_fetches_it_less_and_less_often(
    world: World, pieces: list[Offset]
) -> None:
    """All of it went over the network each second, for as long as nobody made room; the leader is heard meanwhile."""
    quorum = settled(world, snapshots=OFTEN, reserve_bytes=0)
    leader = quorum.until_active()
    follower = quorum.others(leader)[0]
    gone_for_long(quorum, follower)
    disk = quorum.hosts[follower].disk
    quorum.start(follower)
    disk.capacity = disk.medium.used
    epoch = quorum.nodes[leader].quorum.epoch
    quorum.run_for(60)
    assert 5 <= len(pieces) <= 7
    assert (quorum.active, quorum.nodes[leader].quorum.epoch) == (leader, epoch)
    disk.capacity = PLENTY
    quorum.until(lambda: world.counts["snapshots fetched"] == 1, 31)


def test_who_has_no_room_to_say_where_its_log_begins_says_it_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = settled(world, snapshots=OFTEN, reserve_bytes=0, checkpoint_ms=500)
    follower = quorum.others(quorum.until_active())[0]
    had = gone_for_long(quorum, follower)
    host, installed = quorum.hosts[follower], archive.Archive.installed

    async def without_room(self: archive.Archive) -> None:
        if not said:
            host.disk.capacity = host.disk.medium.used
        said.append(self)
        await installed(self)

    said: list[archive.Archive] = []
    monkeypatch.setattr(archive.Archive, "installed", without_room)
    quorum.start(follower)
    quorum.until(lambda: len(said) >= 3)
    assert host.alive
    start = said[0].log.log_start
    assert start > had
    assert saved_start(host) < start
    host.disk.capacity = PLENTY
    quorum.until(lambda: saved_start(host) == start, 2)
    quorum.begin(TWO)
    caught_up(quorum, follower, had)


def saved_start(host: Host) -> Offset:
    """Where its log begins, as the checkpoint says."""
    directory = host.disk.open_directory()
    return OffsetCheckpoint(directory, LOG_STARTS, nullcontext()).read_or_fallback()[0].get(METADATA, 0)
