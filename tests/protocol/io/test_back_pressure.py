"""A node does not read what it cannot hold, and reads on when it can."""

import asyncio
import logging

import pytest

from tests.protocol.io.peers import ANSWER, ASK, Node, RawPeer, frame_of, until
from tidelog.protocol.framing import GLIMPSE_BYTES
from tidelog.protocol.io import Incoming
from tidelog.protocol.limits import Limits

KB = 1000
NARROW = Limits(
    max_frame_bytes=300 * KB,
    max_head_bytes=10 * KB,
    max_request_bytes=400 * KB,
    connection_allowance_bytes=10 * KB,
    max_requests_in_flight=8,
    write_high_bytes=50 * KB,
    max_unsent_bytes=2000 * KB,
    linger_ms=100,
    send_timeout_ms=150,
)


async def test_no_more_requests_are_read_than_may_be_unanswered() -> None:
    async with Node(NARROW) as node, await RawPeer.to(node.port, greeted=True) as peer:
        peer.send(*(frame_of(number, ASK) for number in range(1, 101)))
        await until(lambda: len(node.waiting) >= 8, "the first requests have arrived")
        for number in range(1, 101):
            await until(lambda: node.waiting, "the next request has arrived")
            assert len(node.waiting) <= 8
            request = node.waiting.pop(0)
            assert request.correlation == number
            request.reply(ANSWER)


async def test_a_large_frame_is_read_only_when_there_is_room() -> None:
    async with Node(NARROW) as node:
        peers = [await RawPeer.to(node.port, greeted=True) for _ in range(3)]
        for peer in peers:
            peer.send(frame_of(1, ASK, bytes(250 * KB)))
        await until(lambda: node.waiting and len(node.bounds.waiters) == 2, "one is in, two wait")
        for _ in peers:
            await until(lambda: node.waiting, "the next is read")
            assert node.bounds.used_bytes <= NARROW.max_request_bytes
            node.waiting.pop().reply(ANSWER)
            assert not node.waiting
        for peer in peers:
            assert await peer.reply() == (1, ANSWER)
            await peer.close()


async def test_small_requests_are_read_while_large_ones_wait() -> None:
    """A follower's fetch is what the produce requests that fill the node are waiting for."""
    async with Node(NARROW) as node:
        producers = [await RawPeer.to(node.port, greeted=True) for _ in range(3)]
        for producer in producers:
            producer.send(frame_of(1, ASK, bytes(250 * KB)))
        await until(lambda: len(node.bounds.waiters) == 2, "the node is full")
        async with await RawPeer.to(node.port, greeted=True) as follower:
            follower.send(frame_of(77, ASK))
            await until(lambda: len(node.waiting) == 2, "the small request has arrived")
            assert node.waiting[1].correlation == 77
        for producer in producers:
            await producer.close()


async def test_a_peer_that_others_wait_for_may_be_given_more() -> None:
    def favour(request: Incoming) -> None:
        request.connection.share.allowance = NARROW.max_frame_bytes
        node.waiting.append(request)

    async with Node(NARROW) as node, await RawPeer.to(node.port, greeted=True) as peer:
        node.handler = favour
        peer.send(frame_of(1, ASK), frame_of(2, ASK, bytes(250 * KB)))
        await until(lambda: len(node.waiting) == 2, "both have arrived")
        assert node.bounds.used_bytes == 0


async def test_a_connection_that_ends_makes_room_for_those_who_wait() -> None:
    async with Node(NARROW) as node:
        first = await RawPeer.to(node.port, greeted=True)
        first.send(frame_of(1, ASK, bytes(290 * KB))[:-1])
        await until(lambda: node.bounds.used_bytes > 0, "its frame has begun")
        async with await RawPeer.to(node.port, greeted=True) as second:
            second.send(frame_of(2, ASK, bytes(290 * KB)))
            await until(lambda: node.bounds.waiters, "the second waits")
            await first.close()
            await until(lambda: node.waiting, "the second has arrived")


