"""`tidelog broker drain` and `tidelog broker undrain`: the controller plans, somebody says yes, the moves begin."""

from typing import TYPE_CHECKING, Literal

import click

from tidelog.cli.asking import ask
from tidelog.cli.broker.listing import the_one
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.options import CHANGE_TIMEOUT_S, Verb, connection_options, layout, output_option
from tidelog.cli.partition.moving import sentence_of, show_moves, throttle_option

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.admin import Move


@click.command(
    cls=Verb,
    examples=(
        "tidelog broker drain 2 --dry-run",
        "tidelog broker drain 2 --throttle 20MB --yes && tidelog partition moves",
    ),
)
@click.argument("number", metavar="ID", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and do nothing.")
@throttle_option
@yes_option
@connection_options
@output_option
@click.pass_context
def drain(ctx: click.Context, /, number: int, throttle: int | None, *, dry_run: bool, yes: bool) -> None:
    """Move everything that a broker keeps to others; it may be down already.

    When `tidelog partition moves` shows nothing any more, the broker can go for good.
    """
    _run(ctx, "drain", number, throttle, dry_run=dry_run, yes=yes)


@click.command(
    cls=Verb, examples=("tidelog broker undrain 2", "tidelog broker undrain 2 --throttle 20MB --yes")
)
@click.argument("number", metavar="ID", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and do nothing.")
@throttle_option
@yes_option
@connection_options
@output_option
@click.pass_context
def undrain(ctx: click.Context, /, number: int, throttle: int | None, *, dry_run: bool, yes: bool) -> None:
    """Cancel the moves that take something from a broker, and give it as much as others have."""
    _run(ctx, "undrain", number, throttle, dry_run=dry_run, yes=yes)


def _run(
    ctx: click.Context,
    what: Literal["drain", "undrain"],
    number: int,
    throttle: int | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    asked = layout(ctx, "text", "json")

    async def order(client: "Client", *, only_look: bool) -> "list[Move]":
        the_one(await client.admin.describe_cluster(), number)
        verb = client.admin.drain_broker if what == "drain" else client.admin.undrain_broker
        return await verb(number, throttle_bytes_s=throttle, validate_only=only_look)

    if yes and not dry_run:
        show_moves(ask(ctx, lambda client: order(client, only_look=False), timeout_s=CHANGE_TIMEOUT_S), asked)
        return
    plan = ask(ctx, lambda client: order(client, only_look=True), timeout_s=CHANGE_TIMEOUT_S)
    if dry_run or not plan:
        show_moves(plan, asked, dry_run=True)
        return
    require_consent(ctx, map(sentence_of, plan), yes=yes, question=f"{what.capitalize()} broker {number}?")

    async def as_shown(client: "Client") -> "list[Move]":
        # Another plan, made now, might be another one than what somebody has said yes to.
        targets = {
            one.partition: [broker for broker in one.replicas if broker not in one.removing] for one in plan
        }
        return await client.admin.reassign(targets, throttle_bytes_s=throttle)

    show_moves(ask(ctx, as_shown, timeout_s=CHANGE_TIMEOUT_S), asked)
