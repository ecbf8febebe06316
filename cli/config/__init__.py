"""`tidelog config`: settings of a topic, of a broker, or of the cluster. Each verb is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "get": Noun("tidelog.cli.config.look", "get", "Show the value that holds."),
    "list": Noun("tidelog.cli.config.look", "list_configs", "Show all settings, and where they stand."),
    "set": Noun("tidelog.cli.config.change", "set_configs", "Change settings."),
    "unset": Noun("tidelog.cli.config.change", "unset", "Take settings back."),
}


@click.group("config", cls=LazyGroup, nouns=VERBS)
def config() -> None:
    """Look at settings of a topic, a broker or the cluster, and change them.

    What is set for a topic wins over what is set for the cluster, and that over the default. A broker's own settings are
    read when it starts (docs/CONFIGURATION.md), except those that are set here.
    """
