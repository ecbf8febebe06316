"""`tidelog topic alter` and `tidelog topic add-partitions`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.names import complete_topics
from tidelog.cli.objects import put
from tidelog.cli.options import (
    CHANGE_TIMEOUT_S,
    Verb,
    connection_options,
    key_values,
    layout,
    output_option,
)
from tidelog.cli.terminal import Writer, many

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import CreatedPartitions, ResourceAltered


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic alter orders -c retention.ms=3600000",
        "tidelog topic alter orders -c cleanup.policy=compact -c min.compaction.lag.ms=60000",
        "tidelog config unset topic orders retention.ms",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-c",
    "--config",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    required=True,
    help="A setting; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Say whether it could be done, and do nothing.")
@connection_options
@output_option
@click.pass_context
def alter(ctx: click.Context, /, topic: str, configs: Sequence[str], *, dry_run: bool) -> None:
    """Change settings of a topic: all of them, or none. Others stay as they are."""
    asked = layout(ctx, "text", "json")
    settings = key_values(configs, "-c", ctx)

    async def work(client: "Client") -> "ResourceAltered":
        await known_topics(client, topic)
        return await client.admin.alter_configs("topic", topic, settings, validate_only=dry_run)

    done = ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    if done.warning:
        click.echo(f"note: {done.warning}", err=True)
    writer = Writer()
    for key, value in settings.items():
        if asked == "json":
            put(writer, "config", kind="topic", name=topic, key=key, value=value, changed=not dry_run)
        else:
            writer.line(f"{topic}: {'would have ' * dry_run}{key}={value}")
    writer.flush()


@click.command(
    "add-partitions",
    cls=Verb,
    examples=(
        "tidelog topic add-partitions orders -p 6",
        "tidelog topic add-partitions orders -p 6 --dry-run",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    required=True,
    help="How many it is to have in all.",
)
@click.option("--dry-run", is_flag=True, help="Say whether it could be done, and do nothing.")
@connection_options
@output_option
@click.pass_context
def add_partitions(ctx: click.Context, /, topic: str, partitions: int, *, dry_run: bool) -> None:
    """Let a topic have more partitions; it can never have fewer.

    New records with a key may go to other partitions than older ones with the same key.
    """
    asked = layout(ctx, "text", "json")

    async def work(client: "Client") -> "CreatedPartitions":
        await known_topics(client, topic)
        return await client.admin.add_partitions(topic, partitions, validate_only=dry_run)

    done = ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    if done.warning:
        click.echo(f"note: {done.warning}", err=True)
    writer = Writer()
    if asked == "json":
        put(writer, "topic", topic=topic, partitions=partitions, changed=not dry_run)
    else:
        writer.line(f"{topic}: {'would have ' * dry_run}{many(partitions, 'partition')}")
    writer.flush()
