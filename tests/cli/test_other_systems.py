"""What the commands do where the system has no /proc and no handles of processes: played on whatever system this is."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli.local import identity
from tidelog.cli.local.identity import Incarnation, began, who_listens
from tidelog.cli.log import nodes
from tidelog.cli.node import vitals

NOWHERE = Path("/no/such/place")

needs_ps = pytest.mark.skipif(not Path("/bin/ps").exists(), reason="no ps here")


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """It waits for its stdin."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def incarnation(process: "subprocess.Popen[bytes]") -> Incarnation:
    known = began(process.pid)
    assert known is not None
    return Incarnation(process.pid, known)


def test_without_handles_a_process_is_signalled_by_its_number(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    meant = incarnation(child)
    assert not Incarnation(child.pid, "another time").signal(signal.SIGTERM), (
        "another one has that number now"
    )
    assert child.poll() is None
    assert meant.signal(signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert not meant.signal(signal.SIGTERM), "it has ended"


@needs_ps
def test_ps_tells_one_process_from_the_next_of_its_number(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    meant = incarnation(child)
    assert meant.began == began(child.pid) != ""
    assert meant.alive
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert began(child.pid) is None, "it has ended, though nobody has asked how"
    child.wait()
    assert not meant.signal(signal.SIGTERM)


def test_where_there_is_no_ps_a_process_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", missing)
    assert began(os.getpid()) is None


def test_who_has_a_port_is_not_told_where_the_system_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if sys.platform == "linux":
            assert str(who_listens(port)).startswith(f"pid {os.getpid()} (")
        monkeypatch.setattr(identity, "_SOCKETS", NOWHERE)
        assert who_listens(port) is None


def test_without_proc_memory_is_the_most_that_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "_STATM", NOWHERE)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "linux")
    assert vitals._resident_bytes() >= most * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert most <= vitals._resident_bytes() < most * 1024


def test_without_proc_no_start_of_the_system_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_BOOT_ID", str(NOWHERE))
    assert nodes._boot_id() == ""
