"""Faults that wait for a moment, under a sky that tells what they did in which order."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.chaos.weather import FAULTS, Forecast, kill_before_the_isr_shrinks, kill_the_second_later

ALL = {1, 2, 3}


class Told:
    """A cluster that writes down what is done to it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []

    def __getattr__(self, verb: str) -> Any:
        async def note(node: int) -> None:
            self.done.append((verb, node))

        return note


class Sky:
    """Broker 1 leads whatever anybody asks, also when it is dead: what is known of the cluster is always old."""

    session_s = 0.0
    request_s = 0.0
    controllers = 1

    def __init__(self, *isr: set[int]) -> None:
        self.cluster: Any = Told()
        self.rng = Random(1)
        self._isr = list(isr)

    async def leader(self) -> int:
        return 1

    async def active_controller(self) -> int:
        return 1

    async def isr(self) -> list[set[int]]:
        self.cluster.done.append(("look", 0))
        return [ALL, self._isr.pop(0)]

    async def without(self, broker: int) -> None:
        self.cluster.done.append(("without", broker))

    async def progress(self, records: int) -> None:
        self.cluster.done.append(("progress", 0))

    async def whole(self) -> None:
        self.cluster.done.append(("whole", 0))

    def brokers(self) -> Sequence[int]:
        return sorted(ALL)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None:
        """Nobody is waited for."""

    monkeypatch.setattr("tests.chaos.weather.asyncio.sleep", at_once)


async def test_the_second_broker_is_another_one_and_dies_when_the_isr_has_shrunk() -> None:
    sky = Sky()
    await kill_the_second_later(sky)
    first, out, progress, second, *_ = sky.cluster.done
    assert (first, out, progress[0], second[0]) == (("kill", 1), ("without", 1), "progress", "kill")
    assert second[1] in ALL - {1}


async def test_a_second_broker_that_dies_first_is_looked_at_in_time() -> None:
    sky = Sky(ALL - {1}, ALL)
    await kill_before_the_isr_shrinks(sky)
    verbs = [verb for verb, _ in sky.cluster.done]
    assert verbs == [
        "pause",
        "look",
        "resume",
        "whole",
        "pause",
        "look",
        "kill",
        "kill",
        "restart",
        "restart",
    ]
    killed = [node for verb, node in sky.cluster.done if verb == "kill"]
    assert killed[0] in ALL - {1}, "the one that was stopped is in the ISR until the other is dead"
    assert killed[1] == 1


async def test_an_isr_that_always_shrinks_too_soon_is_no_success() -> None:
    sky = Sky(*[ALL - {1}] * 100)
    with pytest.raises(AssertionError, match="broker 1 is out of the ISR"):
        await kill_before_the_isr_shrinks(sky)
    assert not [verb for verb, _ in sky.cluster.done if verb == "kill"]


def test_a_round_has_every_fault_and_five_kills_of_leaders() -> None:
    forecast = Forecast(Random(1))
    rounds = forecast.rounds()
    while not forecast.has_had_all:
        next(rounds)
    assert sum(forecast.came.values()) == len(FAULTS)
    assert forecast.came["kill_leader"] == 5
    assert forecast.came["kill_before_the_isr_shrinks"] == 1
