"""The memory that bytes arrive in: one buffer for all small frames of a node, a pool for the large ones.

What it keeps true:

* Idle connections own no buffer. A node has one `ReceiveBuffer`, whatever its number of connections.
* A pooled buffer is given out again only when nobody holds a view of it: `take` looks.
* The pool holds at most `pooled_bytes`.

Why one receive buffer can serve all connections: both asyncio and uvloop call get_buffer, read from the
socket and call buffer_updated one behind the other, for one connection at a time, with nothing of the loop
between them (selector_events._read_ready__get_buffer; libuv's uv__read: alloc_cb, read, read_cb). Nothing in
it outlives that call: `FrameReader` copies what is incomplete. It would break if two threads read with one
buffer (the lock of the interpreter is released during the read), so a `ReceiveBuffer` belongs to one loop, or
under a loop that reads ahead for several connections at once (Windows' completion ports used that way).
docs/adr/0020 tells it at length, tests/protocol/test_receive_buffer.py holds both loops to it.
"""

from typing import Final

_SMALLEST_STEP: Final = 4096


class ReceiveBuffer:
    """Where small frames arrive. Its content is valid from a read to the end of the call that handles it."""

    __slots__ = ("size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))


class BufferPool:
    """Buffers for frames that do not arrive in one piece, each at least as large as was asked for."""

    __slots__ = ("_bound", "_free", "_returned", "pooled_bytes")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._free: dict[int, list[bytearray]] = {}
        self._returned: list[bytearray] = []
        self.pooled_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, at most a quarter (or a page) larger. Its content is anything."""
        if self._returned:
            self._sort_returned()
        capacity = capacity_of(size)
        free = self._free.get(capacity)
        if not free:
            return bytearray(capacity)
        self.pooled_bytes -= capacity
        return free.pop()

    def give_back(self, buffer: bytearray) -> None:
        """Keep the buffer for a later frame, if it turns out that nobody has a view of it."""
        capacity = len(buffer)
        if capacity > self._bound:
            return
        if self.pooled_bytes + capacity > self._bound:
            # Other sizes are in demand now than when the pool was filled.
            self._free.clear()
            self._returned.clear()
            self.pooled_bytes = 0
        self._returned.append(buffer)
        self.pooled_bytes += capacity

    def _sort_returned(self) -> None:
        """Looked at late: the loop itself holds a view until the call that gave the buffer back has ended."""
        for buffer in self._returned:
            capacity = len(buffer)
            try:
                # A bytearray cannot change its size while a view of it exists. Both stay inside its memory.
                buffer.pop()
            except BufferError:
                self.pooled_bytes -= capacity
                continue
            buffer.append(0)
            self._free.setdefault(capacity, []).append(buffer)
        self._returned.clear()


def capacity_of(size: int) -> int:
    """The size rounded up to one of four to eight sizes per power of two, so that buffers meet again."""
    step = max(1 << max(size.bit_length() - 3, 0), _SMALLEST_STEP)
    return -(-size // step) * step
