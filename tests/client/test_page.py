"""docs/CLIENT.md: its programs run as they stand, and it names every figure of `client.metrics()`."""

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import tidelog
import tidelog.sync
from tests.client.nodes import Cluster

PAGE = (Path(__file__).parents[2] / "docs/CLIENT.md").read_text("utf-8")


async def test_its_programs_run(broker: Cluster) -> None:
    first, second = (
        block.replace("127.0.0.1:9092", broker.bootstrap)
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    )
    names: dict[str, Any] = {}
    exec(f"async def program():\n{textwrap.indent(first, '    ')}", names)  # noqa: S102 -- the page's own
    await names["program"]()
    await asyncio.to_thread(exec, second, {})


async def test_it_names_every_metric(broker: Cluster) -> None:
    def blocking() -> set[str]:
        with tidelog.sync.connect(broker.bootstrap) as client:
            _ = client.producer(), client.consumer()
            return set(client.metrics())

    table = PAGE.partition("`client.metrics()`")[2]
    assert set(re.findall(r"`([a-z_]+)`", table)) - {"buffer_memory"} == await asyncio.to_thread(blocking)
