"""`tidelog topic`: create topics, look at them, change them. Each verb is imported when it is used."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun

VERBS: Final = {
    "add-partitions": Noun("tidelog.cli.topic.change", "add_partitions", "Let a topic have more partitions."),
    "alter": Noun("tidelog.cli.topic.change", "alter", "Change settings of a topic."),
    "create": Noun("tidelog.cli.topic.create", "create", "Make topics; they are usable when it returns."),
    "delete": Noun("tidelog.cli.topic.remove", "delete", "Remove topics with all their records."),
    "describe": Noun(
        "tidelog.cli.topic.describe", "describe", "Show partitions, leaders, replicas, settings."
    ),
    "list": Noun("tidelog.cli.topic.describe", "list_topics", "List the topics."),
    "offsets": Noun("tidelog.cli.topic.offsets", "offsets", "Show where partitions begin and end."),
    "partition-of": Noun("tidelog.cli.topic.offsets", "partition_of", "Show where a key's records are."),
    "trim": Noun("tidelog.cli.topic.remove", "trim", "Delete the oldest records of a partition."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def topic() -> None:
    """Create topics, look at them, change them."""
