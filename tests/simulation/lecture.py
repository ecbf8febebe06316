"""The page made of all transcripts, to be read from top to bottom."""

from collections.abc import Iterable, Iterator
from itertools import groupby

HEAD = """\
# Replication, step by step

Ten short stories about a log that is kept on several machines: how a record becomes safe, what goes wrong, and which
rule is there because of it. Each story is a transcript. The lines with `>` were done to a cluster of tidelog brokers;
what stands beneath them is what that cluster then showed. Nothing here was written down by hand but the prose: a test
plays every story again and compares, so that what this page says is what the code does. The machines and the network
are simulated, the brokers are not.

Some stories end with *the same story with ... planted*. Then one rule was taken out of the brokers, everything was
done again, and only the outputs that differ are shown. That is the quickest way to see what a rule is for.

The rules themselves are in [REPLICATION.md](REPLICATION.md). The transcripts are in `tests/simulation/transcripts`;
`make transcripts` plays them and writes this page. Change a line there and see what happens.

In the stories brokers have numbers, records have letters, and offsets begin at 0. News between brokers takes 50 ms, a
broker that is silent for 1.5 s is fenced (it leads nothing, and is in no ISR), and a follower waits at most 0.5 s for
the answer to a fetch.
"""

TAIL = """\
## What to take along

* A record is safe when everybody who may be elected has it. All rules here are about who that is, and who knows it.
* The leader learns one fetch late what followers have; followers learn one fetch later what is committed (1, 2).
* Logs are compared by epochs, never by high watermarks: those say how much, not whose (3, 6, 7).
* Who has lost the leadership finds out late. Until then it must not commit, and soon it must not answer (4).
* The ISR changes by decision of the controller alone, and a leader waits for all whom that may count (5, 10).
* Too few in sync: commit nothing. Then whoever had everything still has it, and may lead (5, 8).
* Lost power, lost trust (7, 8). And if nobody trustworthy is left: wait, until a person decides otherwise (9).
"""


def lecture(transcripts: Iterable[str]) -> str:
    """The page, from the transcripts as they are."""
    return "\n".join([HEAD, *(_chapter(text) for text in transcripts), TAIL])


def _chapter(text: str) -> str:
    title, _, *lines = text.splitlines()
    return "\n".join([title.replace("# ", "## ", 1), *_blocks(lines)]).rstrip() + "\n"


def _blocks(lines: list[str]) -> Iterator[str]:
    yield ""
    for kind, group in groupby((line for line in lines if line), lambda line: line.startswith("#")):
        block = list(group)
        if kind:
            yield from (line.removeprefix("#").removeprefix(" ") for line in block)
        else:
            yield from ("```text", *block, "```")
        yield ""
