"""`tidelog group`: look at groups, set where they go on, forget them. Each verb is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "delete": Noun("tidelog.cli.group.change", "delete", "Forget groups with their offsets."),
    "describe": Noun("tidelog.cli.group.look", "describe", "Show how far groups are, and their members."),
    "list": Noun("tidelog.cli.group.look", "list_groups", "List the groups."),
    "seek": Noun("tidelog.cli.group.change", "seek", "Set where a group goes on."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def group() -> None:
    """Look at groups, set where they go on, forget them."""
