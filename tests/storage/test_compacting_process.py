"""Compaction in a process of its own: what it says is believed, however it ends the log is whole, and it outlives nobody."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest
from scripts.benches.logs import NOW_MS, new_log

from tidelog.protocol.batch import build
from tidelog.protocol.errors import DamagedLog, StorageError
from tidelog.protocol.records import decode, encode
from tidelog.storage.cleaning import Refused, plan
from tidelog.storage.config import LogConfig
from tidelog.storage.io import compacting
from tidelog.storage.io.compacting import NICE, CompactingProcess, Frames, Job, carried_out
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import Compaction
from tidelog.storage.retention import Leftovers

DEADLINE_S = 30.0
MEMORY = 1 << 20
RATE = 1 << 40
CONFIG = LogConfig(segment_bytes=20_000, cleanup_policy="compact")


class NoCheckpoints:
    """What compaction has done is kept nowhere."""

    def run(self) -> None:
        pass

    def write_purge_floors(self) -> "NoCheckpoints":
        return self

    def write_cleaner_offsets(self) -> "NoCheckpoints":
        return self


@contextmanager
def filled(path: Path) -> Iterator[Log]:
    """A log of 3000 records with 40 keys, sealed and durable."""
    rng = Random(1)
    with new_log(path, CONFIG) as log:
        for number in range(300):
            keys: list[bytes | None] = [b"k%d" % rng.randrange(40) for _ in range(10)]
            log.append(encode([b"%d" % number] * 10, keys, now_ms=NOW_MS), 0, NOW_MS)
        log.roll()
        log.flush()
        log.recovery_point = log.durable_offset
        yield log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with filled(tmp_path / "log") as made:
        yield made


@pytest.fixture
def process() -> Iterator[CompactingProcess]:
    made = CompactingProcess()
    yield made
    made.close()


def values(log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of every key."""
    found: dict[bytes | None, bytes | None] = {}
    for segment in log.segments:
        for position, header in segment.headers_from(0):
            columns = decode(segment.read_at(position, header.size))
            found.update(zip(columns.keys, columns.values, strict=True))
    return found


def begin(log: Log, process: CompactingProcess, rate: int = RATE) -> Compaction:
    return Compaction(log, NoCheckpoints(), Leftovers(), lambda log, plan: process.begin(log, plan, rate))


def step(compaction: Compaction, most: int = 1 << 62) -> int:
    """Let it go on until it has ended, or so many times something was put in place; how often."""
    deadline, done = time.monotonic() + DEADLINE_S, 0
    steps = compaction._steps or compaction.steps(1 << 60, NOW_MS, MEMORY)
    for work in steps:
        assert time.monotonic() < deadline, f"it has not ended after {DEADLINE_S:g} s"
        if work is None:
            time.sleep(compaction.pause_s)
        else:
            work()
            done += 1
        if done >= most:
            break
    return done


def unfinished(log: Log) -> list[str]:
    return [name for name in log.directory.names() if ".cleaned" in name or ".swap" in name or ".tmp" in name]


