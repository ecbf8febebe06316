"""The pages for monitoring: RFC 9112 as far as one request per connection needs it, and nothing that can be held up."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidelog.protocol.errors import ConnectionFailed
from tidelog.protocol.framing import PREAMBLE
from tidelog.protocol.io import connect, http
from tidelog.protocol.io.http import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    LINE_BYTES_MAX,
    Asked,
    HttpServer,
    Page,
    Refused,
    answer,
    encode,
    parse,
    serve_pages,
)

DEADLINE_S = 10.0


def page() -> Page:
    return Page(200, "grüß\n")


def broken() -> Page:
    raise ValueError("oh")


PAGES = {"/page": page, "/broken": broken}


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("received", "asked"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Asked("GET", "/metrics")),
        (b"HEAD /metrics?a=b HTTP/1.0\r\n\r\n", Asked("HEAD", "/metrics")),
        (b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", Asked("POST", "/")),
        (b"", None),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
        (b"GET /met", None),
    ],
)
def test_a_request_is_its_first_line(received: bytes, asked: Asked | None) -> None:
    assert parse(received) == asked


def test_a_request_that_comes_byte_by_byte_is_the_same() -> None:
    whole = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"
    assert [parse(whole[:n]) for n in range(len(whole))] == [None] * len(whole)
    assert parse(whole) == Asked("GET", "/page")


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (b"\r\n", 400),
        (b"GET /page\r\n\r\n", 400),
        (b"GET  /page HTTP/1.1\r\n\r\n", 400),
        (b"GET page HTTP/1.1\r\n\r\n", 400),
        (b"GET /p\x00ge HTTP/1.1\r\n\r\n", 400),
        (b"GET /p\xc3\xa4ge HTTP/1.1\r\n\r\n", 400),
        (b"TIDE\x01\r\n\r\n", 400),
        (PREAMBLE, 400),
        (b"\x16\x03\x01", 400),
        (b"\0\0\0\x20", 400),
        (b"GET /p\xc3", 400),
        (b"GET /page HTTP/1.1\n", 400),
        (b"\rG", 400),
        (b"GET /page HTTP/2.0\r\n\r\n", 505),
        (b"GET /page HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"G" * (LINE_BYTES_MAX + 1), 414),
        (b"GET /page HTTP/1.1\r\n" + b"a: b\r\n" * HEAD_BYTES_MAX, 431),
    ],
)
def test_what_is_no_request_is_refused(received: bytes, status: int) -> None:
    with pytest.raises(Refused) as raised:
        parse(received)
    assert raised.value.page.status == status


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (Asked("GET", "/page"), 200),
        (Asked("HEAD", "/page"), 200),
        (Asked("GET", "/nowhere"), 404),
        (Asked("DELETE", "/page"), 405),
        (Asked("GET", "/broken"), 500),
    ],
)
def test_answers(asked: Asked, status: int) -> None:
    assert answer(asked, PAGES).status == status


def test_an_answer_counts_its_bytes_and_closes() -> None:
    head, _, body = encode(page(), body=True).partition(b"\r\n\r\n")
    assert body.decode() == "grüß\n"
    assert b"Content-Length: 7" in head.split(b"\r\n")
    assert b"Connection: close" in head.split(b"\r\n")
    assert encode(page(), body=False) == head + b"\r\n\r\n"
    assert b"Allow: GET, HEAD\r\n" in encode(Page(405, ""), body=True)


# ── connections ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = await serve_pages("127.0.0.1", 0, PAGES)
    yield server
    server.close()


async def talk(server: HttpServer, *pieces: bytes, hang_up: bool = False) -> bytes:
    """What comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    if hang_up:
        writer.write_eof()
    received = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    await writer.wait_closed()
    return received


async def test_a_page_is_served_and_the_connection_ends(server: HttpServer) -> None:
    received = await talk(server, b"GET /pa", b"ge HTTP/1.1\r\n", b"\r\n")
    assert received == encode(page(), body=True)


async def test_head_gets_the_head(server: HttpServer) -> None:
    assert await talk(server, b"HEAD /page HTTP/1.1\r\n\r\n") == encode(page(), body=False)


async def test_what_follows_a_request_is_not_served(server: HttpServer) -> None:
    request = b"GET /page HTTP/1.1\r\n\r\n"
    assert (await talk(server, request + request + b"x" * 100_000)).count(b"HTTP/1.1 200 OK") == 1


async def test_garbage_is_answered_and_hung_up_on(server: HttpServer) -> None:
    assert (await talk(server, b"x" * 100_000)).startswith(b"HTTP/1.1 414 ")


async def test_who_takes_a_page_for_a_node_is_told_at_once(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 2 * DEADLINE_S)
    told = f"^127.0.0.1:{server.port} does not speak tidelog's protocol: HTTP is spoken there"
    with pytest.raises(ConnectionFailed, match=told):
        await connect("127.0.0.1", server.port, timeout_ms=DEADLINE_S * 1000)


async def test_half_a_request_is_answered(server: HttpServer) -> None:
    assert (await talk(server, b"GET /page", hang_up=True)).startswith(b"HTTP/1.1 400 ")
    assert await talk(server, hang_up=True) == b""


async def test_who_is_slow_to_ask_is_told_and_hung_up_on(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    assert (await talk(server, b"GET /page HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")


async def test_who_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    server = await serve_pages("127.0.0.1", 0, {"/large": lambda: Page(200, "x" * (64 << 20))})
    _reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
    writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        while not server._visits:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0)
        while server._visits:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.01)
    writer.close()
    server.close()


async def test_there_is_room_for_so_many_and_again_when_they_have_gone(server: HttpServer) -> None:
    idle = [await asyncio.open_connection(server.host, server.port) for _ in range(CONNECTIONS_MAX)]
    assert await _or_nothing(server) == b""
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(DEADLINE_S):
        while not (await _or_nothing(server)).startswith(b"HTTP/1.1 200"):  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.01)


async def _or_nothing(server: HttpServer) -> bytes:
    try:
        return await talk(server, b"GET /page HTTP/1.1\r\n\r\n")
    except ConnectionError:
        return b""
