"""How much a broker is asked for at once: a pure machine, and small.

    starts at 1 MiB ──full answers are long on their way, one after the other, and nothing else is left to read──► twice
                    ◄──a full answer was there in no time──────────────────────────────────────────────────────── half

An answer of 10 MiB takes its broker 8 ms of CPU in one go, and the client as long to receive: whoever shares a loop with
that waits, above all the producer beside the consumer. One of 1 MiB costs less per record, too: it stays in the
processor's cache. Where the way is long the time is not spent on bytes, so more of them travel together.

What it keeps true: nothing above `fetch_max_bytes` is asked for; an answer that is not full says nothing; one that was
late says little, for a busy machine is no long way.
"""

from typing import Final

from tidelog.protocol.types import BrokerId

START_BYTES: Final = 1 << 20
LONG_MS: Final = 20.0
SHORT_MS: Final = 5.0
OFTEN: Final = 8
"""So many in a row are no accident."""
_FULL: Final = 0.75
"""Whole batches only: they seldom fill an answer to the last byte."""


class AnswerSizes:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start = min(START_BYTES, limit)
        self._sizes: dict[BrokerId, int] = {}
        self._late: dict[BrokerId, int] = {}
        """How many full answers in a row were long on their way."""

    def of(self, broker: BrokerId) -> int:
        """How many bytes the next answer may hold."""
        return self._sizes.get(broker, self._start)

    def answered(self, broker: BrokerId, asked: int, got: int, took_ms: float, *, starving: bool) -> None:
        """So many of the bytes that were asked for came after that time; `starving`: nothing else was left to read."""
        if got < asked * _FULL:
            return
        late = self._late.get(broker, 0) + 1 if starving and took_ms >= LONG_MS else 0
        if late == OFTEN:
            self._sizes[broker] = min(asked * 2, self._limit)
            late = 0
        elif took_ms <= SHORT_MS:
            self._sizes[broker] = max(asked // 2, self._start)
        self._late[broker] = late
