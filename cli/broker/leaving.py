"""`tidelog broker unregister`: a broker that will not come back leaves the list."""

from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import Failure, ask
from tidelog.cli.broker.listing import the_one
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.objects import put
from tidelog.cli.options import CHANGE_TIMEOUT_S, Address, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Writer, many

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import BrokerDescribed


@click.command(
    cls=Verb,
    examples=("tidelog broker unregister 2", "tidelog broker unregister 2 --force --yes"),
)
@click.argument("number", metavar="ID", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Even if it keeps replicas: what only it has is given up.")
@yes_option
@connection_options
@output_option
@click.pass_context
def unregister(ctx: click.Context, /, number: int, *, force: bool, yes: bool) -> None:
    """Take a broker off the list that is down and will not come back.

    What it keeps is moved to others first, with `tidelog broker drain`. If it is started again after all, it is a new
    broker, in sync of nothing before it has caught up.
    """
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "BrokerDescribed":
        return the_one(await client.admin.describe_cluster(), number)

    async def unregistered(client: "Client") -> None:
        await client.admin.unregister_broker(number, force=force)

    broker = ask(ctx, look)
    where = f"broker {number} ({Address(broker.host, broker.port)})"
    if not broker.fenced:
        raise Failure(f"{where} is alive: only who is down can be taken off the list; stop it first")
    kept = many(broker.replicas, "partition")
    if broker.replicas and not force:
        raise Failure(
            f"{where} is a replica of {kept}: move them to others with `tidelog broker drain {number}`, or give up what "
            "only it has with --force"
        )
    would = [f"would take {where} off the list"]
    if broker.replicas:
        would.append(f"would give up what only it has of the {kept} of which it is a replica")
    require_consent(ctx, would, yes=yes, question=f"Unregister broker {number}?")
    ask(ctx, unregistered, timeout_s=CHANGE_TIMEOUT_S)
    writer = Writer()
    if asked == "json":
        put(writer, "broker", broker=number, unregistered=True)
    else:
        writer.line(f"{where} is not part of the cluster any more")
    writer.flush()
