"""Bytes in, frames out: a pure machine that asyncio's BufferedProtocol is laid around.

    connection := preamble frame*          preamble := "TIDE" version(u8)
    frame      := length(u32) head_length(u32) head attachment

`length` counts everything behind itself. The head is msgpack (`messages`); the attachment is raw bytes that
nobody decodes on the way, record batches above all.

What it keeps true:

* A frame's two lengths are checked against the limits before a byte of the frame is buffered.
* Frames that arrive whole are handed out as views of the shared receive buffer (`owned=False`): read them
  during the call, copy what must outlive it. A small rest waits as a copy of its few bytes.
* A large frame that is incomplete gets a buffer of its own, and the rest of it is received right into it:
  it is never copied, but for what had already arrived. It is handed out with `owned=True`.
* No more than one incomplete frame is ever held, and a large one only after `reserve` agreed to its size.
* After an error the machine is finished: bytes behind a wrong length mean nothing.

    PREAMBLE ──5 bytes──▶ SMALL ──large frame begins, reserve()──▶ LARGE ──its last byte──▶ SMALL
                            │                          └─refused─▶ WAITING ──admit()──▶ LARGE
                            └──hold()──▶ HELD ──release()──▶ SMALL
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from tidelog.protocol.buffers import BufferPool, ReceiveBuffer
from tidelog.protocol.errors import MalformedFrame, UnsupportedVersion
from tidelog.protocol.limits import Limits
from tidelog.protocol.types import Buffer

MAGIC: Final = b"TIDE"
VERSION: Final = 1
PREAMBLE: Final = MAGIC + bytes((VERSION,))
"""What each side says first. Kafka's own protocol cannot begin with it: a request of 1.4 GB."""

_HTTP: Final = b"HTTP/"
"""What the answer of another kind of server begins with: a node's own pages for monitoring are the likeliest."""

LENGTHS: Final = Struct(">II")
_LENGTHS_SIZE: Final = LENGTHS.size
_LENGTH_SIZE: Final = 4

JOIN_BELOW_BYTES: Final = 64 * 1024
"""Up to here copying frames together is cheaper than a second system call or a gathered write."""

SMALL_BYTES: Final = 32 * 1024
"""An incomplete frame up to this size waits for its rest beside the others; a larger one gets a buffer."""

GLIMPSE_BYTES: Final = 4 * 1024
"""How much is read after a large frame: the next is probably large, and what is read here is copied."""

NOTHING: Final = memoryview(b"")
"""The attachment of a frame that has none."""


class Frame(NamedTuple):
    """One frame as it arrived. Unless `owned`, both views are valid only until the next one is asked for."""

    head: memoryview
    attachment: memoryview
    owned: bool

    @property
    def size(self) -> int:
        """Bytes of the whole frame on the wire."""
        return _LENGTHS_SIZE + len(self.head) + len(self.attachment)


def frame_start(head: bytes, attached: int = 0) -> bytes:
    """What stands before a frame's attachment of `attached` bytes: both lengths and the head."""
    size = len(head)
    return LENGTHS.pack(_LENGTH_SIZE + size + attached, size) + head


def encode_frame(head: bytes, *attachments: Buffer) -> list[Buffer]:
    """A frame as buffers to be written in order: one where joining is cheaper, several where copying is not."""
    attached = sum(map(len, attachments))
    start = frame_start(head, attached)
    if attached < JOIN_BELOW_BYTES:
        return [b"".join((start, *attachments))]
    return [start, *attachments]


