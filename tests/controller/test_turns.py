"""Long decisions go on in steps, and by turns (design 4.2)."""

import asyncio
from collections.abc import Generator

from tidelog.controller.turns import HOLDS, Steps, Turns, holding


def says(name: str, said: list[str], *, holds: bool) -> Steps[str]:
    for number in range(3):
        said.append(f"{name}{number}")
        yield HOLDS if holds else None
    return name


def lasts() -> bool:
    return True


async def test_two_who_have_much_to_decide_take_turns() -> None:
    turns, said = Turns(), list[str]()
    both = [turns.carry_out(says(name, said, holds=False), lasts) for name in "ab"]
    assert await asyncio.gather(*both) == ["a", "b"]
    assert said == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_whoever_holds_goes_on_before_others_decide_while_others_are_served() -> None:
    turns, said = Turns(), list[str]()

    async def served() -> None:
        for _ in range(2):
            said.append("served")
            await asyncio.sleep(0)

    both = [turns.carry_out(says(name, said, holds=True), lasts) for name in "ab"]
    await asyncio.gather(*both, served())
    assert [each for each in said if each != "served"] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert said.index("served") < said.index("a1")


async def test_what_has_ended_is_decided_no_further_also_by_who_holds() -> None:
    said = list[str]()
    steps = says("a", said, holds=True)
    assert await Turns().carry_out(steps, lambda: len(said) < 2) is None
    assert said == ["a0", "a1"]


async def test_steps_that_are_held_together_keep_their_value() -> None:
    def trying() -> Generator[None, None, str]:
        yield
        return "tried"

    def whole() -> Steps[str]:
        value = yield from holding(trying())
        return value

    assert await Turns().carry_out(whole(), lasts) == "tried"
