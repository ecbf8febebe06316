"""The processes of a local cluster, from their start to their end.

    start ──► all serve ──► detached: they are left alone, on record
       │          └───────► kept: until a signal, or until the last of them has ended
       └ one does not: all are ended, and its last log lines shown

What it keeps true:

* Brokers stop before controllers, which they need for stopping in order.
* Everything has a bound: who does not stop in time is killed, and that is said.
* Settings are on record when all serve with them: those that keep a node from starting are not used again.
* A first start that does not succeed leaves no cluster behind, which would have a size that nobody can change.
"""

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidelog.cli.local import state as record
from tidelog.cli.local.identity import began, is_free, myself
from tidelog.cli.local.plan import HTTP_ABOVE
from tidelog.cli.local.state import Running, State
from tidelog.testing.nodes import START_S, NodeFailed, NodeSpec
from tidelog.testing.ports import HOST
from tidelog.testing.processes import Process, arguments

BROKERS_S: Final = 45.0
"""How long brokers may take to stop: by default they wait 30 s for others to take over."""
CONTROLLERS_S: Final = 15.0
_LOOK_S: Final = 0.02

Say = Callable[[str], None]


class Supervision:
    """All nodes of one cluster, as children of this process."""

    def __init__(
        self,
        data: Path,
        state: State,
        specs: Sequence[NodeSpec],
        settings: dict[str, str],
        say: Say,
        *,
        detached: bool,
    ) -> None:
        self.died: list[str] = []
        """Who has ended without being told to."""
        self._data = data
        self._state = state
        self._others = list(state.nodes)
        """Nodes of it that run already, and are left alone."""
        self._settings = settings
        self._say = say
        self._detached = detached
        self._stopping = False
        self._begins: list[Path] | None = None
        """While a cluster is made that was not there: the directories of nodes that are this start's."""
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._specs = list(specs)
        self._processes = {spec.name: self._process(spec) for spec in specs}

    def _process(self, spec: NodeSpec) -> Process:
        http = spec.port + HTTP_ABOVE
        words = arguments(spec, "--http", f"{HOST}:{http if is_free(HOST, http) is None else 0}")
        program = ["-m", "tidelog"] if self._detached else ["-m", "tidelog.testing.node"]
        log = self._data / f"{spec.title}.log"
        return Process(spec.title.replace("-", " "), [sys.executable, *program, *words], log)

    # ── starting ──────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Until all serve. Raises NodeFailed; then, and when this is cancelled, none is left."""
        self._state.up = None if self._detached else list(myself())
        if not (self._data / record.FILE).exists():
            directories = [spec.directory for spec in self._specs]
            # Where some were there, one of them may know by now of those that were made: all of them stay.
            self._begins = [] if any(map(Path.exists, directories)) else directories
        try:
            for name, process in self._processes.items():
                process.start(leashed=not self._detached)
                self._state.nodes.append(Running(name, process.pid, began(process.pid) or ""))
                record.write(
                    self._data, self._state
                )  # at once: whoever has started it may be gone with the next line
            await _first_failure(process.ready(START_S) for process in self._processes.values())
            self._state.settings = self._settings
            record.write(self._data, self._state)
        except BaseException:
            await self.kill()
            raise
        self._begins = None
        for name, process in self._processes.items():
            process.on_end = partial(self._ended, name)

    def about(self) -> list[tuple[NodeSpec, dict[str, Any]]]:
        """Every node and what it said of itself."""
        return [(spec, self._processes[spec.name].about) for spec in self._specs]

    # ── being there ───────────────────────────────────────────────────────────────────────────────

    def told(self, number: signal.Signals) -> None:
        """A signal has come for this process."""
        self._signals.put_nowait(number)

    def _ended(self, name: str) -> None:
        if self._stopping:
            return
        process = self._processes[name]
        self.died.append(name)
        left = sum(each.alive for each in self._processes.values())
        self._say(f"{process.title} has {process.how_it_ended()}; the end of {process.log}:")
        self._say(process.last_lines())
        self._say(
            f"{left} node{' goes' if left == 1 else 's go'} on; Ctrl-C and `tidelog up{record.option(self._data)}` start all again"
            if left
            else "nothing is left"
        )
        if not left:
            self.told(signal.SIGTERM)

    async def keep(self) -> bool:
        """Until a signal, and then stop everything in order; a second signal ends it at once. Whether it was in order."""
        await self._signals.get()
        self._stopping = True
        stopping = asyncio.create_task(self._stop())
        hurried = asyncio.create_task(self._signals.get())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if stopping.done():
            stopping.result()
            return True
        stopping.cancel()
        await self.kill()
        return False

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def _stop(self) -> None:
        for kind, patience_s in (("b", BROKERS_S), ("c", CONTROLLERS_S)):
            there = [
                process for name, process in self._processes.items() if name[0] == kind and process.alive
            ]
            if there:
                self._say(f"stopping {', '.join(process.title for process in there)}")
            await asyncio.gather(*(self._stop_one(process, patience_s) for process in there))
        self._forget()

    async def _stop_one(self, process: Process, patience_s: float) -> None:
        try:
            await process.stop(patience_s)
        except NodeFailed:
            self._say(
                f"{process.title} did not stop in {patience_s:g} s and is killed; its log is {process.log}"
            )
            await process.kill()

    async def kill(self) -> None:
        """End all at once."""
        self._stopping = True
        started = [self._processes[node.name] for node in self._state.nodes if node not in self._others]
        await asyncio.gather(*(process.kill() for process in started))
        self._forget()

    def _forget(self) -> None:
        self._state.nodes, self._state.up = list(self._others), None
        if self._begins is None:
            record.write(self._data, self._state)
            return
        # Nobody was told that it serves. The logs stay, which say why it does not.
        (self._data / record.FILE).unlink(missing_ok=True)
        for directory in self._begins:
            shutil.rmtree(directory, ignore_errors=True)


async def _first_failure(works: Iterable[Any]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


# ── nodes that are nobody's children here ─────────────────────────────────────────────────────────────


async def end(nodes: Sequence[Running], say: Say, patience_s: float | None = None) -> None:
    """Stop these processes in order, whoever has started them; who takes too long is killed."""
    for kind, usual_s in (("b", BROKERS_S), ("c", CONTROLLERS_S)):
        there = [node for node in nodes if node.name[0] == kind and node.process.signal(signal.SIGTERM)]
        if not there:
            continue
        say(f"stopping {', '.join(node.title for node in there)}")
        for node in there:  # a paused one hears nothing else before
            node.process.signal(signal.SIGCONT)
        patience = usual_s if patience_s is None else patience_s
        for node in await still_there(there, patience):
            say(f"{node.title} (pid {node.pid}) did not stop in {patience:g} s and is killed")
            node.process.signal(signal.SIGKILL)
            await still_there([node], CONTROLLERS_S)


async def still_there(nodes: Sequence[Running], seconds: float) -> list[Running]:
    """Until all of these have ended; those that have not, in that time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        left = [node for node in nodes if node.process.alive]
        if not left or loop.time() > deadline:
            return left
        await asyncio.sleep(_LOOK_S)