def gather(parts: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: neighbours that are small are joined, large ones are left alone."""
    gathered: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW_BYTES:
            small.append(part)
            continue
        if small:
            gathered.append(b"".join(small))
            small.clear()
        gathered.append(part)
    if small:
        gathered.append(b"".join(small))
    return gathered


def _agree(_size: int) -> bool:
    return True


class FrameReader:
    """One connection's incoming bytes, see the module. Call `get_buffer`, read into it, call `received`."""

    __slots__ = (
        "_after_large",
        "_filled",
        "_head_length",
        "_held",
        "_large",
        "_limits",
        "_max_head_length",
        "_max_length",
        "_pool",
        "_reserve",
        "_shared",
        "_small",
        "_tail",
        "_view",
        "holding",
        "version",
        "wanted",
    )

    def __init__(
        self,
        shared: ReceiveBuffer,
        pool: BufferPool,
        limits: Limits,
        reserve: Callable[[int], bool] = _agree,
        *,
        preamble: bool = True,
    ) -> None:
        self._shared = shared
        self._small = min(SMALL_BYTES, shared.size // 4)
        self._pool = pool
        self._limits = limits
        self._max_length = limits.max_frame_bytes - _LENGTH_SIZE
        self._max_head_length = limits.max_head_bytes
        self._reserve = reserve
        self._tail = b""
        self._large: bytearray | None = None
        self._view = NOTHING
        self._filled = 0
        self._head_length = 0
        self._held = NOTHING
        self.holding = False
        """Whether frames behind the one that was handed out are held back."""
        self._after_large = False
        self.version: int | None = None if preamble else VERSION
        """What the peer speaks, once it has said so."""
        self.wanted = 0
        """Bytes that the next frame needs and `reserve` did not grant: read again only after `admit`."""

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and its end is missing."""
        return self._large is not None or bool(self._tail) or self.wanted > 0

    @property
    def buffered_bytes(self) -> int:
        """Memory that this connection holds for itself."""
        return len(self._large or b"") + len(self._tail) + len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes of whole frames, and of the beginning of one, that wait until they are released."""
        return len(self._held)

    def get_buffer(self, _hint: int = -1) -> memoryview:
        """Where the next bytes go. Asking twice without reading is allowed, loops do it."""
        if self._large is not None:
            return self._view[self._filled :]
        assert not self._held, "a reader that holds bytes back is not read into"
        view, tail = self._shared.view, self._tail
        if tail:
            size = len(tail)
            view[:size] = tail
            return view[size:]
        return view[:GLIMPSE_BYTES] if self._after_large else view

    def received(self, size: int) -> Iterator[Frame]:
        """The frames that `size` more bytes complete. Raises `MalformedFrame` behind the last good one."""
        if self._large is not None:
            self._filled += size
            return self._finish() if self._filled == len(self._view) else iter(())
        end = len(self._tail) + size
        self._tail = b""
        self._after_large = False
        return self._parse(self._shared.view, end)

    def hold(self) -> None:
        """Hand out no frame behind the current one until `release`; its bytes are kept."""
        self.holding = True

    def release(self) -> Iterator[Frame]:
        """Hand out what was held back; read on only when this is used up and nothing is held again."""
        self.holding = False
        held, self._held = self._held, NOTHING
        return self._parse(held, len(held)) if held else iter(())

    def admit(self) -> None:
        """The bytes `wanted` were granted after all."""
        held, self._held, size, self.wanted = self._held, NOTHING, self.wanted, 0
        self._begin_large(size, held)

    def recycle(self, frame: Frame) -> None:
        """The receiver of an owned frame is done with it."""
        buffer = frame.head.obj
        frame.head.release()
        frame.attachment.release()
        assert isinstance(buffer, bytearray)
        self._pool.give_back(buffer)

    def close(self) -> None:
        """Give back what is held; nothing is read any more."""
        self._view = self._held = NOTHING
        self._tail = b""
        if self._large is not None:
            self._pool.give_back(self._large)
            self._large = None

    def _parse(self, view: memoryview, end: int) -> Iterator[Frame]:
        at = 0
        if self.version is None:
            at = self._read_preamble(view, end)
        # A NamedTuple's own constructor costs more than all the rest of a small frame.
        unpack, new = LENGTHS.unpack_from, tuple.__new__
        max_length, max_head = self._max_length, self._max_head_length
        while end - at >= _LENGTHS_SIZE:
            length, head_length = unpack(view, at)
            if length > max_length or head_length > max_head or head_length + 4 > length:
                raise self._refusal(length, head_length)
            stop = at + _LENGTH_SIZE + length
            body = at + _LENGTHS_SIZE
            if stop > end:
                if length > self._small:
                    self._meet_large(length - _LENGTH_SIZE, head_length, view[body:end])
                    return
                break
            middle = body + head_length
            at = stop
            yield new(Frame, (view[body:middle], view[middle:stop] if stop > middle else NOTHING, False))
            if self.holding:
                self._held = memoryview(bytes(view[at:end]))
                return
        if at < end:
            self._tail = bytes(view[at:end])

    def _meet_large(self, size: int, head_length: int, arrived: memoryview) -> None:
        """A large frame has begun: give it a buffer, or keep what arrived until there may be one."""
        self._head_length = head_length
        if self._reserve(size):
            self._begin_large(size, arrived)
        else:
            self.wanted = size
            self._held = memoryview(bytes(arrived))

    def _begin_large(self, size: int, arrived: memoryview) -> None:
        self._large = self._pool.take(size)
        self._view = memoryview(self._large)[:size]
        self._filled = len(arrived)
        self._view[: self._filled] = arrived

    def _finish(self) -> Iterator[Frame]:
        """The large frame is complete. Its buffer now belongs to whoever takes the frame."""
        view, middle = self._view, self._head_length
        self._large, self._view, self._filled = None, NOTHING, 0
        self._after_large = len(view) > self._shared.size
        frame = Frame(view[:middle], view[middle:], owned=True)
        view.release()
        yield frame

    def _read_preamble(self, view: memoryview, end: int) -> int:
        """Where the frames begin; 0 while the preamble is incomplete."""
        opening = bytes(view[: min(end, len(PREAMBLE))])
        if opening == _HTTP:
            raise MalformedFrame(
                "HTTP is spoken there, as at a node's /metrics; give the node's own address, "
                "printed in front of that one when it is ready"
            )
        if not MAGIC.startswith(opening[: len(MAGIC)]):
            raise MalformedFrame(f"the connection begins with {opening!r} instead of {MAGIC!r}")
        if len(opening) < len(PREAMBLE):
            return 0
        self.version = opening[len(MAGIC)]
        if self.version != VERSION:
            raise UnsupportedVersion(
                f"the other side speaks version {self.version} of the protocol, this side version {VERSION}"
            )
        return len(PREAMBLE)

    def _refusal(self, length: int, head_length: int) -> MalformedFrame:
        size = length + _LENGTH_SIZE
        if size > self._limits.max_frame_bytes:
            return MalformedFrame(
                f"a frame of {size} bytes is above the limit of {self._limits.max_frame_bytes}"
            )
        if head_length > self._limits.max_head_bytes:
            return MalformedFrame(
                f"a head of {head_length} bytes is above the limit of {self._limits.max_head_bytes}"
            )
        return MalformedFrame(f"a frame of {size} bytes cannot hold a head of {head_length} bytes")
