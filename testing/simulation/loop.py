"""The event loop of one simulated process: asyncio's, with virtual time and no selector.

What it keeps true:

* A turn runs exactly the callbacks that were ready at its start, in their order; timers that are due come behind
  what the network has brought, as behind a selector. Inside one process asyncio's promises hold; between processes
  any order is possible.
* Callbacks take time: a loop is busy for a while after each turn, so hosts overlap and no livelock stands still.
* `run_in_executor` calls the function at one instant and tells its result at a later one: what happens in between
  is not covered by it.
* A stopped loop has no turns; what arrives for it waits. A dead loop has none either and takes nothing any more,
  and its tasks are kept unfinished, because a `finally` that ran now would run after death.
* What would leave the simulation is refused (`LeavesTheSimulation`): a real socket or thread has no seed.
"""

import asyncio
import math
from asyncio import _set_running_loop as set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from tidelog.testing.simulation.network import Attempt, Network
from tidelog.testing.simulation.sockets import Endpoint, Machine
from tidelog.testing.simulation.timeline import Process, Timeline
from tidelog.testing.simulation.transports import SimulatedServer, SimulatedTransport

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RESOLUTION_S: Final = 1e-9
"""A timer fires this much early rather than a turn late; sums of floats differ by less."""

_TURNS_ON_END: Final = 64
"""So many turns of one host at most without a look at the agenda: the trace is folded there."""

_HARMLESS_OPTIONS: Final = frozenset(
    {"backlog", "family", "flags", "happy_eyeballs_delay", "interleave", "keep_alive", "proto"}
    | {"reuse_address", "reuse_port", "start_serving"}
)
"""Of create_server and create_connection: what makes no difference here."""


class _Handle(asyncio.Handle):
    """A callback: asyncio's own asks its loop for each whether it is being debugged."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Sequence[Any], loop: Any, context: Context | None = None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """A timer, made and cancelled as cheaply: most are cancelled."""

    __slots__ = ()
    _loop: "SimulatedLoop"

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: "SimulatedLoop",
        context: Context | None = None,
    ) -> None:
        _Handle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]  # the same fields
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._loop.a_timer_was_cancelled()
            self._callback = None
            self._args = ()


class _IoHandle(_Handle):
    """A callback for a socket: such callbacks are never shuffled, or a connection's bytes would be."""

    __slots__ = ()


class LeavesTheSimulation(NotImplementedError):
    """Product code has asked for something that a seed cannot repeat: use what the loop simulates, or simulate it.

    asyncio's own word for what a loop does not offer, so that whoever asks whether it can is answered as by any loop.
    """


