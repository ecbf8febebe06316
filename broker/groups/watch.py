"""How far groups are behind, for whoever watches a broker: asked of the leaders while somebody looks, and not otherwise.

    looked at ──► asked at once, and every ten seconds from then on ──► nobody has looked for ten minutes ──► forgotten

What it keeps true:

* What is told is no older than the last answer, and never of a group that is coordinated elsewhere by now.
* One round at a time: a leader that does not answer is waited for, and not asked again before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidelog.broker.groups.description import View
from tidelog.broker.groups.image import Group
from tidelog.broker.groups.lag import Ends, Lag, total
from tidelog.broker.groups.records import Place
from tidelog.protocol.types import TopicId

EVERY_MS: Final = 10_000
"""How often leaders are asked how far their logs go."""
FORGOTTEN_MS: Final = 600_000
"""When nobody seems to look any more: some look once in five minutes, and are to find something the next time."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far one group is behind in one topic."""

    group: str
    topic: str
    lag: Lag
    unknown: int
    """Of how many partitions it is not known."""


class LagWatch:
    """See the module. `ask` finds out where logs begin and end, and hands it over once."""

    def __init__(self) -> None:
        self._looked_ms: int | None = None
        self._due_ms = 0
        self._asking = False
        self._ends: Mapping[Place, Ends] | None = None

    def look(self, now_ms: int) -> bool:
        """Somebody wants to know; whether nobody has for a while."""
        first, self._looked_ms = self._looked_ms is None, now_ms
        return first

    def tick(self, now_ms: int, ask: Callable[[Callable[[Mapping[Place, Ends]], None]], None]) -> None:
        """Time has passed: ask, if it is time and anybody looks."""
        if self._looked_ms is None:
            return
        if now_ms - self._looked_ms > FORGOTTEN_MS:
            self._looked_ms = self._ends = None
            self._due_ms = 0
        elif not self._asking and now_ms >= self._due_ms:
            self._asking, self._due_ms = True, now_ms + EVERY_MS
            ask(self._heard)

    def _heard(self, ends: Mapping[Place, Ends]) -> None:
        self._asking = False
        self._ends = ends

    def told(self, group: Group, view: View) -> Iterator[TopicLag]:
        """Topic by topic, once it was asked; a partition that was first committed since then is unknown until it is asked again."""
        if self._ends is None:
            return
        view = replace(view, ends=self._ends)
        by_topic: dict[TopicId, list[Place]] = {}
        for place in group.offsets:
            by_topic.setdefault(place[0], []).append(place)
        for topic_id, places in sorted(by_topic.items()):
            lag, unknown = total(view.lag(group, place) for place in places)
            yield TopicLag(group.id, view.topics.name(topic_id), lag, unknown)
