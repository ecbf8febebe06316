"""`tidelog topic offsets` and `tidelog topic partition-of`."""

import time
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.names import complete_topics
from tidelog.cli.objects import as_json, put
from tidelog.cli.options import Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer
from tidelog.cli.terminal import time as shown_time
from tidelog.cli.times import ACCEPTED, time_ms

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import OffsetFound
    from tidelog.protocol.types import TopicPartition

NOWHERE = -1
"""No record is that young."""


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic offsets orders",
        "tidelog topic offsets orders --at -1h",
        "tidelog topic offsets orders --at latest -o kafka",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--at",
    metavar="earliest|latest|TIME",
    help="One of both ends only, or the first record at that time or later: 2026-01-31T12:00:00Z, -1h, or ms since 1970.",
)
@connection_options
@output_option
@click.pass_context
def offsets(ctx: click.Context, /, topic: str, at: str | None) -> None:
    """Show where the partitions of a topic begin and end, as their leaders say.

    END is the offset behind the last committed record. Records may be fewer than the offsets, where a log is compacted.
    """
    asked = layout(ctx, "text", "json", "kafka")
    which: Any = at if at in {None, "earliest", "latest"} else time_ms(str(at), int(time.time() * 1000))
    if at is not None and which is None:
        raise click.UsageError(f"--at {at} is none of earliest, latest, {ACCEPTED}", ctx)

    async def look(client: "Client") -> "list[dict[TopicPartition, OffsetFound]]":
        await known_topics(client, topic)
        asked_for: list[Any] = ["earliest", "latest"] if at is None else [which]
        if asked == "kafka" and at is None:
            del asked_for[0]
        return [await client.admin.list_offsets(topic, each) for each in asked_for]

    found = ask(ctx, look)
    writer = Writer()
    if asked == "kafka":
        for each, one in found[0].items():
            writer.line(f"{each.topic}:{each.partition}:{one.offset if one.offset != NOWHERE else ''}")
    elif at is None:
        _both_ends(writer, *found, as_text=asked == "text")
    else:
        _one(writer, found[0], as_text=asked == "text")
    writer.flush()


def _both_ends(
    writer: Writer,
    first: "dict[TopicPartition, OffsetFound]",
    ends: "dict[TopicPartition, OffsetFound]",
    *,
    as_text: bool,
) -> None:
    table = Table(writer, (">PARTITION", ">START", ">END", ">OFFSETS"))
    for each, begin in first.items():
        start, end = begin.offset, max(ends[each].offset, begin.offset)
        if as_text:
            table.row(str(each.partition), str(start), str(end), str(end - start))
        else:
            put(
                writer,
                "partition",
                topic=each.topic,
                partition=each.partition,
                start_offset=start,
                end_offset=end,
            )
    table.end()


def _one(writer: Writer, found: "dict[TopicPartition, OffsetFound]", *, as_text: bool) -> None:
    table = Table(writer, (">PARTITION", ">OFFSET", "TIME (UTC)"))
    for each, one in found.items():
        if as_text:
            at = str(one.offset) if one.offset != NOWHERE else "-"
            table.row(str(each.partition), at, shown_time(one.timestamp))
        else:
            put(
                writer,
                "offset",
                topic=each.topic,
                partition=each.partition,
                offset=one.offset,
                timestamp_ms=one.timestamp,
            )
    table.end()


@click.command(
    "partition-of",
    cls=Verb,
    examples=(
        "tidelog topic partition-of orders customer-17",
        'tidelog consume orders -o start --exit -p "$(tidelog topic partition-of orders customer-17)" --key customer-17',
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("key")
@connection_options
@output_option
@click.pass_context
def partition_of(ctx: click.Context, /, topic: str, key: str) -> None:
    """Show the partition that records with a key go to, as from any of Kafka's clients (murmur2)."""
    asked = layout(ctx, "text", "json")
    data = key.encode("utf-8", "surrogateescape")

    async def look(client: "Client") -> int:
        [found] = await known_topics(client, topic)
        return len(found.partitions)

    count = ask(ctx, look)
    from tidelog.client.partitioning import partition_of as hashed  # noqa: PLC0415 -- as in `ask`

    partition = hashed(data, count)
    writer = Writer()
    if asked == "json":
        put(writer, "partition", topic=topic, **as_json("key", data), partition=partition, partitions=count)
    else:
        writer.line(str(partition))
    writer.flush()
