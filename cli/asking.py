"""The way of a verb to the cluster: a client, for as long as the verb works, and what becomes of its errors.

    ask(ctx, work)        run `work(client)`; `-b`, `-X`, `--timeout` and `-v` are obeyed

What it keeps true: whatever fails is one line that ends with the way out. Nobody there is a broker: exit 1, with each
address and its cause. No answer in time, or a cluster that cannot do it now: exit 3. A topic that there is not: the
nearest one that there is.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tidelog.cli.options import TIMEOUT_S, bootstrap, can_be_sent, pairs, timeout_ms, verbose
from tidelog.protocol.errors import (
    ConnectionFailed,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    NoController,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
    SeveralErrors,
    TidelogError,
    TopicAlreadyExists,
    Unsupported,
)

if TYPE_CHECKING:
    import asyncio

    from tidelog.client import Client
    from tidelog.client.cluster import Topic

T = TypeVar("T")

UNHEALTHY: Final = 3
CLIENT_ID: Final = "tidelog-cli"

_UNHEALTHY: Final = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NoController,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
"""What a cluster answers that would do it if it were well."""

_COMPLETE: Final = (InvalidConfig, InvalidPartitions, InvalidRequest, SeveralErrors, Unsupported)
"""Whose messages say themselves what would be accepted."""


_TOLD: Final = (GroupIdNotFound, InvalidReplicationFactor, InvalidTopic, TopicAlreadyExists)
"""Whose messages say in full what the way out begins with."""

_ALL: Final = {
    "a broker": "`tidelog config list broker ID`",
    "a cluster": "`tidelog config list cluster`",
    "a topic": "`tidelog config list topic NAME`",
}
"""Where the settings of each are."""


class Failure(click.ClickException):
    """What a verb could not do, as a line."""


class Unhealthy(Failure):
    """The same, because the cluster cannot do it now, or did not answer in time."""

    exit_code = UNHEALTHY


def ask(
    ctx: click.Context,
    work: Callable[["Client"], Awaitable[T]],
    *,
    timeout_s: float = TIMEOUT_S,
    at_most_s: float = math.inf,
    rack: str = "",
    child: type | None = None,
    loop: "Callable[[], asyncio.AbstractEventLoop] | None" = None,
) -> T:
    """What `work` returns, given a client that is connected. `--timeout` wins over `timeout_s`; nothing over `at_most_s`.

    `child`: whose settings `-X` may name as well. `loop`: what makes the event loop, if not asyncio.
    """
    # Imported here, as in the functions below, because a help page must not pay for it.
    import asyncio  # noqa: PLC0415

    from tidelog.cli.stopping import interrupted, stopped, stopped_in_order  # noqa: PLC0415

    async def work_in_order() -> T:
        with stopped_in_order(ctx):
            return await _ask(ctx, where, work, limit_ms, settings, rack)

    _listen(verbose(ctx))
    where = [str(address) for address in bootstrap(ctx)]
    settings = settings_of(ctx, None, child)
    limit_ms = min(timeout_ms(ctx, timeout_s), at_most_s * 1000)
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(work_in_order())
    except TidelogError as error:
        raise failure(error) from error
    except asyncio.CancelledError:
        if not stopped(ctx):
            raise
        raise click.exceptions.Exit(interrupted(ctx)) from None


async def _ask(
    ctx: click.Context,
    where: list[str],
    work: Callable[["Client"], Awaitable[T]],
    limit_ms: float,
    settings: dict[str, str],
    rack: str,
) -> T:
    from tidelog.client import connect  # noqa: PLC0415

    limit = max(int(limit_ms), 1)
    ours: dict[str, Any] = {"client_id": CLIENT_ID, "connect_timeout_ms": limit, "request_timeout_ms": limit}
    if rack:
        ours["rack"] = rack
    said = {key.replace(".", "_"): value for key, value in settings.items()}
    try:
        client = connect(where, config=ours | said)
    except InvalidConfig as error:
        raise click.UsageError(error.message, ctx) from error
    try:
        await client.start()
    except (ConnectionFailed, LeaderNotAvailable, RequestTimedOut) as error:
        raise _unreachable(error) from error
    async with client:
        return await work(client)


def settings_of(ctx: click.Context, kind: type | None, child: type | None) -> dict[str, str]:
    """What `-X` says for the client (None) or for its child; a key that neither knows is refused."""
    from tidelog.client.config import ClientConfig  # noqa: PLC0415

    mine, others = (ClientConfig, child) if kind is None else (kind, ClientConfig)
    known = _names(mine)
    everything = known | (_names(others) if others is not None else set())
    found = {}
    for key, value in pairs(ctx).items():
        name = key.replace(".", "_")
        if name not in everything:
            raise click.UsageError(
                f"-X {key}: there is no such setting{nearest(key, everything, dots=True)}", ctx
            )
        if name in known:
            found[key] = value
    return found


def child_settings(ctx: click.Context, kind: type, ours: Mapping[str, Any], **fixed: Any) -> dict[str, Any]:
    """Settings of a client's child, by Kafka's names: ours, and over them what `-X` says. Values that cannot be are usage.

    `fixed`: what it is told besides, which others may contradict.
    """
    from tidelog.client.config import from_options  # noqa: PLC0415

    said = {key.replace("_", "."): value for key, value in settings_of(ctx, kind, None).items()}
    settings = {**ours, **said}
    try:
        from_options(kind, settings, **fixed)
    except InvalidConfig as error:
        raise click.UsageError(error.message, ctx) from error
    return settings


def _names(config: type) -> set[str]:
    from dataclasses import fields  # noqa: PLC0415

    return {
        name
        for field in fields(config)
        if field.name != "bootstrap"
        for name in (field.name, *field.metadata.get("also", ()))
    }


def nearest(said: str, known: Iterable[str], *, dots: bool = False) -> str:
    """`; the nearest is orders`, or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415

    names = [name.replace("_", ".") if dots else name for name in known]
    near = get_close_matches(said, names, n=1, cutoff=0.5)
    return f"; the nearest is {near[0]}" if near else ""


