"""scripts/env.sh: the set-up is done once, is never left half-done, and says in one line what is missing."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ENV_SH = Path(__file__).resolve().parents[1] / "scripts/env.sh"

TOOLS = ("cat", "cksum", "mkdir", "mv", "rm", "sh", "sleep")
"""All that the set-up may use besides Python: every system has these."""


@dataclass(frozen=True)
class Checkout:
    """A repository with nothing but the set-up, in a path with spaces, and the programs it can find."""

    root: Path
    bin: Path

    def program(self, name: str, script: str) -> None:
        """Put a program where the set-up looks for programs."""
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def start(self, python: str = sys.executable) -> subprocess.Popen[str]:
        """Begin a set-up; its last line on stdout is the interpreter it made ready."""
        script = 'set -eu; root=$1; . "$root/scripts/env.sh"; echo "$python"'
        return subprocess.Popen(
            [self.bin / "sh", "-c", script, "set-up", self.root],
            env={"PATH": str(self.bin), "PYTHON": python},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def set_up(self, python: str = sys.executable) -> tuple[int, str, str]:
        """Run a set-up to its end: exit code, stdout, stderr."""
        process = self.start(python)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err.strip()

    def installs(self) -> int:
        """How many times the dependencies were installed."""
        calls = self.root / "uv.calls"
        return calls.read_text().count("--require-hashes") if calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout on a machine with a uv that only writes down how it was called."""
    made = Checkout(tmp_path / "a check out", tmp_path / "bin")
    (made.root / "scripts").mkdir(parents=True)
    shutil.copy(ENV_SH, made.root / "scripts/env.sh")
    (made.root / "requirements.lock").write_text("")
    (made.root / "pyproject.toml").write_text("")
    made.bin.mkdir()
    for name in TOOLS:
        (made.bin / name).symlink_to(shutil.which(name) or name)
    made.program("uv", f'[ "$1" = --version ] || echo "$*" >>"{made.root}/uv.calls"')
    return made


def test_the_set_up_names_the_interpreter_it_made(checkout: Checkout) -> None:
    code, out, err = checkout.set_up()
    assert (code, out) == (0, str(checkout.root / ".venv/bin/python"))
    assert err.startswith("tidelog: setting up .venv with Python 3.")
    assert os.access(out, os.X_OK)


def test_a_second_set_up_is_silent_and_installs_nothing(checkout: Checkout) -> None:
    checkout.set_up()
    assert checkout.set_up()[2] == ""
    assert checkout.installs() == 1


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_list_is_installed_into_the_same_environment(checkout: Checkout, name: str) -> None:
    checkout.set_up()
    (checkout.root / ".venv/mine").touch()
    (checkout.root / name).write_text("changed")
    assert checkout.set_up()[0] == 0
    assert checkout.installs() == 2
    assert (checkout.root / ".venv/mine").exists()


def test_an_environment_that_was_left_half_made_is_made_anew(checkout: Checkout) -> None:
    checkout.program("uv", '[ "$1" = --version ]')
    code, _, err = checkout.set_up()
    assert code == 1
    assert "running this again starts over" in err
    (checkout.root / ".venv/half").touch()
    checkout.program("uv", "exit 0")
    assert checkout.set_up()[0] == 0
    assert not (checkout.root / ".venv/half").exists()


def test_an_environment_without_its_python_is_made_anew(checkout: Checkout) -> None:
    checkout.set_up()
    (checkout.root / ".venv/bin/python").unlink()
    assert checkout.set_up()[0] == 0
    assert (checkout.root / ".venv/bin/python").exists()


def test_of_two_at_once_one_installs_and_the_other_waits(checkout: Checkout) -> None:
    checkout.program(
        "uv", f'[ "$1" = --version ] || {{ sleep 0.5; echo "$*" >>"{checkout.root}/uv.calls"; }}'
    )
    both = [checkout.start(), checkout.start()]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert checkout.installs() == 1
    assert "waiting for another set-up" in "".join(said)


def test_what_was_found_is_named_when_no_python_is_new_enough(checkout: Checkout) -> None:
    checkout.program("python3", "echo 3.10.13 yes")
    checkout.program("python", "echo 2.7.18 no")
    code, _, err = checkout.set_up(python="")
    assert code == 1
    assert "needs Python 3.11 or newer; found: python3 is 3.10.13, python is 2.7.18." in err
    assert err.count("\n") == 0


def test_a_machine_without_any_python_gets_one_line(checkout: Checkout) -> None:
    code, _, err = checkout.set_up(python="")
    assert code == 1
    assert "found: none." in err


def test_a_debian_without_its_venv_package_is_told_which_to_install(checkout: Checkout) -> None:
    (checkout.bin / "uv").unlink()
    checkout.program("python3", "echo 3.11.2 no")
    code, _, err = checkout.set_up(python="")
    assert code == 1
    assert "sudo apt install python3.11-venv" in err
    assert err.count("\n") == 0
