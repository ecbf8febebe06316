"""What operators are told when a majority of the controllers is gone: who was asked, and what each has said."""

import asyncio
import re
from pathlib import Path

import pytest

from tidelog.client.admin import NewTopic
from tidelog.client.io.client import Client
from tidelog.protocol.errors import NoController, RequestTimedOut
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

TIMEOUT_S = 3.0
NOTICED_S = 15.0
"""A controller that leads takes a moment to notice that it has lost the others, and answers nothing meanwhile."""


async def refusal(client: Client) -> str:
    """What an operator is told, in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises((NoController, RequestTimedOut)) as refused:
        await client.admin.create_topics(NewTopic("u", 1, 1), timeout=TIMEOUT_S)
    assert loop.time() - began < TIMEOUT_S + 1
    return str(refused.value)


def said(told: str) -> list[bool]:
    """Whether each controller is named with what became of asking it."""
    gone = [rf"c{number} \(127\.0\.0\.1:\d+\): [^,]*(refused|ended|reset)" for number in (1, 2)]
    words = [*gone, r"c3 \(127\.0\.0\.1:\d+\): it does not lead in epoch \d+"]
    return [re.search(each, told, re.IGNORECASE) is not None for each in words]


@pytest.mark.parametrize("brokers", [1, 2])
async def test_without_a_quorum_an_operator_is_told_so_in_time(tmp_path: Path, brokers: int) -> None:
    loop = asyncio.get_running_loop()
    async with Cluster(brokers, 3, directory=tmp_path, processes=True) as cluster, cluster.client() as client:
        await client.admin.create_topics("t")
        await cluster.kill("c1")
        await cluster.kill("c2")
        noticed_at = loop.time() + NOTICED_S
        told = await refusal(client)
        # Whose time is up while the broker has only begun to ask is told that some have not answered yet.
        while not all(said(told)) and loop.time() < noticed_at:
            told = await refusal(client)
        assert said(told) == [True, True, True], told
        assert re.match(r"no controller that leads was found for [\d.]+ s: c1 \(", told), told
        await cluster.restart("c1")
        assert await client.admin.create_topics(NewTopic("v", 1, 1), timeout=30), "and then it is done"
