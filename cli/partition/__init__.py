"""`tidelog partition`: look at partitions, move them, elect leaders. Each verb is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "cancel": Noun("tidelog.cli.partition.moving", "cancel", "Cancel moves that go on."),
    "elect": Noun("tidelog.cli.partition.electing", "elect", "Let another replica lead."),
    "list": Noun(
        "tidelog.cli.partition.listing", "list_partitions", "List partitions; all, or the ailing ones."
    ),
    "move": Noun("tidelog.cli.partition.moving", "move", "Move a partition to other brokers."),
    "moves": Noun("tidelog.cli.partition.moving", "moves", "Show what is being moved."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def partition() -> None:
    """Look at partitions, move them, elect leaders."""
