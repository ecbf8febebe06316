"""All data directories of a broker, each on a disk of its own: where a log lies, and what is left when a disk fails.

    take ─► lie (which copy of a log counts) ─► open ─► place, make, remove ─► close
                                                  │
                      a directory fails: its logs are offline until the process ends, the others go on

What it keeps true (docs/STORAGE.md, 14; ADR 106):

* A log lies in one directory. Of two copies the one counts whose directory has the later registration on record and has
  not failed since; the other is kept and never served. Where that does not decide, nothing is opened.
* What would end the process because nothing may be believed of a disk any more (`halt`) ends what is on that disk: none
  of its logs is read, written or spoken for again, and no name that lies there is made elsewhere meanwhile. The first
  directory has the metadata log, and ends the process.
* That a directory has failed is durable in the first one. Its next life takes it for the end of the machine, however
  long the process has gone on: what a flush has not confirmed may be gone.
"""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, NoReturn, TypeVar

from tidelog.protocol.errors import (
    NotADataDirectory,
    StorageError,
    TidelogError,
    WrongIdentity,
)
from tidelog.protocol.types import Offset, TopicId, TopicPartition
from tidelog.storage.checkpoints import PendingWrite
from tidelog.storage.crashes import CrashKind
from tidelog.storage.data_directory import DataDirectory, Report
from tidelog.storage.environment import Environment, Taken
from tidelog.storage.failures import read_failures, write_failures
from tidelog.storage.files import Directory, NoRoom
from tidelog.storage.log import Log
from tidelog.storage.making import Making
from tidelog.storage.names import parse_partition, partition_name
from tidelog.storage.works import Work

K = TypeVar("K")
V = TypeVar("V")


class Write(NamedTuple):
    """A checkpoint that is to be written, and in which directory."""

    data: DataDirectory
    pending: PendingWrite


class Left(NamedTuple):
    """What is left of a log that was removed, and in which directory."""

    data: DataDirectory
    name: str


