"""docker-compose.yml without a container engine: read strictly, and its commands as processes of this machine.

The file keeps to a part of YAML that `read` understands whole, and what it does not understand it refuses: block
mappings, block lists of scalars, lists in brackets, double-quoted and plain scalars, anchors of mappings and `<<`.

Only hosts, ports and paths are substituted, from one table per service (`Local.table`). What an address means depends on
who says it, as in containers: 0.0.0.0 and localhost are the service itself, a service's name is that service, and
127.0.0.1 is the host, where only what is published can be reached.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.cli.node_processes import HOST, clean_environment
from tidelog.testing.ports import HeldPort

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "docker-compose.yml"
DATA: Final = "/var/lib/tidelog"
DEADLINE_S: Final = 60.0

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_BEGIN: Final = r"(?![-?:] )[^\s\"'\[\]{},&*!|>%@`#]"
_SCALAR: Final = rf"{_QUOTED}|{_BEGIN}(?:[^#]*[^\s#:])?"
_LINE: Final = re.compile(
    rf"(?P<indent> *)(?:- (?P<item>{_SCALAR})"
    rf"|(?P<key>[A-Za-z0-9_-]+|<<):(?: (?:&(?P<anchor>\w+)|\*(?P<alias>\w+)|(?P<list>\[.*\])|(?P<value>{_SCALAR})))?)"
)
_LISTED: Final = re.compile(rf"\s*(?P<item>{_QUOTED}|{_BEGIN}[^\s\"'\[\]{{}},#]*)\s*(?:,|$)")


class Line(NamedTuple):
    """A line that says something."""

    number: int
    indent: int
    found: re.Match[str]


def read(text: str) -> dict[str, Any]:
    """What the file says; scalars are texts."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        assert found is not None, f"line {number} is not of the YAML that is understood here: {line}"
        lines.append(Line(number, len(found["indent"]), found))
    reader = _Reader(lines)
    whole = reader.mapping(0)
    assert not reader.lines, f"line {reader.lines[0].number} is indented wrongly"
    return whole


