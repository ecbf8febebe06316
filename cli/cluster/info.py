"""`tidelog cluster info`: the cluster at a glance."""

from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.asking import ask
from tidelog.cli.broker.listing import about, table_of
from tidelog.cli.objects import put
from tidelog.cli.options import Verb, connection_options, layout, output_option, timeout_ms
from tidelog.cli.terminal import Writer, many
from tidelog.protocol.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import DescribeClusterReply

UNKNOWN: Final = -1
_QUORUM_SHARE: Final = 0.5
"""The part of the time that the controllers get: without a leader among them there is no answer."""


@click.command(cls=Verb, examples=("tidelog cluster info", "tidelog cluster info -o json | jq .cluster_id"))
@connection_options
@output_option
@click.pass_context
def info(ctx: click.Context, /) -> None:
    """Show the brokers, the controller, and how much there is, as one broker knows it."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "tuple[DescribeClusterReply, int]":
        found = await client.admin.describe_cluster()
        try:
            quorum = await client.admin.describe_quorum(timeout=timeout_ms(ctx) / 1000 * _QUORUM_SHARE)
        except TidelogError:
            return found, UNKNOWN
        return found, quorum.leader_id

    found, controller = ask(ctx, look)
    writer = Writer()
    if asked == "json":
        _as_json(writer, found, controller)
    else:
        _as_text(writer, found, controller)
    writer.flush()


def _as_text(writer: Writer, found: "DescribeClusterReply", controller: int) -> None:
    leads = (
        f"controller c{controller} leads"
        if controller != UNKNOWN
        else "no controller leads (`tidelog cluster health`)"
    )
    writer.line(f"cluster {click.style(found.cluster_id, bold=True)}: {leads}")
    counts = [many(found.topics, "topic"), many(found.partitions, "partition")]
    for count, what in (
        (found.without_leader, "without leader"),
        (found.under_min_isr, "under min ISR"),
        (found.under_replicated, "under-replicated"),
        (found.moving, "being moved"),
    ):
        counts += [f"{count} {what}"] * bool(count)
    writer.line(", ".join(counts))
    writer.line()
    table_of(writer, found)


def _as_json(writer: Writer, found: "DescribeClusterReply", controller: int) -> None:
    put(
        writer,
        "cluster",
        cluster_id=found.cluster_id,
        controller_id=controller,
        quorum_epoch=found.quorum_epoch,
        brokers=len(found.brokers),
        fenced=sum(broker.fenced for broker in found.brokers),
        topics=found.topics,
        partitions=found.partitions,
        without_leader=found.without_leader,
        under_min_isr=found.under_min_isr,
        under_replicated=found.under_replicated,
        moving=found.moving,
    )
    for broker in found.brokers:
        put(writer, "broker", **about(broker))
