"""`tidelog perf produce`, `consume` and `latency`: what a client gets from a cluster that is there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tidelog.cli.asking import ask
from tidelog.cli.names import complete_topics
from tidelog.cli.options import (
    Number,
    Seconds,
    Verb,
    connection_options_with,
    layout,
    output_option,
    timeout_ms,
)

if TYPE_CHECKING:
    from tidelog.cli.perf.running import Run
    from tidelog.client import Client

DELIVERY_S: Final = 120.0
SILENT_S: Final = 30.0
SIZE_MAX: Final = 1 << 30
COUNT_MAX: Final = 10**12
WARM_UP_MOST: Final = 100_000

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)


def _count_option(default: int | None, text: str) -> Callable[[Callback], Callback]:
    return click.option(
        "-n",
        "--records",
        type=click.IntRange(1, COUNT_MAX),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=text,
    )


def _size_option(least: int) -> Callable[[Callback], Callback]:
    return click.option(
        "-s",
        "--size",
        type=click.IntRange(least, SIZE_MAX),
        metavar="BYTES",
        default=100,
        show_default=True,
        help="How large a value is; letters and digits by chance.",
    )


def _warm_up_option(text: str) -> Callable[[Callback], Callback]:
    return click.option("--warm-up", type=click.IntRange(0, COUNT_MAX), metavar="N", help=text)


def _acks_option(callback: Callback) -> Callback:
    return click.option(
        "-a",
        "--acks",
        type=click.Choice(["all", "1", "0"]),
        help="Who must have a record before it counts as written. [default: all]",
    )(callback)


def _every_option(callback: Callback) -> Callback:
    return click.option(
        "--every",
        type=Seconds(min=0.1),
        metavar="SECONDS",
        default=5.0,
        show_default=True,
        help="How often a line is printed meanwhile.",
    )(callback)


_delivery_options = connection_options_with(
    f"How long a record may be on its way. [default: {DELIVERY_S:g}]",
)


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic create perf -p 6 && tidelog perf produce perf",
        "tidelog perf produce perf -n 100000 -s 1024 -X compression.type=lz4",
        "tidelog perf produce perf --rate 20000 -o json",
        "tidelog perf produce perf -o kafka        # as kafka-producer-perf-test",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@_count_option(1_000_000, "How many records.")
@_size_option(0)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    metavar="N",
    help="At most so many records per second. [default: as many as are taken]",
)
@_acks_option
@click.option("--columns", is_flag=True, help="Hand over columns (`send_many`), not record by record.")
@_warm_up_option(
    f"So many more before, which do not count. [default: a tenth, at most {WARM_UP_MOST:,}]",
)
@_every_option
@_delivery_options
@output_option
@click.pass_context
def produce(ctx: click.Context, /, topic: str, **said: Any) -> int:
    """Write records to a topic, and show how many it takes per second and how long each waits.

    The records stay in the topic: use one that is there for it. What counts was acknowledged as --acks asks. How long
    records wait is taken of at most a thousand per second, with --columns of each column.
    """
    asked = layout(ctx, "text", "json", "kafka")
    # Imported here, as below, because a help page must not pay for them.
    from tidelog.cli.perf.figures import PRODUCER  # noqa: PLC0415
    from tidelog.cli.perf.producing import Wanted, measure  # noqa: PLC0415
    from tidelog.client.options import ProducerConfig  # noqa: PLC0415

    wanted = Wanted(
        topic,
        said["records"],
        said["size"],
        _warm_up(said["warm_up"], said["records"]),
        said["rate"],
        said["columns"],
        _settings(ctx, said["acks"]),
        said["every"],
    )
    show = PRODUCER[asked]()
    return _measured(ctx, lambda client: measure(ctx, client, wanted, show), ProducerConfig)


@click.command(
    cls=Verb,
    examples=(
        "tidelog perf consume perf",
        "tidelog perf consume perf -n 1000000 --one-by-one",
        "tidelog perf consume perf -o kafka        # as kafka-consumer-perf-test",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@_count_option(None, "Read so many, and wait for them. [default: those that are there]")
@click.option("--one-by-one", is_flag=True, help="Take records as objects, not batches as columns.")
@_warm_up_option("So many first, which do not count. [default: 0]")
@_every_option
@connection_options_with(f"How long no record may come. [default: {SILENT_S:g}]")
@output_option
@click.pass_context
def consume(ctx: click.Context, /, topic: str, **said: Any) -> int:
    """Read a topic from its start, and show how many records come per second.

    Nothing is committed and no group is joined. After 30 seconds without a record (--timeout says otherwise) it ends
    with what was read, and with 3.
    """
    asked = layout(ctx, "text", "json", "kafka")
    from tidelog.cli.perf.consuming import Wanted, measure  # noqa: PLC0415
    from tidelog.cli.perf.figures import CONSUMER  # noqa: PLC0415
    from tidelog.client.options import ConsumerConfig  # noqa: PLC0415

    wanted = Wanted(
        topic,
        said["records"],
        said["warm_up"] or 0,
        said["one_by_one"],
        timeout_ms(ctx, SILENT_S) / 1000,
        said["every"],
    )
    show = CONSUMER[asked]()
    return _measured(ctx, lambda client: measure(ctx, client, wanted, show), ConsumerConfig)


@click.command(
    cls=Verb,
    examples=(
        "tidelog perf latency perf",
        "tidelog perf latency perf -n 1000 -s 1024 --acks 1",
        "tidelog perf latency perf -o json | jq 'select(.type == \"latency\")'",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@_count_option(10_000, "How many records.")
@_size_option(16)
@_acks_option
@_warm_up_option(
    f"So many more before, which do not count. [default: a tenth, at most {WARM_UP_MOST:,}]",
)
@_every_option
@_delivery_options
@output_option
@click.pass_context
def latency(ctx: click.Context, /, topic: str, **said: Any) -> int:
    """Send one record at a time, and show how long it takes until it is acknowledged, and until a consumer has it.

    Each partition has its turn. The records stay in the topic: use one that is there for it.
    """
    asked = layout(ctx, "text", "json", "kafka")
    from tidelog.cli.perf.figures import LATENCY  # noqa: PLC0415
    from tidelog.cli.perf.trips import Wanted, measure  # noqa: PLC0415
    from tidelog.client.options import ProducerConfig  # noqa: PLC0415

    wanted = Wanted(
        topic,
        said["records"],
        said["size"],
        _warm_up(said["warm_up"], said["records"]),
        timeout_ms(ctx, DELIVERY_S) / 1000,
        _settings(ctx, said["acks"]),
        said["every"],
    )
    show = LATENCY[asked]()
    return _measured(ctx, lambda client: measure(ctx, client, wanted, show), ProducerConfig)


def _warm_up(said: int | None, records: int) -> int:
    return min(records // 10, WARM_UP_MOST) if said is None else said


def _settings(ctx: click.Context, acks: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {"delivery.timeout.ms": max(int(timeout_ms(ctx, DELIVERY_S)), 1)}
    return settings if acks is None else settings | {"acks": acks}


def _measured(ctx: click.Context, work: "Callable[[Client], Any]", child: type) -> int:
    """Do it on the loop that the nodes use, and show it; the exit code."""
    from tidelog.cli.perf.running import NOTHING_YET  # noqa: PLC0415
    from tidelog.cli.stopping import interrupted, stopped  # noqa: PLC0415
    from tidelog.protocol.io.runner import fastest_loop, tune_malloc  # noqa: PLC0415

    tune_malloc()
    try:
        run: Run = ask(ctx, work, child=child, loop=fastest_loop())
    except (KeyboardInterrupt, click.exceptions.Exit) as ended:
        if not (isinstance(ended, KeyboardInterrupt) or stopped(ctx)):
            raise
        click.echo(NOTHING_YET, err=True)
        return interrupted(ctx)
    code = run.end()
    return interrupted(ctx) if run.measured.interrupted else code
