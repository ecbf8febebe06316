"""What a connection has to send: frames gathered, written together, and counted while nobody reads them.

What it keeps true:

* Frames leave in the order they were put, and a frame is never torn by another.
* One write per burst: what is put during one callback leaves with one `flush`, or with one for each `BURST_FRAMES`.
* The transport holds at most `write_high_bytes` and one burst. While it holds more than it may, frames wait
  here, counted in `unsent_bytes`.
* Memory that could change is copied before `put` returns; nothing is written to a transport that is closing
  (uvloop raises RuntimeError for it).
"""

import asyncio
from typing import Final

from tidelog.protocol.framing import JOIN_BELOW_BYTES, LENGTHS, PREAMBLE, frame_start, gather
from tidelog.protocol.limits import Limits
from tidelog.protocol.types import Buffer

BURST_FRAMES: Final = 8
"""So many frames are worth a write of their own: the peer begins with them while the rest of the burst is made (ADR 22)."""
_BURST_BYTES: Final = 512 * 1024
"""A burst above this is handed to the transport in pieces, so that it can say when it has enough."""


class Outbox:
    """The sending half of a connection. Its owner passes pause_writing and resume_writing on."""

    __slots__ = (
        "_has_large",
        "_limits",
        "_parts",
        "_transport",
        "closing",
        "frames",
        "paused",
        "sent_bytes",
        "unsent_bytes",
    )

    def __init__(self, transport: asyncio.Transport, limits: Limits) -> None:
        self._transport = transport
        self._limits = limits
        self._parts: list[Buffer] = []
        self._has_large = False
        self.frames = 0
        """How many were put since the last flush."""
        self.unsent_bytes = 0
        """Bytes put and not yet handed to the transport."""
        self.sent_bytes = 0
        """Bytes handed to the transport."""
        self.paused = False
        """Whether the transport has enough for now."""
        self.closing = False
        transport.set_write_buffer_limits(high=limits.write_high_bytes)

    def put_preamble(self) -> None:
        """The first thing that is sent."""
        self._parts.append(PREAMBLE)
        self.unsent_bytes += len(PREAMBLE)

    def put(self, head: bytes, attachments: tuple[Buffer, ...] = ()) -> None:
        """One more frame, to leave with the next flush.

        `bytes`, `bytearray` and read-only views of at least 64 KB are sent from where they are: they must
        not change any more. A writable view may be one of a receive buffer and is copied.
        """
        self.frames += 1
        if not attachments:
            size = len(head)
            self._parts += (LENGTHS.pack(size + 4, size), head)
            self.unsent_bytes += size + 8
            return
        attached = 0
        kept: list[Buffer] = []
        for attachment in attachments:
            attached += len(attachment)
            if len(attachment) < JOIN_BELOW_BYTES:
                kept.append(attachment if type(attachment) is bytes else bytes(attachment))
                continue
            self._has_large = True
            writable = type(attachment) is memoryview and not attachment.readonly
            kept.append(bytes(attachment) if writable else attachment)
        start = frame_start(head, attached)
        self._parts.append(start)
        self._parts += kept
        self.unsent_bytes += len(start) + attached

    def flush(self) -> None:
        """Write what was put, as far as the transport takes it."""
        if self.paused or not self._parts:
            return
        self.frames = 0
        if self._transport.is_closing():
            self.drop()
        elif not self._has_large and self.unsent_bytes < _BURST_BYTES:
            self.sent_bytes += self.unsent_bytes
            parts, self._parts, self.unsent_bytes = self._parts, [], 0
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            self._flush_in_pieces()

    def _flush_in_pieces(self) -> None:
        parts, self._parts = gather(self._parts), []
        at = 0
        while at < len(parts) and not self.paused:
            begin, size = at, 0
            while at < len(parts) and size < _BURST_BYTES:
                size += len(parts[at])
                at += 1
            self.unsent_bytes -= size
            self.sent_bytes += size
            # May call pause_writing, and that may close the connection.
            self._transport.writelines(parts[begin:at])
            if self._transport.is_closing():
                self.drop()
                return
        self._parts = parts[at:] + self._parts
        self._has_large = bool(self._parts)

    def pause(self) -> None:
        """The transport has enough."""
        self.paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self.paused = False
        self.flush()
        if self.closing and not self._parts:
            self._transport.close()

    def close(self) -> None:
        """Send what there is, then close."""
        self.closing = True
        self.flush()
        if not self._parts:
            self._transport.close()

    def drop(self) -> None:
        """Nothing more is sent."""
        self._parts = []
        self._has_large = False
        self.unsent_bytes = 0
