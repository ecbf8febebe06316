"""A broker with several disks: what the end of one costs, and of which partitions (DECISIONS 2 and 4; ADR 106)."""

from functools import partial
from typing import Any

import pytest

from tests.controller.book import TOPIC, Book, ids, named, partition
from tests.controller.planted import Bug, fails, planted
from tests.controller.test_liveness import registers
from tidelog.controller import liveness
from tidelog.controller.facts import BrokerRegistered
from tidelog.protocol.messages import DirectoryStanding, GoneReplica, PartitionIndex
from tidelog.storage.crashes import CrashKind

(ONE,) = ids(1)
FIRST, SECOND = "first process", "second process"


def disk(
    name: str,
    *indexes: int,
    kind: CrashKind = CrashKind.PROCESS,
    knows: tuple[str, ...] = (FIRST, SECOND),
    gone: tuple[GoneReplica, ...] = (),
) -> DirectoryStanding:
    """One of broker 1's disks, with these partitions on it and these processes on record."""
    here = tuple(PartitionIndex(TOPIC, index) for index in indexes)
    return DirectoryStanding(named(name), kind, tuple(map(named, knows)), here, gone)


def comes_back_with(module: Any, book: Book, *disks: DirectoryStanding) -> None:
    """The second process, after a first one that had disks 1 and 2."""
    until_now = ("process 1", FIRST)
    had = (disk("disk 1", knows=until_now), disk("disk 2", knows=until_now))
    known: dict[str, Any] = {"incarnation_id": named(FIRST), "incarnation_ids": tuple(map(named, until_now))}
    registers(module, book, directories=had, start=2, **known)
    first = disks[0]
    registers(
        module,
        book,
        live=False,
        start=3,
        kind=CrashKind(first.crash_kind),
        incarnation_id=named(SECOND),
        incarnation_ids=first.incarnation_ids,
        directory_id=first.directory_id,
        directories=disks,
    )


NEW: dict[str, Any] = {"kind": CrashKind.NEW, "knows": (SECOND,)}
CASES: dict[str, tuple[tuple[DirectoryStanding, ...], str]] = {
    # what comes back of two disks with partition 0 and 1, and what has lost its standing: an asynchronous partition
    # and one in group mode on each
    "all": ((disk("disk 1", 0, 2), disk("disk 2", 1, 3)), "-- --"),
    "one may lack what was not flushed": (
        (disk("disk 1", 0, 2), disk("disk 2", 1, 3, kind=CrashKind.HOST)),
        "-x --",
    ),
    "the first one is damaged": (
        (disk("disk 1", 0, 2, kind=CrashKind.DAMAGED), disk("disk 2", 1, 3)),
        "x- x-",
    ),
    "one is missing": ((disk("disk 1", 0, 2),), "-x -x"),
    "one is a new one": ((disk("disk 1", 0, 2), disk("disk 3", **NEW)), "-x -x"),
    "one has come that was not there": (
        (disk("disk 1", 0, 2), disk("disk 2", 1), disk("disk 3", 3)),
        "-- -x",
    ),
    "one has missed a registration": (
        (disk("disk 1", 0, 2), disk("disk 2", 1, 3, knows=("long ago", SECOND))),
        "-x -x",
    ),
    "all, and a new one": ((disk("disk 1", 0, 2), disk("disk 2", 1, 3), disk("disk 3", **NEW)), "-- --"),
    "all, and one replica was not made yet": ((disk("disk 1", 0, 2), disk("disk 2", 3)), "-- --"),
    "all, and one directory is gone": (
        (disk("disk 1", 0, 2), disk("disk 2", 3, gone=(GoneReplica("orders", 1), GoneReplica("removed", 2)))),
        "-x --",
    ),
    "the first one is a new one": ((disk("disk 9", **NEW), disk("disk 2", 1, 3)), "x- x-"),
}


def what_it_cost(module: Any, case: str) -> None:
    disks, cost = CASES[case]
    flushing = [partition((1, 2), index=index, flush_group=True) for index in (2, 3)]
    book = Book(partition((1, 2)), partition((1, 2), index=1), *flushing)
    comes_back_with(module, book, *disks)
    lost = ["x" if ONE not in book.state(index).elr else "-" for index in range(4)]
    assert "".join(lost) == cost.replace(" ", ""), case
    assert book.image.brokers[ONE].directories == tuple(each.directory_id for each in disks)


@pytest.mark.parametrize("case", CASES)
def test_a_disk_costs_what_lay_on_it_and_nothing_else(case: str) -> None:
    """Who is in the ELR is believed to have everything that was committed."""
    what_it_cost(liveness, case)


def what_lay_on_a_missing_disk_is_not_even_worth_asking_for(module: Any) -> None:
    alone: dict[str, Any] = {"replicas": (1,), "min_isr": 1}
    book = Book(partition((1,), **alone), partition((1,), index=1, **alone))
    comes_back_with(module, book, disk("disk 1", 0, kind=CrashKind.HOST))
    assert [book.state(index).last_known_elr for index in (0, 1)] == [(ONE,), ()]


def test_of_what_is_gone_from_a_disk_there_is_nothing_to_ask_for_either() -> None:
    """It is not led with nothing in it only because nobody else has it: what is gone may be put back."""
    book = Book(partition((1,), replicas=(1,), min_isr=1))
    comes_back_with(liveness, book, disk("disk 1", gone=(GoneReplica("orders", 0),)), disk("disk 2"))
    assert (book.state().elr, book.state().last_known_elr) == ((), ())


def test_what_lay_on_a_missing_disk_is_not_even_worth_asking_for() -> None:
    what_lay_on_a_missing_disk_is_not_even_worth_asking_for(liveness)


def test_a_broker_that_tells_nothing_of_its_disks_has_one() -> None:
    """An older one; and what it tells of itself is told of that disk."""
    book = Book(partition((1, 2)))
    registers(liveness, book)
    assert (book.state().elr, book.image.brokers[ONE].directories) == ((ONE,), ())


def test_a_snapshot_names_the_disks_as_well() -> None:
    book = Book(partition((1, 2)))
    comes_back_with(liveness, book, disk("disk 1", 0), disk("disk 2"))
    (said,) = [f for f in book.image.facts() if isinstance(f, BrokerRegistered) and f.broker_id == ONE]
    assert said.directories == (named("disk 1"), named("disk 2"))


BUGS = (
    Bug("a missing disk is not missed", "(disk is None and missing)", "False"),
    Bug("a missing disk costs everything", "(disk is None and missing)", "missing"),
    Bug("what was not made is lost", "(disk is None and missing)", "disk is None"),
    Bug("what is gone was never made", " or p.place in gone", ""),
    Bug("what is gone has no topic", "(image.topic_ids[each.topic], each.index)", "(each.topic, each.index)"),
    Bug("all lies on the first disk", "disk = disk or found[0]", "disk = found[0]"),
    Bug("a disk that comes back is believed", "disk.directory_id not in registered or ", ""),
    Bug("a disk may miss a registration", " or known.incarnation_id not in disk.incarnation_ids", ""),
    Bug("the first disk's end is everybody's", "disk.crash_kind in {", "request.crash_kind in {"),
    Bug("disks are not on record", "        tuple(disk.directory_id for disk in request.directories),\n", ""),
    Bug("what is missing may be asked", "everything=True", "everything=False"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    module = planted(liveness, bug)
    found = any(fails(partial(what_it_cost, module, case)) for case in CASES)
    assert found or fails(partial(what_lay_on_a_missing_disk_is_not_even_worth_asking_for, module))
