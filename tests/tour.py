"""docs/TOUR.md as a script: its commands, what stands below each, and what a shell prints for them."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "TOUR.md"
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK: Final = "\x1e"

_VARIES: Final = re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b|\d[\d.:]*(?:,\d{3})*(?: [KMG]?B\b)?")

_NOW: Final = re.compile(r"\bnow\b|# s ago")
"""How long ago: which of the two it is, a busy machine decides."""


class Typed(NamedTuple):
    """What became of a command."""

    code: int
    printed: str


class Step(NamedTuple):
    """A command, and the lines that stand below it."""

    command: str
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """The page's commands in their order."""
    found: list[Step] = []
    for line in "".join(_BLOCK.findall(page)).splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], ()))
        else:
            found[-1] = Step(found[-1].command, (*found[-1].shown, line))
    return found


def at_port(command: str, port: int) -> str:
    """The command for a cluster at that port, of brokers that the page has at 9092, 9093, ..."""
    moved = re.sub(r"\b9(0|1|2)(9\d)\b", lambda found: str(port + int(found[0]) - 9092), command)
    return moved.replace("tidelog up ", f"tidelog up --port {port} ")


def type_them(
    commands: Sequence[str], directory: Path, environment: Mapping[str, str], most_s: float
) -> list[Typed]:
    """Type them into one bash, until the last, or for so long. What runs in its background ends with it."""
    script = "".join(f"{command}\nprintf '{_MARK}%s{_MARK}' $?\n" for command in commands)
    (directory / "tour.sh").write_text(script, encoding="utf-8")
    printed = directory / "printed"
    with printed.open("wb") as out:
        # Into a file, because a node in the background keeps open what it has inherited.
        bash = subprocess.Popen(
            ["bash", "tour.sh"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            bash.wait(most_s)
        except subprocess.TimeoutExpired:
            pass  # what is missing is seen by what was printed
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
            bash.wait()
    pieces = printed.read_text(encoding="utf-8").split(_MARK)
    return [Typed(int(code), text) for text, code in zip(pieces[0::2], pieces[1::2], strict=False)]


def shape(line: str) -> str:
    """The line without what is another at each run: ids, numbers, times, and the widths that they take."""
    return " ".join(_NOW.sub("#", _VARIES.sub("#", line)).split())
