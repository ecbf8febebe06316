"""Writes tests/golden/snapshots/: one snapshot of the metadata log, of this version of its format.

What is committed there never changes, because a test loads it for ever: a file that exists is left alone.

    PYTHONPATH=src python scripts/golden_snapshot.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.controller.golden_snapshot import GOLDEN, NAME, make  # noqa: E402


def main() -> None:
    """Write it if it is missing."""
    if (GOLDEN / NAME).exists():
        print(f"{NAME} is there and stays as it is")
        return
    GOLDEN.mkdir(parents=True, exist_ok=True)
    (GOLDEN / NAME).write_bytes(make())
    print(f"{NAME} is written")


if __name__ == "__main__":
    main()
