"""What notices bugs on purpose notices nothing where there is none."""

from types import ModuleType

import pytest

from tests.controller import (
    test_configs,
    test_departures,
    test_leaders,
    test_partitions,
    test_reassignment,
    test_recovery,
)
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import configs, departures, leaders, partitions, reassignment, recovery

PAIRS = (
    (test_configs, configs),
    (test_departures, departures),
    (test_leaders, leaders),
    (test_partitions, partitions),
    (test_reassignment, reassignment),
    (test_recovery, recovery),
)


@pytest.mark.parametrize(("tests", "module"), PAIRS, ids=[module.__name__ for _, module in PAIRS])
def test_no_bug_is_found_where_there_is_none(
    tests: ModuleType, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (module.__doc__ or "").splitlines()[0]
    assert not noticed(vars(tests), module, Bug("none", first, first), monkeypatch)
