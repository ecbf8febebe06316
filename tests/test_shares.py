"""Tests are shared out so that what measures runs alone, and what waits runs beside what computes."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import shares

ROOT = Path(__file__).resolve().parent.parent


class Item(NamedTuple):
    nodeid: str


@pytest.mark.parametrize(
    ("nodeid", "share"),
    [
        ("tests/chaos/test_chaos.py::test_a[1]", "processes"),
        ("tests/test_bench.py::test_every_bench_runs_and_leaves_nothing_behind[some]", "processes"),
        ("tests/test_bench.py::test_every_bench_runs_and_leaves_nothing_behind[spark]", "jvm"),
        ("tests/spark/test_sink.py::test_a", "jvm"),
        ("tests/broker/test_fetch.py::test_a[1]", "tests/broker/test_fetch.py"),
    ],
)
def test_clusters_of_processes_are_with_one_worker_and_virtual_machines_with_another(
    nodeid: str, share: str
) -> None:
    assert shares.share_of(nodeid) == share


def test_long_shares_come_first_and_storms_last_and_all_else_stays_in_its_order() -> None:
    names = ["tests/broker/test_fetch.py", *shares.STORMS, "tests/storage/test_log.py", "tests/test_demo.py"]
    items: Any = [Item(f"{name}::test_a") for name in names]
    shares.pytest_collection_modifyitems(items)
    found = [item.nodeid.partition("::")[0] for item in items]
    assert found == ["tests/test_demo.py", names[0], "tests/storage/test_log.py", *shares.STORMS]


@pytest.mark.parametrize("path", [*shares.PROCESSES, *shares.JVM, *shares.STORMS])
def test_what_is_named_is_there(path: str) -> None:
    file, _, test = path.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"def {test.partition('[')[0]}(" in (ROOT / file).read_text("utf-8")
