"""What lies in the data directories of brokers: each is asked for its own.

What it keeps true: every broker has one outcome, and one that cannot say it is named; all are asked at once.
"""

import asyncio
from collections.abc import Iterable

from tidelog.client.admin import Refusals
from tidelog.client.io.connections import together
from tidelog.client.io.session import Session, until
from tidelog.client.retry import Advice, advice
from tidelog.protocol.errors import RequestTimedOut, TidelogError, UnknownServerError, error_of
from tidelog.protocol.messages import DescribeLogDirs, DescribeLogDirsReply, LogDirectory
from tidelog.protocol.types import BrokerId


async def describe_log_dirs(
    session: Session, brokers: Iterable[BrokerId], topics: Iterable[str], deadline_s: float
) -> dict[BrokerId, tuple[LogDirectory, ...]]:
    """The directories of these brokers, or of all that are alive."""
    request = DescribeLogDirs(tuple(topics))
    async with until(deadline_s * 1000, RequestTimedOut("who is alive was not said in time")):
        await session.refresh((), newer=True)
    asked = list(dict.fromkeys(brokers)) or sorted(session.cluster.brokers)
    answers = await together(_of_one(session, broker, request, deadline_s) for broker in asked)
    refusals, found = Refusals(), {}
    for broker, answer in zip(asked, answers, strict=True):
        if isinstance(answer, TidelogError):
            refusals.errors[f"broker {broker}"] = answer
        else:
            found[broker] = answer
    refusals.raise_any(len(asked))
    return found


async def _of_one(
    session: Session, broker: BrokerId, request: DescribeLogDirs, deadline_s: float
) -> tuple[LogDirectory, ...] | TidelogError:
    """What one says, asked again as long as it is alive, or why it cannot be said."""
    loop = asyncio.get_running_loop()
    backoff = session.backoff(max(deadline_s - loop.time(), 0.0) * 1000)
    while True:
        try:
            reply, _ = await session.call(broker, request, timeout_ms=backoff.left_ms(loop.time() * 1000))
            if not isinstance(reply, DescribeLogDirsReply):
                return UnknownServerError(f"{type(reply).__name__} was answered to DescribeLogDirs")
            return error_of(reply.error, reply.message or "") if reply.error else reply.directories
        except TidelogError as error:
            hopeless = broker not in session.cluster.brokers or advice(error) is Advice.FATAL
            if hopeless or not await session.pause(backoff):
                return error
