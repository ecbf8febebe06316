"""`tidelog topic delete` and `tidelog topic trim`: what they would take away is shown before it is taken."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.names import complete_topics, require_partitions
from tidelog.cli.objects import put
from tidelog.cli.options import CHANGE_TIMEOUT_S, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Writer, many, span
from tidelog.cli.topic.describe import replication_factor
from tidelog.protocol.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.cluster import Topic
    from tidelog.protocol.types import TopicPartition

_COUNTED_S = 1.0
"""A topic may be deleted whose leaders do not answer: their records are then not counted."""


@click.command(
    cls=Verb, examples=("tidelog topic delete orders", "tidelog topic delete orders payments --yes")
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@yes_option
@connection_options
@output_option
@click.pass_context
def delete(ctx: click.Context, /, topics: Sequence[str], *, yes: bool) -> None:
    """Remove topics with all their records, for ever."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "list[tuple[Topic, str]]":
        found = await known_topics(client, *topics)
        return [(topic, "" if yes else await _records(client, topic)) for topic in found]

    found = ask(ctx, look)
    would = [
        f"would delete {topic.name}: {many(len(topic.partitions), 'partition')}, "
        f"{many(replication_factor(topic), 'replica')} each, {records}"
        + "; every group forgets how far it has come"
        * topic.internal
        for topic, records in found
    ]
    require_consent(ctx, would, yes=yes, question="Delete for ever?")

    async def work(client: "Client") -> None:
        # By id: what was shown is deleted, and nothing that was made under its name meanwhile.
        await client.admin.delete_topics(*(topic.id for topic, _ in found))

    ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    writer = Writer()
    for topic, _ in found:
        if asked == "json":
            put(writer, "topic", topic=topic.name, topic_id=topic.id.hex(), deleted=True)
        else:
            writer.line(f"{topic.name}: deleted")
    writer.flush()


async def _records(client: "Client", topic: "Topic") -> str:
    try:
        first = await client.admin.list_offsets(topic.name, "earliest", timeout=_COUNTED_S)
        ends = await client.admin.list_offsets(topic.name, "latest", timeout=_COUNTED_S)
    except TidelogError:
        return "and records that nobody could count"
    return many(sum(max(ends[each].offset - first[each].offset, 0) for each in ends), "record")


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic trim orders -p 0 --before 1000",
        "tidelog topic trim orders -p 0 -p 1 --before end --yes",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    required=True,
    help="Of which partition; repeatable.",
)
@click.option(
    "--before", metavar="OFFSET", required=True, help="The first offset that stays; `end`: nothing does."
)
@yes_option
@connection_options
@output_option
@click.pass_context
def trim(ctx: click.Context, /, topic: str, partitions: Sequence[int], before: str, *, yes: bool) -> None:
    """Delete the oldest records of a partition, for ever."""
    asked = layout(ctx, "text", "json")
    if before != "end" and not before.isdecimal():
        raise click.UsageError(f"--before {before} is no offset: it must be a number, or `end`", ctx)

    async def look(client: "Client") -> "dict[TopicPartition, tuple[int, int]]":
        from tidelog.protocol.types import TopicPartition  # noqa: PLC0415 -- a help page must not pay for it

        [found] = await known_topics(client, topic)
        wanted = [TopicPartition(topic, number) for number in require_partitions(found, partitions, ctx)]
        first = await client.admin.list_offsets(wanted, "earliest")
        ends = await client.admin.list_offsets(wanted, "latest")
        return {each: (first[each].offset, ends[each].offset) for each in wanted}

    found = ask(ctx, look)
    targets = {each: end if before == "end" else int(before) for each, (_, end) in found.items()}
    for each, (_, end) in found.items():
        if targets[each] > end:
            raise click.UsageError(f"--before {before}: {each} ends at offset {end}", ctx)
    would = [
        f"would delete of {each}: {span(first, max(targets[each], first))}, "
        f"{many(max(targets[each] - first, 0), 'record')} at most"
        for each, (first, _) in found.items()
    ]
    require_consent(ctx, would, yes=yes, question="Delete for ever?")

    async def work(client: "Client") -> "dict[TopicPartition, int]":
        return await client.admin.delete_records(targets)

    writer = Writer()
    for each, begins in sorted(ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S).items()):
        if asked == "json":
            put(writer, "partition", topic=each.topic, partition=each.partition, start_offset=begins)
        else:
            writer.line(f"{each}: begins at offset {begins}")
    writer.flush()