class _Reader:
    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self._anchors: dict[str, dict[str, Any]] = {}

    def _next(self, indent: int) -> re.Match[str] | None:
        if not self.lines or self.lines[0].indent < indent:
            return None
        line = self.lines.pop(0)
        assert line.indent == indent, f"line {line.number} is indented by {line.indent} instead of {indent}"
        return line.found

    def mapping(self, indent: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        above: dict[str, Any] = {}
        while (found := self._next(indent)) is not None:
            key = found["key"]
            assert key is not None, f"an entry of a list among keys: {found[0]}"
            assert key not in own, f"{key} is there twice"
            if key == "<<":
                assert not above, f"merged twice: {found[0]}"
                above = self._anchors[found["alias"]]
            else:
                own[key] = self._value(found, indent)
        return {**above, **own}

    def _value(self, found: re.Match[str], indent: int) -> Any:
        if found["value"] is not None:
            return _scalar(found["value"])
        if found["list"] is not None:
            return _listed(found["list"][1:-1])
        assert found["alias"] is None, f"an alias stands only behind <<: {found[0]}"
        if not self.lines or self.lines[0].indent <= indent:
            assert found["anchor"] is None, f"an anchor of nothing: {found[0]}"
            return None
        if self.lines[0].found["item"] is not None:
            assert found["anchor"] is None, f"an anchor of a list: {found[0]}"
            return self._list(self.lines[0].indent)
        below = self.mapping(self.lines[0].indent)
        if found["anchor"] is not None:
            self._anchors[found["anchor"]] = below
        return below

    def _list(self, indent: int) -> list[str]:
        items = []
        while (found := self._next(indent)) is not None:
            assert found["item"] is not None, f"a key in a list: {found[0]}"
            items.append(_scalar(found["item"]))
        return items


def _scalar(text: str) -> str:
    if text.startswith('"'):
        value: str = json.loads(text)
        return value
    assert ": " not in text, f"a mapping in one line: {text}"
    return text


def _listed(text: str) -> list[str]:
    items, at = [], 0
    while at < len(text):
        found = _LISTED.match(text, at)
        assert found is not None, f"not a list of scalars: [{text}]"
        items.append(_scalar(found["item"]))
        at = found.end()
    return items


_ADDRESS: Final = re.compile(r"(?<![\w.-])(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<port>\d+)")


class Local:
    """Every service of a file as a process of this machine. A context: what was started is ended for sure."""

    def __init__(self, services: Mapping[str, Mapping[str, Any]], home: Path) -> None:
        self.services = services
        self._home = home
        self._held = {
            (name, int(found["port"])): HeldPort()
            for name, service in services.items()
            for found in _ADDRESS.finditer(" ".join(service["command"]))
            if found["host"] == "0.0.0.0"  # noqa: S104 -- looked for, not opened
        }
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)
        for port in self._held.values():
            port.close()

    # ── one table ─────────────────────────────────────────────────────────────────────────────────

    def address(self, service: str, port: int) -> str:
        """Where that port of the service is on this machine."""
        return f"{HOST}:{self._held[service, port].number}"

    @property
    def published(self) -> dict[str, str]:
        """What the host reaches, by the address under which it does."""
        found = {}
        for name, service in self.services.items():
            for text in service.get("ports", ()):
                host, port, inside = text.split(":")
                found[f"{host}:{port}"] = self.address(name, int(inside))
        return found

    def table(self, service: str) -> dict[str, str]:
        """What that service says, and what it is on this machine."""
        table = {f"{name}:{port}": self.address(name, port) for name, port in self._held}
        table |= self.published
        for name, port in self._held:
            if name == service:
                table |= dict.fromkeys((f"0.0.0.0:{port}", f"localhost:{port}"), self.address(name, port))
        return table | {DATA: str(self._home / service / "data")}

    def here(self, service: str, text: str) -> str:
        """What the service says, for this machine. An address that nobody can reach from there is a KeyError."""
        table = self.table(service)
        return _ADDRESS.sub(lambda found: table[found[0]], text.replace(DATA, table[DATA]))

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def start(self, service: str) -> None:
        """Run the service's command."""
        home = self._home / service
        home.mkdir(exist_ok=True)
        command = [self.here(service, word) for word in self.services[service]["command"]]
        with (home / "out").open("ab") as out:
            self._started[service] = subprocess.Popen(
                [sys.executable, "-m", "tidelog", *command],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(self, service: str) -> str:
        """What it has written."""
        return (self._home / service / "out").read_text(errors="replace")

    def is_healthy(self, service: str) -> bool:
        """What its health check says now."""
        how, program, *words = self.services[service]["healthcheck"]["test"]
        assert (how, program) == ("CMD", "python"), "another check than the image has a program for"
        done = subprocess.run(
            [sys.executable, *(self.here(service, word) for word in words)],
            env=clean_environment(),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode == 0

    def until_healthy(self, service: str) -> None:
        """Wait for the health check, as long as the process lives."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.is_healthy(service):
            ended = self._started[service].poll()
            assert ended is None, f"{service} has ended with {ended}: {self.said(service)}"
            assert time.monotonic() < deadline, f"{service} is not healthy: {self.said(service)}"

    def stop(self, services: list[str]) -> dict[str, int]:
        """What a stop of the engine does to them, all at once; their exit codes, if none had to be killed."""
        for service in services:
            self._started[service].send_signal(signal.SIGTERM)
        ends_at = time.monotonic() + min(seconds(self.services[s]["stop_grace_period"]) for s in services)
        return {s: self._started[s].wait(max(ends_at - time.monotonic(), 0.1)) for s in services}


def seconds(text: str) -> float:
    """A span of time as the file says it."""
    found = re.fullmatch(r"(\d+)(ms|s|m)", text)
    assert found is not None, text
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60}[found[2]]
