"""What must hold of snapshots, as checks of the module that takes them: so that planted bugs can be shown to be found.

A check begins with the module (`tidelog.controller.snapshots`, or a copy of it with a bug) and fails or not.
"""

import random
from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.controller.book import CLUSTER, OTHER, TOPIC, Book, ids, named, partition
from tests.controller.history import History
from tests.storage.logs import SMALL, Keeper
from tidelog.controller import election
from tidelog.controller.facts import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ConfigChanged,
    FeatureChanged,
    LeaderElected,
    NothingHappened,
    ProducerIdsTaken,
    TopicCreated,
    TopicRemoved,
    Voter,
    VotersNamed,
)
from tidelog.controller.image import Changes, Image
from tidelog.controller.snapshot_file import BYTES_AT_ONCE, FACTS_AT_ONCE
from tidelog.protocol.batch import read_header, stamp, walk
from tidelog.protocol.errors import CorruptSnapshot
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import BrokerId
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import Directory, read_whole
from tidelog.storage.recovery import Checkpointed, Opening
from tidelog.storage.works import take_here
from tidelog.testing.simulation.crashes import every_crash
from tidelog.testing.simulation.disk import SimulatedDisk

Product: TypeAlias = Any
"""The module `snapshots`, or a copy with a bug."""


# ── logs, and what they add up to ─────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    """A metadata log, and what a node that replays it from 0 has seen of it."""

    batches: list[bytes]
    images: list[bytes]
    """One more than batches: how the image stands before each, and at the end."""
    changes: list[Changes]

    def image(self, count: int) -> Image:
        """Replayed from 0."""
        image = Image()
        for batch in self.batches[:count]:
            image.replay(batch)
        return image


@cache
def told(seed: int, steps: int = 40) -> Told:
    """A random cluster: elections of one partition, and everything else that the log can say in between."""
    history = History(election, seed)
    for _ in range(steps):
        history.run(1)
        if history.rng.random() < 0.6:
            _something_else(history.book, history.rng)
    return retold(history.book.batches)


def retold(batches: list[bytes]) -> Told:
    """What these batches say."""
    image = Image()
    images, changes = [image.to_bytes()], []
    for batch in batches:
        changes.append(image.replay(batch))
        images.append(image.to_bytes())
    return Told(batches, images, changes)


def _something_else(book: Book, rng: random.Random) -> None:
    image, key = book.image, rng.choice("abc")
    there = OTHER in image.topics
    added = partition(
        (), replicas=(1, 2), leader=-1, index=image.topics[OTHER].partitions if there else 0, topic=OTHER
    )
    voters = tuple(
        Voter(BrokerId(n), named(f"disk {rng.getrandbits(20)}"), "host", 9100)
        for n in range(1, rng.randint(2, 5))
    )
    stranger, known = BrokerId(9), image.brokers.get(BrokerId(9))
    facts = rng.choice(
        [
            [NothingHappened()],
            [LeaderElected(BrokerId(1), 1, ids(1, 2)), VotersNamed(voters)],
            [ConfigChanged("topic", rng.choice(("orders", "other")), key, rng.choice((None, "1", "2")))],
            [ConfigChanged("cluster", "", key, str(rng.random()))],
            [FeatureChanged(key, rng.randint(1, 3))],
            [ProducerIdsTaken(BrokerId(1), book.epoch(1), image.next_producer_id + 1000)],
            [added.created()] if there else [TopicCreated(OTHER, "other"), added.created()],
            [TopicRemoved(OTHER)] if there else [NothingHappened(), NothingHappened()],
            [BrokerUnregistered(stranger, known.epoch)]
            if known
            else [BrokerRegistered(stranger, image.end_offset, named("p"), named("d"), "host", 1)],
        ]
    )
    book.say(*facts)


def small_book() -> Book:
    """A cluster of few bytes."""
    book = Book(partition((1, 2)), live=(1, 2))
    book.say(ConfigChanged("topic", "orders", "retention.ms", "1000"))
    return book


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────


def run(steps: Iterable[None]) -> None:
    for _ in steps:
        pass


def opened(product: Product, directory: Directory) -> Any:
    """The snapshots of that directory, as a process that starts finds them."""
    snapshots = product.Snapshots(directory)
    run(snapshots.open())
    return snapshots


def fresh(seed: int = 0) -> Directory:
    return SimulatedDisk(Random(seed)).open_directory()


def take(snapshots: Any, image: Image, epoch: int = 1) -> Any:
    """Take a snapshot, and return its id."""
    writing = snapshots.begin(image, epoch)
    writing.run()
    snapshots.add(writing)
    return writing.snapshot


