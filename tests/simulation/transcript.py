"""Transcripts: prose and commands in, state out. `regenerate` plays one and writes beneath each command what happened.

    # prose           a lecture, for people
    > command         what is done to the cluster
      output          two spaces: generated, and thrown away before it is generated anew

`> the same story with <a planted bug> planted` plays everything above once more in a cluster that has that bug, and
shows only those outputs that are different: what the rule is for.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.simulation import planted, planted_in_stories
from tests.simulation.planted import Plant
from tests.simulation.stage import Stage, new_world, open_stage
from tidelog.testing.simulation.world import World

FOLDER = Path(__file__).parent / "transcripts"
PAGE = FOLDER.parents[2] / "docs" / "LECTURE.md"
AGAIN = re.compile(r"the same story with (.+) planted")
Output = list[str]


COMMANDS: list[tuple[str, Callable[..., Output]]] = [
    (r'produce "(.+?)"(.*)', Stage.produce),
    (r'send "(.+?)"(.*)', Stage.send),
    (r"consume(.*)", Stage.consume),
    (r"latest(.*)", Stage.latest),
    (r"show", Stage.show),
    (r"kill (\d)", Stage.kill),
    (r"power cut (\d)", Stage.power_cut),
    (r"restart (\d)", Stage.restart),
    (r"stop (\d)", Stage.stop),
    (r"continue (\d)", Stage.go_on),
    (r"hold (\d|controller) -> (\d|controller)", Stage.hold),
    (r"release (\d|controller) -> (\d|controller)", Stage.release),
    (r"slow (\d|controller) <-> (\d|controller) by (\d+m?s)", Stage.slow),
    (r"isolate (\d)", Stage.isolate),
    (r"heal", Stage.heal),
    (r"flush (\d)", Stage.flush),
    (r"elect unclean", Stage.elect_unclean),
    (r"pass (\d+m?s)", Stage.pass_time),
    (r"wait until (.+)", Stage.wait),
]


def transcripts() -> list[Path]:
    """All of them, in the order of the lecture."""
    return sorted(FOLDER.glob("*.txt"))


def commands(text: str) -> list[str]:
    """The command lines of a transcript."""
    return [line[2:] for line in text.splitlines() if line.startswith("> ")]


def regenerate(text: str, *, lenient: bool = False) -> str:
    """The transcript with what happens now; `lenient`: also where a story ends before its time."""
    outputs = iter(outputs_of(commands(text), lenient=lenient))
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        assert not line or line.startswith(("# ", "> ")) or line == "#", f"neither prose nor command: {line}"
        lines.append(line)
        if line.startswith("> "):
            lines += [f"  {output}".rstrip() for output in next(outputs)]
    return "\n".join(lines) + "\n"


def outputs_of(told: Sequence[str], *, lenient: bool) -> list[Output]:
    """What each command shows; `cluster of ...` begins another story."""
    begins = [at for at, line in enumerate(told) if line.startswith("cluster of ")]
    assert begins[:1] == [0], "a transcript begins with a cluster"
    stories = [told[at:end] for at, end in zip(begins, [*begins[1:], len(told)], strict=True)]
    return [output for story in stories for output in _story(story, lenient=lenient)]


def _story(told: Sequence[str], *, lenient: bool) -> list[Output]:
    plain = [line for line in told if not AGAIN.fullmatch(line)]
    first = play(plain, lenient=lenient)
    shown: list[Output] = []
    so_far = 0
    for line in told:
        match = AGAIN.fullmatch(line)
        if match is None:
            shown.append(first[so_far])
            so_far += 1
            continue
        with pytest.MonkeyPatch.context() as patch:
            for plant in plants(match[1]):
                plant(patch)
            other = play(plain[:so_far], lenient=True, strict=False)
        shown.append(_differences(plain, first, other))
    return shown


def plants(names: str) -> list[Plant]:
    """`no divergence check and stale answers count`, as they are called in `planted`."""
    called = {**vars(planted), **vars(planted_in_stories)}
    return [called[name.replace(" ", "_")] for name in names.split(" and ")]


def play(told: Sequence[str], *, lenient: bool, strict: bool = True) -> list[Output]:
    """Each command's output, in a world of its own; a story that breaks off says so, if it may."""
    outputs: list[Output] = []
    try:
        with new_world().running() as world:
            stage = _open(told[0], world, lenient=lenient, strict=strict)
            outputs += [[]]
            for line in told[1:]:
                outputs += [_perform(stage, line)]
    except Exception as error:
        if not lenient:
            raise
        outputs.append([f"the story ends here: {type(error).__name__}"])
    return outputs + [[] for _ in told[len(outputs) :]]


def _open(line: str, world: World, *, lenient: bool, strict: bool) -> Stage:
    opening = re.fullmatch(r"cluster of (\d) brokers(.*)", line)
    assert opening, f"a story begins with a cluster, not with {line}"
    return open_stage(*opening.groups(), world=world, lenient=lenient, strict=strict)


def _perform(stage: Stage, line: str) -> Output:
    for pattern, command in COMMANDS:
        if match := re.fullmatch(pattern, line):
            shown = command(stage, *match.groups())
            return [*stage.watch.told(), *shown]
    raise AssertionError(f"no command: {line}")


def _differences(told: Sequence[str], first: Sequence[Output], other: Sequence[Output]) -> Output:
    lines: Output = []
    for command, before, now in zip(told, first, other, strict=False):
        if before != now:
            lines.append(f"> {command}")
            lines += [f"  {line}" for line in now or ["(nothing happens)"]]
    return lines or ["everything is as before"]
