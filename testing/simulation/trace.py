"""What happened in a simulated world: its last events to read, and a digest of all of them to compare runs by.

What it keeps true:

* Two runs have the same digest only if every turn and every event was the same, at the same virtual time.
* Nothing that differs from one process to the next enters the digest: no address, no order of a hash, no text of a
  log line, in which both may hide.
* It takes bounded memory: the last events are kept, the others are only in the digest.
"""

import hashlib
from array import array
from collections import deque
from typing import Final, NamedTuple, TypeAlias

Detail: TypeAlias = str | int | float | bytes | None
"""What a digest may depend on: values whose repr is the same everywhere."""

_FOLD_AT: Final = 512
"""Events that wait to be hashed together: hashing them one by one took twice as long."""


_TRANSITIONS: Final = 10_000


class Event(NamedTuple):
    """A line of the trace."""

    time: float
    host: str
    what: str
    details: tuple[Detail, ...]

    def __str__(self) -> str:
        return f"{self.time:14.6f}  {self.host:<12} {self.what:<18} " + " ".join(map(str, self.details))


class Trace:
    """The events of one world."""

    __slots__ = ("_digest", "_events", "_numbers_digest", "last", "numbers", "transitions")

    def __init__(self, keep: int = 200) -> None:
        self.last: deque[Event | tuple[float, str, str, tuple[Detail, ...]]] = deque(maxlen=keep)
        self.transitions: deque[Event] = deque(maxlen=_TRANSITIONS)
        """What a scenario has told of itself: few lines to be read, whatever the network has to say."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers_digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[float, str, str, tuple[Detail, ...]]] = []
        self.numbers = array("d")
        """Figures to be compared only, as those of every turn: far cheaper than an event. Append to it."""

    def note(self, time: float, host: str, what: str, *details: Detail) -> None:
        """An event: to be read and to be compared."""
        event = (time, host, what, details)
        self.last.append(event)
        self._events.append(event)
        if len(self._events) >= _FOLD_AT:
            self.fold()

    def remark(self, time: float, host: str, what: str, text: str) -> None:
        """A line to be read only: it may say what no other run would say."""
        self.last.append((time, host, what, (text,)))

    def tell(self, time: float, host: str, what: str, *details: Detail) -> None:
        """A transition of what is simulated: to be read only."""
        self.transitions.append(Event(time, host, what, details))

    def digest(self) -> str:
        """A short name of everything so far."""
        self.fold()
        whole = self._digest.copy()
        whole.update(self._numbers_digest.digest())
        return whole.hexdigest()

    def events(self, host: str | None = None) -> list[Event]:
        """The last events, of one host or of all."""
        return [Event(*event) for event in self.last if host is None or event[1] == host]

    def __str__(self) -> str:
        return "\n".join(map(str, self.events()))

    def fold(self) -> None:
        """Put what has come together into the digest. To be called now and then, for the sake of memory."""
        if self._events:
            self._digest.update(repr(self._events).encode())
            self._events.clear()
        if self.numbers:
            self._numbers_digest.update(self.numbers.tobytes())
            del self.numbers[:]
