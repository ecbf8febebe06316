"""Whose settings: `topic NAME`, `broker ID`, or `cluster`, which has no name."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from tidelog.cli.asking import Failure, known_topics
from tidelog.cli.names import complete_topics

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tidelog.client import Client

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)

KINDS: Final = ("topic", "broker", "cluster")


class Resource(NamedTuple):
    """Whose settings."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def resource_arguments(rest: str) -> Callable[[Callback], Callback]:
    """`KIND [NAME] ...`, `rest` being what follows; the verb asks `resource` which is which."""

    def add(callback: Callback) -> Callback:
        words = click.argument(
            "words", nargs=-1, metavar=f"[NAME] {rest}".strip(), shell_complete=_complete_names
        )
        kind = click.argument("kind", type=click.Choice(KINDS), metavar="topic|broker|cluster")
        return kind(words(callback))

    return add


def _complete_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem[Any]]":
    if ctx.params.get("kind") != "topic" or ctx.params.get("words"):
        return []
    return complete_topics(ctx, parameter, incomplete)


def resource(ctx: click.Context, kind: str, words: Sequence[str]) -> tuple[Resource, list[str]]:
    """Whose settings, and what was said after it."""
    if kind == "cluster":
        return Resource(kind, ""), list(words)
    if not words:
        raise click.UsageError(f"which {kind}? Say `{ctx.command_path} {kind} NAME`", ctx)
    name, *rest = words
    if kind == "broker" and not name.isdecimal():
        raise click.UsageError(
            f"{name} is no broker's id: brokers have numbers, see `tidelog broker list`", ctx
        )
    return Resource(kind, name), rest


async def require_resource(client: "Client", found: Resource) -> bool:
    """Refuse what there is not, with what there is; False: a broker that is down."""
    if found.kind == "topic":
        await known_topics(client, found.name)
    elif found.kind == "broker":
        brokers = (await client.admin.describe_cluster()).brokers
        if int(found.name) not in [broker.id for broker in brokers]:
            raise Failure(
                f"there is no broker {found.name}; there are {', '.join(str(broker.id) for broker in brokers)}"
            )
        return any(broker.id == int(found.name) and not broker.fenced for broker in brokers)
    return True
