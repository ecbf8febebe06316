"""The root of the command line: what holds for every `tidelog NOUN VERB`."""

import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from tidelog import __version__
from tidelog.cli.main import NOUNS, LazyGroup, Noun, main, run
from tidelog.cli.main import tidelog as root

PLANTED = """
import click
from tidelog.protocol.errors import CorruptMessage

@click.group()
def planted():
    pass

@planted.command()
def works():
    click.echo("data")

@planted.command()
def refuses():
    raise CorruptMessage("orders-0 at 17:\\n  checksum differs")

@planted.command()
@click.argument("path", type=click.File())
def reads(path):
    pass

@planted.command()
def misses():
    open("/no/such/file").close()

@planted.command()
def interrupted():
    raise KeyboardInterrupt

@planted.command()
def asks():
    click.confirm("really?", abort=True)

@planted.command()
def unhealthy():
    click.get_current_context().exit(3)

@planted.command()
def fails():
    raise ZeroDivisionError("a bug of ours")
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """A root with one noun that works, and one whose module is missing."""
    (tmp_path / "planted_noun.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted_noun", raising=False)
    nouns = {
        "planted": Noun("planted_noun", "planted", "Grow."),
        "missing": Noun("no_such_module_anywhere", "missing", "Is not there."),
    }
    return LazyGroup("tidelog", nouns=nouns)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"tidelog {__version__}\n"


def test_help_names_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and noun.help in out for name, noun in NOUNS.items())
    assert "completion" in out


def test_help_imports_no_noun(planted: LazyGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted, ["--help"]) == 0
    assert "planted  Grow." in capsys.readouterr().out
    assert "planted_noun" not in sys.modules


def test_a_noun_is_imported_when_it_is_used(planted: LazyGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted, ["planted", "works"]) == 0
    assert capsys.readouterr().out == "data\n"


def test_without_a_noun_the_help_is_shown(planted: LazyGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted, []) == 2
    assert "planted  Grow." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["planted", "refuses"], 1, "error: orders-0 at 17: checksum differs"),
        (["planted", "misses"], 1, "error: /no/such/file: No such file or directory"),
        (["missing", "verb"], 1, "error: `missing` is not installed here: No module named"),
        (["nonsense"], 2, "error: No such command 'nonsense' (see `tidelog --help`)"),
        (["planted", "nonsense"], 2, "(see `tidelog planted --help`)"),
        (["planted", "works", "--nonsense"], 2, "(see `tidelog planted works --help`)"),
        (["planted", "reads", "/no/such/file"], 2, "/no/such/file"),
    ],
)
def test_what_goes_wrong_is_one_line_on_stderr(
    planted: LazyGroup, capsys: pytest.CaptureFixture[str], args: list[str], code: int, line: str
) -> None:
    assert run(planted, args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_an_interrupt_is_130(planted: LazyGroup) -> None:
    assert run(planted, ["planted", "interrupted"]) == 130


def test_a_refused_question_is_not_an_interrupt(planted: LazyGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert run(planted, ["planted", "asks"]) == 1


def test_a_command_chooses_a_further_exit_code(planted: LazyGroup) -> None:
    assert run(planted, ["planted", "unhealthy"]) == 3


@pytest.mark.parametrize(
    "words", [["up"], ["log", "dump", "x"], ["broker", "start"], ["controller", "start"]]
)
def test_settings_in_front_of_who_has_none_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root, ["-X", "linger.ms=1", *words]) == 2
    assert "say it behind" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(planted: LazyGroup) -> None:
    with pytest.raises(ZeroDivisionError):
        run(planted, ["planted", "fails"])


def test_a_noun_is_completed_without_being_imported(planted: LazyGroup) -> None:
    ctx = click.Context(planted)
    assert [item.value for item in planted.shell_complete(ctx, "pl")] == ["planted"]
    assert "planted_noun" not in sys.modules


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["completion", shell]) == 0
    assert "_TIDELOG_COMPLETE" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    program = textwrap.dedent("""
        import sys
        from tidelog.cli.main import run, tidelog
        assert run(tidelog, ["--help"]) == 0
        heavy = {"asyncio", "msgspec", "msgpack", "uvloop", "cramjam", "crc32c", "pyspark", "ssl"}
        print(sorted(heavy & sys.modules.keys()), file=sys.stderr)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
