"""Measures the product next to what this machine can do at best, and prints what came out.

A figure means something beside its reference, which the same run has taken: the ratio is the figure. Goals
are those of the design; a goal that is missed stays in the table. `--record` keeps a run as evidence, which
counts as long as the code that it ran is unchanged (`--standing`). Each bench is kept when it is complete:
`--resume` goes on behind the last one.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from scripts.benches import evidence, front_page, growth, report, table  # noqa: E402
from scripts.benches.all import BENCHES  # noqa: E402
from scripts.benches.measure import Bench, Settings, run  # noqa: E402

from tidelog.cli.terminal import ended_with_its_reader  # noqa: E402
from tidelog.protocol.io import tune_malloc  # noqa: E402

EVIDENCE = ROOT / "docs/evidence/bench.json"
PICTURES = ROOT / "docs/growth"
README = ROOT / "README.md"
REPORT = ROOT / "docs/performance.md"


def main(arguments: list[str]) -> int:
    """Measure what was asked for. 0: measured, whatever came out; 1: something could not be measured."""
    # Whoever starts processes starts them with modules compiled beforehand, as they are after any first use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options = _parser().parse_args(arguments)
    if options.standing:
        print(table.standing(evidence.standing(EVIDENCE, ROOT)))
        return 0
    if options.pages:
        _write_pages(evidence.entries(EVIDENCE))
        return 0
    try:
        benches = _named(options.names)
    except LookupError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    record = options.record or options.resume
    if record and options.quick:
        print("bench: a quick run shows that it works, and is no evidence", file=sys.stderr)
        return 2
    # A stop is a stop, and what was made is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tune_malloc()  # as the product's processes do
    _measure(benches, options, EVIDENCE if record else None)
    return 0


def _measure(benches: list[Bench], options: argparse.Namespace, record: Path | None) -> None:
    """Take one bench after the other; what is complete is kept, whatever becomes of the next one."""
    began, before = time.perf_counter(), evidence.codes(benches, ROOT)
    taken: dict[str, dict[str, Any]] = {}
    last: dict[str, Any] | None = None
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.directory) as directory,
        ExitStack() as shared,
    ):
        settings = Settings(Path(directory), options.rounds, options.quick, shared=shared)
        if options.resume:
            benches = _not_yet(benches, settings)
        for bench in benches:
            measured = run(bench, settings)
            print(table.of(measured), flush=True)
            # Once, now: what is edited while a later bench runs takes nothing from this one.
            taken[bench.name] = evidence.part(measured, before[bench.name], ROOT)
            took_s = time.perf_counter() - began
            entry = evidence.entry(taken, settings, _command(options), took_s, ROOT)
            if options.json:
                text = json.dumps(entry, indent=1, ensure_ascii=False)
                Path(options.json).write_text(text + "\n", "utf-8")
            if record:
                # Read anew: another run may have kept something meanwhile.
                kept = [one for one in evidence.entries(record) if one != last]
                last = entry
                evidence.write(record, [*kept, entry])
                _write_pages([*kept, entry])


def _write_pages(runs: list[dict[str, Any]]) -> None:
    """What shows the kept runs to others."""
    growth.write_pictures(runs, PICTURES)
    front_page.write(README, runs)
    report.write(REPORT, runs)


def _named(names: list[str]) -> list[Bench]:
    """The benches of these names, and all sections of a bench that has some; none: all."""
    found = {name: [one for one in BENCHES if name in (one.name, one.part_of)] for name in names}
    unknown = sorted(name for name, those in found.items() if not those)
    if unknown:
        there = ", ".join(bench.name for bench in BENCHES)
        raise LookupError(f"there is no {', '.join(unknown)}; there are: {there}")
    wanted = {one.name for those in found.values() for one in those}
    return [bench for bench in BENCHES if not names or bench.name in wanted]


def _not_yet(benches: list[Bench], settings: Settings) -> list[Bench]:
    """Those of which no kept run counts."""
    done = evidence.measured_already(benches, settings, EVIDENCE, ROOT)
    if done:
        print(f"bench: measured already: {', '.join(sorted(done))}", file=sys.stderr)
    return [bench for bench in benches if bench.name not in done]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures tidelog next to what this machine can do at best.",
        epilog="\n".join(f"  {bench.name:17} {bench.about}" for bench in BENCHES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benches to run (all)")
    parser.add_argument("--quick", action="store_true", help="for function only: figures mean nothing")
    parser.add_argument("--rounds", type=_rounds, default=7, metavar="N", help="rounds to take (7)")
    parser.add_argument("--json", metavar="FILE", help="write the run there")
    parser.add_argument("--record", action="store_true", help="add the run to docs/evidence/bench.json")
    parser.add_argument(
        "--resume", action="store_true", help="as --record, but only what no kept run of today's code has"
    )
    parser.add_argument("--standing", action="store_true", help="only tell which evidence still counts")
    parser.add_argument(
        "--pages",
        action="store_true",
        help="only write docs/growth, docs/performance.md's tables and README's figures from the kept runs",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        default=_directory(),
        help="where to make files, on the disk that is meant (%(default)s)",
    )
    return parser


def _command(options: argparse.Namespace) -> str:
    """What to type to take this run again; paths are this machine's own, and are left out."""
    words = ["scripts/bench", *options.names, "--rounds", str(options.rounds)]
    return shlex.join([*words, "--quick"] if options.quick else words)


def _rounds(text: str) -> int:
    rounds = int(text)
    if not 1 <= rounds <= 1000:
        raise argparse.ArgumentTypeError("between 1 and 1000")
    return rounds


def _directory() -> str:
    """What outlives a restart is on a disk, where the usual place may be memory."""
    return "/var/tmp" if Path("/var/tmp").is_dir() else tempfile.gettempdir()  # noqa: S108 -- made inside it


if __name__ == "__main__":
    with ended_with_its_reader():
        try:
            sys.exit(main(sys.argv[1:]))
        except KeyboardInterrupt:
            sys.exit(130)