async def test_requests_of_one_connection_wait_for_each_other_in_order() -> None:
    async with Node(NARROW) as node:
        connection = await node.connect()
        calls = [asyncio.ensure_future(connection.call(ASK, bytes((n,)) * 100 * KB)) for n in range(12)]
        numbers = []
        for _ in range(12):
            await until(lambda: node.waiting, "the next request has arrived")
            request = node.waiting.pop(0)
            numbers.append(request.correlation)
            request.reply(ANSWER)
        await asyncio.gather(*calls)
        assert numbers == sorted(numbers)


async def test_who_does_not_read_is_not_read_from() -> None:
    def answer_much(request: Incoming) -> None:
        served.append(request)
        request.reply(ANSWER, bytes(200 * KB))

    served: list[Incoming] = []
    async with Node(NARROW) as node, await RawPeer.to(node.port, greeted=True) as peer:
        node.handler = answer_much
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(*(frame_of(number, ASK) for number in range(1, 501)))
        await until(lambda: served and served[0].connection.outbox.paused, "the node has stopped")
        assert len(served) < 500
        assert served[0].connection.outbox.unsent_bytes <= NARROW.max_unsent_bytes
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(1, 501):
            assert (await peer.reply())[0] == number


async def test_who_does_not_read_for_too_long_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Node(NARROW) as node, await RawPeer.to(node.port, greeted=True) as peer:
        node.handler = lambda request: request.reply(ANSWER, bytes(200 * KB))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(*(frame_of(number, ASK) for number in range(1, 501)))
        await until(lambda: not node.listener.connections, "the connection was cut off")
        assert "the peer did not read for" in caplog.text


async def test_late_answers_do_not_pile_up_for_who_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    limits = Limits(write_high_bytes=50 * KB, max_unsent_bytes=2000 * KB)
    async with Node(limits) as node, await RawPeer.to(node.port, greeted=True) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(*(frame_of(number, ASK) for number in range(1, 201)))
        await until(lambda: len(node.waiting) == 200, "the requests have arrived")
        for request in node.waiting:
            request.reply(ANSWER, bytes(200 * KB))
            assert request.connection.outbox.unsent_bytes <= limits.max_unsent_bytes + 201 * KB
        await until(lambda: not node.listener.connections, "the connection was cut off")
        assert "bytes are unsent, the limit is 2000000" in caplog.text


async def test_what_waits_behind_full_connections_is_bounded_for_the_whole_node() -> None:
    limits = Limits(max_requests_in_flight=1, max_held_back_bytes=20 * KB, receive_buffer_bytes=64 * 1024)
    async with Node(limits) as node:
        peers = [await RawPeer.to(node.port, greeted=True) for _ in range(8)]
        for peer in peers:
            peer.send(frame_of(1, ASK) * 5000)
        await until(lambda: len(node.waiting) == 8, "each has one request in")
        assert 0 < node.bounds.held_back_bytes <= 20 * KB + 64 * 1024 + 7 * GLIMPSE_BYTES
        for peer in peers:
            await peer.close()


async def test_who_passes_the_nodes_limit_of_unsent_bytes_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    limits = Limits(write_high_bytes=50 * KB, max_unsent_bytes=9000 * KB, max_node_unsent_bytes=10_000 * KB)
    async with Node(limits) as node:
        peers = [await RawPeer.to(node.port, greeted=True) for _ in range(2)]
        for peer in peers:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(*(frame_of(number, ASK) for number in range(1, 61)))
        await until(lambda: len(node.waiting) == 120, "the requests have arrived")
        for request in node.waiting:
            request.reply(ANSWER, bytes(200 * KB))
        await until(lambda: len(node.listener.connections) == 1, "one was cut off")
        assert "unsent to all peers, the limit is 10000000" in caplog.text
        for peer in peers:
            await peer.close()


async def test_large_replies_arrive_whole_and_in_order_through_a_narrow_pipe() -> None:
    async with Node(NARROW) as node:
        node.handler = lambda request: request.reply(ANSWER, request.attachment)
        connection = await node.connect(Limits(write_high_bytes=10 * KB))
        contents = [bytes((number,)) * (number % 7 * 40 * KB + 1) for number in range(60)]
        replies = await asyncio.gather(*(connection.call(ASK, content) for content in contents))
        assert [attached for _, attached in replies] == contents
