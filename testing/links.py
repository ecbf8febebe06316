"""Who hears whom: the network between the nodes of a test cluster, as a table of what is wrong with it.

Every direction of every pair stands for itself. A node is `b1` or `c1` (broker ids and controller ids have nothing to
do with each other); whoever is no node of the cluster is `clients`. Sockets are elsewhere: `inner_loop` looks here for
nodes inside this process, `network` for real ones.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

CLIENTS: Final = "clients"

How: TypeAlias = Literal["drop", "reset"]
"""What a cut does: bytes are lost without a word, or connections are torn down and refused."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two nodes."""

    cut: How | None = None
    delay_s: float = 0.0

    @property
    def dropped(self) -> bool:
        """Whether nothing arrives, and nobody is told."""
        return self.cut == "drop"

    @property
    def reset(self) -> bool:
        """Whether there can be no connection."""
        return self.cut == "reset"


GOOD: Final = Link()


class Links:
    """What is wrong between whom. `watch` it to hear of changes."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def between(self, sender: str, receiver: str) -> Link:
        """The direction from one to the other."""
        return self._links.get((sender, receiver), GOOD)

    def are_reset(self, one: str, other: str) -> bool:
        """Whether the two can have no connection: one direction is enough for that."""
        return self.between(one, other).reset or self.between(other, one).reset

    def cut(self, pairs: Iterable[tuple[str, str]], how: How) -> None:
        """From each first to each second of them nothing arrives any more."""
        self._change((pair, replace(self.between(*pair), cut=how)) for pair in pairs)

    def delay(self, pairs: Iterable[tuple[str, str]], seconds: float) -> None:
        """From each first to each second of them everything arrives so much later."""
        self._change((pair, replace(self.between(*pair), delay_s=seconds)) for pair in pairs)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Nothing is wrong between these any more, or between any."""
        self._change((pair, GOOD) for pair in list(self._links if pairs is None else pairs))

    def _change(self, changes: Iterator[tuple[tuple[str, str], Link]]) -> None:
        for pair, link in list(changes):
            if link == GOOD:
                self._links.pop(pair, None)
            else:
                self._links[pair] = link
        for watcher in list(self._watchers):
            watcher()

    # ── to hear of it ─────────────────────────────────────────────────────────────────────────────

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call that after every change, until what this returns is called."""
        self._watchers[watcher] = None

        def stop() -> None:
            self._watchers.pop(watcher, None)

        return stop

    def to_values(self) -> list[Any]:
        """All that is wrong, for another process."""
        return [[*pair, link.cut, link.delay_s] for pair, link in self._links.items()]

    def set_values(self, values: Iterable[Iterable[Any]]) -> None:
        """What another process has said; nothing else is wrong."""
        told = {(sender, receiver): Link(cut, delay) for sender, receiver, cut, delay in values}
        gone = ((pair, GOOD) for pair in list(self._links) if pair not in told)
        self._change(iter([*gone, *told.items()]))


def both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each of them, and the other way round."""
    return [turned for one, other in pairs for turned in ((one, other), (other, one))]


def node_name(node: int | str) -> str:
    """`b1` for broker 1, which is also `1`; `c1` for controller 1."""
    if isinstance(node, int):
        return f"b{node}"
    if not isinstance(node, str):
        raise TypeError(
            f"{node!r} is no node: say 1 for broker 1, 'c1' for controller 1 (and await what is awaitable)"
        )
    if node != CLIENTS and not (node[:1] in ("b", "c") and node[1:].isdecimal()):
        raise ValueError(f"{node!r} is no node: say 1 or 'b1' for broker 1, 'c1' for controller 1")
    return node
