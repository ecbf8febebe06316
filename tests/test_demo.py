"""scripts/demo.py: what it shows is so, it can turn red, and it leaves nothing behind."""

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidelog
from tests.telling import Tell

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "scripts" / "demo.py"

Found = dict[tuple[int, int], bytes]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(demo: ModuleType) -> Found:
    """Three records of partition 0, numbered from 100 on."""
    return {(0, offset): demo.value(0, 100 + offset) for offset in range(3)}


def test_the_verdict_is_green_when_everything_is_there(demo: ModuleType) -> None:
    acknowledged = [demo.Acknowledged(0, 0, 100, 2), demo.Acknowledged(0, 2, 102, 1)]
    assert demo.verdict(acknowledged, found(demo)) == (
        True,
        "KEPT  3 acknowledged records: each once, byte for byte",
    )


HARMS: list[tuple[Callable[[Found, ModuleType], object], str]] = [
    (lambda there, _: there.pop((0, 1)), "1 missing"),
    (lambda there, _: there.update({(0, 1): b"other"}), "1 changed"),
    (lambda there, demo: there.update({(0, 3): demo.value(0, 102)}), "1 there twice"),
    (lambda there, _: there.clear(), "3 missing"),
]


@pytest.mark.parametrize(("harm", "fault"), HARMS)
def test_the_verdict_is_red_when_anything_is_lost(
    demo: ModuleType, harm: Callable[[Found, ModuleType], object], fault: str
) -> None:
    there = found(demo)
    harm(there, demo)
    kept, line = demo.verdict([demo.Acknowledged(0, 0, 100, 3)], there)
    assert not kept
    assert line.startswith("LOST  of 3 acknowledged records: ")
    assert fault in line


def test_two_batches_at_one_place_are_red(demo: ModuleType) -> None:
    twice = [demo.Acknowledged(0, 0, 100, 1), demo.Acknowledged(0, 0, 100, 1)]
    assert "1 at one place" in demo.verdict(twice, found(demo)).line


