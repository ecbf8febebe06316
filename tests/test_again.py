"""scripts/again reads what pytest says last, and knows which files a run has been of."""

import subprocess
from pathlib import Path

from scripts.again import code, told

CLOSING = """\
=========================== short test summary info ============================
SKIPPED [1] tests/test_compose.py:83: no docker compose here
FAILED tests/client/test_admin.py::test_a[a b] - AssertionError: assert 1 == 2
ERROR tests/client/test_admin.py::test_b
= 1 failed, 8730 passed, 1 skipped, 1 error in 1562.63s (0:26:02) =
"""


def test_what_failed_is_named_and_all_are_counted() -> None:
    counts, failed = told(CLOSING)
    assert counts == {"failed": 1, "passed": 8730, "skipped": 1, "error": 1}
    assert [name.partition("::")[2] for name in failed] == ["test_a[a b]", "test_b"]


def test_a_run_that_was_cut_short_has_counted_nothing() -> None:
    assert told("") == ({}, [])


def test_a_run_counts_until_a_tracked_file_that_is_no_prose_changes(tmp_path: Path) -> None:
    files = {"broker.py": "a = 1\n", "README.md": "# It\n", "docs/evidence/suite.json": "[]\n"}
    (tmp_path / "docs/evidence").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    before = code(tmp_path)
    (tmp_path / "README.md").write_text("# It is better\n")
    (tmp_path / "docs/evidence/suite.json").write_text("[1]\n")
    (tmp_path / "untracked.py").write_text("b = 1\n")
    assert code(tmp_path) == before
    (tmp_path / "broker.py").write_text("a = 2\n")
    assert code(tmp_path) != before
