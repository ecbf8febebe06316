"""A loop for each node inside the one loop of a test: what the operating system is to processes.

A node that runs here has its own tasks, timers, sockets and threads, and all of them can be stopped or ended at once,
as SIGSTOP and SIGKILL do it. The outer loop, whichever it is, only carries: it knows when something is due, and it has
the sockets.

What it keeps true:

* While a node is paused none of its code runs: timers that fall due and what happens to its connections wait, bytes
  stay in the kernel, and others connect to it without an answer.
* A node that was killed hears nothing and is heard by nobody from that moment on; its ports refuse. Its tasks are
  cancelled then, only so that nothing of it is left.
* `Links` holds for every connection between nodes and with clients: what is dropped waits in order (a network that
  loses packets makes TCP repeat them) and arrives when the link is healed, unless one side has given up by then.
"""

import asyncio
import contextlib
import errno
import os
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

from tidelog.testing.inner_lines import Halted, Line, Net
from tidelog.testing.links import CLIENTS

T = TypeVar("T")


class InnerLoop(asyncio.AbstractEventLoop):
    """The event loop of one life of one node."""

    def __init__(self, name: str, net: Net, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self.net = net
        self.outer = asyncio.get_running_loop()
        self.paused = False
        self.dead = False
        self._closed = False
        self._threads = threads
        self._ready: deque[asyncio.Handle] = deque()
        self._due = False
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.lines: set[Line] = set()
        self._servers: set[_Server] = set()
        self._unwatch = net.links.watch(self._links_changed)

    def __repr__(self) -> str:
        return f"<the loop of {self.name}>"

    # ── a life ────────────────────────────────────────────────────────────────────────────────────

    def pause(self) -> None:
        """Nothing of this node runs any more until `go_on`."""
        self.paused = True
        for line in list(self.lines):
            line.sync()

    def go_on(self) -> None:
        """Whatever has waited is done."""
        self.paused = False
        self._schedule()
        for line in list(self.lines):
            line.sync()

    def cut_off(self) -> None:
        """The world is gone for this node; what it still does is of no consequence."""
        self.dead = True
        self.paused = False
        self._unwatch()
        for server in list(self._servers):
            server.close()
        for line in list(self.lines):
            line.tear_down()
        self._schedule()

    def close(self) -> None:
        """Nothing runs any more, for good."""
        self.cut_off()
        for timer in list(self._timers.values()):
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._closed = True

    def _links_changed(self) -> None:
        for line in list(self.lines):
            line.sync()

    # ── callbacks and time ────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Code of this node runs, and may end it."""
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            yield
        except Halted:
            pass
        finally:
            _set_running_loop(before)

    def push(self, handle: asyncio.Handle) -> None:
        """Let that run in the next turn."""
        if not self._closed:
            self._ready.append(handle)
            self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._due and not self.paused:
            self._due = True
            self.outer.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                if self.paused or not self._ready:
                    break
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 -- what every event loop does with a handle
        finally:
            _set_running_loop(before)
        self._schedule()

    def time(self) -> float:
        """The outer loop's."""
        return self.outer.time()

    def call_soon(  # type: ignore[override]  # typeshed types its arguments more narrowly
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """In the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self.push(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed types its arguments more narrowly
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """The same, from any thread."""
        handle = asyncio.Handle(callback, args, self, context)
        self.outer.call_soon_threadsafe(self.push, handle)
        return handle

    def call_later(  # type: ignore[override]  # typeshed types its arguments more narrowly
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """After so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # typeshed types its arguments more narrowly
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """At that time, or as soon as this node runs again."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers[id(timer)] = self.outer.call_at(when, self._fire, timer)
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        self._timers.pop(id(timer), None)
        self.push(timer)

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        waiting = self._timers.pop(id(timer), None)
        if waiting is not None:
            waiting.cancel()

    # ── tasks and threads ─────────────────────────────────────────────────────────────────────────

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        """A task of this node."""
        return asyncio.Task(coro, loop=self, name=name, context=context, **more)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]  # typeshed's names differ between versions
        """In one of the cluster's threads."""
        pool = executor if executor is not None else self._threads
        return asyncio.wrap_future(pool.submit(func, *args), loop=self)

    def get_debug(self) -> bool:
        """As the outer loop."""
        return self.outer.get_debug()

    def is_running(self) -> bool:
        """Whether anything can happen here."""
        return not self.is_closed()

    def is_closed(self) -> bool:
        """Whether the outer loop has ended."""
        return self.outer.is_closed()

    def get_task_factory(self) -> None:
        """None."""

    def get_exception_handler(self) -> None:
        """The outer loop handles them."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody has handled it: the outer loop says so, unless it is a dead one's."""
        if not self.dead:
            self.outer.call_exception_handler(context)

    async def outside(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the outer loop do that, and wait here."""
        done: asyncio.Future[T] = self.create_future()
        task = self.outer.create_task(work)

        def tell(task: "asyncio.Task[T]") -> None:
            if task.cancelled():
                self.call_soon(done.cancel)
            elif (error := task.exception()) is not None:
                self.call_soon(_fail, done, error)
            else:
                self.call_soon(_resolve, done, task.result())

        task.add_done_callback(tell)
        try:
            return await done
        except asyncio.CancelledError:
            task.cancel()
            raise

    # ── sockets ───────────────────────────────────────────────────────────────────────────────────

    async def create_connection(  # type: ignore[override]  # what nodes use of it
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, Any]:
        """Call somebody."""
        peer = self.net.ports.get(port, CLIENTS)
        if self.dead or self.net.links.are_reset(self.name, peer):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        protocol = protocol_factory()
        line = Line(self, lambda: protocol, peer)
        try:
            await self.outside(self.outer.create_connection(lambda: line, host, port, **options))
            await line.made
        except BaseException:
            line.tear_down()
            raise
        return line, protocol

    async def create_server(  # type: ignore[override]  # what nodes use of it
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> asyncio.AbstractServer:
        """Listen."""
        server = _Server(  # type: ignore[abstract]  # nobody here asks it for more
            self,
            await self.outside(
                self.outer.create_server(lambda: Line(self, protocol_factory, None), host, port, **options)
            ),
        )
        if self.dead:
            server.close()
        self._servers.add(server)
        for open_socket in server.sockets:
            self.net.ports[open_socket.getsockname()[1]] = self.name
        return server


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class _Server(asyncio.AbstractServer):
    """An open port of a node."""

    def __init__(self, loop: InnerLoop, server: asyncio.AbstractServer) -> None:
        self._loop = loop
        self._server = server

    @property
    def sockets(self) -> tuple[Any, ...]:
        """Its sockets."""
        return tuple(getattr(self._server, "sockets", ()))

    def close(self) -> None:
        """Nobody is accepted any more, and the port refuses in the next turn.

        Whoever was accepted in this turn is given to the server in the next one, before that: asyncio forgets his socket,
        open as it is, where the server is closed already (python/cpython#109564).
        """
        outer = self._loop.outer
        for each in self.sockets:
            outer.remove_reader(each.fileno())
        outer.call_soon(self._server.close)

    def is_serving(self) -> bool:
        """Whether it is open."""
        return self._server.is_serving()

    async def wait_closed(self) -> None:
        """Until it is."""
        await self._loop.outside(self._server.wait_closed())
