"""Frames and readers for tests: a reader fed by hand, in whatever pieces."""

from collections.abc import Callable, Iterable

from tidelog.protocol.buffers import BufferPool, ReceiveBuffer
from tidelog.protocol.framing import PREAMBLE, FrameReader, encode_frame
from tidelog.protocol.limits import Limits

SMALL_LIMITS = Limits(max_frame_bytes=1_000_000, max_head_bytes=10_000)


def reader_of(
    limits: Limits = SMALL_LIMITS,
    *,
    reserve: Callable[[int], bool] = lambda _size: True,
    preamble: bool = False,
    receive_buffer_bytes: int = 65_536,
) -> FrameReader:
    """A reader with a receive buffer and pool of its own."""
    shared = ReceiveBuffer(receive_buffer_bytes)
    return FrameReader(shared, BufferPool(limits.pooled_bytes), limits, reserve, preamble=preamble)


def feed(reader: FrameReader, data: bytes, chunk: int = 1 << 20) -> list[tuple[bytes, bytes]]:
    """Hand the bytes over as a loop would, at most `chunk` at a time: the frames, copied."""
    frames = []
    while data:
        view = reader.get_buffer(-1)
        size = min(len(view), len(data), chunk)
        view[:size] = data[:size]
        data = data[size:]
        for frame in reader.received(size):
            frames.append((bytes(frame.head), bytes(frame.attachment)))
            if frame.owned:
                reader.recycle(frame)
    return frames


def wire(frames: Iterable[tuple[bytes, bytes]], *, preamble: bool = False) -> bytes:
    """The bytes of these frames, one behind the other."""
    parts = [PREAMBLE] if preamble else []
    return b"".join(parts + [bytes(part) for head, body in frames for part in encode_frame(head, body)])
