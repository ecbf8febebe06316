"""Adds to tests/golden/frames/: heads and batches as this format has them, and the table of all messages.

What is committed there never changes, because tests decode it for ever. A new message, entry, field or kind of
batch is added; a change to what was there is refused, because older peers and logs would not survive it.

    PYTHONPATH=src python scripts/golden_frames.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.protocol.golden import BATCHES, HEADS, SCHEMA, batches, grown, heads, read, write  # noqa: E402
from tests.protocol.schema import breaks, from_text, schema_of, to_text  # noqa: E402


def main() -> None:
    """Add what is missing, or say what would break."""
    old = from_text(SCHEMA.read_text(encoding="utf-8")) if SCHEMA.exists() else {}
    wrong = breaks(old, schema_of())
    if wrong:
        sys.exit("\n".join(wrong))
    write(HEADS, grown(read(HEADS), heads()))
    write(BATCHES, grown(read(BATCHES), batches()))
    SCHEMA.write_text(to_text(schema_of()), encoding="utf-8")


if __name__ == "__main__":
    main()