def processes_below(directory: Path) -> list[str]:
    """Whoever has been started with its temporary files there, by what was typed."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={directory}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue  # it has ended meanwhile, or is another user's
    return found


@pytest.mark.slow
def test_the_demo_keeps_its_promises_and_leaves_nothing(tmp_path: Path, tell: Tell) -> None:
    words = [sys.executable, str(DEMO)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    assert len(re.findall(r"^   KEPT  ", ran.stdout, re.MULTILINE)) == 2, ran.stdout
    assert "LOST" not in ran.stdout
    assert "\x1b" not in ran.stdout
    assert re.search(r"broker \d leads it in epoch 1, elected from those in sync", ran.stdout)
    assert re.search(r"next write acknowledged \d+ ms after the kill", ran.stdout)
    assert re.search(r"orders-0/leader-epoch-checkpoint  epoch 0 from 0, epoch 1 from \d+", ran.stdout)
    assert re.search(r"replication-offset-checkpoint  0 up to \d+, 1 up to \d+, 2 up to \d+", ran.stdout)
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []
    # Under a minute, on a machine that does nothing else: what this one has taken stands in CI's log.
    [took] = re.findall(r"^   (\d+ s in all)", ran.stdout, re.MULTILINE)
    tell([took])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, str(DEMO), "--no-spark"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        while not ran.stdout.readline().startswith(b"   ready"):
            assert ran.poll() is None
        ran.send_signal(number)
        ran.communicate(timeout=60)
    assert ran.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


@pytest.mark.slow
def test_a_demo_that_nobody_reads_any_more_ends_in_silence_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, str(DEMO), "--no-spark"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        while not ran.stdout.readline().startswith(b"   ready"):
            assert ran.poll() is None
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 128 + signal.SIGPIPE
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


def test_a_stop_is_heard_wherever_it_arrives(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised in a destructor is ignored."""
    handlers: dict[int, Any] = {}

    class Last:
        def __del__(self) -> None:
            handlers[signal.SIGHUP](signal.SIGHUP, None)

    async def story(*_: object, **__: object) -> bool:
        Last()
        for _turn in range(10):
            await asyncio.sleep(0)
        return True

    monkeypatch.setattr(demo, "story", story)
    assert begun(demo, tmp_path, monkeypatch, handlers) == 128 + signal.SIGHUP
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_demo_that_has_lost_something_ends_with_one(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read_all = demo._read_all

    async def read_all_but_one(client: Any) -> Found:
        there: Found = await read_all(client)
        there.pop((0, 0))
        return there

    monkeypatch.setattr(demo, "_read_all", read_all_but_one)
    monkeypatch.setattr(demo, "STREAM_S", 0.1)
    assert begun(demo, tmp_path, monkeypatch) == 1
    assert re.search(
        r"^   LOST  of [\d,]+ acknowledged records: 1 missing$", capsys.readouterr().out, re.MULTILINE
    )


def begun(
    demo: ModuleType, directory: Path, monkeypatch: pytest.MonkeyPatch, handlers: dict[int, Any] | None = None
) -> int:
    """The exit code of the command in this process; what it would hear signals with."""
    monkeypatch.setattr(sys, "argv", ["demo", "--no-spark"])
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(signal, "signal", ({} if handlers is None else handlers).__setitem__)
    code: int = demo.main()
    return code


def test_it_ends_with_what_is_to_be_typed_where_nothing_is_on_the_path(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(*_: object, **__: object) -> bool:
        return True

    monkeypatch.setattr(demo, "story", story)
    assert begun(demo, tmp_path, monkeypatch) == 0
    told, typed = capsys.readouterr().out.splitlines()[-2:]
    assert told.endswith("nothing is left running. Try it yourself:")
    assert typed == "     . .venv/bin/activate && tidelog up"


FAILURES: list[tuple[Exception, str]] = [
    (ExceptionGroup("writers", [tidelog.RequestTimedOut("no answer")]), "no answer"),
    (TimeoutError("not in sync again"), "not in sync again"),
]


@pytest.mark.parametrize(("failure", "said"), FAILURES, ids=["several at once", "one"])
def test_what_goes_wrong_is_a_line(
    demo: ModuleType,
    failure: Exception,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fails(*_: object, **__: object) -> bool:
        raise failure

    monkeypatch.setattr(demo, "story", fails)
    assert begun(demo, tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err == f"scripts/demo: {said}\n"


async def test_spark_and_its_jvm_are_ended_with_who_asked(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it was interrupted alone, and though a JVM hears no Ctrl-C and holds what its Python would have written to."""
    alive, held = os.pipe()
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def start_another(*_: str, **options: Any) -> asyncio.subprocess.Process:
        program = (
            f"import os, subprocess, time; subprocess.Popen(['sleep', '60'], pass_fds=[{held}]); "
            f"os.write({held}, b'.'); time.sleep(60)"
        )
        started.append(await start(sys.executable, "-c", program, pass_fds=(held,), **options))
        os.close(held)
        assert await asyncio.to_thread(os.read, alive, 1) == b".", "both are there"
        asking.cancel()
        return started[0]

    class Client:
        class admin:  # noqa: N801 -- a client's attribute
            @staticmethod
            async def list_offsets(_topic: str) -> dict[Any, Any]:
                return {}

    class Somewhere:
        bootstrap = "127.0.0.1:1"

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_another)
    asking = asyncio.create_task(demo._ask_spark(demo.Screen(), Somewhere(), Client()))
    await asyncio.wait({asking}, timeout=10)
    assert asking.cancelled(), "it waits for who holds the pipe"
    assert started[0].returncode == -signal.SIGKILL
    assert await asyncio.wait_for(asyncio.to_thread(os.read, alive, 1), 10) == b"", "nobody of them is left"
    os.close(alive)
