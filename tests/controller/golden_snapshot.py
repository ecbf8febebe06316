"""A snapshot of this format's version, and what must be loaded from it for ever.

scripts/golden_snapshot.py writes it to tests/golden/snapshots/.
"""

from pathlib import Path
from random import Random
from typing import Final

from tests.controller.book import OTHER, TOPIC, Book, ids, named, partition
from tidelog.controller.facts import (
    BrokerChanged,
    ConfigChanged,
    FeatureChanged,
    ProducerIdsTaken,
    TopicCreated,
    Voter,
    VotersNamed,
)
from tidelog.controller.image import Image
from tidelog.controller.snapshots import Snapshots
from tidelog.protocol.types import BrokerId
from tidelog.storage.files import read_whole
from tidelog.testing.simulation.disk import SimulatedDisk

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "snapshots"
EPOCH: Final = 3
NAME: Final = "00000000000000000020-0000000003.checkpoint"


def image() -> Image:
    """A bit of everything."""
    book = Book(partition((1, 2)), partition((2,), (3,), index=1), live=(1, 2, 3), fenced=(4,))
    book.say(
        VotersNamed(tuple(Voter(BrokerId(n), named(f"disk c{n}"), "127.0.0.1", 9100 + n) for n in (1, 2, 3)))
    )
    book.say(
        book.unfenced(3, shutting_down=True),
        ConfigChanged("topic", "orders", "retention.ms", "1000"),
        ConfigChanged("cluster", "", "min.insync.replicas", "2"),
        FeatureChanged("groups", 2),
        ProducerIdsTaken(BrokerId(1), book.epoch(1), 1000),
    )
    moving = partition((1, 2), replicas=(1, 2, 3, 4), adding=(4,), topic=OTHER, flush_group=True)
    book.say(TopicCreated(OTHER, "clicks"), moving.created())
    book.say(BrokerChanged(ids(2)[0], book.epoch(2), False, False, ((TOPIC, 0),)))
    return book.image


def make() -> bytes:
    """The file, as it is written today."""
    directory = SimulatedDisk(Random(1)).open_directory()
    writing = Snapshots(directory).begin(image(), EPOCH)
    writing.run()
    assert writing.snapshot.name == NAME, writing.snapshot
    return read_whole(directory, NAME)
