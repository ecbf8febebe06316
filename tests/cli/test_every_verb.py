"""What holds for every noun and verb, whichever there are: help, examples, completion, early ends of pipes."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving
from tidelog.cli.main import tidelog as root
from tidelog.cli.options import Verb, wrapped

WIDE = 80


def everything() -> Iterator[click.Context]:
    """A context of the root and of each noun and verb."""
    waiting = [click.Context(root, info_name="tidelog")]
    while waiting:
        ctx = waiting.pop()
        yield ctx
        if isinstance(ctx.command, click.Group):
            for name in ctx.command.list_commands(ctx):
                child = ctx.command.get_command(ctx, name)
                assert child is not None
                waiting.append(click.Context(child, info_name=name, parent=ctx))


ALL = {ctx.command_path: ctx for ctx in everything()}
VERBS = {path: ctx.command for path, ctx in ALL.items() if not isinstance(ctx.command, click.Group)}


def completed(*words: str) -> list[str]:
    """What a shell would be offered for the last word."""
    found = ShellComplete(root, {}, "tidelog", "_TIDELOG_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )
    return [item.value for item in found]


@pytest.mark.parametrize("path", ALL)
def test_help_fits_on_a_terminal_and_begins_with_a_sentence(path: str) -> None:
    text = ALL[path].get_help()
    assert [line for line in text.splitlines() if len(line) > WIDE] == []
    first = (ALL[path].command.help or "").partition("\n\n")[0]
    assert first.rstrip().endswith((".", ":")), first


def test_a_default_is_said_in_brackets_as_all_others() -> None:
    assert "[default: ./tidelog-data]" in " ".join(ALL["tidelog up"].get_help().split())


@pytest.mark.parametrize("path", VERBS)
def test_every_option_says_what_it_is_for(path: str) -> None:
    options = [each for each in VERBS[path].params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


@pytest.mark.parametrize(
    ("path", "waits"),
    [
        ("tidelog topic list", "5, 30 for a change"),
        ("tidelog produce", "120"),
        ("tidelog consume", "30"),
        ("tidelog perf produce", "120"),
        ("tidelog perf consume", "30"),
        ("tidelog perf latency", "120"),
    ],
)
def test_a_verb_says_how_long_it_waits_itself(path: str, waits: str) -> None:
    [option] = [each for each in VERBS[path].params if "--timeout" in each.opts]
    assert isinstance(option, click.Option)
    assert (option.help or "").endswith(f"[default: {waits}]")


@pytest.mark.parametrize("path", VERBS)
def test_every_verb_has_examples_that_are_understood(path: str) -> None:
    verb = VERBS[path]
    assert isinstance(verb, Verb)
    mine = [example for example in verb.examples if path in example]
    assert mine, "an example must show the verb"
    for example in mine:
        mine_of_it = re.split(r"\s\||\)|;|&&|\s>|\s#|<<<", example[example.index(path) :])[0]
        verb.make_parser(ALL[path]).parse_args(shlex.split(mine_of_it.rstrip('"'))[len(path.split()) :])


@pytest.mark.parametrize(
    "example",
    [
        "tidelog a -x 1 -y 'two words and more' --long-option value --another value --third one",
        'tidelog a "$(tidelog b c d e f g h)" --long-option value --another value --third one more',
        "tidelog a b        # a remark that is so long that the line would not fit in any narrow terminal",
    ],
)
def test_a_long_example_is_one_that_a_shell_joins_again(example: str) -> None:
    lines = wrapped(example, WIDE - 4)
    assert max(map(len, lines)) <= WIDE - 2
    command = "\n".join(lines).replace("\\\n", " ")
    assert shlex.split(command, comments=True) == shlex.split(example, comments=True)


def test_nouns_verbs_options_and_layouts_are_completed() -> None:
    assert completed("to") == ["topic"]
    assert {"delete", "describe"} == set(completed("topic", "de"))
    assert "--acks" in completed("perf", "produce", "--a")
    assert completed("topic", "list", "-o", "") == ["text", "json", "kafka"]


def test_topics_and_groups_are_completed_as_the_cluster_knows_them(
    one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    monkeypatch.setattr("tidelog.cli.names.COMPLETION_S", 20.0)
    name = one_broker.topic()
    one_broker.write(name, b"x")
    assert tidelog("consume", name, "-g", "readers", "-o", "start", "-n", "1").code == 0
    assert name in completed("topic", "describe", name[:1])
    for words in (["group", "describe"], ["group", "seek"], ["group", "delete"], ["consume", name, "-g"]):
        assert completed(*words, "read") == ["readers"], words
    assert completed("perf", "consume", name) == [name]


def test_completion_without_a_cluster_offers_nothing_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "127.0.0.1:1")
    assert completed("topic", "describe", "") == []
    assert completed("group", "describe", "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_us(shell: str) -> None:
    words = {"COMP_WORDS": "tidelog to", "COMP_CWORD": "to" if shell == "fish" else "1"}
    ran = process(env={**os.environ, **words, "_TIDELOG_COMPLETE": f"{shell}_complete"})
    assert ran.code == 0, ran
    assert "topic" in ran.out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("topik list", "No such command 'topik'; the nearest is topic (see"),
        ("topic lst", "No such command 'lst'; the nearest is list (see"),
        ("topic zzzzzzzz", "No such command 'zzzzzzzz' (see"),
        ("topic list --timeot 3", "No such option '--timeot'; the nearest is --timeout (see"),
        ("topic -b 127.0.0.1:1 list", "'-b' here: say it in front of `topic`, or behind the verb (see"),
        ("topic --nonsense list", "No such option '--nonsense' (see"),
    ],
)
def test_a_word_that_is_missed_is_answered_with_what_was_meant(
    tidelog: Tidelog, line: str, told: str
) -> None:
    ran = tidelog(*line.split())
    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1


def process(*words: str, env: dict[str, str] | None = None, head: bool = False) -> Ran:
    """The command as a process; with `head` nobody reads a byte of what it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    ) as ours:
        if head:
            assert ours.stdout is not None
            ours.stdout.close()
            ours.stdout = None
        too_long = threading.Timer(30, ours.kill)
        too_long.start()
        out, err = ours.communicate()
        too_long.cancel()
    return Ran(ours.returncode, (out or b"").decode(), err.decode())


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "completion bash",
        "topic list",
        "topic describe {name}",
        "consume {name} -o start --exit",
        "consume {name}",
        "config list cluster",
        "broker list",
        "group list",
        "perf consume {name} -o kafka",
        "perf produce {name} -n 100000000 --rate 1000 --warm-up 0 --every 0.1 -o json",
    ],
)
def test_whoever_reads_may_go_away_at_any_time(one_broker: Serving, line: str) -> None:
    name = one_broker.topic()
    one_broker.write_many(name, [b"x" * 100] * 2000)
    env = {**os.environ, "TIDELOG_BOOTSTRAP": one_broker.bootstrap}
    ran = process(*line.format(name=name).split(), env=env, head=True)
    assert ran.code == 0, ran
    assert "error" not in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_a_long_verification_shows_its_progress_at_a_terminal_and_leaves_no_trace(
    first: Path, environment: dict[str, str]
) -> None:
    program = (
        "import os, pty, sys\n"
        "import tidelog.cli.log.progress as progress\n"
        "from tidelog.cli.main import main\n"
        "progress._SHOWN_S = 0.0\n"
        "main(['log', 'dump', '--verify', sys.argv[1]])\n"
    )
    terminal = (
        "import os, pty, sys\n"
        "sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', *sys.argv[1:]])))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", terminal, program, str(first)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env={**os.environ, "TERM": "xterm", **environment},
        timeout=60,
    )
    assert b".log [" in ran.stdout
    assert b"% of " in ran.stdout
    last = ran.stdout.rpartition(b"% of ")[2]
    assert b"\r\x1b[K" in last, "the line is taken away"
    assert b"ok" in last


@pytest.mark.parametrize(
    "words", [["--version"], ["completion", "bash"], ["log", "segments", "."], ["up", "-h"]]
)
def test_a_stdout_that_is_closed_is_no_reader_and_no_failure(orders: Path, words: list[str]) -> None:
    ran = subprocess.run(
        ["sh", "-c", 'exec "$0" -m tidelog "$@" >&-', sys.executable, *words],
        cwd=orders,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
