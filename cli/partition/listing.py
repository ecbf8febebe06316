"""`tidelog partition list`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.names import complete_topics
from tidelog.cli.objects import put
from tidelog.cli.options import Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer
from tidelog.cli.topic.describe import NOBODY, brokers, partition_about, state_of

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.cluster import Topic


@click.command(
    "list",
    cls=Verb,
    examples=(
        "tidelog partition list",
        "tidelog partition list orders",
        "tidelog partition list --without-leader --under-replicated",
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--without-leader", is_flag=True, help="Those that nobody leads.")
@click.option("--under-replicated", is_flag=True, help="Those that have a replica that is not in sync.")
@connection_options
@output_option
@click.pass_context
def list_partitions(
    ctx: click.Context, /, topics: Sequence[str], *, without_leader: bool, under_replicated: bool
) -> None:
    """List partitions: who leads them, who keeps them, who is in sync."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "list[Topic]":
        if topics:
            return await known_topics(client, *topics)
        return await client.admin.list_topics(internal=True)

    writer = Writer()
    table = Table(writer, ("TOPIC", ">PARTITION", ">LEADER", ">EPOCH", "REPLICAS", "ISR", "STATE"))
    listed = 0
    for topic in ask(ctx, look):
        for one in topic.partitions:
            ailing = (without_leader and one.leader == NOBODY) or (
                under_replicated and len(one.isr) < len(one.replicas)
            )
            if not ailing and (without_leader or under_replicated):
                continue
            listed += 1
            if asked == "json":
                put(writer, "partition", **partition_about(topic.name, one))
                continue
            leader = str(one.leader) if one.leader != NOBODY else "-"
            table.row(
                topic.name,
                str(one.index),
                leader,
                str(one.leader_epoch),
                brokers(one.replicas),
                brokers(one.isr),
                state_of(one),
            )
    table.end()
    writer.flush()
    if not listed and asked == "text":
        click.echo(
            "no partition is like that" if without_leader or under_replicated else "there are no partitions",
            err=True,
        )
