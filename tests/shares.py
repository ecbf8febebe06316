"""Who runs what when several workers share the tests (`scripts/test` starts up to four of them).

Whatever starts processes of its own, or holds a stop-watch to them, stays with one worker, one after the other: two
clusters under fire at once would measure each other. What starts a JVM, or installs something, has a worker for itself:
it holds no stop-watch, and either waits for the other's processes no more than for anybody's. Everything else goes by
files, so that what a module has made for its tests is made once.

The two long shares come first, so that none is left alone at the end. Storms come last: they compute in two processes of
their own, and no core is idle while the last of them run.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

PROCESSES: Final = (
    "tests/broker/test_no_controller.py",
    "tests/chaos/",
    "tests/cli/",
    "tests/storage/test_compacting_process.py",
    "tests/storage/test_many_logs.py",
    "tests/test_bench.py",
    "tests/test_compose.py",
    "tests/test_tour.py",
    "tests/testing/",
)
JVM: Final = (
    "tests/spark/",
    "tests/test_bench.py::test_every_bench_runs_and_leaves_nothing_behind[spark]",
    "tests/test_demo.py",
    "tests/test_packaging.py",
    "tests/test_readme.py",
    "tests/test_set_up.py",
)
STORMS: Final = ("tests/simulation/test_rot.py", "tests/simulation/test_storms.py")


def share_of(nodeid: str) -> str:
    """What a worker takes together with this test."""
    for name, paths in (("jvm", JVM), ("processes", PROCESSES)):
        if nodeid.startswith(paths):
            return name
    return nodeid.partition("::")[0]


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """Workers take one share after the other, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Shares:
    """Asked by xdist."""
    return Shares(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Asked by pytest."""
    items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    if nodeid.startswith(STORMS):
        return 2
    return 0 if nodeid.startswith((*JVM, *PROCESSES)) else 1
