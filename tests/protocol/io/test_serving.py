"""What a node does with peers that keep to the protocol, and with those that do not."""

import asyncio
import logging

import pytest

from tests.protocol.io.peers import ANSWER, ASK, Node, RawPeer, frame_of, until
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import BY_CODE, ConnectionFailed, Throttled
from tidelog.protocol.framing import LENGTHS, PREAMBLE, encode_frame
from tidelog.protocol.io import Incoming, connect, listen
from tidelog.protocol.limits import Limits
from tidelog.protocol.messages import Hello, InitProducerId, Refused, Welcome

IMPATIENT = Limits(
    hello_timeout_ms=40, frame_timeout_ms=40, idle_timeout_ms=400, linger_ms=40, send_timeout_ms=100
)


def error_name(refused: Refused) -> str:
    return BY_CODE[refused.error].name()


async def test_the_node_answers_preamble_and_hello(node: Node) -> None:
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(5, ASK))
        await until(lambda: node.waiting, "the request has arrived")
        node.waiting[0].reply(ANSWER)
        assert await peer.reply() == (5, ANSWER)


async def test_the_preamble_is_answered_even_if_hello_comes_later(node: Node) -> None:
    async with await RawPeer.to(node.port) as peer:
        peer.send(PREAMBLE)
        assert await peer.preamble() == PREAMBLE


@pytest.mark.parametrize("opening", [b"G", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10\0\0\0\0", b"TIDX"])
async def test_another_protocol_is_closed_without_a_word(node: Node, opening: bytes) -> None:
    async with await RawPeer.to(node.port) as peer:
        peer.send(opening)
        assert await peer.ended()


async def test_another_version_is_answered_with_ours_and_closed() -> None:
    async with Node(IMPATIENT) as node, await RawPeer.to(node.port) as peer:
        peer.send(b"TIDE\x07", frame_of(1, Hello()))
        assert await peer.preamble() == PREAMBLE
        assert await peer.ended()


async def test_the_first_request_has_to_be_hello(node: Node) -> None:
    async with await RawPeer.to(node.port) as peer:
        peer.send(PREAMBLE, frame_of(3, ASK))
        await peer.preamble()
        refused = await peer.refusal()
        assert error_name(refused) == "INVALID_REQUEST"
        assert "InitProducerId instead of Hello" in refused.message
    assert not node.waiting


@pytest.mark.parametrize(
    ("malformed", "fact"),
    [
        (LENGTHS.pack(2**31, 10), "above the limit of 16777216"),
        (LENGTHS.pack(10, 20), "cannot hold a head of 20 bytes"),
        (b"".join(map(bytes, encode_frame(b"\xc1"))), "cannot be read"),
    ],
)
async def test_malformed_frames_are_answered_and_the_connection_closed(malformed: bytes, fact: str) -> None:
    async with Node(IMPATIENT) as node, await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(malformed, frame_of(9, ASK))
        refused = await peer.refusal()
        assert error_name(refused) == "MALFORMED_FRAME"
        assert fact in refused.message
        assert await peer.ended()
        assert not node.waiting


async def test_a_request_from_the_future_is_refused_and_the_connection_goes_on(node: Node) -> None:
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(*map(bytes, encode_frame(b"\x92\x08\x91\x7f")))
        correlation, refused = await peer.reply()
        assert isinstance(refused, Refused)
        assert (correlation, error_name(refused)) == (8, "UNSUPPORTED_VERSION")
        peer.send(frame_of(9, Hello()))
        assert (await peer.reply())[0] == 9


async def test_requests_of_one_read_are_served_in_order(node: Node) -> None:
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(*(frame_of(number, ASK) for number in range(1, 100)))
        await until(lambda: len(node.waiting) == 99, "the requests have arrived")
        assert [request.correlation for request in node.waiting] == list(range(1, 100))


async def test_an_attachment_cannot_be_used_after_the_call(node: Node) -> None:
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(1, ASK, bytes(100_000)))
        await until(lambda: node.waiting, "the request has arrived")
        with pytest.raises(ValueError, match="released"):
            bytes(node.waiting[0].attachment)


async def test_answering_twice_is_a_mistake_of_ours(node: Node) -> None:
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(1, ASK))
        await until(lambda: node.waiting, "the request has arrived")
        node.waiting[0].reply(ANSWER)
        with pytest.raises(AssertionError, match="answered twice"):
            node.waiting[0].reply(ANSWER)


async def test_a_handler_is_told_when_its_peer_is_gone(node: Node) -> None:
    told: list[str] = []
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(1, ASK))
        await until(lambda: node.waiting, "the request has arrived")
        node.waiting[0].connection.on_closed(lambda: told.append("gone"))
    await until(lambda: told, "the handler was told")
    assert node.waiting[0].closed
    node.waiting[0].reply(ANSWER)


