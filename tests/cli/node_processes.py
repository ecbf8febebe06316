"""Real brokers and controllers for tests: started as users start them, watched through what they write, ended for sure."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

DEADLINE_S: Final = 20.0
HOST: Final = "127.0.0.1"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that a node takes for a setting."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TIDELOG_")}
    return kept | more


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", *args]


def run(*args: str, **environment: str) -> Ran:
    """A command that is expected to end by itself."""
    done = subprocess.run(
        command(*args),
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Process:
    """One node as a process; its stdout and stderr are files beside its data."""

    def __init__(
        self,
        home: Path,
        *args: str,
        program: list[str] | None = None,
        stdin: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.data = home / "data"
        self.ready_file = home / "ready.json"
        self._err = home / "stderr"
        self._out = home / "stdout"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.popen = subprocess.Popen(
                [
                    *(program or command(*args)),
                    "--data",
                    str(self.data),
                    "--ready-file",
                    str(self.ready_file),
                ],
                env=clean_environment(**(environment or {})),
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def out(self) -> str:
        return self._out.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has logged under that name."""
        lines = [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until it is so, as long as the process lives."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            ended = self.popen.poll()
            assert ended is None, f"{what}: the process has ended with {ended}: {self.err}"
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s: {self.err}"
            time.sleep(0.01)
        return found

    def ready(self) -> dict[str, Any]:
        """What it says of itself once it serves."""
        self.until(self.ready_file.exists, "it is ready")
        about: dict[str, Any] = json.loads(self.ready_file.read_text())
        return about

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ends(self) -> int:
        """Its exit code."""
        return self.popen.wait(DEADLINE_S)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ends()

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(DEADLINE_S)


@contextmanager
def nodes(home: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes by role, and kills whatever is left in the end."""
    started: list[Process] = []

    def start(role: str, name: str, *args: str, **environment: str) -> Process:
        process = Process(home / name, role, "start", *args, environment=environment)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()


@contextmanager
def port_taken(port: int) -> Iterator[None]:
    """Somebody listens there, on loopback: where nodes do by default, and so maybe somebody does anyway."""
    with socket.socket() as taken:
        with suppress(OSError):
            taken.bind((HOST, port))
            taken.listen(1)
        yield


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    head, _, body = received.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body
