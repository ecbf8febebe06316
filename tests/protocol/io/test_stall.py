"""The loop's longest stall is seen, and nothing is seen where there was none."""

import asyncio
import time

from tests.protocol.io.peers import until
from tidelog.protocol.io import StallMeter


def block(ms: int) -> None:
    """Keep the loop from its work."""
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass


async def test_a_stall_is_seen_but_for_one_interval() -> None:
    meter = StallMeter(every_ms=5)
    meter.start()
    asyncio.get_running_loop().call_soon(block, 60)
    await until(lambda: meter.longest_ms > 0, "a tick after the stall")
    meter.stop()
    assert meter.longest_ms >= 50


async def test_resetting_begins_anew() -> None:
    meter = StallMeter(every_ms=5)
    meter.start()
    asyncio.get_running_loop().call_soon(block, 60)
    await until(lambda: meter.longest_ms >= 50, "the stall was seen")
    assert meter.reset() >= 50
    assert meter.longest_ms == 0
    meter.stop()


async def test_a_stopped_meter_keeps_its_value_and_no_timer() -> None:
    meter = StallMeter(every_ms=5)
    meter.start()
    meter.start()
    meter.stop()
    assert meter.longest_ms == 0
    assert meter._timer is None
