"""Each bug planted in the snapshots is noticed by the check that is to notice it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.controller import snapshot_checks
from tests.controller.planted import Bug, planted
from tidelog.controller import snapshot_file, snapshots
from tidelog.protocol.errors import TidelogError

Check = Callable[[Any], object]

WRITING: Check = snapshot_checks.check_a_crash_while_writing
INSTALLING: Check = snapshot_checks.check_a_crash_while_installing
HARM: Check = snapshot_checks.check_harm_is_noticed


def prefixes(product: Any) -> None:
    snapshot_checks.check_every_prefix(product, 1)


def fetching(product: Any) -> None:
    for seed in range(20):
        snapshot_checks.check_fetching(product, seed)


def lives(product: Any) -> None:
    for seed in range(40):
        snapshot_checks.check_a_life(product, seed)


FILE_BUGS: list[tuple[Bug, Check]] = [
    (Bug("the foot is not looked at", "if len(foot) < _FOOT.size or _FOOT.unpack", "if len(foot) < 0 and _FOOT.unpack"), HARM),
    (Bug("the head is not looked at", " or crc32c(head[:-_CRC_SIZE]) != _HEAD.unpack(head)[-1]:", ":"), HARM),
    (
        Bug("the name is believed", "if version != VERSION or (end, epoch) != snapshot:", "if version != VERSION:"),
        snapshot_checks.check_a_name_is_believed_only_if_the_file_says_so,
    ),
    (Bug("the order is that of events", "_groups(image.facts())", "_groups([*image.facts()][:1] + [f for f in image.facts() if type(f).__name__ == 'VotersNamed'])"), prefixes),
    (Bug("a fact is left out at each border", "yield group\n            group, size = [], 0", "yield group[:-1] or group\n            group, size = [], 0"), snapshot_checks.check_batches_are_bounded),
]  # fmt: skip


BUGS: list[tuple[Bug, Check]] = [
    (Bug("the image goes on while it is written", "image.copy(), epoch", "image, epoch"), snapshot_checks.check_an_image_may_go_on),
    (Bug("what was loaded is told as news", "self._image = image.copy()", "self._image = image"), prefixes),
    (Bug("the end is inclusive", "image.end_offset = self.snapshot.end", "image.end_offset = self.snapshot.end - 1"), prefixes),
    (Bug("bytes are not flushed", "    file.flush()\n    yield\n", "    yield\n"), WRITING),
    (Bug("names are not flushed", "(part, name)\n    directory.flush()", "(part, name)"), WRITING),
    (Bug("written in place", "part = self.snapshot.name + PART", "part = self.snapshot.name"), WRITING),
    (Bug("leftovers stay", "self.directory.remove(name)\n            elif", "pass\n            elif"), WRITING),
    (Bug("what rotted stays", "            self.directory.remove(snapshot.name)", "            pass"), HARM),
    (Bug("what was fetched is not checked", 'snapshot_file.batches(file, self.snapshot, f"', '(file, self.snapshot, f"'), fetching),
    (Bug("a spoilt fetch goes on", "except CorruptSnapshot:\n            self.abandon()", "except CorruptSnapshot:\n            pass"), fetching),
    (Bug("any log of that length will do", " and epochs.epoch_of(newest.end - 1) == newest.epoch", ""), INSTALLING),
    (Bug("a log too short will do", "continues = newest.end <= log_end and ", "continues = newest.end > log_end or "), INSTALLING),
    (Bug("the log starts at the newest", "self.ids[-KEPT] if len(self._sizes) >= KEPT", "self.ids[-1] if len(self._sizes) >= KEPT"), lives),
    (Bug("the floor is not kept", "(each not in newest and each.end != log_start)", "each not in newest"), lives),
    (Bug("the floor is entered behind itself", "EpochEntry(floor.epoch, floor.end - 1)", "EpochEntry(floor.epoch, floor.end)"), lives),
    (Bug("the floor is forgotten", "    if floor is None:\n            return epochs", "    if floor is None or floor:\n            return epochs"), lives),
]  # fmt: skip


def _name(what: Any) -> str:
    return getattr(what, "__name__", str(what))


NO_BUG = Bug("none", 'PART: Final = ".part"', 'PART: Final = ".part"')


def product(bug: Bug) -> Any:
    """The module `snapshots` with that bug, be it its own or of the file's format."""
    if bug not in [of_file for of_file, _ in FILE_BUGS]:
        return planted(snapshots, bug)
    found = planted(snapshots, NO_BUG)
    found.snapshot_file = planted(snapshot_file, bug)
    return found


@pytest.mark.parametrize(("bug", "check"), FILE_BUGS + BUGS, ids=_name)
def test_a_planted_bug_is_noticed(bug: Bug, check: Check) -> None:
    spoilt = product(bug)
    with pytest.raises((AssertionError, TidelogError, LookupError, OSError)):
        check(spoilt)


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in FILE_BUGS + BUGS), ids=_name)
def test_without_a_bug_nothing_is_noticed(check: Check) -> None:
    check(product(NO_BUG))
