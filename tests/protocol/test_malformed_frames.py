"""Malformed frames do no harm (GOALS.md R6), and the checks that say so can fail.

`scripts/fuzz` runs a million of them; here are enough to notice when something breaks.
"""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.protocol import fuzzing
from tests.protocol.malformed import conversation
from tidelog.protocol.errors import MalformedFrame
from tidelog.protocol.framing import FrameReader
from tidelog.protocol.io import ServerConnection
from tidelog.protocol.limits import MIB, Limits
from tidelog.protocol.messages import decode_request

SEED = 20
FEW = 1000
KINDS = {fuzzing.FINE, fuzzing.OTHER_PROTOCOL, fuzzing.OTHER_VERSION, fuzzing.NO_HELLO, fuzzing.MALFORMED}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A server says a line for each peer that it turns away."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_conversation_is_made_by_its_number() -> None:
    assert conversation(1, 7) == conversation(1, 7)
    assert conversation(1, 7) != conversation(1, 8)


@pytest.mark.slow
async def test_malformed_frames_do_no_harm() -> None:
    report = await fuzzing.fuzz_machines(SEED, 0, 20_000)
    assert report.failures == []
    assert report.outcomes.keys() >= KINDS


async def test_a_few_malformed_frames_do_no_harm() -> None:
    report = await fuzzing.fuzz_machines(SEED, 20_000, FEW)
    assert report.failures == []


@pytest.mark.slow
async def test_malformed_frames_do_no_harm_to_a_real_server() -> None:
    report = await fuzzing.fuzz_sockets(SEED, 0, 200)
    assert report.failures == []


async def findings(count: int = FEW) -> str:
    return "\n".join((await fuzzing.fuzz_machines(SEED, 0, count)).failures)


async def test_a_reader_without_a_size_limit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unlimited(FrameReader):
        def __init__(self, shared: Any, pool: Any, _limits: Limits) -> None:
            super().__init__(shared, pool, Limits(max_frame_bytes=64 * MIB, max_head_bytes=64 * MIB))

    monkeypatch.setattr(fuzzing, "FrameReader", Unlimited)
    assert "a reader holds too much" in await findings()


async def test_a_reader_that_does_not_check_the_head_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trusting(FrameReader):
        def _refusal(self, length: int, head_length: int) -> Any:
            return IndexError(f"{head_length} of {length}")

    monkeypatch.setattr(fuzzing, "FrameReader", Trusting)
    assert "IndexError" in await findings()


async def test_a_reader_that_hangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FrameReader):
        def received(self, size: int) -> Any:
            while size == 5:
                pass
            return super().received(size)

    monkeypatch.setattr(fuzzing, "FrameReader", Stuck)
    monkeypatch.setattr(fuzzing, "CPU_S_MAX", 0.02)
    assert "Hang" in await findings(30)


@pytest.mark.parametrize("let_out", [RecursionError, UnicodeDecodeError, msgspec.DecodeError])
async def test_a_decoder_that_lets_an_error_out_is_caught(
    monkeypatch: pytest.MonkeyPatch, let_out: type[Exception]
) -> None:
    def decode(head: bytes) -> tuple[int, object]:
        try:
            return 1, msgspec.msgpack.decode(head)
        except let_out:
            raise
        except Exception as error:
            raise MalformedFrame("as it should be") from error

    monkeypatch.setattr(fuzzing, "decode_reply", decode)
    assert let_out.__name__ in await findings()


async def test_a_decoder_that_believes_in_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(head: bytes) -> Any:
        if b"\xff\xff\xff\xff" in head:
            bytearray(64 * MIB)
        return decode_request(head)

    monkeypatch.setattr(fuzzing, "decode_request", believing)
    monkeypatch.setattr(fuzzing, "MEASURED_EVERY", 1)
    assert "bytes were allocated" in await findings(200)


async def test_a_server_that_does_not_close_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "_linger", lambda _self: None)
    assert "the connection has not ended" in await findings()


async def test_a_server_that_does_not_say_why_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "_end_with", lambda self, _error, _correlation: self.close())
    assert "instead of Refused" in await findings()


async def test_a_server_that_answers_another_protocol_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    end_with = ServerConnection._end_with

    def talkative(self: ServerConnection, error: Any, correlation: int) -> None:
        self.outbox.put(b"hm?")
        end_with(self, error, correlation)

    monkeypatch.setattr(ServerConnection, "_end_with", talkative)
    assert "another protocol was answered" in await findings()


async def test_a_server_that_keeps_count_of_the_dead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.protocol.bounds.Share.close", lambda _self: None)
    monkeypatch.setattr("tidelog.protocol.bounds.Share.free", lambda _self, _size: None)
    assert "bytes are held for a connection that is gone" in await findings()


async def test_a_real_server_that_does_not_close_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "_linger", lambda self: self.outbox.flush())
    monkeypatch.setattr(fuzzing, "SOCKET_S_MAX", 0.05)
    report = await fuzzing.fuzz_sockets(SEED, 0, 50)
    assert any("TimeoutError" in failure for failure in report.failures)
