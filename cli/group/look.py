"""`tidelog group list` and `tidelog group describe`."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.asking import ask
from tidelog.cli.names import complete_groups, complete_topics
from tidelog.cli.objects import put
from tidelog.cli.options import Layout, Verb, connection_options, layout, output_option
from tidelog.cli.terminal import Table, Writer, day, many
from tidelog.cli.terminal import time as shown_time

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.protocol.messages import (
        DescribedGroup,
        DescribedMember,
        DescribedOffset,
        ListedGroup,
        TopicPartitions,
    )

STATES = ("empty", "assigning", "reconciling", "stable")
UNKNOWN = -1
_MEMBER = 16
"""So many characters of a member's name are shown beside its offsets."""


@click.command(
    "list",
    cls=Verb,
    examples=(
        "tidelog group list",
        "tidelog group list --with-lag",
        "tidelog group list --topic orders --state stable",
    ),
)
@click.option(
    "--with-lag",
    is_flag=True,
    help="How many records each has not consumed yet, and for how long the first of them has been there.",
)
@click.option(
    "--topic",
    metavar="TOPIC",
    default="",
    shell_complete=complete_topics,
    help="Only groups that consume this topic.",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Only groups in this state; repeatable.",
)
@connection_options
@output_option
@click.pass_context
def list_groups(ctx: click.Context, /, *, with_lag: bool, topic: str, states: Sequence[str]) -> None:
    """List the groups, a line each.

    LAG is how many records are to be consumed, BEHIND for how long the first of them has been there, or at most (`<=`). UNKNOWN
    is of how many partitions nobody knows; they are not in the sum.
    """
    asked = layout(ctx, "text", "json", "kafka")

    async def look(client: "Client") -> "list[ListedGroup]":
        return await client.admin.list_groups(states=states, topic=topic, with_lag=with_lag)

    titles = ("GROUP", "STATE", ">MEMBERS", ">TOPICS")
    writer = Writer()
    table = Table(writer, (*titles, ">LAG", ">BEHIND", ">UNKNOWN") if with_lag else titles)
    found = ask(ctx, look)
    for one in found:
        if asked == "json":
            lag: dict[str, Any] = {}
            if with_lag:
                lag = {"lag": one.lag, "lag_ms": one.lag_ms, "lag_at_most": one.lag_at_most}
                lag["unknown_partitions"] = one.unknown
            put(
                writer,
                "group",
                group=one.group_id,
                state=one.state,
                members=one.members,
                topics=one.topics,
                **lag,
            )
        elif asked == "kafka":
            writer.line(one.group_id)
        else:
            cells: tuple[str, ...] = (one.group_id, one.state, str(one.members), str(one.topics))
            if with_lag:
                cells += (number(one.lag), behind(one.lag_ms, at_most=one.lag_at_most), str(one.unknown))
            table.row(*cells)
    table.end()
    writer.flush()
    if not found and asked == "text":
        some = "no group is like that" if states or topic else "there are no groups"
        click.echo(f"{some}: `tidelog consume TOPIC -g GROUP` makes one", err=True)


@click.command(
    cls=Verb,
    examples=("tidelog group describe billing", "tidelog group describe billing --members -o json"),
)
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="Its members and what each has, instead of its offsets.")
@connection_options
@output_option
@click.pass_context
def describe(ctx: click.Context, /, groups: Sequence[str], *, members: bool) -> None:
    """Show how far groups are in each partition, or who their members are.

    COMMITTED is the next record to be consumed, AT when that was committed. LAG is how many records are to be consumed,
    BEHIND for how long the first of them has been there, or at most (`<=`). LOST is how many were deleted, by retention or by
    hand, before the group had consumed them. MEMBER is who has the partition, shortened: --members has it whole. `-` is
    what nobody knows.
    """
    asked = layout(ctx, "text", "json", "kafka")

    async def look(client: "Client") -> "list[DescribedGroup]":
        return await client.admin.describe_groups(*dict.fromkeys(groups), with_lag=not members)

    writer = Writer()
    for place, one in enumerate(ask(ctx, look)):
        if asked == "text":
            if place:
                writer.line()
            writer.line(
                f"{one.group_id}: {one.state}, {many(len(one.members), 'member')}, epoch {one.epoch}, "
                f"{one.assignor or 'no assignor'}, coordinated by broker {one.coordinator}"
            )
        elif asked == "kafka":
            writer.line()
        elif not members:
            _put_group(writer, one)
        (_members if members else _offsets)(writer, one, asked)
    writer.flush()


def _put_group(writer: Writer, one: "DescribedGroup") -> None:
    put(
        writer,
        "group",
        group=one.group_id,
        state=one.state,
        members=len(one.members),
        epoch=one.epoch,
        assignment_epoch=one.assignment_epoch,
        assignor=one.assignor,
        coordinator=one.coordinator,
    )


