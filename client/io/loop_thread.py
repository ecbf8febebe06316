"""A thread with an event loop, and calls into it from programs that do not await.

    thread = LoopThread("tidelog-client")
    thread.call(client.start)              one hop: until it is done; raises what it raised
    thread.do(consumer.seek, where, 5)     the same for what does not await
    thread.post(work)                      no waiting at all
    thread.end(client.close)               the last call; then the thread ends

What it keeps true:

* A call ends: with the result, with the error, or with ClientClosed when the thread ends before it. Ctrl-C (any exception
  in the caller's thread) ends the wait and cancels the work.
* The thread keeps no process from ending, and ends itself at the interpreter's exit: until then, what `at_exit` was told
  is done first, in bounded time.
* After a fork the child has no such thread: each call there says so at once and touches nothing that the parent uses.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from tidelog.protocol.errors import ClientClosed, InvalidRequest, TidelogError
from tidelog.protocol.io.runner import fastest_loop

P = ParamSpec("P")
T = TypeVar("T")

_CANCELLED_S: Final = 5.0
"""How long a caller who is interrupted waits until its work has noticed."""


class LoopThread:
    """See the module."""

    def __init__(self, name: str) -> None:
        self.at_exit: Callable[[], Awaitable[object]] | None = None
        """What is done when the interpreter exits and nobody has ended the thread."""
        self.alive = True
        """Whether it can be called."""
        self._name = name
        self._why: str | None = None
        """Why nothing can be called any more."""
        self._calls: dict[_Call[Any], None] = {}
        """Those that somebody waits for."""
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._ident = 0
        ready = threading.Lock()
        ready.acquire()
        # A daemon: whoever forgets to close a client can still leave the interpreter, by way of `_exiting`.
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        self._thread.start()
        ready.acquire()
        self.check()
        _THREADS[self] = None

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self, ready: threading.Lock) -> None:
        try:
            with asyncio.Runner(loop_factory=fastest_loop()) as runner:
                runner.run(self._main(ready))
        finally:
            self.alive = False
            self._why = self._why or f"the thread {self._name} has ended"
            if ready.locked():
                ready.release()  # there is not even a loop
            for call in list(self._calls):
                call.fail(ClientClosed(self._why))
            _THREADS.pop(self, None)

    async def _main(self, ready: threading.Lock) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        ready.release()
        await self._stop.wait()

    def check(self) -> None:
        """Raise ClientClosed when it cannot be called any more."""
        if self._why is not None:
            raise ClientClosed(self._why)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def post(self, work: Callable[[], object]) -> None:
        """Have that done by the loop, soon; it must not wait or raise."""
        self.check()
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # its loop was closed between these lines
            raise ClientClosed(self._why or "the client is closed") from None

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await that in the loop, and wait for it here."""
        if threading.get_ident() == self._ident:
            raise InvalidRequest(
                f"a blocking call inside the thread {self._name}, which would have to carry it out: "
                "callbacks must not wait for the client that calls them"
            )
        return self._wait(_Call(lambda: work(*args, **kwargs)))

    def call_or(self, undo: Callable[[T], object], work: Callable[[], Awaitable[T]]) -> T:
        """As `call`; when the caller is interrupted and the work was done nevertheless, nobody has its result: `undo` it."""
        return self._wait(_Call(work), undo)

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have that done in the loop; it does not await. Callbacks that the loop itself calls may use it as well."""
        if threading.get_ident() == self._ident:
            return work(*args, **kwargs)

        async def doing() -> T:
            return work(*args, **kwargs)

        return self._wait(_Call(doing))

    def _wait(self, call: "_Call[T]", undo: Callable[[T], object] | None = None) -> T:
        self._calls[call] = None
        try:
            try:
                self.post(call.begin)
                call.ended.acquire()
            except BaseException:
                # Ctrl-C: nobody waits any more, and what was begun is not left behind.
                with suppress(ClientClosed):
                    self.post(call.cancel)
                    if call.ended.acquire(timeout=_CANCELLED_S) and call.done and undo is not None:
                        self.do(undo, call.value)  # type: ignore[arg-type]  # it is done
                raise
        finally:
            self._calls.pop(call, None)
        if call.done:
            return call.value  # type: ignore[return-value]  # it is done
        error = call.error
        if error is None or isinstance(error, asyncio.CancelledError):
            raise ClientClosed("the client was closed during the call") from None
        try:
            raise error
        finally:
            del error, call  # no cycle of a traceback and its own frame

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def end(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Do that, and end the thread whatever comes of it. A second call, and one in a forked child, does nothing."""
        if self._why is not None:
            return
        try:
            if last is not None:
                self.call(last)
        finally:
            self.stop()
            if threading.get_ident() != self._ident:
                self._thread.join(_CANCELLED_S)

    def abandon(self, last: Callable[[], Awaitable[object]]) -> None:
        """As `end`, but nobody waits: whoever had the thread is gone. It may be any thread, also this one."""
        if self._why is None:
            self.post(lambda: self._loop.create_task(self._ending(last)))

    async def _ending(self, last: Callable[[], Awaitable[object]]) -> None:
        try:
            await last()
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread without another word."""
        if self._why is None:
            with suppress(ClientClosed):
                self.post(self._stop.set)
            self.forget("the client is closed")

    def forget(self, why: str) -> None:
        """Let nothing be called any more."""
        self.alive, self._why = False, why


class _Call(Generic[T]):
    """Something that the loop does for somebody who waits for it."""

    __slots__ = ("_cancelled", "_task", "_work", "done", "ended", "error", "value")

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def begin(self) -> None:
        if self._cancelled:
            self.fail(asyncio.CancelledError())
            return
        self._task = asyncio.get_running_loop().create_task(self._do())
        self._task.add_done_callback(self._end)

    async def _do(self) -> T:
        return await self._work()

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.fail(error)
        elif self.ended.locked():
            self.value, self.done = task.result(), True
            self._task = None
            self.ended.release()

    def fail(self, error: BaseException) -> None:
        if not self.done and self.error is None:
            self.error, self._task = error, None
            self.ended.release()


_THREADS: Final[dict[LoopThread, None]] = {}
"""All that live in this process."""
_OF_THE_PARENT: Final[list[LoopThread]] = []
"""What a forked child must never free: to close these loops would close what the parent's still use."""


def _exiting() -> None:
    """The interpreter exits: what nobody has closed is closed now. An interruption ends that as well."""
    failure: TidelogError | None = None
    for thread in list(_THREADS):
        try:
            thread.end(thread.at_exit)
        except TidelogError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _forked() -> None:
    for thread in _THREADS:
        thread.forget("this process was forked from the one that had connected: connect anew in it")
    _OF_THE_PARENT.extend(_THREADS)
    _THREADS.clear()


atexit.register(_exiting)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
