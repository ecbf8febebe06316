"""`tidelog cluster health`: exit 0 when all is well, 3 when it is not, with each problem and the way out of it."""

import time
from collections.abc import Callable, Coroutine
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.asking import UNHEALTHY, Failure, Unhealthy, ask, sentence
from tidelog.cli.objects import put
from tidelog.cli.options import TIMEOUT_S, Verb, connection_options, layout, output_option, timeout_ms
from tidelog.cli.terminal import Writer, many
from tidelog.protocol.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.cli.cluster.problems import Found, Problem
    from tidelog.client import Client
    from tidelog.client.cluster import Topic

WAIT_S: Final = 60.0
_PAUSE_S: Final = 0.2
_QUORUM_SHARE: Final = 0.5
"""The part of the time that the controllers get: without a leader among them there is no answer."""
_SHOWN: Final = 20
"""So many problems of a kind are shown one by one."""


@click.command(
    cls=Verb,
    examples=(
        "tidelog cluster health",
        "tidelog cluster health --wait --timeout 30 && make load",
        "tidelog cluster health -o json | jq 'select(.type == \"problem\") | .way_out'",
    ),
)
@click.option(
    "--wait", is_flag=True, help=f"Wait until all is well; at most --timeout, {WAIT_S:g} s unless it is said."
)
@connection_options
@output_option
@click.pass_context
def health(ctx: click.Context, /, *, wait: bool) -> int:
    """Say whether all is well, and if not, what is wrong and what to do; exit 3 then.

    Looks for partitions without a leader, with too few replicas in sync for a write with acks=all or with fewer than they
    should have, brokers that are fenced or whose disk has failed, and controllers: one must lead, all should be heard.
    Partitions that may have lost committed records, because somebody who may lack some leads them, are named; that is
    over, and changes nothing about the exit.
    """
    # Imported here because a help page must not pay for it.
    from tidelog.cli.cluster.problems import losses, problems  # noqa: PLC0415

    asked = layout(ctx, "text", "json")
    found = _settled(ctx) if wait else ask(ctx, _look(timeout_ms(ctx) / 1000))
    wrong = problems(found)
    writer = Writer()
    if asked == "json":
        put(writer, "health", healthy=not wrong, problems=len(wrong))
        for one in wrong:
            put(writer, "problem", **one._asdict() | {"kind": one.kind.value})
        for one in losses(found):
            put(writer, "warning", **one._asdict() | {"kind": one.kind.value})
    else:
        _as_text(writer, found, wrong)
        _say(writer, losses(found))
    writer.flush()
    return UNHEALTHY if wrong else 0


def _settled(ctx: click.Context) -> "Found":
    """What is found when all is well, or when the time is up."""
    from tidelog.cli.cluster.problems import problems  # noqa: PLC0415 -- as above

    deadline_s = time.monotonic() + timeout_ms(ctx, WAIT_S) / 1000
    said = ""
    while True:
        left_s = max(deadline_s - time.monotonic(), 0.1)
        share_s = min(left_s, TIMEOUT_S)
        found: Found | None = None
        try:
            found = ask(ctx, _look(share_s), at_most_s=share_s)
            wrong = problems(found)
            if not wrong:
                return found
            state = f"{many(len(wrong), 'problem')}, the first: {wrong[0].what}"
        except Failure as error:
            state = error.message
        if time.monotonic() + _PAUSE_S >= deadline_s:
            if found is None:
                raise Unhealthy(state)
            return found
        if state != said:
            said = state
            click.echo(f"waiting: {state}", err=True)
        time.sleep(_PAUSE_S)


def _look(limit_s: float) -> "Callable[[Client], Coroutine[Any, Any, Found]]":
    async def look(client: "Client") -> "Found":
        from tidelog.cli.cluster.problems import Found  # noqa: PLC0415 -- a help page must not pay for it

        cluster = await client.admin.describe_cluster()
        topics = await client.admin.list_topics(internal=True)
        min_isr = await _min_isr(client, topics) if cluster.under_min_isr or cluster.under_replicated else {}
        try:
            quorum = await client.admin.describe_quorum(timeout=limit_s * _QUORUM_SHARE)
        except TidelogError as error:
            return Found(
                cluster.brokers, topics, min_isr, None, sentence(error), losses=cluster.possible_losses
            )
        return Found(cluster.brokers, topics, min_isr, quorum, losses=cluster.possible_losses)

    return look


async def _min_isr(client: "Client", topics: "list[Topic]") -> dict[str, int]:
    """How many replicas in sync a write needs, of topics that lack some."""
    key, found = "min.insync.replicas", {}
    for topic in topics:
        if all(len(one.isr) == len(one.replicas) for one in topic.partitions):
            continue
        configs = await client.admin.describe_configs("topic", topic.name, keys=(key,))
        found[topic.name] = int(configs[key].effective or configs[key].value or 1)
    return found


def _as_text(writer: Writer, found: "Found", wrong: "list[Problem]") -> None:
    from tidelog.cli.cluster.folding import folded  # noqa: PLC0415 -- a help page must not pay for it

    partitions = sum(len(topic.partitions) for topic in found.topics)
    there = f"{many(len(found.brokers), 'broker')}, {many(len(found.topics), 'topic')}, {many(partitions, 'partition')}"
    if not wrong:
        leader = f", controller c{found.quorum.leader_id} leads" if found.quorum is not None else ""
        writer.line(f"{click.style('healthy', fg='green', bold=True)}: {there}{leader}")
        return
    writer.line(f"{click.style('unhealthy', fg='red', bold=True)}: {many(len(wrong), 'problem')} in {there}")
    _say(writer, wrong)
    if len(folded(wrong)) < len(wrong):
        writer.line(f"  -o json names each of the {len(wrong)}")


def _say(writer: Writer, all_of_them: "list[Problem]") -> None:
    """Each with its way out, what is alike as one; of many of one kind the first."""
    from tidelog.cli.cluster.folding import folded  # noqa: PLC0415 -- a help page must not pay for it

    for kind, group in groupby(all_of_them, key=lambda problem: problem.kind):
        several = folded(group)
        for one in several[:_SHOWN]:
            writer.line(f"  {one.what}")
            writer.line(f"    {one.way_out}")
        if len(several) > _SHOWN:
            writer.line(
                f"  and {len(several) - _SHOWN} more of the same kind ({kind.value}): -o json names all"
            )
