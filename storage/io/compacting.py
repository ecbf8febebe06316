"""Compaction in another process: this process's side of it, and that process.

    CompactingProcess   one child at most, from the first log that is compacted until `close`
    Elsewhere           what stands here for the `Compactor` there
    main                the child: reads jobs, reads and writes segments at its pace, says what `Compactor` says

Both ways go frames: a length of four bytes and msgpack. What it keeps true:

* The child decides nothing: it reads sealed segments and writes `.cleaned` files. However it ends, the log is what it was.
* It does not outlive its parent: its stdin ends with that, and then it ends at once.
* Nothing here waits for it: pipes are read and written as far as they go, and a child that is given up is killed.
  In its last moment it may still make a file: until it is gone no other one works in that directory, and then its
  files are removed once more.
* It is patient (`NICE`, `Courtesy`): whoever produces or consumes gets the cores first. And what it writes it flushes as
  it goes, so that the flush that puts a segment in its place finds little left to do.
"""

import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from struct import Struct as Layout
from typing import Final, NamedTuple

import msgspec

from tidelog.protocol.errors import DamagedLog, StorageError, TidelogError
from tidelog.protocol.types import Offset
from tidelog.storage.cleaning import (
    Cleaned,
    Courtesy,
    Outcome,
    Pace,
    Plan,
    Refused,
    Said,
    decode_said,
    encode_said,
)
from tidelog.storage.compaction import Compactor
from tidelog.storage.files import Directory
from tidelog.storage.io.disk import open_directory
from tidelog.storage.swap import remove_written

logger = logging.getLogger(__name__)

NICE: Final = 10
"""How far the child stands back: of a core for which others ask as well it gets a tenth, and goes on."""
POLL_S: Final = 0.02
"""How often it is looked for what the child has said."""
FLUSH_BYTES: Final = 4 << 20
"""The child flushes what it writes whenever so much is new."""
_PAUSE_S: Final = 0.01
"""What is ahead of its pace by less goes on: a sleep costs more than it is worth."""
_LENGTH: Final = Layout(">I")
_READ: Final = 64 << 10
_DEATH_S: Final = 10.0
"""How long a process that was killed may take to be gone."""
_BEGIN: Final = f"import os; os.nice({NICE}); from {__name__} import main; main()"
"""It stands back before it reads its modules: three brokers of one machine begin at one moment."""
_AUTOGROUP: Final = "/proc/self/autogroup"
_AUTOGROUP_TRIES: Final = 30
_SRC: Final = str(Path(__file__).resolve().parents[2])


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One log that is to be compacted."""

    path: str
    bytes_per_second: int
    plan: Plan


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_JOB: Final = msgspec.msgpack.Decoder(Job).decode


class Frames:
    """Bytes that come in pieces, as the frames that they are."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The frames that are whole now."""
        self._bytes += piece
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield frame


def _framed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


# ── this process ──────────────────────────────────────────────────────────────────────────────────────


class _Child:
    """The other process, and its pipes."""

    def __init__(self) -> None:
        paths = os.environ.get("PYTHONPATH", "")
        self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, with a module of ours
            (sys.executable, "-c", _BEGIN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_SRC, paths)))},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._unsent = bytearray()
        self._frames = Frames()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def send(self, content: bytes) -> None:
        """Say this to it, as fast as it listens."""
        self._unsent += _framed(content)

    def heard(self) -> Iterator[bytes]:
        """What it has said; StorageError when it has ended."""
        try:
            if self._unsent:
                del self._unsent[: os.write(self._stdin.fileno(), self._unsent[:_READ])]
            piece = os.read(self._stdout.fileno(), _READ)
        except BlockingIOError:
            return
        except BrokenPipeError:
            piece = b""
        if not piece:
            code = self._process.poll()
            raise StorageError(
                f"the process that compacts logs (pid {self.pid}) has ended"
                + (f" with status {code}" if code is not None else "")
            )
        yield from self._frames.add(piece)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._stdin.close()
        self._stdout.close()

    def is_gone(self) -> bool:
        """Whether it has ended, after `kill`."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Until it has ended, after `kill`."""
        self._process.wait(_DEATH_S)


class _Dying(NamedTuple):
    """A child that was killed at its work."""

    child: _Child
    directory: Directory | None
    bases: tuple[Offset, ...]
    """The groups of which it may have written something there."""

    def bury(self) -> None:
        """It is gone: remove what it has left."""
        assert self.child.is_gone()
        if self.directory is not None:
            with suppress(OSError):  # a start removes it
                _remove(self.directory, self.bases)


