"""What is put together leaves together, and what may change is copied first."""

import pytest

from tidelog.protocol.framing import JOIN_BELOW_BYTES, frame_start
from tidelog.protocol.io.outbox import Outbox
from tidelog.protocol.limits import Limits

LARGE = bytes(JOIN_BELOW_BYTES)


class Pipe:
    """A transport that notes each call, and has enough when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.closed = False
        self.enough_after = 10**9
        self.outbox: Outbox

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, data: list[bytes]) -> None:
        assert not self.closed, "uvloop would raise"
        self.calls.append(list(data))
        if len(self.calls) >= self.enough_after:
            self.outbox.pause()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int) -> None:
        """As transports do."""

    @property
    def sent(self) -> bytes:
        return b"".join(b"".join(call) for call in self.calls)


@pytest.fixture
def pipe() -> Pipe:
    pipe = Pipe()
    pipe.outbox = Outbox(pipe, Limits())  # type: ignore[arg-type]
    return pipe


def test_small_frames_of_one_burst_leave_in_one_write(pipe: Pipe) -> None:
    for _ in range(100):
        pipe.outbox.put(b"head", (b"attached",))
    pipe.outbox.flush()
    assert pipe.calls == [[(frame_start(b"head", 8) + b"attached") * 100]]


def test_a_large_attachment_is_sent_from_where_it_is(pipe: Pipe) -> None:
    pipe.outbox.put(b"before")
    pipe.outbox.put(b"head", (LARGE,))
    pipe.outbox.put(b"behind")
    pipe.outbox.flush()
    ((before, attached, behind),) = pipe.calls
    assert attached is LARGE
    assert before == frame_start(b"before") + frame_start(b"head", len(LARGE))
    assert behind == frame_start(b"behind")


@pytest.mark.parametrize("size", [3, JOIN_BELOW_BYTES])
def test_a_view_of_memory_that_changes_is_copied_at_once(pipe: Pipe, size: int) -> None:
    buffer = bytearray(b"x" * size)
    pipe.outbox.put(b"head", (memoryview(buffer),))
    buffer[:] = bytes(size)
    pipe.outbox.flush()
    assert pipe.sent.endswith(b"x" * size)


def test_what_the_transport_does_not_take_waits_and_is_counted(pipe: Pipe) -> None:
    pipe.outbox.pause()
    pipe.outbox.put(b"head", (LARGE,))
    pipe.outbox.flush()
    assert pipe.calls == []
    assert pipe.outbox.unsent_bytes == len(LARGE) + 12
    pipe.outbox.resume()
    assert pipe.sent == frame_start(b"head", len(LARGE)) + LARGE
    assert pipe.outbox.unsent_bytes == 0


def test_a_large_burst_is_handed_over_in_pieces_until_the_transport_has_enough(pipe: Pipe) -> None:
    pipe.enough_after = 2
    for _ in range(100):
        pipe.outbox.put(b"head", (LARGE,))
    pipe.outbox.flush()
    assert len(pipe.calls) == 2
    pipe.enough_after = 10**9
    assert pipe.outbox.unsent_bytes + len(pipe.sent) == 100 * (len(LARGE) + 12)
    pipe.outbox.resume()
    assert pipe.sent == (frame_start(b"head", len(LARGE)) + LARGE) * 100
    assert pipe.outbox.unsent_bytes == 0


def test_nothing_is_written_to_a_transport_that_is_closing(pipe: Pipe) -> None:
    pipe.outbox.put(b"head")
    pipe.close()
    pipe.outbox.flush()
    assert pipe.calls == []
    assert pipe.outbox.unsent_bytes == 0


def test_closing_sends_what_waits_first(pipe: Pipe) -> None:
    pipe.outbox.pause()
    pipe.outbox.put(b"head")
    pipe.outbox.close()
    assert not pipe.closed
    pipe.outbox.resume()
    assert pipe.sent == frame_start(b"head")
    assert pipe.closed
