"""Names of topics and partitions as people type them, and as a shell completes them.

What it keeps true: a cluster that does not answer at once costs whoever presses the tab key 0.3 s, and no word.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.cli.options import bootstrap

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tidelog.client import Client
    from tidelog.client.cluster import Topic

COMPLETION_S: Final = 0.3


class Named(NamedTuple):
    """A topic, or one partition of it."""

    topic: str
    partition: int | None


def named(text: str, ctx: click.Context) -> Named:
    """`orders` or `orders:1`."""
    topic, colon, number = text.partition(":")
    if not topic or (colon and not number.isdecimal()):
        raise click.UsageError(f"{text} is no TOPIC and no TOPIC:PARTITION", ctx)
    return Named(topic, int(number) if colon else None)


def brokers_of(text: str) -> tuple[int, ...] | None:
    """`1,2,3`; None: these are no ids of brokers."""
    words = [word.strip() for word in text.split(",")]
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else None


def require_partitions(topic: "Topic", numbers: Sequence[int], ctx: click.Context) -> list[int]:
    """These partitions, or all when none was said; one that there is not is refused."""
    count = len(topic.partitions)
    for number in numbers:
        if not 0 <= number < count:
            has = "one partition, 0" if count == 1 else f"the partitions 0 to {count - 1}"
            raise click.UsageError(f"there is no partition {number}: {topic.name} has {has}", ctx)
    return sorted(set(numbers)) or list(range(count))


def complete_topics(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem[Any]]":
    """The topics that begin so, if the cluster says so quickly."""
    return _complete(ctx, _topics, incomplete)


def complete_groups(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem[Any]]":
    """The groups that begin so, if the cluster says so quickly."""
    return _complete(ctx, _groups, incomplete)


def _complete(
    ctx: click.Context, names: "Callable[[Client], Awaitable[list[str]]]", incomplete: str
) -> "list[CompletionItem[Any]]":
    # Imported here because a help page must not pay for them.
    import asyncio  # noqa: PLC0415
    import contextlib  # noqa: PLC0415

    from click.shell_completion import CompletionItem as Item  # noqa: PLC0415

    from tidelog.protocol.errors import TidelogError  # noqa: PLC0415

    found: list[str] = []
    with contextlib.suppress(TidelogError, TimeoutError, click.UsageError, OSError):
        found = asyncio.run(_asked([str(address) for address in bootstrap(ctx)], names))
    return [Item(name) for name in found if name.startswith(incomplete)]


async def _asked(where: list[str], names: "Callable[[Client], Awaitable[list[str]]]") -> list[str]:
    import asyncio  # noqa: PLC0415

    from tidelog.client import connect  # noqa: PLC0415

    client = connect(where, client_id="tidelog-completion", connect_timeout=COMPLETION_S)
    async with asyncio.timeout(COMPLETION_S), client:
        return await names(client)


async def _topics(client: "Client") -> list[str]:
    return [topic.name for topic in await client.admin.list_topics(timeout=COMPLETION_S)]


async def _groups(client: "Client") -> list[str]:
    return [group.group_id for group in await client.admin.list_groups(timeout=COMPLETION_S)]
