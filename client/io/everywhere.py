"""Until every live broker knows: what was ordered may be used, or is gone, whoever is asked.

What it keeps true: a broker counts when it has said so itself; those that come or go meanwhile are seen; at the deadline
the error says who lacks what.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tidelog.client.io.connections import together
from tidelog.client.io.session import Session, until
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import RequestTimedOut, TidelogError
from tidelog.protocol.messages import Metadata, MetadataReply
from tidelog.protocol.types import BrokerId


async def usable(session: Session, counts: Mapping[str, int], deadline_s: float, fact: str) -> None:
    """Until every live broker answers with a leader for each partition of these topics."""
    if counts:
        lack = partial(_not_usable, counts)
        await everywhere(session, lack, counts, deadline_s, f"{', '.join(counts)} {fact}")


async def everywhere(
    session: Session,
    lack: Callable[[MetadataReply], str],
    topics: Iterable[str],
    deadline_s: float,
    fact: str,
) -> None:
    """Until what every live broker knows of these topics lacks nothing."""
    names = tuple(topics)
    backoff = session.backoff(_left_ms(deadline_s))
    ready: set[BrokerId] = set()
    missing = "no broker is known to be alive"
    while True:
        try:
            async with until(deadline_s * 1000, RequestTimedOut(missing)):
                await session.refresh(names, newer=True)
            brokers = [broker for broker in session.cluster.brokers if broker not in ready]
            looks = [_look(session, broker, lack, names, deadline_s) for broker in brokers]
            told = await together(looks)
            ready.update(broker for broker, lacks in zip(brokers, told, strict=True) if not lacks)
            missing = next(filter(None, told), "no broker is known to be alive")
            if session.cluster.brokers and not any(told):
                return
        except TidelogError as error:
            if advice(error) is Advice.FATAL:
                raise
            missing = str(error)
        wait_ms = backoff.wait_ms(asyncio.get_running_loop().time() * 1000)
        if wait_ms is None:
            raise RequestTimedOut(f"{fact}: {missing}")
        # It is a matter of a few exchanges between brokers: look soon, as often as it takes.
        await asyncio.sleep(min(wait_ms, 100) / 1000)


async def _look(
    session: Session,
    broker: BrokerId,
    lack: Callable[[MetadataReply], str],
    names: tuple[str, ...],
    deadline_s: float,
) -> str:
    """What a broker lacks, in its own answer; nothing: it lacks nothing."""
    try:
        left_ms = min(_left_ms(deadline_s), 1000)
        reply, _ = await session.call(broker, Metadata(names), timeout_ms=left_ms)
    except TidelogError as error:
        return f"broker {broker} does not answer: {error}"
    if not isinstance(reply, MetadataReply):
        return f"broker {broker} answered {type(reply).__name__}"
    session.adopt(reply)  # it may say more than the one that was asked for all
    return f"broker {broker}: {lacks}" if (lacks := lack(reply)) else ""


def _not_usable(counts: Mapping[str, int], reply: MetadataReply) -> str:
    """What a broker lacks of these topics, each with so many partitions; nothing: they are usable there."""
    alive = {one.id for one in reply.brokers}
    topics = {told.name: told for told in reply.topics if not told.error}
    for name, count in counts.items():
        told = topics.get(name)
        if told is None:
            return f"{name} is not known"
        if len(told.partitions) < count:
            return f"{len(told.partitions)} of {count} partitions of {name} are known"
        for partition in told.partitions:
            if partition.leader not in alive:
                return f"nobody leads {name}-{partition.index}"
    return ""


def _left_ms(deadline_s: float) -> float:
    return max(deadline_s - asyncio.get_running_loop().time(), 0.0) * 1000
