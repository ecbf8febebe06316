"""How long a node waits for one peer: a pure machine that is shown a connection from time to time.

What it keeps true: of the four waits at most one runs, each begins when it is first seen, ends with progress,
and none counts time in which this node itself did not read.

    last words     the connection is closing: the peer may read why, for `linger_ms`
    sending        the peer does not read what is sent to it, for `send_timeout_ms`
    receiving      a frame has begun and does not end, for `frame_timeout_ms` (the first: `hello_timeout_ms`)
    silence        nothing arrives and nothing is owed, for `idle_timeout_ms`
"""

from typing import NamedTuple

from tidelog.protocol.limits import Limits


class Sight(NamedTuple):
    """What a connection looks like at one moment."""

    closing: bool
    """It says its last words."""

    not_reading: bool
    """This node has chosen not to read from it."""

    clogged: bool
    """The peer has stopped reading: the transport holds as much as it may."""

    drains: int
    """How often that has ended."""

    frames: int
    """How many frames have arrived."""

    in_frame: bool
    """Whether one has begun and not ended."""

    reads: int
    """How often anything has arrived."""

    unanswered: int
    """Requests that this node has not answered yet."""


class Patience:
    """One connection's waits."""

    __slots__ = ("_limits", "_since_ms", "_waiting")

    def __init__(self, limits: Limits, now_ms: float) -> None:
        self._limits = limits
        self._since_ms = now_ms
        self._waiting: tuple[str, int] = ("", 0)

    def look(self, now_ms: float, sight: Sight) -> str:
        """Why to give up on the peer; empty: go on."""
        waiting, limit_ms, reason = self._wait_of(sight)
        if waiting != self._waiting:
            self._waiting, self._since_ms = waiting, now_ms
        waited_ms = now_ms - self._since_ms
        return (
            f"{reason} for {waited_ms:.0f} ms, the limit is {limit_ms}" if waited_ms >= limit_ms > 0 else ""
        )

    def _wait_of(self, sight: Sight) -> tuple[tuple[str, int], int, str]:
        """Which wait this is (with what makes progress), its limit (0: none) and its name for the log."""
        limits = self._limits
        if sight.closing:
            return ("closing", 0), limits.linger_ms, "the peer kept the closing connection open"
        if sight.clogged:
            return ("clogged", sight.drains), limits.send_timeout_ms, "the peer did not read"
        if sight.not_reading:
            return ("", 0), 0, ""
        if not sight.frames:
            return ("hello", 0), limits.hello_timeout_ms, "the peer did not say hello"
        if sight.in_frame:
            return ("frame", sight.frames), limits.frame_timeout_ms, "a frame was incomplete"
        if sight.unanswered:
            return ("", 0), 0, ""
        return ("idle", sight.reads), limits.idle_timeout_ms, "the peer was silent"
