"""`tidelog config set` and `tidelog config unset`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import ask
from tidelog.cli.config.resource import Resource, require_resource, resource, resource_arguments
from tidelog.cli.objects import put
from tidelog.cli.options import (
    CHANGE_TIMEOUT_S,
    Verb,
    connection_options,
    key_values,
    layout,
    output_option,
)
from tidelog.cli.terminal import Writer

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import ResourceAltered


@click.command(
    "set",
    cls=Verb,
    examples=(
        "tidelog config set topic orders retention.ms=3600000",
        "tidelog config set cluster min.insync.replicas=2 retention.ms=604800000",
        "tidelog config set topic orders cleanup.policy=compct --dry-run",
    ),
)
@resource_arguments("KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Say whether it would be taken, and do nothing.")
@connection_options
@output_option
@click.pass_context
def set_configs(ctx: click.Context, /, kind: str, words: Sequence[str], *, dry_run: bool) -> None:
    """Change settings: all of them, or none. Others stay as they are."""
    found, pairs = resource(ctx, kind, words)
    if not pairs:
        raise click.UsageError(f"which setting? Say `{ctx.command_path} {found} KEY=VALUE`", ctx)
    _alter(ctx, found, key_values(pairs, "", ctx), dry_run=dry_run)


@click.command(
    cls=Verb,
    examples=(
        "tidelog config unset topic orders retention.ms",
        "tidelog config unset cluster min.insync.replicas",
    ),
)
@resource_arguments("KEY...")
@click.option("--dry-run", is_flag=True, help="Say whether it could be done, and do nothing.")
@connection_options
@output_option
@click.pass_context
def unset(ctx: click.Context, /, kind: str, words: Sequence[str], *, dry_run: bool) -> None:
    """Take settings back: what is set above, or the default, holds again."""
    found, keys = resource(ctx, kind, words)
    if not keys or any("=" in key for key in keys):
        raise click.UsageError(f"which setting? Say `{ctx.command_path} {found} KEY`", ctx)
    _alter(ctx, found, dict.fromkeys(keys), dry_run=dry_run)


def _alter(ctx: click.Context, found: Resource, changes: Mapping[str, str | None], *, dry_run: bool) -> None:
    asked = layout(ctx, "text", "json")

    async def work(client: "Client") -> "ResourceAltered":
        await require_resource(client, found)
        return await client.admin.alter_configs(found.kind, found.name, changes, validate_only=dry_run)

    done = ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    if done.warning:
        click.echo(f"note: {done.warning}", err=True)
    writer = Writer()
    for key, value in changes.items():
        if asked == "json":
            put(
                writer,
                "config",
                kind=found.kind,
                name=found.name or None,
                key=key,
                value=value,
                changed=not dry_run,
            )
        else:
            would = "would have " * dry_run
            writer.line(
                f"{found}: {would}{key}={value}" if value is not None else f"{found}: {would}{key} unset"
            )
    writer.flush()