class SimulatedLoop(asyncio.BaseEventLoop):
    """One life of a process. Made by `Host`; the world gives it its turns."""

    def __init__(
        self,
        process: Process,
        machine: Machine,
        timeline: Timeline,
        network: Network,
        started_s: float,
        on_error: Callable[[str, BaseException | None], None],
    ) -> None:
        # Asked for while the base class sets itself up.
        self._turning = False
        super().__init__()
        self._turn = self.turn
        self._started_s = started_s
        self.callback_cost_s = 10e-6
        """How long a callback takes, on the average."""
        self.executor_ms = (0.02, 5.0)
        """Bounds of how long a function waits for its thread, and again of how long it runs."""
        self.shuffle = False
        """Whether callbacks of one turn run in any order: harsher than asyncio is."""
        self._process = process
        self._machine = machine
        self._timeline = timeline
        self._network = network
        self._on_error = on_error
        self._runnable: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled_timers = 0
        self._count = count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_made = 0
        self._look_at_tasks = 64
        self._delayed: list[Callable[[], object]] = []
        self._attempts: dict[Attempt, None] = {}
        self._due = math.inf
        self._planned: set[float] = set()
        self._busy_until = timeline.now
        self._stopped = False
        self._dead = False
        self.turns = 0
        """How many turns it has had: whoever watches a process looks again when it has had another."""

    def __repr__(self) -> str:
        return f"<SimulatedLoop of {self._process.name}>"

    # ── turns ──────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """Run what is ready now, and what gets ready before anything else is due.

        Called by the agenda, which may have outlived its reason.
        """
        timeline, planned = self._timeline, self._planned
        planned.discard(timeline.now)
        if timeline.now < self._due:
            return
        heap = timeline.heap
        for _ in range(_TURNS_ON_END):
            self._run_ready()
            if timeline.watch is not None:
                timeline.watch()
            due = self._due = self._next_due()
            if due > timeline.horizon or due in planned or (heap and heap[0][0] <= due):
                break
            # As if the agenda had been asked for it and had nothing before it: half of all turns are such.
            timeline.now = due
            timeline.steps += 1
        self._ask_for_turn()

    def _run_ready(self) -> None:
        timeline, ready, timers = self._timeline, self._runnable, self._timers
        now = timeline.now
        if timers and timers[0][0] <= now + self._started_s + _RESOLUTION_S:
            self._ring(now + self._started_s + _RESOLUTION_S)
        if self.shuffle:
            self._shuffle()
        callbacks = len(ready)
        self.turns += 1
        timeline.turned = self._process
        timeline.trace.numbers.extend((now, self._machine.number, callbacks))
        self._turning = True
        timeline.current = self._process
        if timeline.running is not self:
            timeline.running = self
            set_running_loop(self)
        try:
            for _ in range(callbacks):
                handle = ready.popleft()
                # What `Handle._run` does, without a call per callback: they are what this loop is made of.
                if not handle._cancelled:  # noqa: SLF001 -- as loops do
                    try:
                        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # noqa: SLF001 -- as loops do
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 -- a loop outlives its callbacks
                        self._callback_failed(handle, error)
                    if self._dead:
                        break
        except SystemExit as error:
            self._process.exit(error.code if isinstance(error.code, int) else 1)
        finally:
            timeline.current = None
            self._turning = False
        self._busy_until = now + callbacks * self.callback_cost_s * (0.5 + timeline.rng.random())

    def _ring(self, horizon: float) -> None:
        """What is due by then is to run in this turn."""
        timers = self._timers
        while timers and timers[0][0] <= horizon:
            timer = heappop(timers)[2]
            if not timer._cancelled:  # noqa: SLF001 -- as loops do
                self._runnable.append(timer)

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        """Tell of it in the words of asyncio."""
        callback = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001 -- as loops do
        what = f"Exception in callback {getattr(callback, '__qualname__', callback)}"
        self.call_exception_handler({"message": what, "exception": error, "handle": handle})

    def _plan(self) -> None:
        """Ask for the next turn."""
        self._due = self._next_due()
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if self._due not in self._planned and self._due < math.inf:
            self._planned.add(self._due)
            self._timeline.turn_at(self._due, self._turn)

    def _next_due(self) -> float:
        """When the next turn is due, if nothing happens before."""
        if self._stopped or self._dead:
            return math.inf
        now, busy_until = self._timeline.now, self._busy_until
        due = max(now, busy_until)
        if not self._runnable:
            timers = self._timers
            while timers and timers[0][2]._cancelled:  # noqa: SLF001 -- as loops do
                heappop(timers)
            if not timers:
                return math.inf
            when = timers[0][0] - self._started_s
            return max(due, when)
        return due

    def _shuffle(self) -> None:
        ready = list(self._runnable)
        free = [place for place, handle in enumerate(ready) if not isinstance(handle, _IoHandle)]
        handles = [ready[place] for place in free]
        self._timeline.rng.shuffle(handles)
        for place, handle in zip(free, handles, strict=True):
            ready[place] = handle
        self._runnable.clear()
        self._runnable.extend(ready)

    # ── callbacks and timers ───────────────────────────────────────────────────────────────────────

    def time(self) -> float:
        """The host's monotonic clock."""
        return self._timeline.now + self._started_s

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back in the next turn."""
        handle = _Handle(callback, args, self, context)
        if not self._dead:
            self._runnable.append(handle)
            if not self._turning:
                self._plan()
        return handle

    call_soon_threadsafe = call_soon

    def call_io(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Call back in the next turn, in this order, as for sockets that have become ready."""
        handle = _IoHandle(callback, args, self)
        if not self._dead:
            self._runnable.append(handle)
            if not self._turning:
                self._plan()
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after so many seconds."""
        when = self._timeline.now + self._started_s + delay
        timer = _TimerHandle(when, callback, args, self, context)
        self._put_timer(timer, when)
        return timer

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at that time of the host's clock; of several at one time, in the order of asking."""
        timer = _TimerHandle(when, callback, args, self, context)
        self._put_timer(timer, when)
        return timer

    def _put_timer(self, timer: asyncio.TimerHandle, when: float) -> None:
        if self._dead:
            return
        if self._cancelled_timers > 64 and 2 * self._cancelled_timers > len(self._timers):
            self._purge_timers()
        heappush(self._timers, (when, next(self._count), timer))
        if not self._turning:
            self._plan()

    def a_timer_was_cancelled(self) -> None:
        """Its handle stays among the timers until there are too many of these."""
        self._cancelled_timers += 1

    def _purge_timers(self) -> None:
        # A wait_for that ends early leaves its timer behind: they would pile up until they are due.
        self._timers[:] = [entry for entry in self._timers if not entry[2]._cancelled]  # noqa: SLF001 -- as loops do
        heapify(self._timers)
        self._cancelled_timers = 0

    # ── tasks and threads ──────────────────────────────────────────────────────────────────────────

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A task, named by the host and its number so that two runs have the same names."""
        self._tasks_made += 1
        task = super().create_task(
            coro, name=name or f"{self._process.name}-{self._tasks_made}", context=context, **options
        )
        if len(self._tasks) >= self._look_at_tasks:
            self.forget_finished()
        self._tasks.append(task)
        return task

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def forget_finished(self) -> None:
        """Let go of tasks that have ended."""
        self._tasks = self.unfinished()
        self._look_at_tasks = 64 + 2 * len(self._tasks)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Let the function run at some instant, and its result arrive at a later one."""
        if executor is not None:
            raise LeavesTheSimulation("only the default executor is simulated")
        future: asyncio.Future[T] = self.create_future()
        if not self._dead:
            self._later(self._run_in_thread, future, func, args)
        return future

    def _later(self, action: Callable[..., object], *args: object) -> None:
        """A step of a worker thread, which is stopped and killed with its process."""
        timeline = self._timeline
        step = partial(self._step_of_thread, partial(action, *args))
        timeline.at(timeline.now + timeline.skewed(self.executor_ms) / 1000, step)

    def _step_of_thread(self, step: Callable[[], object]) -> None:
        if self._stopped:
            self._delayed.append(step)
        elif not self._dead:
            step()

    def _run_in_thread(
        self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        if future.cancelled():
            return
        timeline = self._timeline
        timeline.current = self._process
        timeline.leave_loop()
        try:
            settle = partial(future.set_result, func(*args))
        except Exception as error:  # noqa: BLE001 -- whatever it is, it belongs to who waits for the future
            settle = partial(future.set_exception, error)
        except BaseException as error:  # noqa: BLE001 -- the end of a process is not ours
            # The simulated disk struck: then this process is dead, and nobody waits any more.
            if not self._dead:
                self._on_error("a worker thread was ended", error)
            return
        finally:
            timeline.current = None
        self._later(self.call_io, _unless_done, future, settle)

    # ── the network ────────────────────────────────────────────────────────────────────────────────

    async def create_connection(  # type: ignore[override]  # the overloads name options that are refused here
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect to a host by its name or address."""
        _refuse(options)
        if host is None or port is None:
            raise LeavesTheSimulation("only connections to a host and a port are simulated")
        endpoint = await self._connect(host, port)
        protocol = protocol_factory()
        transport = SimulatedTransport(self, endpoint, protocol)
        waiter = self.create_future()
        transport.begin(waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    async def _connect(self, host: str, port: int) -> Endpoint:
        connected: asyncio.Future[Endpoint] = self.create_future()

        def established(endpoint: Endpoint) -> None:
            self.call_io(_unless_done, connected, partial(connected.set_result, endpoint), endpoint.orphan)

        def failed(error: OSError) -> None:
            self.call_io(_unless_done, connected, partial(connected.set_exception, error))

        attempt = self._network.connect(self._machine, host, port, established, failed)
        self._attempts[attempt] = None
        try:
            return await connected
        except asyncio.CancelledError:
            attempt.cancel()
            if connected.done() and not connected.cancelled() and connected.exception() is None:
                connected.result().orphan()
            raise
        finally:
            self._attempts.pop(attempt, None)

    async def create_server(  # type: ignore[override]  # as create_connection
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> SimulatedServer:
        """Listen on a port of this host; 0 takes a free one."""
        _refuse(options)
        if not (host is None or isinstance(host, str)):
            raise LeavesTheSimulation("only one address per server is simulated")
        server = SimulatedServer(
            self,
            self,
            protocol_factory,
            partial(self._network.listen, self._machine, host, port or 0, options.get("backlog", 100)),
            host or "0.0.0.0",  # noqa: S104 -- what a socket without a host says
        )
        if options.get("start_serving", True):
            server.accept()
        return server

    # ── errors, life and death ─────────────────────────────────────────────────────────────────────

    def is_running(self) -> bool:
        """Whether this is its turn."""
        return self._turning

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the world, and whoever the process wants told."""
        if self._dead:
            return
        self._on_error(context.get("message", "unhandled"), context.get("exception"))
        super().call_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The world knows already."""

    def pause(self) -> None:
        """Have no turns: SIGSTOP."""
        self._stopped = True
        self._plan()

    def go_on(self) -> None:
        """Have turns again: SIGCONT."""
        self._stopped = False
        delayed, self._delayed = self._delayed, []
        for step in delayed:
            self._timeline.at(self._timeline.now, self._step_of_thread, step)
        self._plan()

    def die(self) -> None:
        """Do nothing ever again. Whatever it had is kept, so that nothing is finalised, until `bury`."""
        self._dead = True
        self._due = math.inf
        for attempt in self._attempts:
            attempt.cancel()

    def bury(self) -> None:
        """The world has ended: let go of all that was left, and hear nothing of it."""
        self.die()
        for task in self.unfinished():
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                _close(coroutine)
        self._tasks.clear()
        self._runnable.clear()
        self._timers.clear()
        self.close()

    # ── what is not simulated ──────────────────────────────────────────────────────────────────────

    def _unsimulated(self, *_args: object, **_options: object) -> NoReturn:
        raise LeavesTheSimulation("this call would leave the simulation")

    run_forever = run_until_complete = stop = set_default_executor = _unsimulated
    getaddrinfo = getnameinfo = create_datagram_endpoint = start_tls = sendfile = _unsimulated
    sock_sendfile = connect_accepted_socket = connect_read_pipe = connect_write_pipe = _unsimulated
    subprocess_exec = subprocess_shell = _unsimulated


def _refuse(options: dict[str, Any]) -> None:
    unknown = sorted(name for name, value in options.items() if value and name not in _HARMLESS_OPTIONS)
    if unknown:
        raise LeavesTheSimulation(f"not simulated: {', '.join(unknown)}")


def _unless_done(
    future: "asyncio.Future[Any]", settle: Callable[[], object], otherwise: Callable[[], object] | None = None
) -> None:
    if not future.done():
        settle()
    elif otherwise is not None:
        otherwise()


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Finish an abandoned coroutine; what it says about that is nobody's concern."""
    with suppress(BaseException):
        coroutine.close()
