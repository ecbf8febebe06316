"""`tidelog group seek` and `tidelog group delete`: what they would change is shown before it is changed."""

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.names import complete_groups, require_partitions
from tidelog.cli.objects import put
from tidelog.cli.options import CHANGE_TIMEOUT_S, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer, many
from tidelog.cli.times import ACCEPTED, time_ms

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.admin import OffsetReset
    from tidelog.protocol.messages import DescribedGroup
    from tidelog.protocol.types import TopicPartition

ENDS = {"start": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}


@click.command(
    cls=Verb,
    examples=(
        "tidelog group seek billing --to start",
        "tidelog group seek billing --to -1h --topic orders --yes",
        "tidelog group seek billing --to -100 --topic orders:0,1",
    ),
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--to",
    "target",
    metavar="start|end|OFFSET|TIME|-N|+N",
    required=True,
    help="Where it goes on: at an end, at an offset, at the first record of a time (2026-01-31T12:00:00Z, -1h), or N records "
    "back or further. Never outside of what there is.",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1]",
    multiple=True,
    help="Only in this topic, or in these partitions of it; repeatable. [default: all that it has committed]",
)
@yes_option
@connection_options
@output_option
@click.pass_context
def seek(ctx: click.Context, /, group: str, *, target: str, topics: Sequence[str], yes: bool) -> None:
    """Set where a group goes on. It must have no members: only they commit while there are any."""
    asked = layout(ctx, "text", "json", "kafka")
    to = _target(ctx, target)

    async def look(client: "Client") -> "list[OffsetReset]":
        return await client.admin.reset_group_offsets(
            group, to, partitions=await _partitions(ctx, client, topics)
        )

    resets = ask(ctx, look)
    if not resets:
        raise click.UsageError(
            f"{group} has committed nothing: say --topic TOPIC to set where it begins", ctx
        )
    would = [
        f"would set {group} in {each.partition}: {'nothing' if each.before is None else each.before} -> {each.after}"
        for each in resets
    ]
    require_consent(ctx, would, yes=yes, question="Set these offsets?")

    async def work(client: "Client") -> "list[OffsetReset]":
        return await client.admin.reset_group_offsets(
            group, to, partitions=await _partitions(ctx, client, topics), dry_run=False
        )

    _show(ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S), group, asked)


def _show(resets: "Sequence[OffsetReset]", group: str, asked: str) -> None:
    writer = Writer()
    titles = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
    table = Table(writer, titles if asked == "kafka" else ("TOPIC", ">PARTITION", ">WAS", ">IS"))
    for each in resets:
        topic, partition = each.partition
        if asked == "json":
            put(
                writer,
                "group_offset",
                group=group,
                topic=topic,
                partition=partition,
                before=-1 if each.before is None else each.before,
                offset=each.after,
            )
        elif asked == "kafka":
            table.row(group, topic, str(partition), str(each.after))
        else:
            was = "-" if each.before is None else str(each.before)
            table.row(topic, str(partition), was, str(each.after))
    table.end()
    writer.flush()


def _target(ctx: click.Context, text: str) -> Any:
    from tidelog.client.admin import Offset, Shift, Time  # noqa: PLC0415 -- a help page must not pay for it

    if text in ENDS:
        return ENDS[text]
    if text.isdecimal():
        return Offset(int(text))
    if re.fullmatch(r"[-+]\d+", text):
        return Shift(int(text))
    at_ms = time_ms(text, int(time.time() * 1000))
    if at_ms is None:
        raise click.UsageError(f"--to {text} is none of start, end, OFFSET, -N, +N, {ACCEPTED}", ctx)
    return Time(at_ms)


async def _partitions(ctx: click.Context, client: "Client", topics: Sequence[str]) -> Any:
    from tidelog.protocol.types import TopicPartition  # noqa: PLC0415 -- as above

    if not topics:
        return None
    found = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        words = numbers.split(",") if colon else []
        if not name or not all(word.isdecimal() for word in words):
            raise click.UsageError(f"--topic {text} is no TOPIC and no TOPIC:0,1", ctx)
        [topic] = await known_topics(client, name)
        found += [
            TopicPartition(name, each) for each in require_partitions(topic, list(map(int, words)), ctx)
        ]
    return found


@click.command(
    cls=Verb,
    examples=(
        "tidelog group delete billing",
        "tidelog group delete old older --yes",
        "tidelog group delete billing --topic orders:0,1",
    ),
)
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1]",
    multiple=True,
    help="Forget only how far the group was in this topic, or in these partitions of it; repeatable. It may have members "
    "that consume other topics.",
)
@yes_option
@connection_options
@output_option
@click.pass_context
def delete(ctx: click.Context, /, groups: Sequence[str], *, topics: Sequence[str], yes: bool) -> None:
    """Forget groups that have no members, and how far they were; or only how far one was in some topics."""
    asked = layout(ctx, "text", "json")
    names = list(dict.fromkeys(groups))
    if topics:
        if len(names) > 1:
            raise click.UsageError("--topic: say of which group", ctx)
        _delete_offsets(ctx, names[0], topics, asked, yes=yes)
        return

    async def look(client: "Client") -> "list[DescribedGroup]":
        return await client.admin.describe_groups(*names, with_lag=False)

    would = [
        f"would delete {one.group_id}: {many(len(one.members), 'member')}, {many(len(one.offsets), 'offset')}"
        for one in ask(ctx, look)
    ]
    require_consent(ctx, would, yes=yes, question="Delete for ever?")

    async def work(client: "Client") -> None:
        await client.admin.delete_groups(*names)

    ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    writer = Writer()
    for name in names:
        if asked == "json":
            put(writer, "group", group=name, deleted=True)
        else:
            writer.line(f"{name}: deleted")
    writer.flush()


def _delete_offsets(ctx: click.Context, group: str, topics: Sequence[str], asked: str, *, yes: bool) -> None:
    async def look(client: "Client") -> "dict[TopicPartition, int]":
        """What there is to forget."""
        wanted = set(await _partitions(ctx, client, topics))
        [described] = await client.admin.describe_groups(group, with_lag=False)
        places = {(each.topic, each.index): each.offset for each in described.offsets if each.offset >= 0}
        return {each: places[each] for each in sorted(wanted) if each in places}

    found = ask(ctx, look)
    if not found:
        raise click.UsageError(f"{group} has committed nothing there", ctx)
    would = [f"would forget {group} in {each}: {offset}" for each, offset in found.items()]
    require_consent(ctx, would, yes=yes, question="Forget these offsets?")

    async def work(client: "Client") -> None:
        await client.admin.delete_group_offsets(group, found)

    ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    writer = Writer()
    for (topic, partition), before in found.items():
        if asked == "json":
            place = {"group": group, "topic": topic, "partition": partition}
            put(writer, "group_offset", **place, before=before, offset=-1, deleted=True)
        else:
            writer.line(f"{group} in {topic}-{partition}: {before} forgotten")
    writer.flush()
