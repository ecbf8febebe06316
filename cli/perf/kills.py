"""`tidelog perf failover`."""

import click

from tidelog.cli.options import Verb, layout, output_option


@click.command(
    cls=Verb,
    examples=(
        "tidelog perf failover",
        "tidelog perf failover --kills 5 --controller-kills 5",
        "tidelog perf failover -o json | jq -r 'select(.type == \"kill\") | .ms'",
    ),
)
@click.argument("topic", default="failover")
@click.option(
    "--kills",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="Brokers to kill, one after the other.",
)
@click.option(
    "--controller-kills",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="Controllers to kill, always the active one.",
)
@output_option
@click.pass_context
def failover(ctx: click.Context, topic: str, kills: int, controller_kills: int) -> int:
    """Show how long writes stop when a leader is killed.

    Three brokers and three controllers are started for it, on free ports and with a temporary directory, and end with
    it; no cluster of yours is touched. Under load the leader of a partition of
    TOPIC, which is made there, gets SIGKILL, and what is counted is the time
    until the next write with acks=all to that partition is acknowledged. Then the active controller is killed, and
    the time until the next topic is made is counted. Everything has its default settings.
    """
    # Imported here because a help page must not pay for them.
    import asyncio  # noqa: PLC0415

    from tidelog.cli.perf.failover import LAYOUTS, measure  # noqa: PLC0415
    from tidelog.cli.stopping import interrupted  # noqa: PLC0415

    show = LAYOUTS[layout(ctx, "text", "json")]()
    return interrupted(ctx) if asyncio.run(measure(ctx, topic, kills, controller_kills, show)) else 0