def _listen(wanted: int) -> None:
    """Let the client's log be heard, or not; Python would print warnings that nobody asked for."""
    import logging  # noqa: PLC0415

    logger = logging.getLogger("tidelog")
    if not wanted:
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        return
    # asyncio.run says at level debug that it begins; nobody wants to know.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logger.setLevel(logging.DEBUG if wanted > 1 else logging.INFO)


# ── topics ────────────────────────────────────────────────────────────────────────────────────────────


async def known_topics(client: "Client", *names: str) -> "list[Topic]":
    """These topics, in this order; one that there is not is refused, with the nearest that there is."""
    from tidelog.protocol.errors import UnknownTopicOrPartition  # noqa: PLC0415

    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if not can_be_sent(name):
            raise Failure(f"there is no topic {name!r}: no name is so long, or has such bytes")
    try:
        return await client.admin.describe_topics(*wanted)
    except UnknownTopicOrPartition:
        missing = wanted
    except SeveralErrors as errors:
        missing = [
            name for name, error in errors.errors.items() if isinstance(error, UnknownTopicOrPartition)
        ]
        if len(missing) < len(errors.errors):
            raise
    known = [topic.name for topic in await client.admin.list_topics()]
    raise Failure("; ".join(absent(name, known) for name in missing))


def absent(name: str, known: list[str]) -> str:
    """That there is no such topic, and what to do."""
    near = nearest(name, known)
    if near:
        return f"there is no topic {name!r}{near}"
    if not known:
        return f"there is no topic {name!r}, and no other: `tidelog topic create {name}` makes it"
    few = (
        f": {', '.join(sorted(known))}"
        if len(known) <= 5
        else "; `tidelog topic list` names those that there are"
    )
    return (
        f"there is no topic {name!r}; there {'is' if len(known) == 1 else 'are'}{few}"
        if len(known) <= 5
        else (f"there is no topic {name!r}{few}")
    )


# ── what has failed ───────────────────────────────────────────────────────────────────────────────────


def failure(error: TidelogError) -> Failure:
    """The error as a line that ends with the way out."""
    kind = Unhealthy if isinstance(error, _UNHEALTHY) else Failure
    return kind(sentence(error))


def sentence(error: TidelogError) -> str:
    """The fact, and the way out."""
    fact = briefly(" ".join(error.message.split()))
    way_out = type(error).way_out()
    if fact and isinstance(error, _TOLD):
        way_out = way_out.partition(": ")[2]
    if not fact or isinstance(error, _COMPLETE):
        return fact or way_out
    return f"{fact}; {way_out[:1].lower()}{way_out[1:]}"


def briefly(fact: str, names: str = "") -> str:
    """The same, with the nearest of all settings where none is near, and what names them all."""
    key, unknown, known = fact.partition(": there is no such setting; ")
    whose, has, settings = known.partition(" has ")
    if not (unknown and has and whose in _ALL):
        return fact
    # Imported here because hardly anybody needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    [near] = get_close_matches(key, settings.split(", "), n=1, cutoff=0)
    return f"{key}{unknown}the nearest is {near}; {names or _ALL[whose]} names all"


def _unreachable(error: TidelogError) -> Failure:
    fact, _, causes = error.message.partition("\n")
    lines = "; ".join(line.strip() for line in causes.splitlines())
    told = f"{fact.rstrip(':')}: {lines}" if lines else fact
    late = not isinstance(error, ConnectionFailed) or isinstance(error.__cause__, RequestTimedOut)
    late = late or "no answer in" in told
    kind = Unhealthy if late else Failure
    return kind(f"{told}. Start a cluster here with `tidelog up`, or say with -b HOST:PORT where one is")
