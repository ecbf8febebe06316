"""`tidelog partition move`, `moves` and `cancel`; and what `broker drain` shows of the moves that it orders."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.asking import Failure, ask, known_topics
from tidelog.cli.consent import require_consent, yes_option
from tidelog.cli.names import brokers_of, complete_topics, named, require_partitions
from tidelog.cli.objects import put
from tidelog.cli.options import CHANGE_TIMEOUT_S, Layout, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer, many, size
from tidelog.cli.topic.describe import brokers

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.admin import Move, Moves
    from tidelog.protocol.types import TopicPartition

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes_s(ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?(?:/S)?", text.strip().upper())
    if found is None:
        raise click.UsageError(f"--throttle {text} is no rate: it is like 1048576 or 10MB, per second", ctx)
    return int(found[1]) * _UNITS[found[2]]


throttle_option = click.option(
    "--throttle",
    callback=_bytes_s,
    metavar="BYTES",
    help="What one broker hands out for moves in a second, as 10MB; ends with the moves. 0: as much as it can.",
)


@click.command(
    cls=Verb,
    examples=(
        "tidelog partition move orders -p 0:1,2,3",
        "tidelog partition move orders -p 0:1,2 -p 1:2,3 --dry-run",
        "tidelog partition move orders -p 0:4,5,6 --throttle 10MB --yes",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "targets",
    metavar="N:BROKER,...",
    multiple=True,
    required=True,
    help="Which partition, and who is to keep it, the preferred leader first; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and do nothing.")
@throttle_option
@yes_option
@connection_options
@output_option
@click.pass_context
def move(
    ctx: click.Context,
    /,
    topic: str,
    targets: Sequence[str],
    throttle: int | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move partitions of a topic to other brokers.

    The old replicas leave when the new ones have everything; until then nothing is lost by cancelling.
    """
    asked = layout(ctx, "text", "json", "kafka")
    wanted = _targets(ctx, targets)
    before: dict[TopicPartition, tuple[int, ...]] = {}

    async def order(client: "Client", *, only_look: bool) -> "list[Move]":
        from tidelog.protocol.types import TopicPartition  # noqa: PLC0415 -- a help page must not pay for it

        [found] = await known_topics(client, topic)
        require_partitions(found, list(wanted), ctx)
        before.update((TopicPartition(topic, number), found.partitions[number].replicas) for number in wanted)
        places = {TopicPartition(topic, number): ids for number, ids in wanted.items()}
        return await client.admin.reassign(places, throttle_bytes_s=throttle, validate_only=only_look)

    if dry_run or not yes:
        plan = ask(ctx, lambda client: order(client, only_look=True), timeout_s=CHANGE_TIMEOUT_S)
        if dry_run:
            show_moves(plan, asked, before, dry_run=True)
            return
        would = (sentence_of(one, before.get(one.partition, ())) for one in plan)
        require_consent(ctx, would, yes=yes, question="Move?")
    done = ask(ctx, lambda client: order(client, only_look=False), timeout_s=CHANGE_TIMEOUT_S)
    show_moves(done, asked, before)


def _targets(ctx: click.Context, texts: Sequence[str]) -> dict[int, tuple[int, ...]]:
    found = {}
    for text in texts:
        number, colon, ids = text.partition(":")
        target = brokers_of(ids) if colon else None
        if not number.isdecimal() or target is None:
            raise click.UsageError(f"-p {text} is no PARTITION:BROKER,... as 0:1,2,3 is", ctx)
        if int(number) in found:
            raise click.UsageError(f"-p {number} is given twice", ctx)
        found[int(number)] = target
    return found


def sentence_of(one: "Move", before: Sequence[int] = ()) -> str:
    """What a move would do; `before`: who keeps the partition, where that is known."""
    return f"would move {one.partition}: {_what(one, before)}"


def _what(one: "Move", before: Sequence[int]) -> str:
    if not one.adding and not one.removing:
        gone = [broker for broker in before if broker not in one.replicas]
        leave = f", {brokers(gone)} leave{'s' if len(gone) == 1 else ''} at once" * bool(gone)
        return f"replicas {brokers(one.replicas)}{leave}, nothing is copied"
    stay = [broker for broker in one.replicas if broker not in (*one.adding, *one.removing)]
    parts = [f"{brokers(stay)} stay{'s' if len(stay) == 1 else ''}"] * bool(stay)
    parts += [f"{brokers(one.adding)} to copy it"] * bool(one.adding)
    parts += [f"{brokers(one.removing)} to leave"] * bool(one.removing)
    return ", ".join(parts)