async def test_a_handler_may_cut_the_connection_off(node: Node) -> None:
    served: list[Incoming] = []

    def cut(request: Incoming) -> None:
        served.append(request)
        request.connection.abort("a test")
        request.reply(ANSWER)

    node.handler = cut
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(1, ASK), frame_of(2, ASK), frame_of(3, ASK))
        assert await peer.ended()
    assert len(served) == 1


async def test_a_listener_that_closes_sends_what_was_answered(node: Node) -> None:
    def answer_and_close(request: Incoming) -> None:
        request.reply(ANSWER)
        node.listener.close()

    node.handler = answer_and_close
    async with await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(frame_of(1, ASK))
        assert await peer.reply() == (1, ANSWER)
        assert await peer.ended()
    await node.listener.wait_closed()


async def test_an_address_in_use_is_named(node: Node) -> None:
    with pytest.raises(ConnectionFailed, match=f"cannot listen on 127.0.0.1:{node.port}: .*in use"):
        await listen("127.0.0.1", node.port, lambda _request: None)


async def test_one_connection_too_many_is_told_the_numbers() -> None:
    async with Node(Limits(max_connections=1)) as node:
        first = await node.connect()
        with pytest.raises(Throttled, match="1 connections are open, the limit is 1"):
            await node.connect()
        first.close()
        await until(lambda: node.bounds.connections == 0, "the first has left")
        await node.connect()


async def test_too_many_refused_connections_are_cut_off() -> None:
    async with Node(Limits(max_connections=1, max_lingering_connections=1, linger_ms=50)) as node:
        await node.connect()
        async with await RawPeer.to(node.port) as told, await RawPeer.to(node.port) as cut:
            assert await cut.ended()
            assert await told.preamble() == PREAMBLE
            assert error_name(await told.refusal()) == "THROTTLED"
            assert await told.ended()
        await until(lambda: node.listener.lingering == 0, "nobody lingers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "did not say hello"),
        ([PREAMBLE], "did not say hello"),
        ([PREAMBLE, frame_of(1, Hello()), frame_of(2, ASK, bytes(100_000))[:-1]], "a frame was incomplete"),
        ([PREAMBLE, frame_of(1, Hello()), b"\0"], "a frame was incomplete"),
        ([PREAMBLE, frame_of(1, Hello())], "the peer was silent"),
    ],
)
async def test_nobody_is_waited_for_for_ever(
    words: list[bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with Node(IMPATIENT) as node, await RawPeer.to(node.port) as peer:
        peer.send(*words)
        assert not (await peer.ended() and node.listener.connections)
        assert reason in caplog.text


async def test_many_listeners_share_the_bounds_of_their_node() -> None:
    bounds = Bounds(Limits(max_connections=1))
    listeners = [await listen("127.0.0.1", 0, lambda r: r.reply(Welcome()), bounds) for _ in range(2)]
    connection = await connect("127.0.0.1", listeners[0].port)
    with pytest.raises(Throttled):
        await connect("127.0.0.1", listeners[1].port)
    connection.close()
    for listener in listeners:
        listener.close()
        await listener.wait_closed()


async def test_two_nodes_call_each_other_at_once(node: Node) -> None:
    node.handler = lambda request: request.reply(ANSWER, request.attachment)
    connections = [await node.connect() for _ in range(10)]
    contents = [bytes((number,)) * (number * 30_000) for number in range(10)]
    calls = [connection.call(InitProducerId(), content) for connection in connections for content in contents]
    attached = [content for _, content in await asyncio.gather(*calls)]
    assert attached == contents * 10


async def test_whoever_comes_in_by_another_address_is_known_by_its_name() -> None:
    by: list[str] = []

    def answer(request: Incoming) -> None:
        by.append(request.connection.came_in_by)
        request.reply(Welcome())

    listener = await listen("127.0.0.1", 0, answer)
    _, port = await listener.also("outside", "127.0.0.1", 0)
    for at in (listener.port, port, listener.port):
        (await connect("127.0.0.1", at)).close()
    assert by == ["", "outside", ""]
    listener.close()
    await listener.wait_closed()
    with pytest.raises(ConnectionFailed):
        await connect("127.0.0.1", port)


async def test_another_address_that_is_taken_is_refused_and_the_first_goes_on(node: Node) -> None:
    listener = await listen("127.0.0.1", 0, lambda request: request.reply(Welcome()))
    with pytest.raises(ConnectionFailed, match=f"cannot listen on 127.0.0.1:{node.port}"):
        await listener.also("outside", "127.0.0.1", node.port)
    (await connect("127.0.0.1", listener.port)).close()
    listener.close()
    await listener.wait_closed()
