"""Pages for operators name only what there is: commands, options, metrics, settings, other pages."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidelog.cli.main import tidelog as root
from tidelog.cli.node.settings import PLACES
from tidelog.protocol.settings import SETTINGS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [DOCS / name for name in ("OPERATIONS.md", "SECURITY.md", "TOUR.md", "CLI.md")]
_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EVENT = re.compile(r'"([a-z]+\.[a-z_]+)[ "]')
PACKAGES = ("broker", "cli", "controller", "protocol", "replication", "storage")
_OF_A_CLIENT = {"client.rack"}


def commands() -> Iterator[str]:
    """The command lines of tidelog in blocks that are to be typed."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                yield from re.findall(r"(?:^|\$ |\| )(?:nohup )?(tidelog [a-z][^|>&]*)", line)


def parsed(command: str) -> None:
    """Raise a usage error if there is no such noun, verb or option."""
    words = shlex.split(command, comments=True)[1:]
    found: click.Command = root
    ctx = click.Context(root)
    while isinstance(found, click.Group):
        word = words.pop(0)
        child = found.get_command(ctx, word)
        if child is None:
            raise click.UsageError(f"{command}: there is no {word}")
        found, ctx = child, click.Context(child, parent=ctx)
    found.make_parser(ctx).parse_args(words)


@pytest.mark.parametrize("command", sorted({*commands()}))
def test_every_command_is_one_that_there_is(command: str) -> None:
    parsed(command)


@pytest.mark.parametrize("wrong", ["tidelog topics list", "tidelog topic show", "tidelog topic list --all"])
def test_a_command_that_there_is_not_would_be_noticed(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parsed(wrong)


def test_every_metric_is_one_that_there_is() -> None:
    known = (DOCS / "METRICS.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tidelog_\w+)`", (DOCS / "OPERATIONS.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if f"| `{name}` |" not in known] == []


def events() -> set[str]:
    """What logs tell of, by the first words of their lines in the source."""
    sources = (path for package in PACKAGES for path in (DOCS.parent / package).rglob("*.py"))
    return {name for path in sources for name in _EVENT.findall(path.read_text(encoding="utf-8"))}


def test_every_setting_and_event_is_one_that_there_is() -> None:
    text = (DOCS / "OPERATIONS.md").read_text(encoding="utf-8")
    known = {*SETTINGS, *PLACES, *_OF_A_CLIENT, *events()}
    named = re.findall(r"`([a-z]+(?:\.[a-z_]+)+)`", text)
    assert len(named) > 8
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: str(page.name))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, (
                target
            )


SCRIPTS = DOCS.parent / "scripts"
OURS = sorted(
    each.name for each in SCRIPTS.iterdir() if (SCRIPTS / f"{each.name.replace('-', '_')}.py").is_file()
)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_script_that_is_asked_for_help_gives_it_and_does_nothing_else(name: str) -> None:
    """`scripts/docs --help` rewrote four pages, in silence."""
    program = SCRIPTS / f"{name.replace('-', '_')}.py"
    ran = subprocess.run(
        [sys.executable, str(program), "--help"],
        cwd=DOCS.parent,
        env={**os.environ, "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.startswith(f"usage: scripts/{name} ")
