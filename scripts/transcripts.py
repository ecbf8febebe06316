"""Plays the transcripts of tests/simulation/transcripts and writes what happens into them, and docs/LECTURE.md.

Run by scripts/transcripts; `--check` only compares. Names choose some of them: `scripts/transcripts 03`.
"""

import argparse
import sys

from tests.simulation.lecture import lecture
from tests.simulation.transcript import PAGE, regenerate, transcripts


def main(arguments: list[str]) -> int:
    """The exit status: 1 if something was to be compared and differs."""
    parser = argparse.ArgumentParser(
        "scripts/transcripts",
        description="Plays the transcripts, and writes what happens into them and docs/LECTURE.md.",
    )
    parser.add_argument(
        "chosen", nargs="*", metavar="NAME", help="how the names of those begin that are meant (all)"
    )
    parser.add_argument("--check", action="store_true", help="only tell what is not what happens now")
    said = parser.parse_args(arguments)
    check, chosen = said.check, said.chosen
    stale = []
    for path in transcripts():
        before = path.read_text()
        now = before
        if not chosen or path.name.startswith(tuple(chosen)):
            now = regenerate(before)
        if now != before:
            stale.append(path)
            if not check:
                path.write_text(now)
    page = lecture(path.read_text() for path in transcripts())
    if not PAGE.exists() or PAGE.read_text() != page:
        stale.append(PAGE)
        if not check:
            PAGE.write_text(page)
    for path in stale:
        print(f"{path.name} {'is not what happens now' if check else 'is written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
