"""Who of the groups has been silent, or has held on to what it was to give up, for too long.

What it keeps true:

* A heartbeat costs one entry in a dictionary: the heap behind it is looked at when the oldest deadline has come.
* Time in which nobody listened does not count: a broker that was stopped, or busy, puts nobody out for its own silence.
* Nothing here is written to the log: after a failover everybody has a whole session, and a whole time to give up.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, TypeAlias

LISTENS_MS: Final = 1_000
"""How often time is told at least. Whatever is longer, nobody was listening."""


SESSION: Final = 0
"""A member is to be heard."""
REVOCATION: Final = 1
"""A member is to give up what it was asked for."""
SHARING: Final = 2
"""Partitions of a group are to be shared out, which was put off. The member is empty."""

Awaited: TypeAlias = tuple[int, str, str]
"""What kind of thing, of which group, of which member."""


class Deadlines:
    """Until when members are waited for."""

    __slots__ = ("_due", "_heap", "_told_ms", "sooner")

    def __init__(self) -> None:
        self.sooner: Callable[[int], None] = lambda _: None
        """Told when something is due before all that was known: time is to be told then."""
        self._due: dict[Awaited, int] = {}
        self._heap: list[tuple[int, Awaited]] = []
        self._told_ms: int | None = None

    def __len__(self) -> int:
        return len(self._due)

    def set(self, kind: int, group: str, member: str, due_ms: int) -> None:
        """Wait until then; what was said before does not count."""
        key = kind, group, member
        known = self._due.get(key)
        self._due[key] = due_ms
        if known is None or due_ms < known:
            is_first = not self._heap or due_ms < self._heap[0][0]
            heappush(self._heap, (due_ms, key))
            if is_first:
                self.sooner(due_ms)

    def begin(self, kind: int, group: str, member: str, due_ms: int) -> None:
        """Wait until then, if it is not waited already."""
        if (kind, group, member) not in self._due:
            self.set(kind, group, member, due_ms)

    def end(self, kind: int, group: str, member: str) -> None:
        """Nothing is waited for any more."""
        self._due.pop((kind, group, member), None)

    def has(self, kind: int, group: str, member: str) -> bool:
        """Whether it is waited for."""
        return (kind, group, member) in self._due

    def due_ms(self, kind: int, group: str, member: str) -> int | None:
        """Until when; None: nothing is waited for."""
        return self._due.get((kind, group, member))

    @property
    def deadline_ms(self) -> int | None:
        """When there may be something to do next."""
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def passed(self, now_ms: int) -> list[Awaited]:
        """What was waited for in vain, by kind, group and member; it is not waited for any more."""
        self._listen(now_ms)
        found = []
        while (deadline := self.deadline_ms) is not None and deadline <= now_ms:
            key = heappop(self._heap)[1]
            del self._due[key]
            found.append(key)
        return found

    def _listen(self, now_ms: int) -> None:
        gap = 0 if self._told_ms is None else now_ms - self._told_ms - LISTENS_MS
        self._told_ms = now_ms
        if gap > LISTENS_MS:
            self._due = {key: due + gap for key, due in self._due.items()}

    def _tidy(self) -> None:
        """The first of the heap is what it says."""
        while self._heap:
            due, key = self._heap[0]
            known = self._due.get(key)
            if known == due:
                return
            heappop(self._heap)
            if known is not None and known > due:
                heappush(self._heap, (known, key))
