"""`tidelog broker`: run brokers. Each verb is a module that is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun
from tidelog.cli.options import refuse_settings

VERBS: Final = {
    "describe": Noun("tidelog.cli.broker.listing", "describe", "Show a broker and what it keeps."),
    "drain": Noun("tidelog.cli.broker.draining", "drain", "Move everything that a broker keeps to others."),
    "list": Noun(
        "tidelog.cli.broker.listing", "list_brokers", "List the brokers, those that are down as well."
    ),
    "start": Noun("tidelog.cli.broker.start", "start", "Be a broker, in this process."),
    "undrain": Noun("tidelog.cli.broker.draining", "undrain", "Give a drained broker its share again."),
    "unregister": Noun(
        "tidelog.cli.broker.leaving", "unregister", "Take a broker off that is gone for good."
    ),
}


@click.group(cls=LazyGroup, nouns=VERBS)
@click.pass_context
def broker(ctx: click.Context) -> None:
    """Run brokers, and look at them."""
    refuse_settings(ctx, ("start",))
