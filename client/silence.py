"""Since when no broker at all answers: a pure machine.

What it keeps true: one answer, of whomever, ends a silence; a look at the cluster that fails begins one only if nothing was
heard while it lasted. That is an outage; that a single broker is away, or a partition has no leader, is none.
"""

from tidelog.protocol.errors import ConnectionFailed, RequestTimedOut, TidelogError


class Silence:
    """See the module."""

    __slots__ = ("answers", "error", "since_ms")

    def __init__(self) -> None:
        self.answers = 0
        self.since_ms: float | None = None
        """None: there is none."""
        self.error: TidelogError | None = None
        """What became of the last look at the cluster, with a line for each address."""

    def heard(self) -> None:
        """A broker has answered."""
        self.answers += 1
        self.since_ms = self.error = None

    def failed(self, error: TidelogError, began_ms: float, answers: int) -> None:
        """Nobody has answered a look at the cluster; `answers` is how many there were when it began."""
        if not isinstance(error, ConnectionFailed | RequestTimedOut):
            self.heard()  # a refusal is an answer
        elif answers == self.answers:
            self.since_ms = began_ms if self.since_ms is None else self.since_ms
            self.error = error
