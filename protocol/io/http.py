"""A few pages over HTTP/1.1, for monitoring: one request per connection, GET and HEAD, nothing else.

What it keeps true:

* A page is made when it is asked for, in one go, by a function; nobody who asks can make it wait or hold it.
* Everything is bounded: the bytes of a request, the time until it is whole, the time until the answer is read, the
  number of connections. Whoever exceeds a bound is answered where that is possible, and hung up on.
* What cannot be the beginning of a request is answered at once: who speaks another protocol would wait for that as well.
* Every connection is closed after its answer, and says so: there is nothing to pipeline and nothing to keep.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, cast

from tidelog.protocol.errors import ConnectionFailed

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 8192
LINE_BYTES_MAX: Final = 2048
PATIENCE_S: Final = 5.0
"""How long a request may take to arrive whole, and its answer to be read."""
CONNECTIONS_MAX: Final = 32

_METHODS: Final = ("GET", "HEAD")
_NO_FIRST_LINE: Final = "the first line is not METHOD PATH HTTP/1.1"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class Page(NamedTuple):
    """What is answered."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Pages: TypeAlias = Mapping[str, Callable[[], Page]]
"""A function for each path."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: of its head only the first line matters here."""

    method: str
    path: str


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.page = Page(status, f"{why}\n")


def parse(received: bytes) -> Asked | None:
    """The request whose head is whole; None: more is to come. Refused: it is none."""
    end = received.find(b"\r\n\r\n")
    line_end = received.find(b"\r\n")
    if (line_end if line_end >= 0 else len(received)) > LINE_BYTES_MAX:
        raise Refused(414, f"the first line is longer than {LINE_BYTES_MAX} bytes")
    if (end if end >= 0 else len(received)) > HEAD_BYTES_MAX:
        raise Refused(431, f"the head is longer than {HEAD_BYTES_MAX} bytes")
    if line_end < 0 and not _is_text(received.removesuffix(b"\r")):
        raise Refused(400, _NO_FIRST_LINE)
    asked = _first_line(received[:line_end]) if line_end >= 0 else None
    if end < 0:
        return None
    for header in received[line_end + 2 : end].split(b"\r\n") if end > line_end else ():
        name, colon, _ = header.partition(b":")
        if not colon or not name or name != name.strip() or not header.isascii():
            raise Refused(400, "a header is not NAME: VALUE")
    return asked


def _first_line(line: bytes) -> Asked:
    words = line.split(b" ")
    if len(words) != 3 or not all(words) or not _is_text(line):
        raise Refused(400, _NO_FIRST_LINE)
    method, target, version = (word.decode("ascii") for word in words)
    if not version.startswith("HTTP/"):
        raise Refused(400, _NO_FIRST_LINE)
    if version not in {"HTTP/1.0", "HTTP/1.1"}:
        raise Refused(505, "HTTP/1.0 and HTTP/1.1 are spoken here")
    if not target.startswith("/"):
        raise Refused(400, "the path does not begin with /")
    return Asked(method, target.partition("?")[0])


def _is_text(line: bytes) -> bool:
    return line.isascii() and line.decode("ascii").isprintable()


def answer(asked: Asked, pages: Pages) -> Page:
    """What that request is answered with."""
    make = pages.get(asked.path)
    if make is None:
        return Page(404, f"there are {', '.join(sorted(pages))}\n")
    if asked.method not in _METHODS:
        return Page(405, "GET and HEAD are served\n")
    try:
        return make()
    except Exception:
        logger.exception("http.failed path=%s", asked.path)
        return Page(500, "the page could not be made; the log has the details\n")


def encode(page: Page, *, body: bool) -> bytes:
    """The bytes of an answer, without its body for HEAD."""
    content = page.body.encode("utf-8")
    lines = [
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(content)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if page.status == 405:
        lines.append(f"Allow: {', '.join(_METHODS)}")
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")
    return head + content if body else head


class _Visit(asyncio.Protocol):
    """One connection: a request, an answer, the end."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._received = b""
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.enter(self):
            self._transport.abort()
            return
        self._be_patient(self._too_slow)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._answered = True
        self._server.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # read until the peer hangs up: a reset would take the answer from it
        self._received += data
        try:
            asked = parse(self._received)
        except Refused as refused:
            self._answer(refused.page, body=True)
            return
        if asked is not None:
            self._answer(answer(asked, self._server.pages), body=asked.method != "HEAD")

    def eof_received(self) -> bool:
        if self._answered or not self._received:
            return False
        self._answer(Page(400, "the request ends before its head does\n"), body=True)
        return True

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    def _too_slow(self) -> None:
        self._answer(Page(408, f"the request took longer than {PATIENCE_S:g} s\n"), body=True)

    def _answer(self, page: Page, *, body: bool) -> None:
        self._answered, self._received = True, b""
        self._be_patient(self._transport.abort)
        self._transport.write(encode(page, body=body))
        if self._transport.can_write_eof():
            self._transport.write_eof()  # and wait until the peer has read and closed
        else:
            self._transport.close()

    def _be_patient(self, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, then)


class HttpServer:
    """An open port with a few pages."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.host = ""
        self.port = 0
        self._visits: dict[_Visit, None] = {}
        self._server: asyncio.AbstractServer

    async def open(self, host: str, port: int) -> None:
        """Begin to listen; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        try:
            self._server = server = await loop.create_server(lambda: _Visit(self), host, port)
        except OSError as error:
            raise ConnectionFailed(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.host, self.port = server.sockets[0].getsockname()[:2]

    def close(self) -> None:
        """Accept nobody any more, and hang up on everybody."""
        self._server.close()
        for visit in list(self._visits):
            visit.abort()

    def enter(self, visit: _Visit) -> bool:
        """Somebody has come; False: there is no room."""
        if len(self._visits) >= CONNECTIONS_MAX:
            return False
        self._visits[visit] = None
        return True

    def leave(self, visit: _Visit) -> None:
        """Somebody has gone."""
        self._visits.pop(visit, None)


async def serve_pages(host: str, port: int, pages: Pages) -> HttpServer:
    """Serve these pages at that address; port 0 takes a free one, `HttpServer.port` tells which."""
    server = HttpServer(pages)
    await server.open(host, port)
    return server
