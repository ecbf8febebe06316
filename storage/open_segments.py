"""How many segments of a process may be open at once, whoever they belong to.

Ten thousand replicas live under a limit of a thousand files: a segment opens its file and loads its
indexes when it is used, and the one that was used longest ago lets go of both. Segments that a worker
thread is flushing are pinned.
"""

from typing import Protocol


class Closable(Protocol):
    """What `OpenSegments` needs to know of a segment."""

    pins: int

    @property
    def index_memory(self) -> int:
        """Bytes that its indexes take in memory."""
        ...

    def let_go(self) -> None:
        """Close the file and forget the indexes."""
        ...


class OpenSegments:
    """The open segments of a process, least recently used first; bounded in number and in index memory."""

    __slots__ = ("_latest", "_open", "_uses", "max_index_bytes", "max_open")

    def __init__(self, max_open: int = 512, max_index_bytes: int = 64 << 20) -> None:
        assert max_open >= 2, "a roll has two segments open"
        self.max_open = max_open
        self.max_index_bytes = max_index_bytes
        self._open: dict[Closable, None] = {}
        self._latest: Closable | None = None
        self._uses = 0

    def __len__(self) -> int:
        return len(self._open)

    def use(self, segment: Closable) -> None:
        """Note that this segment is in use now; another may be closed for it."""
        if segment is self._latest:
            return
        self._open.pop(segment, None)
        self._open[segment] = None
        self._latest = segment
        if len(self._open) > self.max_open:
            self._close_oldest()
        self._uses += 1
        if self._uses % 64 == 0:  # weighing every open segment costs more than one use is worth
            while len(self._open) > 2 and self.index_memory > self.max_index_bytes:
                if not self._close_oldest():
                    return

    def forget(self, segment: Closable) -> None:
        """The segment is closed or gone."""
        self._open.pop(segment, None)
        if segment is self._latest:
            self._latest = None

    @property
    def index_memory(self) -> int:
        """Bytes that all loaded indexes take."""
        return sum(segment.index_memory for segment in self._open)

    def _close_oldest(self) -> bool:
        for segment in self._open:
            if not segment.pins and segment is not self._latest:
                del self._open[segment]
                segment.let_go()
                return True
        return False
