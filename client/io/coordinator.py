"""The way to a group's coordinator: who it is, what it answers.

What it keeps true: however many ask at once, the coordinator is looked up once, and again when it is none any more; an
error in a reply is raised; whoever insists does so until its deadline, and is told the last error then.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tidelog.client.io.session import Session, until
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    TidelogError,
    UnknownServerError,
    error_of,
)
from tidelog.protocol.messages import (
    CommittedPartition,
    FindCoordinator,
    FindCoordinatorReply,
    OffsetFetch,
    OffsetFetchReply,
    PartitionIndex,
    Reply,
    Request,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, TopicId

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

FIND_MS: Final = 5000.0
"""How long one look for the coordinator may take."""
ENTRIES: Final = 10_000
"""How many partitions, members or groups one request names, or asks to be told of."""
TEXT_BYTES: Final = 1024 * 1024
"""How much text one request carries besides."""


class AtCoordinator:
    """The coordinator of one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.broker = NO_BROKER
        """Who it is, as far as is known."""
        self._looking = asyncio.Lock()

    async def ask(self, request: Request, kind: type[R], timeout_ms: float) -> R:
        """Its reply, once. Raises what it refused with, or why it could not be asked."""
        deadline_ms = _now_ms() + timeout_ms
        find_ms = min(timeout_ms, FIND_MS)
        late = CoordinatorNotAvailable(f"who coordinates {self._group!r} was not said in {find_ms:.0f} ms")
        async with until(_now_ms() + find_ms, late):
            broker = await self._find(find_ms)
        left_ms = max(deadline_ms - _now_ms(), 1.0)
        try:
            reply, _ = await self._session.call(broker, request, timeout_ms=left_ms)
        except TidelogError:
            self._forget(broker)
            raise
        if not isinstance(reply, kind):
            raise UnknownServerError(f"{type(reply).__name__} was answered to {type(request).__name__}")
        code = getattr(reply, "error", 0)
        if code == NotCoordinator.code:
            self._forget(broker)
        if code:
            raise error_of(code, getattr(reply, "message", None) or "")
        return reply

    async def insist(self, build: Callable[[int], Request], kind: type[R], deadline_ms: float) -> R:
        """Its reply, whoever coordinates by then; `build` is told how long an answer may take."""
        backoff = self._session.backoff(max(deadline_ms - _now_ms(), 1.0))
        while True:
            left_ms = max(deadline_ms - _now_ms(), 1.0)
            # Half of the time for one: another may coordinate by then, should this one never answer.
            attempt_ms = max(left_ms / 2, min(left_ms, 1000.0))
            try:
                return await self.ask(build(int(attempt_ms)), kind, attempt_ms)
            except TidelogError as error:
                if advice(error) is Advice.FATAL or not await self._session.pause(backoff):
                    raise

    async def committed(
        self, places: Sequence[tuple[TopicId, int]] | None, deadline_ms: float
    ) -> list[CommittedPartition]:
        """What the group has committed of these partitions, in this order; of all, where none are named. It is asked for
        page by page, however many there are.
        """
        found: list[CommittedPartition] = []
        while places is None or len(found) < len(places):
            request = OffsetFetch(self._group, limit=ENTRIES)
            if places is not None:
                asked = places[len(found) : len(found) + ENTRIES]
                request = OffsetFetch(
                    self._group, tuple(PartitionIndex(*place) for place in asked), limit=ENTRIES
                )
            elif found:
                last = PartitionIndex(found[-1].topic_id, found[-1].index)
                request = OffsetFetch(self._group, after=last, limit=ENTRIES)
            reply = await self.insist(lambda _, request=request: request, OffsetFetchReply, deadline_ms)  # type: ignore[misc]
            found += reply.partitions
            if places is None and not reply.more:
                break
            if not reply.partitions:
                raise UnknownServerError(
                    f"of {self._group!r} there is more, its coordinator says, and does not say what"
                )
        return found

    async def _find(self, timeout_ms: float) -> BrokerId:
        async with self._looking:
            if self.broker != NO_BROKER:
                return self.broker
            request = FindCoordinator((self._group,), int(timeout_ms))
            reply, _ = await self._session.call_any(request, timeout_ms=timeout_ms)
            if not isinstance(reply, FindCoordinatorReply) or len(reply.coordinators) != 1:
                raise UnknownServerError(f"{reply!r} was answered to FindCoordinator")
            found = reply.coordinators[0]
            if found.error:
                raise error_of(found.error, found.message or "")
            if found.broker_id not in self._session.cluster.brokers:
                await self._session.refresh((), newer=True)
                if found.broker_id not in self._session.cluster.brokers:
                    raise CoordinatorNotAvailable(
                        f"broker {found.broker_id} coordinates {self._group!r}, and is not alive"
                    )
            self.broker = found.broker_id
            return self.broker

    def _forget(self, broker: BrokerId) -> None:
        if self.broker == broker:
            self.broker = NO_BROKER


def pieces(entries: Sequence[T], texts: Callable[[T], str] = lambda _: "") -> Iterator[Sequence[T]]:
    """The entries, as many at a time as one request may name and, with their texts, may hold."""
    begin = size = 0
    for at, entry in enumerate(entries):
        more = 4 * len(texts(entry))
        if at > begin and (at - begin >= ENTRIES or size + more > TEXT_BYTES):
            yield entries[begin:at]
            begin, size = at, 0
        size += more
    if begin < len(entries):
        yield entries[begin:]


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
