"""What is written down of a local cluster: how large it is, and which processes it is.

    DIR/cluster.json      this; replaced as a whole
    DIR/broker-1, ...     data directories of the nodes, and their logs beside them: broker-1.log

What it keeps true: a process is on record from the moment it runs, so that `tidelog down` finds it whatever becomes of
whoever has started it. After a restart of the machine the record names nobody: `identity` knows.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.local import DATA
from tidelog.cli.local.identity import Incarnation
from tidelog.cli.terminal import typed

FILE: Final = "cluster.json"
LOCK: Final = ".up.lock"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Running:
    """One node's process."""

    name: str
    """`b1`, `c1`."""
    pid: int
    began: str

    @property
    def process(self) -> Incarnation:
        """Which process that is."""
        return Incarnation(self.pid, self.began)

    @property
    def title(self) -> str:
        """`broker 1`."""
        return f"{'broker' if self.name[0] == 'b' else 'controller'} {self.name[1:]}"


@dataclass(slots=True)
class State:
    """A local cluster."""

    brokers: int
    controllers: int
    port: int
    up: list[Any] | None = None
    """Whoever keeps it in the foreground: its number, and when it began."""
    nodes: list[Running] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """What `-X` has said to all nodes that know it."""

    @property
    def living(self) -> list[Running]:
        """The nodes that run."""
        return [node for node in self.nodes if node.process.alive]

    @property
    def keeper(self) -> Incarnation | None:
        """The `tidelog up` in whose foreground it runs."""
        found = Incarnation(int(self.up[0]), str(self.up[1])) if self.up else None
        return found if found is not None and found.alive else None

    @property
    def bootstrap(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"


def read(data: Path) -> State | None:
    """What is on record there; None: nothing. ClickException: it cannot be read."""
    path = data / FILE
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.pop("format") != _FORMAT:
            raise click.ClickException(f"{path} was written by a newer tidelog: upgrade this one")
        nodes = [Running(**node) for node in known.pop("nodes")]
        return State(nodes=nodes, **known)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise click.ClickException(
            f"{path} cannot be read ({error.strerror}): run as the user who owns it"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{path} is damaged ({error}): end the nodes that still run by hand, and remove it"
        ) from error


def write(data: Path, state: State) -> None:
    """Replace the record. ClickException: it cannot be written."""
    path, written = data / FILE, data / f".{FILE}.{os.getpid()}"
    text = json.dumps({"format": _FORMAT, **asdict(state)}, indent=1) + "\n"
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise click.ClickException(
            f"{path} cannot be written ({error.strerror}): make room or give the right to, or choose another directory "
            "with --data"
        ) from error


def option(data: Path) -> str:
    """How that directory is said behind `tidelog up` or `down`, to be pasted into a shell."""
    return "" if data == Path(DATA) else f" --data {typed(data)}"


class Held:
    """A directory that is one `tidelog up`'s alone, from `take` to `give_back`."""

    def __init__(self, data: Path, lock: int, made: list[Path]) -> None:
        self._data = data
        self._lock = lock
        self._made = made

    def give_back(self) -> None:
        """Another one may have it; if nothing was begun here, what was made for it is gone."""
        if not (self._data / FILE).exists() and os.listdir(self._data) == [LOCK]:
            (self._data / LOCK).unlink()
            for made in self._made:
                made.rmdir()
        os.close(self._lock)


def take(data: Path) -> Held:
    """Be the only `tidelog up` of this directory, which is made. ClickException: why not."""
    made = [path for path in (data, *data.parents) if not path.exists()]
    try:
        data.mkdir(parents=True, exist_ok=True)
        held = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(path for path in (data, *data.parents) if path.exists() and not path.is_dir())
        raise click.ClickException(
            f"{file} is a file: --data must name a directory, which need not be there yet"
        ) from error
    except OSError as error:
        raise click.ClickException(
            f"{data} cannot be written ({error.strerror}): choose a directory with --data that user {os.geteuid()} "
            "may write"
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise click.ClickException(_occupied(data)) from None
    return Held(data, held, made)


def _occupied(data: Path) -> str:
    known = read(data)
    keeper = known.keeper if known is not None else None
    who = f" (pid {keeper.pid})" if keeper is not None else ""
    where = f", at {known.bootstrap}" if known is not None else ""
    return f"another `tidelog up`{who} has {data}{where}: `tidelog down{option(data)}` stops it, --data DIR makes another"
