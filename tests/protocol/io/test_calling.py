"""A call brings back its reply, or says why not."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from tests.protocol.io.peers import ANSWER, ASK, Node, saying, until
from tests.protocol.test_hosts import NONE
from tidelog.protocol.errors import (
    ConnectionFailed,
    InvalidRequest,
    MessageTooLarge,
    NotLeaderOrFollower,
    RequestTimedOut,
    Throttled,
    TidelogError,
    UnknownServerError,
    UnsupportedVersion,
)
from tidelog.protocol.io import Incoming, client, connect
from tidelog.protocol.io.outbox import BURST_FRAMES
from tidelog.protocol.limits import Limits
from tidelog.protocol.messages import Hello, Reply, Welcome

LARGE = bytes(range(256)) * 4096


def echo(request: Incoming) -> None:
    request.reply(ANSWER, request.attachment)


async def test_hello_is_answered_in_the_round_trip_that_connects(node: Node) -> None:
    connection = await node.connect(hello=Hello(client_id="me"))
    assert connection.welcome.node_id == 1


@pytest.mark.parametrize(("host", "port"), [*((host, 9092) for host in NONE if host), ("127.0.0.1", 70_000)])
async def test_an_address_that_is_none_is_a_connection_that_fails(host: str, port: int) -> None:
    """A peer has told it, and a node that knows it must not end for it."""
    with pytest.raises(ConnectionFailed):
        await connect(host, port)


@pytest.mark.parametrize("attachment", [b"", b"small", bytes(70_000), LARGE])
async def test_a_call_brings_back_reply_and_attachment(node: Node, attachment: bytes) -> None:
    node.handler = echo
    connection = await node.connect()
    reply, attached = await connection.call(ASK, attachment)
    assert reply == ANSWER
    assert attached == attachment


async def test_a_reply_outlives_the_replies_behind_it(node: Node) -> None:
    node.handler = echo
    connection = await node.connect()
    contents = [bytes((number,)) * size for number in range(20) for size in (10, 200_000)]
    attached = [(await connection.call(ASK, content))[1] for content in contents]
    assert attached == contents


async def test_an_attachment_may_come_in_parts(node: Node) -> None:
    node.handler = echo
    connection = await node.connect()
    _, attached = await connection.call(ASK, b"one", LARGE, bytearray(b"two"), memoryview(b"three"))
    assert attached == b"one" + LARGE + b"two" + b"three"


async def test_a_request_that_cannot_be_written_is_refused_and_nobody_owes_an_answer(node: Node) -> None:
    node.handler = echo
    connection = await node.connect()
    for wrong in (Hello(client_id="\udc80"), Hello(client_id=2**64), Hello(client_id=object())):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="Hello cannot be written: "):
            await connection.call(wrong)
    assert connection.oldest is None
    assert connection.silent_since_ms is None
    assert (await connection.call(ASK))[0] == ANSWER


async def test_replies_may_come_in_any_order(node: Node) -> None:
    connection = await node.connect()
    calls = [asyncio.ensure_future(connection.call(ASK)) for _ in range(3)]
    await until(lambda: len(node.waiting) == 3, "the requests have arrived")
    for number, request in reversed(list(enumerate(node.waiting))):
        request.reply(ANSWER, bytes((number,)))
    assert [bytes(attached) for _, attached in await asyncio.gather(*calls)] == [b"\0", b"\1", b"\2"]


async def test_a_burst_leaves_every_few_frames_so_that_the_peer_can_begin(node: Node) -> None:
    """And what is left of it behind the last one."""
    connection = await node.connect()
    requests, answers, count = [], [], 2 * BURST_FRAMES + 3
    for number in range(1, count + 1):
        connection.send(ASK, on_reply=lambda *_: None)
        requests += [number] * (connection._outbox.frames == 0)
    assert requests == [1, 1 + BURST_FRAMES, 1 + 2 * BURST_FRAMES], "the first one is alone"
    await until(lambda: len(node.waiting) == count, "the rest has left as well")
    for number, request in enumerate(node.waiting, 1):
        request.reply(ANSWER)
        answers += [number] * (request.connection.outbox.frames == 0)
    assert answers == [BURST_FRAMES, 2 * BURST_FRAMES, count], "behind the last nothing is owed"
    await until(lambda: not connection.in_flight, "all answers have come")


async def test_what_is_answered_as_it_is_read_leaves_so_as_well(node: Node) -> None:
    put: list[int] = []

    def answer(request: Incoming) -> None:
        request.reply(ANSWER)
        put.append(request.connection.outbox.frames)

    node.handler = answer
    connection = await node.connect()
    for _ in range(1 + 2 * BURST_FRAMES):
        connection.send(ASK, on_reply=lambda *_: None)
    await until(lambda: not connection.in_flight, "all answers have come")
    assert max(put) == BURST_FRAMES - 1


async def test_a_refused_call_raises_what_the_handler_raised(node: Node) -> None:
    def refuse(_request: Incoming) -> None:
        raise NotLeaderOrFollower("broker 2 leads orders-0 since epoch 7")

    node.handler = refuse
    connection = await node.connect()
    with pytest.raises(NotLeaderOrFollower, match="broker 2 leads orders-0 since epoch 7"):
        await connection.call(ASK)


async def test_an_unforeseen_error_is_answered_and_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_request: Incoming) -> None:
        raise ZeroDivisionError("a secret")

    node.handler = fail
    connection = await node.connect()
    with pytest.raises(UnknownServerError, match="InitProducerId met an error"):
        await connection.call(ASK)
    assert "a secret" in caplog.text


async def test_a_call_that_is_not_answered_ends_at_its_deadline(node: Node) -> None:
    connection = await node.connect()
    with pytest.raises(RequestTimedOut, match=r"127.0.0.1:\d+ did not answer InitProducerId in 20 ms"):
        await connection.call(ASK, timeout_ms=20)
    node.handler = echo
    await connection.call(ASK)


async def test_a_shorter_deadline_is_not_kept_waiting_by_a_longer_one(node: Node) -> None:
    connection = await node.connect()
    long = asyncio.ensure_future(connection.call(ASK, timeout_ms=60_000))
    await until(lambda: node.waiting, "the request has arrived")
    with pytest.raises(RequestTimedOut):
        await connection.call(ASK, timeout_ms=20)
    assert not long.done()
    node.waiting[0].reply(ANSWER)
    await long


async def test_a_late_reply_is_dropped(node: Node) -> None:
    connection = await node.connect()
    with pytest.raises(RequestTimedOut):
        await connection.call(ASK, timeout_ms=20)
    node.handler = echo
    node.waiting[0].reply(ANSWER, LARGE)
    assert (await connection.call(ASK, b"x"))[1] == b"x"


async def test_a_cancelled_call_leaves_nothing_behind(node: Node) -> None:
    connection = await node.connect()
    call = asyncio.ensure_future(connection.call(ASK))
    await until(lambda: node.waiting, "the request has arrived")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert connection.in_flight == 0
    node.waiting[0].reply(ANSWER)
    node.handler = echo
    await connection.call(ASK)


async def test_a_broken_connection_ends_every_call(node: Node) -> None:
    connection = await node.connect()
    calls = [asyncio.ensure_future(connection.call(ASK)) for _ in range(3)]
    await until(lambda: len(node.waiting) == 3, "the requests have arrived")
    node.waiting[0].connection.abort("a test")
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionFailed] * 3
    assert len({id(result) for result in results}) == 3
    with pytest.raises(ConnectionFailed, match="is closed"):
        await connection.call(ASK)


async def test_closing_a_connection_ends_its_calls(node: Node) -> None:
    connection = await node.connect()
    call = asyncio.ensure_future(connection.call(ASK))
    await until(lambda: node.waiting, "the request has arrived")
    connection.close()
    with pytest.raises(ConnectionFailed, match="closed by this side"):
        await call
    await until(lambda: node.waiting[0].closed, "the node has noticed")
    node.waiting[0].reply(ANSWER)


async def test_who_wants_to_know_is_told_once_that_the_connection_ended(node: Node) -> None:
    connection = await node.connect()
    told: list[TidelogError] = []
    connection.on_closed = told.append
    node.listener.close()
    await until(lambda: told, "the end was noticed")
    connection.close()
    await connection.wait_closed()
    assert len(told) == 1


async def test_a_callback_is_told_the_reply(node: Node) -> None:
    node.handler = echo
    connection = await node.connect()
    told: list[tuple[Reply | TidelogError, bytes]] = []
    for content in (b"small", LARGE):
        connection.send(ASK, content, on_reply=lambda reply, attached: told.append((reply, bytes(attached))))
    await until(lambda: len(told) == 2, "the replies have come")
    assert told == [(ANSWER, b"small"), (ANSWER, LARGE)]


async def test_a_callback_is_told_errors_too(node: Node) -> None:
    connection = await node.connect()
    told: list[type] = []
    connection.send(ASK, on_reply=lambda reply, _: told.append(type(reply)), timeout_ms=20)
    await until(lambda: told, "the deadline has come")
    connection.send(ASK, on_reply=lambda reply, _: told.append(type(reply)))
    connection.close()
    assert told == [RequestTimedOut, ConnectionFailed]


async def test_a_callback_that_fails_hurts_nobody_else(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.handler = echo
    connection = await node.connect()
    connection.send(ASK, on_reply=lambda reply, _attached: getattr(reply, "nothing"))  # noqa: B009
    await connection.call(ASK)
    assert "AttributeError" in caplog.text


async def test_one_way_requests_are_not_answered(node: Node) -> None:
    connection = await node.connect()
    connection.send(ASK, b"content")
    connection.send(ASK, LARGE)
    await until(lambda: len(node.waiting) == 2, "the requests have arrived")
    assert all(request.one_way for request in node.waiting)
    node.waiting[0].reply(ANSWER)
    node.handler = echo
    await connection.call(ASK)


async def test_an_address_where_nobody_listens_is_named_with_the_cause(
    closed_port: Callable[[], int],
) -> None:
    port = closed_port()
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}: .*refused") as failed:
        await connect("127.0.0.1", port)
    assert isinstance(failed.value.__cause__, ConnectionRefusedError)


async def test_a_node_that_says_nothing_is_given_up_in_time() -> None:
    async with saying(b"") as port:
        with pytest.raises((ConnectionFailed, RequestTimedOut), match=f"127.0.0.1:{port}"):
            await connect("127.0.0.1", port, timeout_ms=30)


async def test_a_peer_of_another_protocol_is_recognised() -> None:
    async with saying(b"HTTP/1.1 400\r\n") as port:
        with pytest.raises(ConnectionFailed, match=r"does not speak tidelog's protocol: .*HTTP"):
            await connect("127.0.0.1", port)


async def test_a_peer_of_another_version_is_named_with_both_versions() -> None:
    async with saying(b"TIDE\x02") as port:
        with pytest.raises(UnsupportedVersion, match=r"version 2 .* version 1"):
            await connect("127.0.0.1", port)


async def test_a_request_that_the_node_would_not_take_is_not_sent() -> None:
    async with Node(welcome=Welcome(frame_bytes_max=100_000)) as node:
        connection = await node.connect()
        with pytest.raises(MessageTooLarge, match=r"100001 bytes, .* takes 100000"):
            await connection.call(ASK, bytes(100_001))


async def test_a_client_does_not_pile_up_requests_that_nobody_reads(node: Node) -> None:
    connection = await node.connect(Limits(write_high_bytes=10_000, max_unsent_bytes=500_000))
    await connection.call(Hello())
    next(iter(node.listener.connections))._transport.pause_reading()
    while connection.writable:
        connection.send(ASK, LARGE)
    connection.send(ASK, LARGE)
    with pytest.raises(Throttled, match="are unsent, the limit is 500000"):
        connection.send(ASK, LARGE)
    connection.abort()


async def test_cancelling_a_connect_leaves_no_socket() -> None:
    async with saying(b"") as port:
        attempt = asyncio.ensure_future(connect("127.0.0.1", port))
        await until(lambda: len(asyncio.all_tasks()) > 1, "the attempt has begun")
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


def test_a_name_with_several_addresses_that_all_refuse_is_refused() -> None:
    tried = (
        "Multiple exceptions: [Errno {}] Connect call failed ('::1', 1, 0, 0), [Errno {}] Connect call failed"
    )
    refused = client._one(OSError(tried.format(errno.ECONNREFUSED, errno.ECONNREFUSED)))
    assert isinstance(refused, ConnectionRefusedError)
    differ = OSError(tried.format(errno.ECONNREFUSED, errno.ENETUNREACH))
    assert client._one(differ) is differ, "whoever cannot be reached on one of them may live"