class DataDirectories:
    """The directories, the first one first. Most of what it offers is what a `DataDirectory` does, for the right one."""

    def __init__(self, all_of_them: Sequence[DataDirectory]) -> None:
        self.all: Final = tuple(all_of_them)
        self.on_failure: Callable[[DataDirectory, str], None] = lambda *_: None
        """Told when one has failed; nothing that lies there may be used after it."""
        self.on_left: Callable[[], None] = lambda: None
        """Told when there is something to `take_left`."""
        self._left: list[Left] = []
        self._making: dict[TopicPartition, DataDirectory] = {}
        """Where logs are being made that are not there yet."""
        self.offline: Mapping[TopicPartition, TidelogError] = _merged(
            [data.report.offline for data in self.all]
        )
        """Logs that are here and cannot be used, and why."""
        self._merge()
        for other in self.all[1:]:
            other.fails_alone(partial(self._fail, other))

    # ── which there are ───────────────────────────────────────────────────────────────────────────

    @property
    def first(self) -> DataDirectory:
        """The one with the metadata log: the broker ends with it."""
        return self.all[0]

    @property
    def serving(self) -> list[DataDirectory]:
        """Those that have not failed."""
        return [data for data in self.all if data.failure is None]

    def of(self, partition: TopicPartition) -> DataDirectory:
        """Where that log lies."""
        return next(data for data in self.all if partition in data.logs)

    def _merge(self) -> None:
        serving = self.serving
        self.logs: Mapping[TopicPartition, Log] = _merged([data.logs for data in serving])
        """Every log that may be used."""
        self.topic_ids: Mapping[TopicPartition, TopicId] = _merged([data.topic_ids for data in serving])
        """Whose logs they are."""

    @property
    def report(self) -> Report:
        """What all of them have brought to light."""
        merged = Report(offline=dict(self.offline))
        for data in self.all:
            merged.found |= data.report.found
            merged.stray += data.report.stray
            merged.problems += data.report.problems
        return merged

    def high_watermark(self, partition: TopicPartition) -> Offset:
        """Where the log was known to be committed to when it was last checkpointed."""
        return self.of(partition).high_watermark(partition)

    # ── opening ───────────────────────────────────────────────────────────────────────────────────

    def open(self, now_ms: int) -> Iterator[Work | None]:
        """Open every log of every directory, in steps."""
        with ExitStack() as starting:
            for data in self.all:
                starting.enter_context(data.starting())
            failed = read_failures(self.first.directory)
            here = frozenset(data.life.directory_id for data in self.all[1:])
            lies = self._choose_copies(here if failed is None else failed)
            if failed != frozenset():
                self._believe(here if failed is None else failed)
            for data in self.all:
                yield from data.open(now_ms, lies)

    def _believe(self, failed: frozenset[bytes]) -> None:
        """These have failed in the last life: each says so of itself from now on."""
        said = {
            data.life.directory_id
            for data in self.all[1:]
            if data.life.directory_id in failed and data.life.believe(CrashKind.HOST)
        }
        with suppress(NoRoom):  # it is said once more by the next life
            write_failures(self.first.directory, failed - said)

    def _choose_copies(self, failed: frozenset[bytes]) -> Collection[TopicPartition]:
        """Where a log lies in two directories, set one of them aside before anything is opened; all that there are."""
        lies: dict[TopicPartition, DataDirectory] = {}
        for data in self.all:
            for name in data.directory.names():
                partition = parse_partition(name)
                if partition is None or not data.directory.is_directory(name):
                    continue
                other = lies.setdefault(partition, data)
                if other is not data:
                    lies[partition] = self._choose(name, other, data, failed)
        return lies

    def _choose(
        self, name: str, one: DataDirectory, other: DataDirectory, failed: frozenset[bytes]
    ) -> DataDirectory:
        def standing(data: DataDirectory) -> tuple[bool, int]:
            return data.life.directory_id not in failed, data.life.broker_epoch

        if standing(one) == standing(other):
            raise NotADataDirectory(
                f"{name} lies in {one.directory.path} and in {other.directory.path}, and nothing says which counts: "
                "move one of the two away"
            )
        kept, late = (one, other) if standing(one) > standing(other) else (other, one)
        late.set_aside(name, f"{kept.directory.path} has been in use without it")
        return kept

    def open_again(self, partition: TopicPartition, now_ms: int) -> bool:
        """Open a log that the start had no room for, now that there is some; whether it is open."""
        data = next(data for data in self.all if partition in data.report.offline)
        if data.failure is not None:
            return False
        try:
            return data.open_again(partition, now_ms)
        except OSError as error:
            data.halt(f"open {partition}", error)

    # ── making and removing ───────────────────────────────────────────────────────────────────────

    def _place_for(self, partition: TopicPartition) -> DataDirectory:
        """The directory with the fewest logs, of those that have room; the first of several such."""
        serving = self.serving
        roomy = [data for data in serving if not data.room.low] or serving
        begun = list(self._making.values())
        return min(roomy, key=lambda data: len(data.logs) + begun.count(data))

    def begin_making(self, partition: TopicPartition, topic_id: TopicId) -> Making:
        """The first step to a new log, where many are made: the next is `making.run`, in a worker thread."""
        data = self._place_for(partition)
        try:
            making = data.begin_making(partition, topic_id)
        except NoRoom:
            raise
        except OSError as error:
            data.halt(f"make the log of {partition}", error)
        self._making[partition] = data
        return making

    def shares(self, begun: Iterable[Making], threads: int) -> list[tuple[Directory, list[Making]]]:
        """What `making.run` is to be called with, so that so many threads have something to do for each disk."""
        begun = list(begun)
        shares = []
        for data in dict.fromkeys(self._making[each.partition] for each in begun):
            here = [each for each in begun if self._making[each.partition] is data]
            shares += [(data.directory, here[thread::threads]) for thread in range(min(threads, len(here)))]
        return shares

    def create(self, partition: TopicPartition, topic_id: TopicId, now_ms: int, *, made: bool = False) -> Log:
        """A new, empty log; durable when this returns. `made`: its directory is, by `making.run`."""
        data = self._making.pop(partition) if made else self._place_for(partition)
        if data.failure is not None:
            raise data.failure
        try:
            return data.create(partition, topic_id, now_ms, made=made)
        except NoRoom:
            raise
        except OSError as error:
            data.halt(f"make the log of {partition}", error)

    def discard(self, making: Making) -> None:
        """It is not wanted any more, or it could not be made: remove what was made of it."""
        data = self._making.pop(making.partition)
        if data.failure is None:
            try:
                data.discard(making)
            except OSError as error:
                with suppress(StorageError):
                    data.halt(f"remove what was made of {making.partition}", error)

    def could_not_make(self, making: Making, error: OSError) -> NoReturn:
        """Its disk has failed, and whatever else is on it."""
        self._making.pop(making.partition).halt(f"make the log of {making.partition}", error)

    def remove(self, partition: TopicPartition) -> None:
        """Take a log out of service, to be removed by who is told `on_left`; on a disk that has failed it stays."""
        self._take_out(partition, lambda data: self._left.append(Left(data, data.remove(partition))))
        if self._left:
            self.on_left()

    def take_left(self, most: int) -> tuple[DataDirectory, list[str]] | None:
        """Some of what is left of logs that were removed, in one directory: flush that, and `destroy` them."""
        self._left = [left for left in self._left if left.data.failure is None]
        if not self._left:
            return None
        data = self._left[0].data
        taken = [left for left in self._left if left.data is data][:most]
        self._left = [left for left in self._left if left not in taken]
        return data, [left.name for left in taken]

    def stray(self, partition: TopicPartition) -> None:
        """Keep a log that this node should not have, but never serve it."""
        self._take_out(partition, lambda data: data.stray(partition))

    def _take_out(self, partition: TopicPartition, how: Callable[[DataDirectory], None]) -> None:
        data = self.of(partition)
        if data.failure is not None:
            return
        try:
            how(data)
        except OSError as error:
            with suppress(StorageError):
                data.halt(f"take {partition} out of service", error)
        except StorageError:
            if data.failure is None:
                raise

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def write_high_watermarks(self, committed: Mapping[TopicPartition, Offset]) -> list[Write]:
        """Every hosted partition's, led, followed or leaderless (KAFKA-1647)."""
        return [Write(data, data.write_high_watermarks(_of(data, committed))) for data in self.serving]

    def write_recovery_points(self) -> list[Write]:
        """What is durable now. Nothing is to be cut between this and the end of the last write."""
        return [Write(data, data.write_recovery_points()) for data in self.serving]

    def write_log_starts(self) -> list[Write]:
        """Where readers begin."""
        return [Write(data, data.write_log_starts()) for data in self.serving]

    # ── failing ───────────────────────────────────────────────────────────────────────────────────

    def _fail(self, data: DataDirectory, what: str, error: OSError) -> NoReturn:
        """Nothing may be believed of that disk any more."""
        if data.failure is None:
            data.give_up(StorageError(f"{what}: {error.strerror or error}: the directory has failed"))
            self._merge()
            failed = frozenset(each.life.directory_id for each in self.all if each.failure is not None)
            try:
                write_failures(self.first.directory, failed)
            except OSError as worse:
                self.first.halt("note that a directory has failed", worse)
            self.on_failure(data, str(data.failure))
        assert data.failure is not None
        raise data.failure from error

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────

    def close(self, committed: Mapping[TopicPartition, Offset]) -> None:
        """A stop: everything durable, and each directory says so of itself."""
        self.on_failure = lambda *_: None
        for data in (*self.all[1:], self.first):
            if data.failure is not None:
                continue
            try:
                data.close(_of(data, committed))
            except OSError as error:
                if data is self.first:
                    raise
                data.report.problems.append(f"{data.directory.path} could not be closed: {error}")
                with suppress(StorageError):
                    data.halt("close it", error)


