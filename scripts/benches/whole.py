"""When a cluster is as it was before it was hurt: what comes next is measured from there."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidelog.client import Client
from tidelog.protocol.errors import TidelogError

PATIENCE_S = 120.0
_POLL_S = 0.05


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Look again and again until it is so; a cluster that never gets there cannot be measured."""
    deadline = time.monotonic() + PATIENCE_S
    while not await is_so(look):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: it is not so after {PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)


async def is_so(look: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it is; no, where nobody can say."""
    try:
        return await look()
    except TidelogError:
        return False


async def in_sync(client: Client, topic: str) -> bool:
    """Whether every replica of that topic is."""
    (told,) = await client.admin.describe_topics(topic)
    return all(len(each.isr) == len(each.replicas) for each in told.partitions)


async def leads_as_preferred(client: Client, topic: str) -> bool:
    """Whether every partition of that topic is led by the first of its replicas."""
    (told,) = await client.admin.describe_topics(topic)
    return all(each.leader == each.replicas[0] for each in told.partitions)


async def quorum_has_all(client: Client) -> bool:
    """Whether a controller is active, and all others have what is committed."""
    quorum = await client.admin.describe_quorum()
    return quorum.leader_id >= 0 and all(voter.end_offset >= quorum.high_watermark for voter in quorum.voters)
