"""`tidelog controller`: run controllers. Each verb is a module that is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "start": Noun("tidelog.cli.controller.start", "start", "Be a controller, in this process."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def controller() -> None:
    """Run controllers."""
