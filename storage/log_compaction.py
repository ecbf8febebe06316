"""A log's compaction, from its plan to the last file in its place, as steps that its owner takes (`works`).

What it keeps true (docs/STORAGE.md, 10.9; C7, C10):

* The purge floor is durable before a segment without a tombstone is.
* It never changes a log that is being cut, retired or closed: they end it (`Log.compaction`). What is not committed
  is given up, what is committed is finished at once.
* How far the log is clean is written last: a crash before that costs another pass, nothing else.

Where the reading and writing is done is the owner's choice: `begin` makes a `Compactor` here, or something that says
what one in another process says.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Protocol

from tidelog.protocol.types import Offset
from tidelog.storage.cleaning import Cleaned, Outcome, Plan, Said, cleanable, plan
from tidelog.storage.compaction import Compactor
from tidelog.storage.files import Directory, NoRoom, refusal
from tidelog.storage.log import Log
from tidelog.storage.producer_replay import ProducerReplay
from tidelog.storage.retention import Leftovers
from tidelog.storage.swap import State, Swap
from tidelog.storage.works import Work


class Runs(Protocol):
    """A state that is to be written."""

    def run(self) -> object:
        """Write it durably."""
        ...


class Checkpoints(Protocol):
    """Where it is kept what compaction has done: a `DataDirectory`."""

    def write_purge_floors(self) -> Runs:
        """Below which offsets tombstones are gone, as logs say it now."""
        ...

    def write_cleaner_offsets(self) -> Runs:
        """How far logs are clean, as they say it now."""
        ...


class Compacts(Protocol):
    """A `Compactor`, or what stands for one in another process."""

    @property
    def moved_bytes(self) -> int:
        """What was read and written so far."""
        ...

    @property
    def pause_s(self) -> float:
        """How long nothing is expected of it."""
        ...

    def steps(self) -> Iterator[Said]:
        """What it does."""
        ...

    def abandon(self) -> None:
        """End it; nothing half-written stays."""
        ...


class CompactsElsewhere(Protocol):
    """Another process, in which logs are compacted."""

    def begin(self, directory: Directory, plan: Plan, bytes_per_second: int) -> Compacts:
        """Compact one log there, at that pace."""
        ...

    def close(self) -> None:
        """There is no work for now. Waits: for a worker thread."""
        ...


class Compaction:
    """One compaction of one log."""

    def __init__(
        self,
        log: Log,
        checkpoints: Checkpoints,
        leftovers: Leftovers,
        begin: Callable[[Directory, Plan], Compacts] = Compactor,
    ) -> None:
        assert log.compaction is None, f"{log} is being compacted"
        self.outcome: Outcome | None = None
        """What came of it, when it has ended by itself and there was something to do."""
        self.is_partial = False
        """It came as far as its memory for keys allowed, and another one would come further."""
        self.compactor: Compacts | None = None
        self._log = log
        self._checkpoints = checkpoints
        self._leftovers = leftovers
        self._begin = begin
        self._swap: Swap | None = None
        self._failed: tuple[str, OSError] | None = None
        """What a work could not do, until somebody hears of it."""
        self._works = False
        self._now_ms = 0
        self._steps: Generator[Work | None, None, None] | None = None
        log.compaction = self

    @property
    def works(self) -> bool:
        """Whether a `Work` runs: until it has ended, nobody ends the compaction."""
        return self._works

    def handed_over(self, work: Work) -> Work:
        """That work, as it goes to a worker thread: it counts from now on, whenever the thread comes to it.

        Whoever ended the compaction before that would have it done to the log that begins in this one's place.
        """
        self._works = True
        return work

    @property
    def moved_bytes(self) -> int:
        """What was read and written so far: by this it is slowed down."""
        return self.compactor.moved_bytes if self.compactor is not None else 0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next step, whatever the pace."""
        return self.compactor.pause_s if self.compactor is not None else 0.0

    def steps(
        self, committed: Offset, now_ms: int, memory_bytes: int, purge_below: Offset | None = None
    ) -> Iterator[Work | None]:
        """Everything below `committed` (high watermark and last stable offset) may be looked at.

        Tombstones from `purge_below` on stay; None: whatever is due may go.
        """
        self._now_ms = now_ms
        self._steps = self._run(committed, memory_bytes, purge_below)
        return self._steps

    def abort(self) -> None:
        """End it now. Not while a `Work` runs."""
        assert not self._works, f"a compaction of {self._log} waits for the disk"
        if self._steps is not None:
            self._steps.close()
        with suppress(NoRoom):  # of a checkpoint: nothing of it is needed any more
            self._hear()
        self._end()

    def _run(
        self, committed: Offset, memory_bytes: int, purge_below: Offset | None
    ) -> Generator[Work | None, None, None]:
        log = self._log
        try:
            remembered = yield from self._remembered(committed)
            planned = plan(log, committed, self._now_ms, remembered, memory_bytes, purge_below)
            if planned is not None:
                yield from self._carry_out(planned)
        except OSError as error:  # of files that are not the log's: nothing is lost
            self._end()
            raise refusal(f"{log} could not be compacted: {error.strerror}", error) from error
        except Exception:
            self._end()
            raise
        self._log.compaction = None

    def _carry_out(self, planned: Plan) -> Generator[Work | None, None, None]:
        self.compactor = self._begin(self._log.directory, planned)
        for step in self.compactor.steps():
            if step is None:
                yield None
            elif isinstance(step, Cleaned):
                yield from self._put_in_place(step)
            else:
                self.outcome = step
        assert self.outcome is not None, "a compaction ends with its outcome"
        self._log.first_dirty = clean_below = self.outcome.clean_below
        self.is_partial = planned.first_dirty < clean_below < planned.end
        yield from self._work(self._checkpoints.write_cleaner_offsets().run)

    def _remembered(self, committed: Offset) -> Generator[None, None, set[Offset]]:
        """The last offsets of the batches that living producers are known by, as of where the compaction ends."""
        log = self._log
        segments = cleanable(log, committed, self._now_ms)
        if not segments:
            return set()
        replay = ProducerReplay(log.directory, segments, log.log_start, segments[-1].next_offset)
        yield from replay.steps(self._now_ms)
        return {
            batch.last_offset
            for producer_id, entry in replay.producers.items()
            if log.producers.entry(producer_id) is not None
            for batch in entry.batches
        }

    def _put_in_place(self, cleaned: Cleaned) -> Generator[Work | None, None, None]:
        log = self._log
        self._swap = swap = Swap(log, cleaned)
        floor = max(log.purge_floor, cleaned.purge_floor, 0)
        if floor > log.purge_floor:
            before, log.purge_floor = log.purge_floor, floor
            try:
                yield from self._work(self._checkpoints.write_purge_floors().run)
            except BaseException:  # given up as well: nothing is purged, and the next one must write it
                log.purge_floor = before
                raise
        yield from self._work(swap.commit, "commit a compacted segment")
        swap.adopt()
        yield from self._work(swap.finish, "put a compacted segment in its place")
        self._leftovers.add(log, swap.settle(), self._now_ms)
        self._swap = None

    def _work(self, work: Callable[[], object], what: str = "") -> Generator[Work, None, None]:
        """Have this done. Where `what` names it, a failure ends the process: nobody knows what is on the disk."""

        def run() -> None:
            self._works = True
            try:
                work()
            except OSError as error:
                self._failed = what, error
            finally:
                self._works = False

        yield run
        self._hear()

    def _hear(self) -> None:
        """Raise what the last work could not do."""
        failed, self._failed = self._failed, None
        if failed is None:
            return
        what, error = failed
        if what or not isinstance(error, NoRoom):
            self._log.halt(what or "write a checkpoint of the compaction", error)
        raise error

    def _end(self) -> None:
        """Give up what is not committed, finish what is."""
        swap, self._swap = self._swap, None
        self._log.compaction = None
        # A disk that has failed does not remove files, either: what is half-written is ignored, and goes at a start.
        if self.compactor is not None:
            with suppress(OSError):
                self.compactor.abandon()
        if swap is None:
            return
        if swap.state is State.WRITTEN:
            with suppress(OSError):
                swap.give_up()
            return
        try:
            if swap.state is State.COMMITTED:
                swap.adopt()
            if swap.state is State.ADOPTED:
                swap.finish()
        except OSError as error:
            self._log.halt("put a compacted segment in its place", error)
        self._leftovers.add(self._log, swap.settle(), self._now_ms)
