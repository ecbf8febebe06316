"""Who runs what when several workers share the tests (`scripts/test` starts one for each of up to four cores).

Whatever starts processes of its own, or holds a stop-watch to them, stays with one worker, one after the other: two
clusters under fire at once would measure each other. Everything else goes by files, so that what a module has made for
its tests is made once.
"""

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

PROCESSES: Final = (
    "tests/broker/test_no_controller.py",
    "tests/chaos/",
    "tests/cli/",
    "tests/spark/",
    "tests/storage/test_compacting_process.py",
    "tests/storage/test_many_logs.py",
    "tests/test_bench.py",
    "tests/test_compose.py",
    "tests/test_demo.py",
    "tests/test_packaging.py",
    "tests/test_readme.py",
    "tests/test_set_up.py",
    "tests/test_tour.py",
    "tests/testing/",
)


def share_of(nodeid: str) -> str:
    """What a worker takes together with this test."""
    return "processes" if nodeid.startswith(PROCESSES) else nodeid.partition("::")[0]


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """Workers take one share after the other, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Shares:
    """Asked by xdist."""
    return Shares(config, log)