def take_all(
    env: Environment, first_log: TopicPartition, take: Callable[[Environment], Taken]
) -> tuple[Taken, ...]:
    """Take every directory of the environment; that one is the first which has this log, wherever it is named.

    One that is another node's, or another cluster's, or a copy, or in use, refuses all of them.
    """
    taken: list[Taken] = []
    try:
        for directory in (env.directory, *env.other_directories):
            one = take(replace(env, directory=directory))
            taken.append(one)
            for other in taken[:-1]:
                _require_another(one, other)
        having = [one for one in taken if one.data.directory.exists(partition_name(first_log))]
        if len(having) > 1:
            paths = " and ".join(one.data.directory.path for one in having)
            raise NotADataDirectory(f"{partition_name(first_log)} lies in {paths}: one node has it once")
    except BaseException as error:
        for one in taken:
            if isinstance(error, TidelogError):
                one.data.refuse()
            one.claim.lock.release()
        raise
    return tuple(sorted(taken, key=lambda one: one not in having))


def _require_another(one: Taken, other: Taken) -> None:
    mine, its = one.claim.identity, other.claim.identity
    path, other_path = one.data.directory.path, other.data.directory.path
    if mine.directory_id == its.directory_id:
        raise NotADataDirectory(f"{path} is a copy of {other_path}, or the same directory")
    if None not in (mine.cluster_id, its.cluster_id) and mine.cluster_id != its.cluster_id:
        shown = [(each or b"").hex() for each in (mine.cluster_id, its.cluster_id)]
        raise WrongIdentity(f"{path} belongs to cluster {shown[0]}, {other_path} to cluster {shown[1]}")


def _merged(maps: list[dict[K, V]]) -> Mapping[K, V]:
    """All of them, as they are at any time; of one, that very one: it is asked for every partition."""
    return maps[0] if len(maps) == 1 else ChainMap(*maps)


def _of(data: DataDirectory, committed: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
    return {partition: offset for partition, offset in committed.items() if partition in data.logs}