def show_moves(
    done: "Sequence[Move]",
    asked: Layout,
    before: "Mapping[TopicPartition, Sequence[int]] | None" = None,
    *,
    dry_run: bool = False,
) -> None:
    """What was begun, or with `dry_run` would be."""
    writer, had = Writer(), before or {}
    if asked == "kafka" and done:
        names = ",".join(str(one.partition) for one in done)
        writer.line(f"Successfully started partition reassignment{'s' * (len(done) > 1)} for {names}")
    for one in done if asked != "kafka" else ():
        if asked == "json":
            put(writer, "move", **_about(one), begun=not dry_run)
        else:
            old = had.get(one.partition, ())
            writer.line(sentence_of(one, old) if dry_run else f"{one.partition}: {_what(one, old)}")
    writer.flush()
    if not done:
        click.echo("there is nothing to move", err=True)
    elif not dry_run and any(one.adding or one.removing for one in done):
        click.echo(f"{many(len(done), 'move')} begun: `tidelog partition moves` shows how far", err=True)


def _about(one: "Move") -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "replicas": list(one.replicas),
        "adding": list(one.adding),
        "removing": list(one.removing),
    }


@click.command(
    cls=Verb, examples=("tidelog partition moves", "tidelog partition moves -o json | jq -c .waiting_for")
)
@connection_options
@output_option
@click.pass_context
def moves(ctx: click.Context, /) -> None:
    """Show what is being moved, and whom it waits for."""
    asked = layout(ctx, "text", "json")

    async def look(client: "Client") -> "Moves":
        return await client.admin.list_reassignments()

    found = ask(ctx, look)
    writer = Writer()
    table = Table(writer, ("PARTITION", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITS FOR"))
    for one in found.partitions:
        if asked == "json":
            put(writer, "move", **_about(one), isr=list(one.isr), waiting_for=list(one.waiting_for))
        else:
            lists = one.replicas, one.adding, one.removing, one.isr, one.waiting_for
            table.row(str(one.partition), *map(brokers, lists))
    table.end()
    writer.flush()
    if not found.partitions:
        click.echo("nothing is being moved", err=True)
    elif found.throttle_bytes_s:
        click.echo(f"throttled to {size(found.throttle_bytes_s)}/s for each broker", err=True)


@click.command(cls=Verb, examples=("tidelog partition cancel", "tidelog partition cancel orders payments:3"))
@click.argument("names", nargs=-1, metavar="[TOPIC[:N]]...", shell_complete=complete_topics)
@connection_options
@output_option
@click.pass_context
def cancel(ctx: click.Context, /, names: Sequence[str]) -> None:
    """Cancel moves that go on: all, or those of these topics or partitions. The old replicas stay."""
    asked = layout(ctx, "text", "json")
    wanted = [named(text, ctx) for text in names]

    async def work(client: "Client") -> "tuple[list[TopicPartition], list[Move]]":
        if wanted:
            await known_topics(client, *(each.topic for each in wanted))
        going_on = [one.partition for one in (await client.admin.list_reassignments()).partitions]
        chosen = [
            one
            for one in going_on
            if not wanted
            or any(each.topic == one.topic and each.partition in {None, one.partition} for each in wanted)
        ]
        return chosen, await client.admin.reassign(dict.fromkeys(chosen)) if chosen else []

    chosen, done = ask(ctx, work, timeout_s=CHANGE_TIMEOUT_S)
    if not chosen and wanted:
        raise Failure("nothing of these is being moved: `tidelog partition moves` shows what is")
    writer = Writer()
    for one in done:
        if asked == "json":
            put(writer, "move", **_about(one), cancelled=True)
        else:
            writer.line(f"{one.partition}: cancelled, replicas {brokers(one.replicas)}")
    writer.flush()
    if not done:
        click.echo("nothing is being moved", err=True)
