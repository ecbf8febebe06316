"""Writes tests/golden/data/: small data directories, two for each version of the disk format.

What is committed there never changes, because a test opens it for ever: a directory that exists is left alone.
A newer version of the format gets directories of its own beside them.

    PYTHONPATH=src python scripts/golden_data.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.storage.golden_data import GOLDEN, NAMES, export, make  # noqa: E402


def main() -> None:
    """Write what is missing."""
    for name in NAMES:
        if (GOLDEN / name).exists():
            print(f"{name} is there and stays as it is")
        else:
            export(make(name), GOLDEN / name)
            print(f"{name} is written")


if __name__ == "__main__":
    main()
