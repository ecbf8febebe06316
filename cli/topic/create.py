"""`tidelog topic create`: each topic by itself, so that one that is refused keeps no other from being made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import Failure, ask, failure
from tidelog.cli.objects import put
from tidelog.cli.options import (
    CHANGE_TIMEOUT_S,
    Verb,
    can_be_sent,
    connection_options,
    key_values,
    layout,
    output_option,
)
from tidelog.cli.terminal import Writer, many
from tidelog.protocol.errors import TidelogError, TopicAlreadyExists

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.admin import NewTopic
    from tidelog.protocol.messages import CreatedTopic


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic create orders",
        "tidelog topic create orders payments -p 12 -r 3 -c retention.ms=604800000",
        "tidelog topic create state -c cleanup.policy=compact --if-not-exists",
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p", "--partitions", type=click.IntRange(1), metavar="N", help="How many. [default: the cluster's, 1]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="How many brokers keep each. [default: the cluster's, 3]",
)
@click.option("-c", "--config", "configs", metavar="KEY=VALUE", multiple=True, help="A setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="A topic that exists is no error, as it is.")
@click.option("--dry-run", is_flag=True, help="Say whether it could be done, and do nothing.")
@connection_options
@output_option
@click.pass_context
def create(
    ctx: click.Context,
    /,
    topics: Sequence[str],
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    *,
    if_not_exists: bool,
    dry_run: bool,
) -> int:
    """Make topics.

    When it returns, every broker that lives knows who leads them: they can be written and read.
    """
    asked = layout(ctx, "text", "json", "kafka")
    settings = key_values(configs, "-c", ctx)
    names = list(dict.fromkeys(topics))
    for name in names:
        if not can_be_sent(name):
            raise click.UsageError(
                f"{name!r} cannot be the name of a topic: it must be 1 to 249 of letters, digits, '.', '_' and '-'",
                ctx,
            )

    async def work(client: "Client") -> "list[CreatedTopic | TidelogError]":
        import asyncio  # noqa: PLC0415 -- a help page must not pay for it

        from tidelog.client.admin import NewTopic  # noqa: PLC0415 -- as above

        wanted = [NewTopic(name, partitions or 0, replication_factor or 0, settings) for name in names]
        return list(await asyncio.gather(*(_made(client, topic, dry_run=dry_run) for topic in wanted)))

    failed = None
    writer = Writer()
    for name, done in zip(names, ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S), strict=True):
        if isinstance(done, TopicAlreadyExists) and if_not_exists:
            click.echo(f"{name} exists already", err=True)
        elif isinstance(done, TidelogError):
            failed = _refused(failed, failure(done))
        elif asked == "json":
            put(
                writer,
                "topic",
                topic=name,
                topic_id=_hex(done),
                partitions=done.partitions,
                replication_factor=done.replication_factor,
                created=not dry_run,
            )
        elif asked == "kafka":
            writer.line(f"Created topic {name}.")
        else:
            writer.line(f"{name}: {_counts(done) if not dry_run else 'can be created'}")
    writer.flush()
    if failed is not None:
        raise failed
    return 0


async def _made(client: "Client", topic: "NewTopic", *, dry_run: bool) -> "CreatedTopic | TidelogError":
    try:
        [done] = await client.admin.create_topics(topic, validate_only=dry_run)
    except TidelogError as error:
        return error
    return done


def _counts(done: "CreatedTopic") -> str:
    return f"{many(done.partitions, 'partition')}, {many(done.replication_factor, 'replica')} each"


def _hex(done: "CreatedTopic") -> str | None:
    return done.topic_id.hex() if done.topic_id else None


def _refused(first: Failure | None, further: Failure) -> Failure:
    """The last error is the command's; those before it are told."""
    if first is not None:
        click.echo(f"error: {first.message}", err=True)
    return further