def _offsets(writer: Writer, one: "DescribedGroup", asked: Layout) -> None:
    titles: Sequence[str] = (
        "TOPIC",
        ">PARTITION",
        ">COMMITTED",
        ">END",
        ">LAG",
        ">BEHIND",
        ">LOST",
        "AT (UTC)",
        "MEMBER",
    )
    if asked == "kafka":
        titles = (
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "CONSUMER-ID",
            "HOST",
            "CLIENT-ID",
        )
    members = {member.member_id: member for member in one.members}
    now_ms = time.time_ns() // 1_000_000
    table = Table(writer, titles)
    for each in one.offsets:
        member = members.get(each.member_id)
        if asked == "json":
            _put_offset(writer, one.group_id, each)
        elif asked == "kafka":
            numbers = (number(each.offset), number(each.high_watermark), number(each.lag))
            who = (member.member_id, f"/{member.host}", member.client_id) if member else ("-", "-", "-")
            table.row(one.group_id, each.topic, str(each.index), *numbers, *who)
        else:
            table.row(
                each.topic or each.topic_id.hex(),
                str(each.index),
                number(each.offset),
                number(each.high_watermark),
                number(each.lag),
                behind(each.lag_ms, at_most=each.lag_at_most),
                str(each.lost),
                when(each.commit_ms, now_ms),
                _short(each.member_id) or "-",
            )
    table.end()


def when(timestamp_ms: int, now_ms: int) -> str:
    """The time where that is today, else the day with what is needed to tell it: a column that a terminal has room for."""
    shown = shown_time(timestamp_ms)
    if (on := day(timestamp_ms)) == "":
        return shown
    if on == day(now_ms):
        return shown[11:19]
    return shown[5:16] if on[:4] == day(now_ms)[:4] else on


def _short(member: str) -> str:
    """As much of its name as tells it from others: what it calls itself, and the end of its number."""
    return member if len(member) <= _MEMBER else f"{member[: _MEMBER - 8]}..{member[-6:]}"


def _put_offset(writer: Writer, group: str, each: "DescribedOffset") -> None:
    put(
        writer,
        "group_offset",
        group=group,
        topic=each.topic,
        partition=each.index,
        offset=each.offset,
        start_offset=each.log_start,
        end_offset=each.high_watermark,
        lag=each.lag,
        lag_ms=each.lag_ms,
        lag_at_most=each.lag_at_most,
        lost=each.lost,
        commit_ms=each.commit_ms,
        metadata=each.metadata,
        member=each.member_id or None,
    )


def _members(writer: Writer, one: "DescribedGroup", asked: Layout) -> None:
    titles: Sequence[str] = ("MEMBER", "INSTANCE", "CLIENT", "HOST", "STATE", ">EPOCH", "HAS", "GIVES UP")
    if asked == "kafka":
        titles = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
    table = Table(writer, titles)
    names = {each.topic_id: each.topic for each in one.offsets}
    for member in one.members:
        if asked == "json":
            _put_member(writer, one.group_id, member, names)
        elif asked == "kafka":
            count = sum(len(each.indexes) for each in member.assigned)
            table.row(one.group_id, member.member_id, f"/{member.host}", member.client_id, str(count))
        else:
            table.row(
                member.member_id,
                member.instance_id or "-",
                member.client_id or "-",
                member.host or "-",
                member.state,
                str(member.member_epoch),
                _places(member.assigned, names),
                _places(member.revoking, names),
            )
    table.end()


def _put_member(writer: Writer, group: str, member: "DescribedMember", names: dict[bytes, str]) -> None:
    put(
        writer,
        "group_member",
        group=group,
        member=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        state=member.state,
        epoch=member.member_epoch,
        topics=list(member.topics),
        assigned={_name(each, names): list(each.indexes) for each in member.assigned},
        revoking={_name(each, names): list(each.indexes) for each in member.revoking},
        silent_ms=member.silent_ms,
    )


def _places(entries: "Sequence[TopicPartitions]", names: dict[bytes, str]) -> str:
    shown = [f"{_name(each, names)}:{','.join(map(str, each.indexes))}" for each in entries]
    return " ".join(shown) or "-"


def _name(entry: "TopicPartitions", names: dict[bytes, str]) -> str:
    return entry.topic or names.get(entry.topic_id) or entry.topic_id.hex()


def number(value: int) -> str:
    """The number; `-` where there is none."""
    return "-" if value == UNKNOWN else str(value)


def behind(lag_ms: int, *, at_most: bool = False) -> str:
    """`1.5 s`, `3 min`, `<= 2.0 h`; `-` where nobody knows."""
    if lag_ms <= 0:
        return "0" if lag_ms == 0 else "-"
    seconds = lag_ms / 1000
    if seconds < 60:
        told = f"{seconds:.1f} s"
    else:
        told = f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
    return f"<= {told}" if at_most else told
