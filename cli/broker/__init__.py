"""`tidelog broker`: run brokers. Each verb is a module that is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "start": Noun("tidelog.cli.broker.start", "start", "Be a broker, in this process."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def broker() -> None:
    """Run brokers, and look at them."""
