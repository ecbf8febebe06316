"""`tidelog broker list` and `tidelog broker describe`."""

from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import Failure, ask
from tidelog.cli.objects import put
from tidelog.cli.options import Address, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer, many

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.cluster import Topic
    from tidelog.protocol.messages import BrokerDescribed, DescribeClusterReply


def state(broker: "BrokerDescribed") -> str:
    """`alive`, `stopping`, or `down`; and what of it has failed."""
    word = "down" if broker.fenced else "stopping" if broker.shutting_down else "alive"
    word += f", {many(broker.offline, 'replica')} failed" * bool(broker.offline)
    return word + ", low on space" * (broker.low_space and not broker.fenced)


def about(broker: "BrokerDescribed") -> dict[str, object]:
    """A broker for programs."""
    return {
        "broker": broker.id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack or None,
        "broker_epoch": broker.broker_epoch,
        "fenced": broker.fenced,
        "shutting_down": broker.shutting_down,
        "leads": broker.leads,
        "replicas": broker.replicas,
        "offline_replicas": broker.offline,
        "low_space": broker.low_space,
    }


def table_of(writer: Writer, found: "DescribeClusterReply") -> None:
    """A line per broker."""
    table = Table(writer, (">BROKER", "ADDRESS", "RACK", "STATE", ">LEADS", ">REPLICAS"))
    for broker in found.brokers:
        where = str(Address(broker.host, broker.port))
        table.row(
            str(broker.id), where, broker.rack or "-", state(broker), str(broker.leads), str(broker.replicas)
        )
    table.end()


@click.command(
    "list", cls=Verb, examples=("tidelog broker list", "tidelog broker list -o json | jq 'select(.fenced)'")
)
@connection_options
@output_option
@click.pass_context
def list_brokers(ctx: click.Context, /) -> None:
    """List the brokers that are registered: alive, stopping, or down (fenced: it leads nothing and is in no ISR)."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "DescribeClusterReply":
        return await client.admin.describe_cluster()

    found = ask(ctx, look)
    writer = Writer()
    if asked == "text":
        table_of(writer, found)
    else:
        for broker in found.brokers:
            put(writer, "broker", **about(broker))
    writer.flush()


@click.command(
    cls=Verb, examples=("tidelog broker describe 1", "tidelog broker describe 1 -o json | jq .partition")
)
@click.argument("number", metavar="ID", type=click.IntRange(0))
@connection_options
@output_option
@click.pass_context
def describe(ctx: click.Context, /, number: int) -> None:
    """Show a broker, and the partitions that it leads and keeps. `tidelog config list broker ID` shows its settings."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "tuple[DescribeClusterReply, list[Topic]]":
        return await client.admin.describe_cluster(), await client.admin.list_topics(internal=True)

    found, topics = ask(ctx, look)
    broker = the_one(found, number)
    writer = Writer()
    if asked == "json":
        put(writer, "broker", **about(broker))
    else:
        writer.line(
            click.style(f"broker {number} at {Address(broker.host, broker.port)}: {state(broker)}", bold=True)
        )
        writer.line(f"  rack {broker.rack or '-'}, registered in epoch {broker.broker_epoch}")
        writer.line(f"  leads {broker.leads} of the {many(broker.replicas, 'partition')} that it keeps")
        writer.line()
    table = Table(writer, ("TOPIC", ">PARTITION", "ROLE", "IN SYNC"), indent="  ")
    for topic in topics:
        for one in topic.partitions:
            if number not in one.replicas:
                continue
            leads, in_sync = one.leader == number, number in one.isr
            if asked == "json":
                put(
                    writer,
                    "replica",
                    broker=number,
                    topic=topic.name,
                    partition=one.index,
                    is_leader=leads,
                    in_sync=in_sync,
                )
            else:
                table.row(
                    topic.name, str(one.index), "leader" if leads else "follower", "yes" if in_sync else "no"
                )
    table.end()
    writer.flush()


def the_one(found: "DescribeClusterReply", number: int) -> "BrokerDescribed":
    """The broker with that id, or what there is instead."""
    for broker in found.brokers:
        if broker.id == number:
            return broker
    known = ", ".join(str(broker.id) for broker in found.brokers)
    raise Failure(f"there is no broker {number}; there are {known}")