def content(product: Product, image: Image, epoch: int = 1) -> bytes:
    """The file that a node writes of this image."""
    directory = fresh()
    return read_whole(directory, take(opened(product, directory), image, epoch).name)


def put(directory: Directory, name: str, data: bytes) -> None:
    """Let the file be this, as if it always had been."""
    file = directory.open(name, create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.flush()
    file.close()
    directory.flush()


# ── the checks ────────────────────────────────────────────────────────────────────────────────────────


def check_every_prefix(product: Product, seed: int) -> None:
    """image(snapshot + tail) == image(replay from 0), and both write the same bytes (I-43, I-47)."""
    log = told(seed)
    at_the_end = content(product, log.image(len(log.batches)))
    for count in range(1, len(log.batches) + 1):
        snapshots = opened(product, fresh())
        snapshot = take(snapshots, log.image(count))
        image = opened(product, snapshots.directory).load(snapshot).run()
        image.check()
        assert image.to_bytes() == log.images[count], snapshot
        for after in range(count, len(log.batches)):
            assert image.replay(log.batches[after]) == log.changes[after], (snapshot, after)
            assert image.to_bytes() == log.images[after + 1], (snapshot, after)
        assert content(product, image) == at_the_end, snapshot


def check_an_image_may_go_on(product: Product) -> None:
    """What is written is the image as it was when it began."""
    book = small_book()
    expected, bytes_expected = content(product, book.image), book.image.to_bytes()
    snapshots = opened(product, fresh())
    writing = snapshots.begin(book.image, 1)
    book.say(TopicRemoved(TOPIC), NothingHappened())
    writing.run()
    snapshots.add(writing)
    assert read_whole(snapshots.directory, snapshots.newest.name) == expected
    assert snapshots.load(snapshots.newest).run().to_bytes() == bytes_expected


def harms(whole: bytes) -> Iterable[bytes]:
    """The file torn at every byte, with each of its bits flipped, and with more behind it."""
    yield from (whole[:size] for size in range(len(whole)))
    for at in range(len(whole)):
        for bit in range(8):
            yield whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    yield from (whole + bytes(more) for more in (1, 12, 100))
    yield whole + whole


def check_batches_are_bounded(product: Product) -> None:
    """By facts and by bytes, unless one fact alone is larger; and nothing is left out between two."""
    book = Book(partition((1, 2)))
    book.say(*(ConfigChanged("cluster", "", f"key {n:04}", "x") for n in range(2 * FACTS_AT_ONCE)))
    book.say(*(ConfigChanged("cluster", "", f"long {n}", "x" * (BYTES_AT_ONCE // 3)) for n in range(7)))
    book.say(BrokerChanged(BrokerId(3), book.epoch(3), True, False, tuple((TOPIC, n) for n in range(5000))))
    pieces = list(product.snapshot_file.pieces(book.image, 1))[1:-1]
    counts = [read_header(piece).record_count for piece in pieces]
    assert sum(counts) == len(book.image.facts())
    assert max(counts) == FACTS_AT_ONCE
    large = [len(piece) for piece, count in zip(pieces, counts, strict=True) if count > 1]
    assert max(large) < BYTES_AT_ONCE + 10 * FACTS_AT_ONCE
    assert max(map(len, pieces)) > BYTES_AT_ONCE
    found = opened(product, fresh())
    assert found.load(take(found, book.image)).run().to_bytes() == book.image.to_bytes()


def check_harm_is_noticed(product: Product) -> None:
    """Torn anywhere, one bit flipped anywhere: the one before is used, and it is said why (I-35)."""
    book = small_book()
    directory = fresh()
    snapshots = opened(product, directory)
    before = take(snapshots, book.image)
    image_before = book.image.to_bytes()
    book.say(NothingHappened())
    newest = take(snapshots, book.image)
    for harmed in harms(read_whole(directory, newest.name)):
        put(directory, newest.name, harmed)
        again = opened(product, directory)
        assert again.ids == (before,), len(harmed)
        assert len(again.problems) == 1
        assert not directory.exists(newest.name)
        assert again.load(before).run().to_bytes() == image_before


def check_a_name_is_believed_only_if_the_file_says_so(product: Product) -> None:
    directory = fresh()
    snapshot = take(opened(product, directory), small_book().image)
    for other in (snapshot._replace(end=snapshot.end + 1), snapshot._replace(epoch=7)):
        put(directory, other.name, read_whole(directory, snapshot.name))
        assert opened(product, directory).ids == (snapshot,)


def check_a_crash_while_writing(product: Product) -> None:
    """Before, within and after every operation: the old one is there, the new one is whole or absent (I-34)."""
    book = small_book()
    old = book.image.copy()
    book.say(NothingHappened())

    def prepare(directory: Directory) -> Any:
        snapshots = opened(product, directory)
        take(snapshots, old)
        return snapshots

    def act(_: Directory, snapshots: Any) -> None:
        take(snapshots, book.image)

    for after in every_crash(prepare, act):
        directory = after.disk.open_directory()
        snapshots = opened(product, directory)
        assert not snapshots.problems, after.where
        assert not [name for name in directory.names() if name.endswith(".part")], after.where
        images = [snapshots.load(each).run().to_bytes() for each in snapshots.ids]
        expected = [old.to_bytes(), book.image.to_bytes()]
        assert images in ([expected] if after.returned else [expected[:1], expected]), after.where


def check_fetching(product: Product, seed: int) -> None:
    """In pieces, from two nodes, interrupted, sometimes spoilt on the way: in the end it is what the others have."""
    rng = Random(seed)
    book = small_book()
    leaders = [opened(product, fresh()), opened(product, fresh())]
    snapshot, _ = [take(leader, book.image) for leader in leaders]
    directory = fresh()
    snapshots = opened(product, directory)
    receiving = snapshots.receiving(snapshot)
    spoilt = rng.randint(0, 3)
    while True:
        while not receiving.complete:
            piece = rng.choice(leaders).read_at(snapshot, receiving.position, rng.randint(1, 200))
            data = bytearray(piece.data)
            if spoilt and rng.random() < 0.3:
                spoilt -= 1
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            receiving.take(receiving.position, piece.size, data)
            if rng.random() < 0.05:
                receiving = opened(product, directory).receiving(snapshot)  # the process began anew
        try:
            receiving.run()
            break
        except CorruptSnapshot:
            assert receiving.position == 0
            assert directory.names() == []
    snapshots.add(receiving)
    assert directory.names() == [snapshot.name]
    assert snapshots.load(snapshot).run().to_bytes() == book.image.to_bytes()


class Member:
    """A node that follows the metadata log, on one disk through all its lives."""

    def __init__(self, product: Product, root: Directory, log_start: int | None = None) -> None:
        self.keeper = Keeper(root)
        directory = root.directory("orders-0", create=True)
        root.flush()
        opening = Opening(
            directory, SMALL, self.keeper, Checkpointed(self.keeper.read_recovery_point(), log_start)
        )
        take_here(opening.steps(0))
        self.log = opening.log
        self.keeper.write_recovery_point(self.log.durable_offset)
        self.snapshots = opened(product, directory)
        begin = self.snapshots.where_to_begin(self.log.log_start, self.log.end_offset, self.log.epochs)
        self.began_anew = begin is not None
        if begin is not None:
            self.log.truncate_fully_and_start_at(begin)
        self.snapshots.remove_old(self.log.log_start)
        newest = self.snapshots.newest
        self.image = self.snapshots.load(newest).run() if newest else Image()

    @property
    def epochs(self) -> LeaderEpochs:
        epochs: LeaderEpochs = self.snapshots.epochs(self.log.epochs, self.log.log_start)
        return epochs

    def append(self, batches: Iterable[bytes]) -> None:
        for batch in batches:
            self.log.append_as_follower(batch, 1 << 20, 0)

    def replay(self, high_watermark: int) -> None:
        while self.image.end_offset < high_watermark:
            data = self.log.read(self.image.end_offset, 1 << 20, high_watermark).data
            for at, header in walk(data):
                self.image.replay(data[at : at + header.size])

    def take(self, *, flush: bool = True) -> Any:
        """As a node does when one is due, with all that follows from it."""
        if flush:
            self.log.flush()
        snapshot = take(self.snapshots, self.image, self.epochs.epoch_of(self.image.end_offset - 1))
        self.log.raise_log_start(self.snapshots.log_start(self.log.log_start, self.log.durable_offset))
        self.snapshots.remove_old(self.log.log_start)
        return snapshot

    def install(self, snapshot: Any, data: bytes) -> None:
        """As a follower does that was told to load a snapshot."""
        receiving = self.snapshots.receiving(snapshot)
        receiving.take(0, len(data), data)
        receiving.run()
        self.snapshots.add(receiving)
        begin = self.snapshots.where_to_begin(self.log.log_start, self.log.end_offset, self.log.epochs)
        if begin is not None:
            self.log.truncate_fully_and_start_at(begin)
        self.snapshots.remove_old(self.log.log_start)
        self.image = self.snapshots.load(snapshot).run()


def in_epochs(batches: list[bytes], epoch: Callable[[int], int]) -> list[bytes]:
    """The same batches, written in other epochs: by the number of each."""
    written = []
    for number, batch in enumerate(batches):
        copy = bytearray(batch)
        stamp(copy, read_header(batch).base_offset, epoch(number))
        written.append(bytes(copy))
    return written


def check_a_crash_while_installing(product: Product) -> None:
    """A log too short, or with other batches in place of the committed ones: after any crash it is of one piece."""
    log = told(3)
    committed, half = in_epochs(log.batches, lambda number: 1 + (number >= 12) + (number >= 30)), 25
    image = log.image(half)
    data, snapshot = content(product, image, 2), (image.end_offset, 2)
    diverged = [bytes(batch) for batch in in_epochs(log.batches, lambda _: 1)]
    for seed, own in enumerate((committed[:15], diverged[:28])):

        def prepare(root: Directory, own: list[bytes] = own) -> Member:
            member = Member(product, root)
            member.append(own)
            member.replay(read_header(own[10]).base_offset)
            member.take()
            return member

        def act(_: Directory, member: Member) -> None:
            member.install(product.SnapshotId(*snapshot), data)

        for after in every_crash(prepare, act, seeds=[seed]):
            member = Member(product, after.disk.open_directory())
            assert not member.snapshots.problems, after.where
            assert member.image.to_bytes() in (log.images[10], log.images[half]), after.where
            installed = member.snapshots.newest == snapshot
            assert installed or not after.returned, after.where
            if installed:
                assert (member.epochs.latest, member.log.end_offset) == (2, image.end_offset), after.where
                member.append(committed[half:])
                member.replay(member.log.end_offset)
                assert member.image.to_bytes() == log.images[-1], after.where


def check_a_life(product: Product, seed: int) -> None:
    """Snapshots are taken, power is cut, files rot: whatever is left, the image is that of the log."""
    rng = Random(seed)
    disk = SimulatedDisk(rng)
    log = told(seed)
    batches = in_epochs(log.batches, lambda number: 1 + number // 7)
    member = Member(product, disk.open_directory())
    starts = {read_header(batch).base_offset: number for number, batch in enumerate(batches)}
    starts[read_header(batches[-1]).next_offset] = len(batches)
    whole = 0  # how many snapshots must be there: one of two may rot
    while member.log.end_offset < max(starts):
        begin = starts[member.log.end_offset]
        member.append(batches[begin : begin + rng.randint(1, 5)])
        reached = [end for end in starts if member.image.end_offset <= end <= member.log.end_offset]
        member.replay(rng.choice(reached))
        newest = member.snapshots.newest
        if rng.random() < 0.4 and member.image.end_offset > (newest.end if newest else 0):
            member.take(flush=rng.random() < 0.5)
            whole = min(whole + 1, 2)
        check_floor(member, batches, starts)
        if rng.random() < 0.3:
            start = member.log.log_start
            (disk.power_cut if rng.random() < 0.5 else disk.kill)()
            if rng.random() < 0.3 and whole == 2:
                disk.rot(f"/data/orders-0/{member.snapshots.newest.name}", rng.randrange(90))
                whole = 1
            member = Member(product, disk.open_directory(), start)
            whole = min(whole, 1) if member.began_anew else whole
            assert not member.keeper.damage, member.keeper.damage
        assert member.image.to_bytes() == log.images[starts[member.image.end_offset]]
        newest = member.snapshots.newest
        assert member.log.log_start <= (newest.end if newest else 0) <= member.image.end_offset
    assert member.image.cluster_id == CLUSTER or not member.snapshots.newest


def check_floor(member: Member, batches: list[bytes], starts: dict[int, int]) -> None:
    """The last epoch and end that a vote names are those of the batch that ends there, kept or not."""
    end = member.log.end_offset
    if end:
        assert member.epochs.latest == read_header(batches[starts[end] - 1]).leader_epoch
    start, view = member.log.log_start, member.epochs
    assert start == 0 or member.snapshots.floor(start), member.snapshots
    for offset, number in starts.items():
        if max(start, 1) <= offset <= end:
            epoch = read_header(batches[number - 1]).leader_epoch
            assert view.epoch_of(offset - 1) == epoch, (offset, view)
            assert member.snapshots.snapshot_for(offset, epoch, start) is None, (offset, view)
            found = view.end_offset_for(epoch, end)
            assert found.epoch == epoch, (offset, view)
            assert found.end >= offset, (offset, view)


def repacked(batch: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A batch with other values in it, stamped as it was."""
    header = read_header(batch)
    values = [change(value or b"") for value in decode(batch).values]
    copy = encode(values, now_ms=header.base_timestamp)
    stamp(copy, header.base_offset, header.leader_epoch)
    return bytes(copy)
