"""How `tidelog cluster quorum` prints what the leader says: a table, JSON lines, or kafka-metadata-quorum's lines."""

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec

from tidelog.cli.options import Address, Layout
from tidelog.cli.terminal import Table, Writer, many, span
from tidelog.protocol.messages import DescribeQuorumReply, QuorumMember
from tidelog.protocol.types import NO_OFFSET

LATE_MS: Final = 5000
"""Whoever is silent for longer is worth a look: at least every half second there is something to fetch."""


def name(member: QuorumMember) -> str:
    """`c1`, `b1`: ids of controllers and brokers have nothing to do with each other."""
    return f"{'c' if member.controller else 'b'}{member.id}"


def _log_end(answer: DescribeQuorumReply) -> int:
    """What the leader has."""
    return max((voter.end_offset for voter in answer.voters), default=answer.high_watermark)


def _members(answer: DescribeQuorumReply) -> list[tuple[str, QuorumMember]]:
    voters = [("leader" if voter.id == answer.leader_id else "voter", voter) for voter in answer.voters]
    return voters + [("observer", observer) for observer in answer.observers]


def _lag(answer: DescribeQuorumReply, member: QuorumMember) -> int:
    """How many records it lacks; -1: nobody knows."""
    known = member.end_offset != NO_OFFSET
    return max(_log_end(answer) - member.end_offset, 0) if known else -1


# ── for people ────────────────────────────────────────────────────────────────────────────────────────


def as_text(writer: Writer, answer: DescribeQuorumReply) -> None:
    """Who leads, where the log is, and a line per node."""
    leader = f"controller c{answer.leader_id} leads in epoch {answer.quorum_epoch}"
    writer.line(f"cluster {answer.cluster_id or '(no id yet)'}: {click.style(leader, bold=True)}")
    committed = f"committed up to {answer.high_watermark}"
    snapshot = f", newest snapshot up to {answer.snapshot_end}" * (answer.snapshot_end != NO_OFFSET)
    writer.line(f"metadata log: {span(answer.log_start, _log_end(answer))}, {committed}{snapshot}")
    writer.line()
    table = Table(writer, ("NODE", "ROLE", "ADDRESS", ">END", ">LAG", ">HEARD", ">CAUGHT UP"))
    for role, member in _members(answer):
        where = str(Address(member.host, member.port)) if member.host else "-"
        if member.end_offset == NO_OFFSET:
            end = lag = caught_up = "-"
            heard = f"not for {_period(member.silent_ms)}"
        else:
            end, lag = str(member.end_offset), str(_lag(answer, member))
            heard, caught_up = _ago(member.silent_ms), _ago(member.behind_ms)
        table.row(name(member), role, where, end, lag, heard, caught_up)
    table.end()
    for line in _worries(answer):
        writer.line(click.style(line, fg="yellow"))


def _ago(ms: int) -> str:
    return f"{_period(ms)} ago" if ms else "now"


def _period(ms: int) -> str:
    """`0.3 s`, `12 s`, `5 min`, `3 h`."""
    if ms < 9_950:
        return f"{ms / 1000:.1f} s"
    for unit, size_ms in (("s", 1000), ("min", 60_000)):
        if ms < 120 * size_ms:
            return f"{ms // size_ms} {unit}"
    return f"{ms // 3_600_000} h"


def _worries(answer: DescribeQuorumReply) -> list[str]:
    """What somebody should look at."""
    silent = [voter for voter in answer.voters if voter.silent_ms > LATE_MS or voter.end_offset == NO_OFFSET]
    if not silent:
        return []
    spare = (len(answer.voters) - 1) // 2 - len(silent)
    names = ", ".join(name(voter) for voter in silent)
    may = f"{many(spare, 'further controller')} may fail" if spare > 0 else "no further controller may fail"
    return [
        "",
        f"{names} {'is' if len(silent) == 1 else 'are'} not heard: {may} before the quorum stands still",
    ]


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────


def as_json(writer: Writer, answer: DescribeQuorumReply) -> None:
    """The quorum, and then an object per node."""
    _put(
        writer,
        type="quorum",
        cluster_id=answer.cluster_id,
        leader_id=answer.leader_id,
        leader_epoch=answer.quorum_epoch,
        high_watermark=answer.high_watermark,
        log_start=answer.log_start,
        log_end=_log_end(answer),
        snapshot_end=answer.snapshot_end,
    )
    for role, member in _members(answer):
        _put(
            writer,
            type="observer" if role == "observer" else "voter",
            node=name(member),
            id=member.id,
            is_leader=role == "leader",
            directory_id=member.directory_id.hex() if member.directory_id is not None else None,
            host=member.host or None,
            port=member.port if member.host else -1,
            end_offset=member.end_offset,
            lag=_lag(answer, member),
            silent_ms=member.silent_ms,
            behind_ms=member.behind_ms,
        )


def _put(writer: Writer, **fields: object) -> None:
    writer.line(msgspec.json.encode(fields).decode())


# ── as Kafka has it ───────────────────────────────────────────────────────────────────────────────────


def as_kafka(writer: Writer, answer: DescribeQuorumReply) -> None:
    """`describe --status`, and below it `describe --replication`."""
    followers = [member for role, member in _members(answer) if role == "voter"]
    rows = {
        "ClusterId": answer.cluster_id,
        "LeaderId": answer.leader_id,
        "LeaderEpoch": answer.quorum_epoch,
        "HighWatermark": answer.high_watermark,
        "MaxFollowerLag": max((_lag(answer, member) for member in followers), default=0),
        "MaxFollowerLagTimeMs": max((member.behind_ms for member in followers), default=0),
        "CurrentVoters": [voter.id for voter in answer.voters],
        "CurrentObservers": [observer.id for observer in answer.observers],
    }
    for key, value in rows.items():
        writer.line(f"{key + ':':<24}{value}")
    writer.line()
    now_ms = int(time.time() * 1000)
    table = Table(
        writer,
        (
            "NodeId",
            "DirectoryId",
            "LogEndOffset",
            "Lag",
            "LastFetchTimestamp",
            "LastCaughtUpTimestamp",
            "Status",
        ),
    )
    for role, member in _members(answer):
        known = member.end_offset != NO_OFFSET
        fetched, caught_up = (
            str(now_ms - ago_ms if known else -1) for ago_ms in (member.silent_ms, member.behind_ms)
        )
        table.row(
            str(member.id),
            _uuid(member.directory_id),
            str(member.end_offset),
            str(_lag(answer, member)),
            fetched,
            caught_up,
            role.capitalize().replace("Voter", "Follower"),
        )
    table.end()


def _uuid(directory_id: bytes | None) -> str:
    """As Kafka writes them: base64 without padding."""
    return urlsafe_b64encode(directory_id or bytes(16)).decode().rstrip("=")


LAYOUTS: Final[Mapping[Layout, Callable[[Writer, DescribeQuorumReply], None]]] = {
    "text": as_text,
    "json": as_json,
    "kafka": as_kafka,
}
