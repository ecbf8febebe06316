"""`tidelog perf`: measure, with what users have at hand. Each verb is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "consume": Noun("tidelog.cli.perf.clients", "consume", "Show how fast records are read."),
    "failover": Noun("tidelog.cli.perf.kills", "failover", "Show how long writes stop when a leader dies."),
    "latency": Noun("tidelog.cli.perf.clients", "latency", "Show how long a record takes, one at a time."),
    "produce": Noun("tidelog.cli.perf.clients", "produce", "Show how fast records are written."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def perf() -> None:
    """Measure what a cluster does."""
