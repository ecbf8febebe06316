"""Answers that wait: for replicas, for bytes, or for their deadline, whichever is first.

    wait(operation, keys, deadline) ──► touched(key) ... run() ──► operation.try_complete()
                                        expire(now)            ──► operation.give_up()

What it keeps true (docs/REPLICATION.md; I-80, KAFKA-8334):

* An operation is completed or given up once, and then nobody remembers it, under whatever keys it waited.
* Nothing is completed inside the change that makes it possible: `touched` marks, `run` tries. The first mark
  says that a run is due, so that a burst of changes costs one (DECISIONS 17).
* A change between the first look and the waiting is not missed: `wait` tries once more when it has registered,
  unless whoever lets it wait says that nothing has happened since (`looked`).
* An answer that fails is over, its error goes to whoever ran it, and the others lose no wake-up by it. Whoever
  waits for it is told as well: nobody would ever look at it again, not at its deadline either.
"""

from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Protocol

from tidelog.protocol.errors import TidelogError, UnknownServerError


class Operation(Protocol):
    """An answer that is owed."""

    def try_complete(self) -> bool:
        """Answer if it can be answered now, and say whether it was. Never called again after that."""
        ...

    def give_up(self) -> None:
        """The deadline has passed: answer with what there is, or with an error."""
        ...

    def fail(self, error: TidelogError) -> None:
        """One of the two has raised while it waited: answer with this."""
        ...


class _Waiting:
    __slots__ = ("has_deadline", "keys", "operation")

    def __init__(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        self.operation: Operation | None = operation
        self.keys = keys
        self.has_deadline = False


class Delayed:
    """The operations that wait, by what they wait for."""

    __slots__ = ("_deadlines", "_due", "_marked", "_number", "_over", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[_Waiting, None]] = {}
        self._marked: dict[Hashable, None] = {}
        self._deadlines: list[tuple[int, int, _Waiting]] = []
        self._due = False
        self._number = 0
        self._over = 0
        """How many deadlines are of operations that are over."""

    def __len__(self) -> int:
        """How many keys somebody waits for."""
        return len(self._waiting)

    @property
    def deadline_ms(self) -> int | None:
        """When `expire` has something to do next."""
        while self._deadlines and self._deadlines[0][2].operation is None:
            heappop(self._deadlines)
            self._over -= 1
        return self._deadlines[0][0] if self._deadlines else None

    def wait(
        self, operation: Operation, keys: Iterable[Hashable], deadline_ms: int, *, looked: bool = False
    ) -> bool:
        """Let it wait, unless it can be completed now; whether it waits."""
        waiting = _Waiting(operation, tuple(keys))
        for key in waiting.keys:
            others = self._waiting.get(key)
            if others is None:
                self._waiting[key] = {waiting: None}
            else:
                others[waiting] = None
        if not looked and self._try(waiting):
            return False
        self._number += 1
        waiting.has_deadline = True
        heappush(self._deadlines, (deadline_ms, self._number, waiting))
        if self._over > 64 and self._over > len(self._deadlines) // 2:
            # Most are answered long before their deadline: without this they would be kept until then.
            self._deadlines = [entry for entry in self._deadlines if entry[2].operation is not None]
            heapify(self._deadlines)
            self._over = 0
        return True

    def touched(self, key: Hashable) -> bool:
        """What is waited for under this key has changed. Whether this makes a `run` due that was not."""
        if key not in self._waiting:
            return False
        was_due, self._due = self._due, True
        self._marked[key] = None
        return not was_due

    def run(self) -> None:
        """Try what was touched, each answer once. What is touched meanwhile is tried in the next run."""
        marked, self._marked, self._due = self._marked, {}, False
        tried = dict.fromkeys(waiting for key in marked for waiting in self._waiting.get(key, ()))
        try:
            for waiting in tried:
                operation = waiting.operation
                if operation is not None:
                    try:
                        self._try(waiting)
                    except Exception as error:
                        operation.fail(_told(error))
                        raise
            marked = {}
        finally:
            self._marked |= marked  # an answer has failed: the others are tried with the next touch

    def expire(self, now_ms: int) -> None:
        """Give up what has waited long enough."""
        while (deadline := self.deadline_ms) is not None and deadline <= now_ms:
            waiting = heappop(self._deadlines)[2]
            operation = waiting.operation
            assert operation is not None
            waiting.has_deadline = False
            self._forget(waiting)
            try:
                operation.give_up()
            except Exception as error:
                operation.fail(_told(error))
                raise

    def _try(self, waiting: _Waiting) -> bool:
        """Whether it is over; also one that fails is, so that nobody tries it again."""
        assert waiting.operation is not None
        over = True
        try:
            over = waiting.operation.try_complete()
        finally:
            if over:
                self._forget(waiting)
        return over

    def _forget(self, waiting: _Waiting) -> None:
        waiting.operation = None
        self._over += waiting.has_deadline
        for key in waiting.keys:
            others = self._waiting.get(key)
            if others is not None:
                others.pop(waiting, None)
                if not others:
                    del self._waiting[key]


def _told(error: Exception) -> TidelogError:
    """What whoever waits is told of it."""
    if isinstance(error, TidelogError):
        return error
    return UnknownServerError("an answer that waited met an error that has no name")
