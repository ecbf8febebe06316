"""`tidelog partition elect`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.names import Named, complete_topics, named, require_partitions
from tidelog.cli.objects import put
from tidelog.cli.options import CHANGE_TIMEOUT_S, Layout, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Writer

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.admin import Election
    from tidelog.protocol.types import TopicPartition


@click.command(
    cls=Verb,
    examples=(
        "tidelog partition elect preferred",
        "tidelog partition elect preferred orders payments:3",
        "tidelog partition elect unclean orders:1",
    ),
)
@click.argument("kind", type=click.Choice(["preferred", "unclean"]), metavar="preferred|unclean")
@click.argument("names", nargs=-1, metavar="[TOPIC[:N]]...", shell_complete=complete_topics)
@yes_option
@connection_options
@output_option
@click.pass_context
def elect(ctx: click.Context, /, kind: str, names: Sequence[str], *, yes: bool) -> None:
    """Let the first replica of partitions lead (preferred), or somebody at all (unclean).

    Unclean is for partitions without a leader whose in-sync replicas will not come back: whoever is alive and has most
    leads, and committed records may be lost. Without names: all partitions of which that is to be said.
    """
    asked = layout(ctx, "text", "json", "kafka")
    wanted = [named(text, ctx) for text in names]
    unclean = kind == "unclean"

    async def order(client: "Client", *, only_look: bool) -> "list[Election]":
        return await client.admin.elect_leaders(
            await _partitions(ctx, client, wanted), unclean=unclean, validate_only=only_look
        )

    if unclean and not yes:
        plan = ask(ctx, lambda client: order(client, only_look=True), timeout_s=CHANGE_TIMEOUT_S)
        would = [_would(one) for one in plan if one.changed]
        if not would:
            _show([], asked, kind)
            return
        require_consent(ctx, would, yes=yes, question="Elect, and give up what only others have?")
    done = ask(ctx, lambda client: order(client, only_look=False), timeout_s=CHANGE_TIMEOUT_S)
    _show(done, asked, kind)


async def _partitions(
    ctx: click.Context, client: "Client", wanted: Sequence[Named]
) -> "list[TopicPartition] | None":
    from tidelog.protocol.types import TopicPartition  # noqa: PLC0415 -- a help page must not pay for it

    if not wanted:
        return None
    topics = {topic.name: topic for topic in await known_topics(client, *(each.topic for each in wanted))}
    found: dict[TopicPartition, None] = {}
    for each in wanted:
        numbers = [] if each.partition is None else [each.partition]
        for number in require_partitions(topics[each.topic], numbers, ctx):
            found[TopicPartition(each.topic, number)] = None
    return list(found)


def _would(one: "Election") -> str:
    who = f"broker {one.leader}" if one.leader >= 0 else "whoever is alive and has most"
    lost = "; committed records may be lost" if one.unclean or one.leader < 0 else ""
    return f"would let {who} lead {one.partition}{lost}"


def _show(done: "Sequence[Election]", asked: Layout, kind: str) -> None:
    writer = Writer()
    changed = [one for one in done if one.changed]
    if asked == "kafka":
        _as_kafka(writer, "Successfully completed leader election ({}) for partitions", changed, kind)
        _as_kafka(
            writer, "Valid replica already elected for partitions", [one for one in done if not one.changed]
        )
    for one in done if asked != "kafka" else ():
        if asked == "json":
            put(
                writer,
                "election",
                topic=one.partition.topic,
                partition=one.partition.partition,
                leader=one.leader,
                leader_epoch=one.leader_epoch,
                changed=one.changed,
                unclean=one.unclean,
            )
        elif one.changed:
            lost = "; committed records may be lost" * one.unclean
            writer.line(f"{one.partition}: broker {one.leader} leads in epoch {one.leader_epoch}{lost}")
        else:
            writer.line(f"{one.partition}: broker {one.leader} leads already")
    writer.flush()
    if not done:
        click.echo("no partition needs that", err=True)


def _as_kafka(writer: Writer, said: str, done: "Sequence[Election]", kind: str = "") -> None:
    if done:
        writer.line(f"{said.format(kind.upper())} {', '.join(str(one.partition) for one in done)}")
