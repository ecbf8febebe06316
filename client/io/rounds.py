"""One request for metadata that many wait for.

What it keeps true: all who wait are told the same, once; a failure that nobody waits for any more is nobody's.
"""

import asyncio
from collections.abc import Mapping

from tidelog.protocol.errors import TidelogError


class Round:
    """One request for metadata, and who waits for it."""

    __slots__ = ("done", "known", "names")

    def __init__(self, done: "asyncio.Future[None]") -> None:
        self.done = done
        self.names: dict[str, None] = {}
        """Which topics it asks for."""
        self.known = False
        """And for all that are known."""
        # Looked at, for all who waited may have gone.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())

    def covers(self, names: Mapping[str, None] | None) -> bool:
        """Whether it asks for these as well; None: for all that are known."""
        return self.known if names is None else names.keys() <= self.names.keys()

    def add(self, names: Mapping[str, None] | None) -> None:
        """Ask for these as well."""
        if names is None:
            self.known = True
        else:
            self.names.update(names)

    def fail(self, error: TidelogError) -> None:
        """It ends so for all who wait."""
        if not self.done.done():
            self.done.set_exception(error)
