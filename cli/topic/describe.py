"""`tidelog topic list` and `tidelog topic describe`: what brokers know of topics, without asking any leader."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.asking import ask, known_topics
from tidelog.cli.names import complete_topics
from tidelog.cli.objects import put
from tidelog.cli.options import Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer, many

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.cluster import Partition, Topic
    from tidelog.protocol.messages import ConfigDescribed

NOBODY: Final = -1
"""The id of no broker: nobody leads."""


@click.command(
    "list",
    cls=Verb,
    examples=(
        "tidelog topic list",
        "tidelog topic list --internal",
        "tidelog topic list -o json | jq -r .topic",
    ),
)
@click.option("--internal", is_flag=True, help="Also those in which the cluster keeps its own books.")
@connection_options
@output_option
@click.pass_context
def list_topics(ctx: click.Context, /, *, internal: bool) -> None:
    """List the topics, and how many of their partitions want looking after."""
    asked = layout(ctx, "text", "json", "kafka")

    async def work(client: "Client") -> "list[Topic]":
        return await client.admin.list_topics(internal=internal)

    topics = ask(ctx, work)
    writer = Writer()
    if asked == "text":
        _list_as_text(writer, topics)
    for topic in topics if asked != "text" else ():
        if asked == "kafka":
            writer.line(topic.name)
        else:
            put(writer, "topic", **about(topic))
    writer.flush()
    if not topics and asked == "text":
        click.echo("there are no topics: `tidelog topic create orders` makes one", err=True)


def about(topic: "Topic") -> dict[str, object]:
    """A topic for programs."""
    return {
        "topic": topic.name,
        "topic_id": topic.id.hex(),
        "partitions": len(topic.partitions),
        "replication_factor": replication_factor(topic),
        "internal": topic.internal,
        "without_leader": sum(one.leader == NOBODY for one in topic.partitions),
        "under_replicated": sum(len(one.isr) < len(one.replicas) for one in topic.partitions),
    }


def replication_factor(topic: "Topic") -> int:
    """How many keep each partition; the most where they differ, as while they are moved."""
    return max((len(one.replicas) for one in topic.partitions), default=0)


def _list_as_text(writer: Writer, topics: "list[Topic]") -> None:
    table = Table(writer, ("TOPIC", ">PARTITIONS", ">REPLICAS", "STATE"))
    for topic in topics:
        table.row(
            topic.name, str(len(topic.partitions)), str(replication_factor(topic)), _state(topic.partitions)
        )
    table.end()


def _state(partitions: "Sequence[Partition]") -> str:
    without = sum(one.leader == NOBODY for one in partitions)
    lacking = sum(len(one.isr) < len(one.replicas) for one in partitions)
    words = [f"{without} without leader"] * bool(without) + [f"{lacking} under-replicated"] * bool(lacking)
    return ", ".join(words) or "ok"


@click.command(
    cls=Verb,
    examples=(
        "tidelog topic describe orders",
        "tidelog topic describe -o kafka orders payments",
        "tidelog topic describe orders -o json | jq 'select(.type == \"partition\") | .leader'",
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@connection_options
@output_option
@click.pass_context
def describe(ctx: click.Context, /, topics: Sequence[str]) -> None:
    """Show who leads and keeps the partitions of topics, and which settings are their own.

    LEADER - means that nobody leads. ELR are replicas outside the ISR that have every committed record all the same.
    """
    asked = layout(ctx, "text", "json", "kafka")

    async def work(client: "Client") -> "list[tuple[Topic, dict[str, ConfigDescribed]]]":
        found = await known_topics(client, *topics)
        return [(topic, await client.admin.describe_configs("topic", topic.name)) for topic in found]

    writer = Writer()
    show = {"text": _as_text, "json": _as_json, "kafka": _as_kafka}[asked]
    for number, (topic, configs) in enumerate(ask(ctx, work)):
        if number and asked == "text":
            writer.line()
        show(writer, topic, configs)
    writer.flush()


def brokers(ids: Sequence[int]) -> str:
    """`1,2,3`; `-` for none."""
    return ",".join(map(str, ids)) or "-"


def _own(configs: "dict[str, ConfigDescribed]") -> "list[ConfigDescribed]":
    """Those that are set for the topic, and those that are set and hold otherwise."""
    return [one for one in configs.values() if one.source == "topic" or one.effective is not None]


def _as_text(writer: Writer, topic: "Topic", configs: "dict[str, ConfigDescribed]") -> None:
    counts = many(len(topic.partitions), "partition"), many(replication_factor(topic), "replica") + " each"
    writer.line(f"{click.style(topic.name, bold=True)}: {', '.join(counts)}, {_state(topic.partitions)}")
    writer.line(f"  id {topic.id.hex()}" + ", internal" * topic.internal)
    for config in _own(configs):
        holds = f" ({config.effective} holds)" if config.effective is not None else ""
        writer.line(f"  {config.key}={config.value}{holds}")
    writer.line()
    with_elr = any(one.elr for one in topic.partitions)
    table = Table(
        writer,
        (">PARTITION", ">LEADER", ">EPOCH", "REPLICAS", "ISR", *("ELR",) * with_elr, "STATE"),
        indent="  ",
    )
    for one in topic.partitions:
        table.row(
            str(one.index),
            str(one.leader) if one.leader != NOBODY else "-",
            str(one.leader_epoch),
            brokers(one.replicas),
            brokers(one.isr),
            *(brokers(one.elr),) * with_elr,
            state_of(one),
        )
    table.end()


def state_of(partition: "Partition") -> str:
    """What is to be said of a partition."""
    words = []
    if partition.leader == NOBODY:
        words.append("no leader")
    if partition.offline:
        words.append(f"not alive: {brokers(partition.offline)}")
    behind = [one for one in partition.replicas if one not in (*partition.isr, *partition.offline)]
    if behind:
        words.append(f"behind: {brokers(behind)}")
    if partition.leader not in (NOBODY, *partition.replicas[:1]):
        words.append(f"preferred: {partition.replicas[0]}")
    return ", ".join(words) or "ok"


def _as_json(writer: Writer, topic: "Topic", configs: "dict[str, ConfigDescribed]") -> None:
    put(writer, "topic", **about(topic), configs={one.key: one.value for one in _own(configs)})
    for one in topic.partitions:
        put(writer, "partition", **partition_about(topic.name, one))


def partition_about(topic: str, partition: "Partition") -> dict[str, object]:
    """A partition for programs."""
    return {
        "topic": topic,
        "partition": partition.index,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "elr": list(partition.elr),
        "offline": list(partition.offline),
    }


def _as_kafka(writer: Writer, topic: "Topic", configs: "dict[str, ConfigDescribed]") -> None:
    # kafka-topics --describe, character for character: scripts cut these lines at their tabs.
    own = ",".join(f"{one.key}={one.value}" for one in configs.values() if one.source == "topic")
    writer.line(
        f"Topic: {topic.name}\tTopicId: {kafka_id(topic.id)}\tPartitionCount: {len(topic.partitions)}\t"
        f"ReplicationFactor: {replication_factor(topic)}\tConfigs: {own}"
    )
    for one in topic.partitions:
        leader = one.leader if one.leader != NOBODY else "none"
        lists = (",".join(map(str, ids)) for ids in (one.replicas, one.isr, one.elr))
        replicas, isr, elr = lists
        writer.line(
            f"\tTopic: {topic.name}\tPartition: {one.index}\tLeader: {leader}\tReplicas: {replicas}\t"
            f"Isr: {isr}\tElr: {elr}\tLastKnownElr: "
        )


def kafka_id(topic_id: bytes) -> str:
    """As Kafka writes them: base64 without padding."""
    from base64 import urlsafe_b64encode  # noqa: PLC0415 -- for this layout only

    return urlsafe_b64encode(topic_id).decode().rstrip("=")
