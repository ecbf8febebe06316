"""`import tidelog`: every name that users are promised, and nothing loaded before it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from tidelog.protocol.errors import BY_CODE

SOURCE = Path(tidelog.__file__).parents[1]


@pytest.mark.parametrize("name", [*tidelog._HOMES, "TidelogError"])
def test_a_promised_name_is_there_and_listed(name: str) -> None:
    assert getattr(tidelog, name) is not None
    assert name in dir(tidelog)


def test_every_error_has_its_name() -> None:
    for error in BY_CODE.values():
        assert getattr(tidelog, error.__name__) is error


@pytest.mark.parametrize("name", ["Admin", "Client", "Consumer", "Delivery", "Producer", "connect"])
def test_what_blocks_has_its_names_without_an_import_of_its_own(name: str) -> None:
    assert getattr(tidelog.sync, name).__doc__
    assert "sync" in dir(tidelog)


@pytest.mark.parametrize("name", ["Nothing", "Mapping", "BY_CODE", "_secret"])
def test_any_other_name_is_none(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(tidelog, name)


def test_importing_it_loads_none_of_its_modules() -> None:
    program = (
        "import sys; before = set(sys.modules); import tidelog; "
        "print(*(set(sys.modules) - before) & {'asyncio', 'typing', 'msgspec', 'logging'}, "
        "*(name for name in sys.modules if name.startswith('tidelog.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
