"""What all connections of a node hold together, and who waits for room: a pure machine.

    connections            at most `max_connections`, counted by `enter` and `leave`
    bytes of requests      each connection's `Share`: its allowance first, then the node's common budget

What it keeps true:

* Whatever waits is counted: bytes that a connection holds back (`held_back_bytes`) and what slow readers
  leave unsent (`unsent_bytes`). Nobody waits for either to shrink, so neither can be waited for in a circle.
* `used_bytes` is the sum of what the shares draw from the budget.
* A frame that is not yet buffered is granted only if it fits; a request that has already arrived is counted
  in any case (`add`), and its connection is not read until there is room again.
* Waiters are served in the order they came, and nobody overtakes them: the largest frame gets its turn.
* No wait is for ever. What is waited for are answers, which have their own deadlines, and frames being
  received, which have `frame_timeout_ms`. A connection that waits has not been granted anything of its
  frame, so two waiters never hold what the other needs. Requests within the allowance never wait, so a
  follower's fetch is read while produce requests that need it fill the node.
"""

from collections import deque
from collections.abc import Callable

from tidelog.protocol.buffers import BufferPool, ReceiveBuffer
from tidelog.protocol.limits import Limits


class Share:
    """What one connection holds: bytes of its requests that were received and not yet answered."""

    __slots__ = ("_bounds", "_wake", "allowance", "drawn", "held", "waits_for")

    def __init__(self, bounds: "Bounds", wake: Callable[[], None]) -> None:
        self._bounds = bounds
        self._wake = wake
        self.allowance = bounds.limits.connection_allowance_bytes
        """May be raised for peers that others wait for, as followers."""
        self.held = 0
        self.drawn = 0
        self.waits_for = -1
        """The size that is waited for; -1: not waiting."""

    def add(self, size: int) -> bool:
        """Count bytes that are here already. False: the node is over its limit, `wait` before reading on."""
        self.held += size
        excess = self.held - self.allowance
        if excess <= self.drawn:
            return True
        self._draw(excess)
        return self._bounds.used_bytes <= self._bounds.limits.max_request_bytes

    def reserve(self, size: int) -> bool:
        """Count bytes that are about to be buffered, if there is room for them and nobody waits for longer."""
        if not self._fits(size):
            return False
        self.add(size)
        return True

    def free(self, size: int) -> None:
        """The bytes were answered, or their sender is gone."""
        self.held -= size
        assert self.held >= 0, f"{-self.held} bytes more were freed than held"
        if self.drawn:
            drawn = self.drawn
            self._draw(max(self.held - self.allowance, 0))
            if self.drawn < drawn:
                self._bounds.serve_waiters()

    def wait(self, size: int = 0) -> None:
        """Be woken when there is room for `size` more, which is then counted."""
        assert self.waits_for < 0, "a connection waits for one frame at a time"
        self.waits_for = size
        self._bounds.waiters.append(self)

    def close(self) -> None:
        """The connection is gone, with all it held."""
        if self.waits_for >= 0:
            self.waits_for = -1
            self._bounds.waiters.remove(self)
        self.held = 0
        self._draw(0)
        self._bounds.serve_waiters()

    def _fits(self, size: int) -> bool:
        bounds = self._bounds
        more = max(self.held + size - self.allowance, 0) - self.drawn
        if more <= 0 and size:
            return True
        return not bounds.waiters and bounds.used_bytes + more <= bounds.limits.max_request_bytes

    def _draw(self, drawn: int) -> None:
        self._bounds.used_bytes += drawn - self.drawn
        self.drawn = drawn
        assert self._bounds.used_bytes >= 0

    def serve(self) -> bool:
        """First in the queue: take what is waited for, if it fits now."""
        bounds = self._bounds
        more = max(self.held + self.waits_for - self.allowance, 0) - self.drawn
        if bounds.used_bytes + more > bounds.limits.max_request_bytes:
            return False
        size, self.waits_for = self.waits_for, -1
        self.add(size)
        self._wake()
        return True


class Bounds:
    """One node's limits and what of them is used, shared by all its listeners and connections.

    Belongs to one event loop, as its receive buffer does.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.receive_buffer = ReceiveBuffer(limits.receive_buffer_bytes)
        self.pool = BufferPool(limits.pooled_bytes)
        self.connections = 0
        self.lingering = 0
        self.used_bytes = 0
        self.held_back_bytes = 0
        """Requests that have arrived and wait, as bytes, for their connection's turn."""
        self.reads_little = False
        """Whether so much is held back that reading more than a page would only add to it."""
        self.unsent_bytes = 0
        """Answers that wait for peers which do not read."""
        self.waiters: deque[Share] = deque()
        self._serving = False

    def enter(self) -> bool:
        """Count one more connection, if it is not one too many."""
        if self.connections >= self.limits.max_connections:
            return False
        self.connections += 1
        return True

    def leave(self) -> None:
        """A connection that had entered is gone."""
        self.connections -= 1
        assert self.connections >= 0

    def hold_back(self, more: int) -> None:
        """So many bytes more wait for their connection's turn; fewer if negative."""
        self.held_back_bytes += more
        self.reads_little = self.held_back_bytes > self.limits.max_held_back_bytes

    def share(self, wake: Callable[[], None]) -> Share:
        """A connection's share. `wake` is called once after each `wait`, when there is room."""
        return Share(self, wake)

    def serve_waiters(self) -> None:
        """There may be room: wake those who wait, in their order, as far as it goes."""
        # A connection that is woken may answer and free at once: the outer loop sees that room as well.
        if self._serving:
            return
        self._serving = True
        try:
            while self.waiters:
                first = self.waiters.popleft()
                if not first.serve():
                    self.waiters.appendleft(first)
                    break
        finally:
            self._serving = False
