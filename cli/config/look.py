"""`tidelog config get` and `tidelog config list`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.asking import ask
from tidelog.cli.config.resource import Resource, require_resource, resource, resource_arguments
from tidelog.cli.objects import put
from tidelog.cli.options import Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import ConfigDescribed

_KAFKA_SOURCES: Final = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "broker": "DYNAMIC_BROKER_CONFIG",
    "cluster": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "controller": "STATIC_BROKER_CONFIG",
    "start": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
}


def described(ctx: click.Context, found: Resource, keys: Sequence[str]) -> "dict[str, ConfigDescribed]":
    """Its settings, by name; all, or these."""

    async def look(client: "Client") -> "dict[str, ConfigDescribed]":
        if not await require_resource(client, found):
            click.echo(f"note: {found} is down: what it was started with is not known", err=True)
        return await client.admin.describe_configs(found.kind, found.name, keys=keys)

    return ask(ctx, look)


def holds(one: "ConfigDescribed") -> str:
    """The value that is obeyed; empty: none is."""
    return (one.effective if one.effective is not None else one.value) or ""


@click.command(
    cls=Verb,
    examples=(
        "tidelog config get topic orders retention.ms",
        "tidelog config get cluster min.insync.replicas default.replication.factor",
        "tidelog config get broker 1 broker.session.timeout.ms -o json",
    ),
)
@resource_arguments("KEY...")
@connection_options
@output_option
@click.pass_context
def get(ctx: click.Context, /, kind: str, words: Sequence[str]) -> None:
    """Show the value that holds: of one setting alone, of several as KEY=VALUE."""
    asked = layout(ctx, "text", "json", "kafka")
    found, keys = resource(ctx, kind, words)
    if not keys:
        raise click.UsageError(f"which setting? `tidelog config list {found}` names all", ctx)
    configs = described(ctx, found, keys)
    writer = Writer()
    for key, one in configs.items():
        if asked == "text":
            writer.line(holds(one) if len(keys) == 1 else f"{key}={holds(one)}")
        else:
            _show(writer, found, one, as_json=asked == "json")
    writer.flush()


@click.command(
    "list",
    cls=Verb,
    examples=(
        "tidelog config list topic orders",
        "tidelog config list cluster --set",
        "tidelog config list topic orders -o json | jq -r '.key + \": \" + .documentation'",
    ),
)
@resource_arguments("")
@click.option("--set", "only_set", is_flag=True, help="Only those that differ from the default.")
@connection_options
@output_option
@click.pass_context
def list_configs(ctx: click.Context, /, kind: str, words: Sequence[str], *, only_set: bool) -> None:
    """Show settings, and where each stands: at the topic, the broker, the cluster, in what the broker itself (start) or
    the controller was started with, or nowhere (default).
    """
    asked = layout(ctx, "text", "json", "kafka")
    found, rest = resource(ctx, kind, words)
    if rest:
        raise click.UsageError(f"{rest[0]}: `tidelog config get {found} {rest[0]}` shows one setting", ctx)
    configs = [one for one in described(ctx, found, ()).values() if not only_set or one.source != "default"]
    writer = Writer()
    if asked == "kafka":
        writer.line(f"All configs for {found} are:")
    if asked != "text":
        for one in configs:
            _show(writer, found, one, as_json=asked == "json")
    else:
        table = Table(writer, ("KEY", "VALUE", "FROM"))
        for one in configs:
            value = one.value if one.value is not None else "-"
            differs = f" ({one.effective} holds)" if one.effective is not None else ""
            table.row(one.key, value + differs, one.source + ", at start" * one.read_only)
        table.end()
    writer.flush()


def _show(writer: Writer, found: Resource, one: "ConfigDescribed", *, as_json: bool) -> None:
    if as_json:
        put(
            writer,
            "config",
            kind=found.kind,
            name=found.name or None,
            key=one.key,
            value=one.value,
            effective=one.effective if one.effective is not None else one.value,
            source=one.source,
            read_only=one.read_only,
            documentation=one.documentation,
        )
        return
    value = one.value if one.value is not None else "null"
    source = _KAFKA_SOURCES.get(one.source, one.source.upper())
    writer.line(f"  {one.key}={value} sensitive=false synonyms={{{source}:{one.key}={value}}}")