def ended(pid: int) -> bool:
    """Whether that process, which is not our child or was waited for, is gone."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_another_process_compacts_one_log_after_the_other_and_ends_when_there_is_no_work(
    log: Log, process: CompactingProcess, tmp_path: Path
) -> None:
    pids = set()
    with filled(tmp_path / "other") as other:
        for each in (log, other):
            before = values(each)
            size = each.size
            running = begin(each, process)
            step(running)
            pids.add(process.pid)
            assert running.outcome is not None
            assert values(each) == before
            assert len(before) == 40
            assert each.size < size / 5
            assert not unfinished(each)
    (pid,) = pids
    assert pid is not None
    process.close()
    assert process.pid is None
    assert ended(pid)


def test_a_process_that_dies_leaves_the_log_as_it_was_and_the_next_one_does_the_work(
    log: Log, process: CompactingProcess
) -> None:
    before, sizes = values(log), [segment.size for segment in log.segments]
    running = begin(log, process, rate=1)  # it waits after its first block
    steps = running.steps(1 << 60, NOW_MS, MEMORY)
    while process.pid is None:
        next(steps)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(StorageError, match="has ended"):
        step(running)
    assert log.compaction is None
    assert [segment.size for segment in log.segments] == sizes
    assert not unfinished(log)
    step(begin(log, process))
    assert values(log) == before
    assert log.size < sum(sizes) / 5


def test_who_cuts_the_log_ends_the_process_and_what_was_decided_stays(
    log: Log, process: CompactingProcess
) -> None:
    before = values(log)
    running = begin(log, process)
    assert step(running, most=2) == 2
    pid = process.pid
    assert pid is not None
    running.abort()
    assert process.pid is None
    process.close()
    assert not unfinished(log)
    assert ended(pid)
    assert values(log) == before
    step(begin(log, process))
    assert values(log) == before


# ── a child that was killed, and is still there: it may be about to make a file ─────────────────────────


@pytest.fixture
def lingering(log: Log, process: CompactingProcess, monkeypatch: pytest.MonkeyPatch) -> compacting._Child:
    """It was to be killed at work, is not gone yet, and in its last moment it has begun a segment."""
    running = begin(log, process, rate=1)
    steps = running.steps(1 << 60, NOW_MS, MEMORY)
    while process.pid is None:
        next(steps)
    child = process.child()
    with monkeypatch.context() as slow:
        slow.setattr(subprocess.Popen, "kill", lambda _: None)
        slow.setattr(compacting._Child, "kill", lambda _: None)  # its pipes stay open, or it would end
        running.abort()
    log.directory.open(f"{log.segments[0].base_offset:020d}.log.cleaned", create=True).close()
    return child


def test_what_it_makes_then_is_removed_when_it_is_gone(
    log: Log, process: CompactingProcess, lingering: compacting._Child
) -> None:
    assert process.lingering(log.directory.path) == lingering.pid
    assert unfinished(log)
    lingering.kill()
    process.close()
    assert not unfinished(log)
    assert process.lingering(log.directory.path) is None


def test_no_other_one_works_where_it_may_still_write(
    log: Log, process: CompactingProcess, lingering: compacting._Child, tmp_path: Path
) -> None:
    with filled(tmp_path / "other") as other:
        elsewhere = begin(other, process)
        step(elsewhere)
        assert elsewhere.outcome is not None, "elsewhere it holds nobody up"
    process.give_up()
    running = begin(log, process)
    steps = running.steps(1 << 60, NOW_MS, MEMORY)
    assert [next(steps) for _ in range(5)] == [None] * 5
    assert process.pid is None
    lingering.kill()
    lingering.wait()
    step(running)
    assert running.outcome is not None
    assert not unfinished(log)


def test_one_that_never_goes_is_named_and_other_logs_are_compacted(
    log: Log, process: CompactingProcess, lingering: compacting._Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "_DEATH_S", 0.1)
    with pytest.raises(
        StorageError, match=rf"while it compacted this \(pid {lingering.pid}\) is still there"
    ):
        step(begin(log, process))
    assert log.compaction is None
    lingering.kill()
    lingering.wait()
    step(begin(log, process))
    assert not unfinished(log)


# ── what the other process finds ──────────────────────────────────────────────────────────────────────


def test_damage_that_the_other_process_finds_is_damage_here(log: Log, process: CompactingProcess) -> None:
    name = f"{log.segments[1].base_offset:020d}.log"
    file = log.directory.open(name)
    file.write_at(200, b"\xff" * 8)
    file.close()
    with pytest.raises(DamagedLog, match=name) as caught:
        step(begin(log, process))
    assert caught.value.base_offset == log.segments[1].base_offset
    assert process.pid is not None, "it can go on with another log"
    assert log.compaction is None
    assert not unfinished(log)


def test_batches_that_nobody_can_read_are_told_once_for_each_compaction(
    log: Log, process: CompactingProcess, caplog: pytest.LogCaptureFixture
) -> None:
    first = log.end_offset
    for _ in range(3):
        log.append(
            build(b"\x07", last_offset_delta=0, record_count=1, base_timestamp=0, max_timestamp=0), 0, 0
        )
    log.roll()
    log.flush()
    log.recovery_point = log.durable_offset
    with caplog.at_level("WARNING"):
        step(begin(log, process))
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"compaction.unreadable log={log.directory.path} batches=3 first={first} ")


def test_what_the_disk_refuses_there_is_an_error_of_the_disk_here(log: Log) -> None:
    planned = plan(log, log.end_offset, NOW_MS, (), MEMORY)
    assert planned is not None
    job = Job(log.directory.path, RATE, planned)
    log.directory.rename(f"{log.segments[2].base_offset:020d}.log", "elsewhere")
    said = list(carried_out(job))
    log.directory.rename("elsewhere", f"{log.segments[2].base_offset:020d}.log")
    (refused,) = said
    assert isinstance(refused, Refused)
    assert refused.errno == errno.ENOENT


def test_the_other_process_keeps_its_pace(log: Log) -> None:
    planned = plan(log, log.end_offset, NOW_MS, (), MEMORY)
    assert planned is not None
    began = time.monotonic()
    assert list(carried_out(Job(log.directory.path, 4 * log.size, planned)))
    assert time.monotonic() - began > 0.2, "all of it was read within a fifth of a second"


@pytest.mark.parametrize(("asked", "rests"), [(1, True), (0, False)])
def test_it_rests_where_others_want_its_core(
    log: Log, monkeypatch: pytest.MonkeyPatch, asked: int, *, rests: bool
) -> None:
    """As if each step took two milliseconds, and each time somebody else, or nobody, had wanted the core."""
    planned = plan(log, log.end_offset, NOW_MS, (), MEMORY)
    assert planned is not None
    calls = count()
    rested: list[float] = []
    monkeypatch.setattr(compacting, "_used", lambda: ((number := next(calls)) * 0.002, number * asked))
    monkeypatch.setattr(time, "sleep", rested.append)
    assert list(carried_out(Job(log.directory.path, RATE, planned)))
    assert bool(rested) is rests
    assert rested == pytest.approx([0.002] * len(rested))


def test_it_stands_back_behind_who_has_begun_it(log: Log, process: CompactingProcess) -> None:
    step(begin(log, process))
    assert process.pid is not None
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(mine + NICE, 19)


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(),
    reason="this kernel does not share cores by sessions: what is done there, the next two tests show everywhere",
)
def test_it_stands_back_behind_other_sessions(log: Log, process: CompactingProcess) -> None:
    for _ in begin(log, process).steps(NOW_MS, NOW_MS, MEMORY):
        assert process.pid is not None
        if f"nice {NICE}" in Path(f"/proc/{process.pid}/autogroup").read_text("ascii"):
            return
    raise AssertionError(f"it ended as it began: {Path('/proc/self/autogroup').read_text('ascii')}")


def test_it_asks_again_while_the_kernel_takes_no_further_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three brokers of one machine begin at one moment."""
    tries, rested = list[Path](), list[float]()
    write = Path.write_text

    def busy_twice(self: Path, content: str, encoding: str) -> int:
        tries.append(self)
        if len(tries) < 3:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return write(self, content, encoding)

    monkeypatch.setattr(compacting, "_AUTOGROUP", str(tmp_path / "autogroup"))
    monkeypatch.setattr(time, "sleep", rested.append)
    monkeypatch.setattr(Path, "write_text", busy_twice)
    compacting._let_others_first()
    assert (tmp_path / "autogroup").read_text("ascii") == str(NICE)
    assert (len(tries), len(rested)) == (3, 2)


