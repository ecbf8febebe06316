"""`tidelog produce`: a record per line of a file or of stdin."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.asking import Failure, ask
from tidelog.cli.names import complete_topics
from tidelog.cli.objects import put
from tidelog.cli.options import (
    TIMEOUT_S,
    Verb,
    connection_options_with,
    is_text,
    layout,
    output_option,
    timeout_ms,
)
from tidelog.cli.terminal import Writer, many, size

if TYPE_CHECKING:
    from tidelog.cli.produce.sending import Tally
    from tidelog.client import Client

DELIVERY_S: Final = 120.0
"""How long a record may be on its way, unless --timeout says: long enough for brokers that fail and come back."""


@click.command(
    cls=Verb,
    examples=(
        "seq 10 | tidelog produce orders",
        "tidelog produce orders -K : <<< 'customer-17:{\"amount\": 12}'",
        "tidelog produce orders orders.txt -k customer-17 -H source=eu -X compression.type=zstd",
        "tidelog produce state -K : -Z <<< 'customer-17:'        # a tombstone",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-k", "--key", metavar="KEY", help="The key of all records.")
@click.option(
    "-K", "separator", metavar="SEP", help="What stands between key and value; a line without it has no key."
)
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of all records; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    metavar="N",
    help="Where to. [default: as the key says, or anywhere]",
)
@click.option(
    "-a",
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    help="Who must have a record before it counts as written. [default: all]",
)
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="An empty value is none: a tombstone.")
@connection_options_with(f"How long a record may be on its way. [default: {DELIVERY_S:g}]")
@output_option
@click.pass_context
def produce(ctx: click.Context, /, topic: str, file: str | None, *, empty_is_null: bool, **said: Any) -> int:
    """Write the lines of FILE, or of stdin, to a topic.

    A line is a record, whatever bytes it has; its line end is no part of it. Lines are sent while they come. Those that
    were not written are named on stderr with their numbers and the cause, and the exit code is 1 then.
    """
    asked = layout(ctx, "text", "json")
    key, separator = said["key"], said["separator"]
    if key is not None and separator is not None:
        raise click.UsageError("-k and -K are two ways to give keys: use one", ctx)
    # Imported here because a help page must not pay for them.
    from tidelog.cli.produce.sending import Wanted, send  # noqa: PLC0415
    from tidelog.cli.stopping import interrupted  # noqa: PLC0415
    from tidelog.client.options import ProducerConfig  # noqa: PLC0415

    plan = Wanted(
        topic,
        None if file in {None, "-"} else file,
        None if key is None else _bytes(key),
        _separator(ctx, separator),
        tuple(_headers(ctx, said["headers"])),
        said["partition"],
        said["acks"],
        timeout_ms(ctx, DELIVERY_S),
        empty_is_null=empty_is_null,
    )

    async def work(client: "Client") -> "Tally":
        return await send(ctx, client, plan)

    tally = ask(ctx, work, timeout_s=TIMEOUT_S, child=ProducerConfig)
    _tell(tally, topic, as_json=asked == "json")
    if tally.interrupted:
        return interrupted(ctx)
    if tally.failed or tally.stopped:
        stopped = f"; nothing was read behind line {tally.lines}" * tally.stopped
        raise Failure(
            f"{many(tally.failed, 'line')} of {topic} {'was' if tally.failed == 1 else 'were'} not written{stopped}"
        )
    return 0


def _tell(tally: "Tally", topic: str, *, as_json: bool) -> None:
    rate = tally.records / tally.seconds if tally.seconds else 0.0
    if as_json:
        writer = Writer()
        put(
            writer,
            "produced",
            topic=topic,
            records=tally.records,
            bytes=tally.size,
            failed=tally.failed,
            seconds=round(tally.seconds, 6),
        )
        writer.flush()
    click.echo(
        f"{many(tally.records, 'record')} written to {topic}, {size(tally.size)} in {tally.seconds:.2f} s "
        f"({rate:,.0f} records/s, {size(round(tally.size / max(tally.seconds, 1e-6)))}/s)",
        err=True,
    )


def _headers(ctx: click.Context, texts: Sequence[str]) -> list[tuple[str, bytes]]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and is_text(name)):
            raise click.UsageError(f"-H {text!r} is no NAME=VALUE", ctx)
        found.append((name, _bytes(value)))
    return found


def _separator(ctx: click.Context, text: str | None) -> bytes | None:
    if text is None:
        return None
    found = text.replace("\\t", "\t").replace("\\0", "\0")
    if not found or "\n" in found:
        raise click.UsageError("-K: the separator must be at least one character, and no line end", ctx)
    return _bytes(found)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
