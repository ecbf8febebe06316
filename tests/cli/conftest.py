import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.real_directory import RealNode
from tests.cli.serving import Serving, serving
from tidelog.cli.main import run
from tidelog.cli.main import tidelog as root


class Ran(NamedTuple):
    """How a command line ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed, line by line."""
        return self.out.splitlines()


Tidelog = Callable[..., Ran]


@pytest.fixture
def tidelog(capsys: pytest.CaptureFixture[str]) -> Tidelog:
    """Run a command line: words, or paths."""

    def command(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = run(root, [str(word) for word in words])
        return Ran(code, *capsys.readouterr())

    return command


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without anything that a node takes for a setting, as `clean_environment` has it for processes."""
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a node that was stopped in order: three segments of orders-0."""
    RealNode(tmp_path / "data").fill().stop()
    return tmp_path / "data"


@pytest.fixture
def orders(data: Path) -> Path:
    """The partition's directory in it."""
    return data / "orders-0"


@pytest.fixture
def first(orders: Path) -> Path:
    """Its first segment."""
    return orders / "00000000000000000000.log"


@pytest.fixture(scope="module")
def one_broker() -> Iterator[Serving]:
    """A cluster of one broker, for all tests of a module; each makes topics of its own."""
    with serving(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[Serving]:
    """A cluster of three brokers, for all tests of a module that kill none."""
    with serving(3) as cluster:
        yield cluster