class CompactingProcess:
    """Where the logs of a node are compacted: a process of its own, which is there only while there is work."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._dying: list[_Dying] = []

    @property
    def pid(self) -> int | None:
        """The child's; None while there is none."""
        return self._child.pid if self._child is not None else None

    def begin(self, directory: Directory, plan: Plan, bytes_per_second: int) -> "Elsewhere":
        """Compact one log. The one before it has ended, or was abandoned."""
        return Elsewhere(self, directory, Job(directory.path, bytes_per_second, plan))

    def child(self) -> _Child:
        """The child; it is begun if there is none."""
        if self._child is None:
            self._child = _Child()
        return self._child

    def give_up(self, directory: Directory | None = None, bases: tuple[Offset, ...] = ()) -> None:
        """Kill the child, which may be at work on these groups. The next log has a new one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._dying.append(_Dying(child, directory, bases))

    def lingering(self, path: str) -> int | None:
        """The child that was killed at work in that directory and is not gone yet."""
        for dying in [dying for dying in self._dying if dying.child.is_gone()]:
            dying.bury()
            self._dying.remove(dying)
        at_work = (each for each in self._dying if each.directory is not None and each.directory.path == path)
        return next((dying.child.pid for dying in at_work), None)

    def close(self) -> None:
        """There is no work for now: end the child, so that its memory is given back. Waits: for a worker thread."""
        self.give_up()
        while self._dying:
            dying = self._dying[-1]
            try:
                dying.child.wait()
            except subprocess.TimeoutExpired:  # its disk stands still: it goes when that goes on
                logger.warning("compaction.lingers pid=%d", dying.child.pid)
                return
            dying.bury()
            self._dying.pop()


class Elsewhere:
    """One log's compaction in the other process: a `Compacts`."""

    def __init__(self, process: CompactingProcess, directory: Directory, job: Job) -> None:
        self._process = process
        self._directory = directory
        self._job = job
        self._unfinished: set[Offset] = {group[0].base_offset for group in job.plan.groups}
        """The groups of which nothing has been said."""
        self._ended = False

    @property
    def moved_bytes(self) -> int:
        """Nothing in this process: the other one keeps its pace itself."""
        return 0

    @property
    def pause_s(self) -> float:
        """What to wait before it is looked for news again."""
        return POLL_S

    def steps(self) -> Iterator[Said]:
        """What the other process says, and None while it says nothing."""
        deadline = time.monotonic() + _DEATH_S
        while (pid := self._process.lingering(self._directory.path)) is not None:
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"the process that was killed while it compacted this (pid {pid}) is still there"
                )
            yield None
        child = self._process.child()
        logger.info("compaction.began log=%s pid=%d", self._directory.path, child.pid)
        child.send(_ENCODE(self._job))
        while True:
            for frame in child.heard():
                said = decode_said(frame)
                if isinstance(said, Cleaned):
                    self._unfinished.discard(said.base_offset)
                self._ended = not isinstance(said, Cleaned)
                if isinstance(said, Refused):
                    raise _error_of(said)
                yield said
                if isinstance(said, Outcome):
                    self._tell(said)
                    return
            yield None

    def _tell(self, outcome: Outcome) -> None:
        if outcome.unreadable_batches:
            logger.warning(
                "compaction.unreadable log=%s batches=%d first=%d reason='they are what was sent, and no records'",
                self._directory.path,
                outcome.unreadable_batches,
                outcome.first_unreadable,
            )

    def abandon(self) -> None:
        """End it, and with it the process if that is still at work. What it has half written is removed."""
        bases = tuple(self._unfinished)
        if not self._ended:
            self._ended = True
            self._process.give_up(self._directory, bases)
        _remove(self._directory, bases)


def _remove(directory: Directory, bases: tuple[Offset, ...]) -> None:
    for base in bases:
        remove_written(directory, base)


def _error_of(refused: Refused) -> Exception:
    if refused.errno:
        return OSError(refused.errno, refused.message)
    if refused.code == DamagedLog.code:
        return DamagedLog(refused.message, refused.base_offset)
    return StorageError(refused.message)


# ── the other process ─────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Carry out jobs until stdin ends."""
    _let_others_first()
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), name="jobs", daemon=True).start()
    while True:
        for said in carried_out(jobs.get()):
            _say(encode_said(said))


def _let_others_first() -> None:
    """Where Linux shares the cores between sessions first, `nice` counts within ours alone, and this beside the others'."""
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path(_AUTOGROUP).write_text(str(NICE), "ascii")
        except BlockingIOError:  # the kernel takes one change, of anybody, in a tenth of a second
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


def _listen(jobs: "SimpleQueue[Job]") -> None:
    """In a thread, so that the end of the parent is seen in the middle of a job."""
    frames = Frames()
    while piece := os.read(0, _READ):
        for frame in frames.add(piece):
            jobs.put(_JOB(frame))
    os._exit(0)


def carried_out(job: Job) -> Iterator[Cleaned | Outcome | Refused]:
    """Do it, at its pace; what there is to say."""
    compactor: Compactor | None = None
    try:
        compactor = Compactor(open_directory(job.path), job.plan)
        pace, courtesy, flushed = Pace(job.bytes_per_second), Courtesy(*_used()), 0
        for said in compactor.steps():
            if said is not None:
                yield said
            elif compactor.written_bytes - flushed >= FLUSH_BYTES:
                flushed = compactor.written_bytes
                compactor.flush()
            pause_s = pace.pause_s(compactor.moved_bytes, time.monotonic())
            if pause_s >= _PAUSE_S:
                time.sleep(pause_s)
            rest_s = courtesy.rest_s(*_used(), time.monotonic())
            if rest_s:
                time.sleep(rest_s)
    except OSError as error:
        if compactor is not None:
            compactor.abandon()
        yield Refused(str(error.strerror), error.errno or 0)
    except DamagedLog as damage:
        yield Refused(str(damage), 0, damage.code, damage.base_offset)
    except TidelogError as error:
        yield Refused(str(error), 0, error.code)


def _used() -> tuple[float, int]:
    """How long this process has worked, and how often it had to give up the core."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nivcsw


def _say(content: bytes) -> None:
    left = memoryview(_framed(content))
    with suppress(BrokenPipeError):  # then stdin ends as well
        while left:
            left = left[os.write(1, left) :]