def test_where_cores_are_not_shared_by_sessions_nothing_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    monkeypatch.setattr(compacting, "_AUTOGROUP", str(tmp_path / "missing" / "autogroup"))
    monkeypatch.setattr(time, "sleep", rested.append)
    compacting._let_others_first()
    assert rested == []
    assert list(tmp_path.iterdir()) == []


def test_frames_come_in_any_pieces() -> None:
    rng = Random(5)
    sent = [rng.randbytes(rng.randrange(40)) for _ in range(50)]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in sent)
    frames = Frames()
    heard: list[bytes] = []
    while stream:
        size = rng.randrange(1, 30)
        heard += frames.add(stream[:size])
        stream = stream[size:]
    assert heard == sent


@pytest.mark.slow
def test_the_other_process_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.storage import test_compacting_process as t;"
        "from tidelog.storage.io.compacting import CompactingProcess as P\n"
        "with t.filled(Path(sys.argv[1])) as log:\n"
        "    p = P(); r = t.begin(log, p, 1); s = r.steps(1 << 60, t.NOW_MS, t.MEMORY)\n"
        "    while p.pid is None: next(s)\n"
        "    for _ in range(20): next(s); time.sleep(0.02)\n"
        "    print(p.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code, str(tmp_path / "log")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    assert ended(pid)


def test_a_child_that_does_not_die_for_its_disk_stands_still_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is killed, and goes when the disk goes on: nobody ends for that."""
    process = CompactingProcess()
    child = process.child()
    reap = subprocess.Popen.wait
    stands_still = [True, False]

    def wait(popen: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if stands_still.pop(0):
            raise subprocess.TimeoutExpired("a child", timeout or 0)
        return reap(popen, timeout)

    with monkeypatch.context() as slow:
        slow.setattr(subprocess.Popen, "wait", wait)
        process.close()
        assert [dying.child for dying in process._dying] == [child]
        process.close()
    assert child._process.returncode == -signal.SIGKILL
    assert process._dying == []
