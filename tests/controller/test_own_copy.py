"""A voter's copy of the metadata log: what it says that it has is durable, whoever was called off before."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tidelog.controller.own_copy import OwnCopy


async def test_what_was_appended_is_flushed_before_the_next_fetch_also_if_nobody_has_said_so() -> None:
    """Whoever appended it heard of another leader while it added that up: the flusher slept, and the fetch for ever."""
    log: Any = SimpleNamespace(durable_offset=6, end_offset=407)
    metadata: Any = SimpleNamespace(log=log)
    nothing: Any = lambda *_: None  # noqa: E731 -- whatever it is asked

    def flush() -> None:
        log.durable_offset = log.end_offset
        asyncio.get_running_loop().call_soon(copy.durable.set)

    copy = OwnCopy(metadata, nothing, now_ms=nothing, told=nothing, grown=flush, lost=nothing)
    await asyncio.wait_for(copy.before_fetch(), 5)
    assert log.durable_offset == 407
