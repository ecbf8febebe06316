"""The event loop that a client lives in: the one that it was started in, or first used.

What it keeps true: nothing of the client is done in another loop, nor in a thread beside its own. What waits there would
wait for ever, for nobody wakes a loop from outside; and two threads would change the same numbers. Whoever tries is told
so at once, and nothing has changed.
"""

from asyncio import AbstractEventLoop, get_running_loop
from threading import get_ident

from tidelog.protocol.errors import InvalidRequest


class Home:
    """See the module."""

    __slots__ = ("_loop", "thread")

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        """None: it was never used."""
        self.thread: int | None = None
        """Where it was when it was last looked: for each record this is compared, which costs a fifth of `check`."""

    def check(self) -> None:
        """Raise InvalidRequest where another loop runs than the client's; the first that asks is the client's."""
        here, home = _running(), self._loop
        if home is None or here is home:
            self._loop, self.thread = here, get_ident()
            return
        if home.is_closed():
            raise InvalidRequest(
                "the event loop that this client was started in is closed, and nothing of the client is left: "
                "connect anew. asyncio.run makes a new loop each time: connect, use and close a client within one; "
                "a program that does not await has tidelog.sync"
            )
        if here is None and not home.is_running():
            return  # what does not await, between two runs of the loop
        raise InvalidRequest(
            "this client belongs to the event loop that it was started in, and was called outside of it: call it in that "
            "loop, from other threads by asyncio.run_coroutine_threadsafe, or use tidelog.sync, which any thread may "
            "call. asyncio.run makes a new loop each time"
        )


def _running() -> AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    try:
        return get_running_loop()
    except RuntimeError:
        return None
