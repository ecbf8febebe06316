"""`tidelog consume`: read records of a topic, from anywhere to anywhere, in any form.

`-o` is a range here, as in kcat and rpk, and takes the three layouts besides (docs/adr/0097): no range is spelled so.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.asking import ask
from tidelog.cli.names import complete_groups, complete_topics
from tidelog.cli.options import (
    LAYOUTS,
    Layout,
    Verb,
    connection_options_with,
    layout,
    remember_layout,
    timeout_ms,
)
from tidelog.cli.terminal import Writer, many

if TYPE_CHECKING:
    from tidelog.cli.consume.formats import Raw, Show
    from tidelog.cli.consume.ranges import Range
    from tidelog.cli.consume.reading import Tally, Wanted
    from tidelog.client import Client

SILENT_S: Final = 30.0
"""For so long a partition that has more may give nothing before a bounded read is given up."""


def _ranges(ctx: click.Context, _option: click.Parameter, said: Sequence[str]) -> str | None:
    """The one range among what was said; layouts are remembered where those of all verbs are."""
    ranges = []
    for word in said:
        layouts = [each for each in LAYOUTS if each == word]
        if layouts:
            remember_layout(ctx, *layouts)
        else:
            ranges.append(word)
    if len(ranges) > 1:
        raise click.UsageError(f"-o {ranges[0]} and -o {ranges[1]}: one range at a time", ctx)
    return ranges[0] if ranges else None


@click.command(
    cls=Verb,
    examples=(
        "tidelog consume orders                      # what comes from now on",
        "tidelog consume orders -o start --exit      # all that is there",
        "tidelog consume orders -o -5 -p 0           # the last five of partition 0, and what comes",
        "tidelog consume orders -o @-1h:end -o json | jq .value",
        "tidelog consume orders -o 10:20 -f '%t-%p@%o %T %k: %s\\n'",
        "tidelog consume orders -g billing -o start  # on from where the group has come to",
        "tidelog consume orders -o start --exit --grep 'error|fatal' --header source=eu -n 1",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-o",
    "wanted",
    multiple=True,
    metavar="RANGE|LAYOUT",
    callback=_ranges,
    help="Where to begin and to end: start, end, 10:20, :end, -5, @-1h:end, @2026-01-01T00:00:00Z; without a TO it goes on. "
    "[default: end] Or how it looks: text, json, kafka.",
)
@click.option(
    "--output",
    type=click.Choice(LAYOUTS),
    help="How it looks: values, JSON lines, or the console consumer's lines. [default: text]",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    metavar="GROUP",
    help="As a member of a group: on from where it has come to, and what was shown is committed. -o start or end then "
    "says where a group begins that has committed nothing.",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="End after so many records.")
@click.option(
    "-f",
    "--format",
    "template",
    metavar="FORMAT",
    help="kcat's: %t topic, %p partition, %o offset, %k key, %s value, %T time in ms, %h headers, %K and %S lengths; "
    "%%, \\n, \\t, \\x00.",
)
@click.option("--exit", "ends", is_flag=True, help="End where the partitions end now.")
@click.option("--key", metavar="KEY", help="Only records with this key.")
@click.option("--grep", metavar="RE", help="Only records whose value this regular expression is found in.")
@click.option(
    "--header",
    "headers",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Only records with this header; repeatable.",
)
@click.option(
    "--rack", metavar="RACK", default="", help="Read from replicas in this rack, where there are any."
)
@connection_options_with(f"How long a partition that has more may give nothing. [default: {SILENT_S:g}]")
@click.pass_context
def consume(ctx: click.Context, /, topic: str, *, ends: bool, **said: Any) -> int:
    """Read records of a topic.

    A range is FROM:TO in each partition; TO is exclusive, and without it reading goes on until Ctrl-C. Text is a value
    per line, with what a terminal would obey escaped; -f gives the bytes as they are (escaped on a terminal). In JSON,
    what is no UTF-8 is base64, and key_encoding, value_encoding say so.
    """
    if said["output"] is not None:
        remember_layout(ctx, said["output"])
    asked = layout(ctx, "text", "json", "kafka")
    if said["template"] is not None and asked != "text":
        raise click.UsageError(f"-f and -o {asked} are two ways to print a record: use one", ctx)
    # Imported here because a help page must not pay for them.
    from tidelog.cli.consume.member import read_as_member  # noqa: PLC0415
    from tidelog.cli.consume.reading import Wanted, read  # noqa: PLC0415
    from tidelog.cli.stopping import interrupted  # noqa: PLC0415
    from tidelog.client.options import ConsumerConfig  # noqa: PLC0415

    plan = Wanted(
        topic,
        tuple(said["partitions"]),
        _range(ctx, said["wanted"]),
        said["count"],
        _filter(ctx, said["key"], said["grep"], said["headers"]),
        timeout_ms(ctx, SILENT_S) / 1000,
        ends=ends,
    )
    show, out = _printer(ctx, asked, said["template"])

    group = said["group"]
    if group is not None:
        _refuse_choices_of_the_group(ctx, plan)

    async def work(client: "Client") -> "Tally":
        if group is not None:
            return await read_as_member(ctx, client, plan, group, show, out.flush)
        return await read(ctx, client, plan, show, out.flush)

    tally = ask(ctx, work, rack=said["rack"], child=ConsumerConfig)
    if asked == "kafka":
        click.echo(f"Processed a total of {tally.records} messages", err=True)
    else:
        hint = tally.note or _hint(tally, said["wanted"], ends=ends)
        click.echo(f"{many(tally.records, 'record')} of {topic}{hint}", err=True)
    return interrupted(ctx) if tally.interrupted else 0


def _refuse_choices_of_the_group(ctx: click.Context, plan: "Wanted") -> None:
    begin, stop = plan.range
    if stop is not None or begin.number or begin.where.value not in {"start", "end"}:
        raise click.UsageError(
            "-g and a range: the group says where to go on; -o start or -o end is where a new one begins, and "
            "`tidelog group seek` sets it",
            ctx,
        )
    if plan.partitions:
        raise click.UsageError("-g and -p: the group says who reads which partition; use one", ctx)


def _hint(tally: "Tally", wanted: str | None, *, ends: bool) -> str:
    if tally.records or tally.interrupted or not ends or wanted is not None:
        return ""
    return ": without -o it is read from the end on; -o start is from the beginning"


def _range(ctx: click.Context, text: str | None) -> "Range":
    from tidelog.cli.consume.ranges import NoRange, parse  # noqa: PLC0415 -- as above

    try:
        return parse(text if text is not None else "end", int(time.time() * 1000))
    except NoRange as error:
        raise click.UsageError(f"-o {error}", ctx) from error


def _printer(ctx: click.Context, asked: Layout, template: str | None) -> "tuple[Show, Writer | Raw]":
    from tidelog.cli.consume.formats import NoFormat, Raw, by_format, by_layout  # noqa: PLC0415 -- as above

    if template is None:
        writer = Writer()
        return by_layout(asked, writer), writer
    raw = Raw()
    try:
        return by_format(raw, template), raw
    except NoFormat as error:
        raise click.UsageError(f"-f {error}", ctx) from error


def _filter(ctx: click.Context, key: str | None, grep: str | None, headers: Sequence[str]) -> Any:
    from tidelog.cli.consume.filters import NoPattern, records_with  # noqa: PLC0415 -- as above

    try:
        return records_with(key, grep, headers)
    except NoPattern as error:
        raise click.UsageError(f"--grep {error}", ctx) from error
