"""`tidelog consume -g`: what others still have is waited for, and never taken for read."""

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.serving import Serving, running
from tidelog.cli.consume.share import Ends, behind, is_whole, others
from tidelog.client import Client
from tidelog.protocol.messages import DescribedGroup, DescribedMember, DescribedOffset, TopicPartitions
from tidelog.protocol.types import TopicPartition

DEADLINE_S = 30
ID = bytes(16)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def at(one_broker: Serving, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """The cluster, as the one that command lines ask."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    return one_broker


def described(cluster: Serving, group: str) -> DescribedGroup:
    """The group, as its coordinator sees it."""

    async def look(client: Client) -> DescribedGroup:
        [found] = await client.admin.describe_groups(group)
        return found

    return cluster.with_client(look)


@contextmanager
def died(cluster: Serving, topic: str, *words: str) -> Iterator[None]:
    """A member that has shown a record, committed nothing, and was killed: its session goes on."""
    with running(cluster.bootstrap, "consume", topic, "-g", f"of-{topic}", "-o", "start", *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.kill()
        process.wait(DEADLINE_S)
        yield


# ── as processes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_bounded_read_waits_for_what_a_dead_member_has_and_says_so(
    at: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.consume.SILENT_S", 1.0)
    name = at.topic()
    at.write(name, *(b"%d" % number for number in range(5)))
    with died(at, name, "-X", "session.timeout.ms=6000"):
        ran = tidelog("consume", name, "-g", f"of-{name}", "-o", "start", "--exit")
    assert (ran.code, ran.lines) == (0, ["0", "1", "2", "3", "4"])
    told, summary = ran.err.splitlines()
    assert re.fullmatch(
        rf"no partition was given to this member yet: group 'of-{name}' is \w+, member tidelog-cli-\w+ at 127.0.0.1:\d+, heard "
        rf"[\d.]+ s ago, has {name}-0; it waits, for 60 s at most",
        told,
    )
    assert summary == f"5 records of {name}"


@pytest.mark.slow
def test_a_bounded_read_that_was_given_nothing_says_how_far_the_group_is_behind_and_is_no_success(
    at: Serving, tidelog: Tidelog
) -> None:
    name = at.topic()
    at.write(name, *(b"%d" % number for number in range(5)))
    with died(at, name):
        ran = tidelog("consume", name, "-g", f"of-{name}", "-o", "start", "--exit", "--timeout", "1")
    assert (ran.code, ran.out) == (3, "")
    assert f"0 records of {name}, and group 'of-{name}' is 5 records behind ({name}-0 at 0 of 5)" in ran.err
    assert f"has {name}-0; `tidelog group describe of-{name} --members`" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.slow
def test_who_has_read_its_share_ends_well_and_says_who_has_the_rest(at: Serving, tidelog: Tidelog) -> None:
    name = at.topic(partitions=2)
    for partition in range(2):
        at.write(name, b"0", partition=partition)
    group = f"of-{name}"
    with running(at.bootstrap, "consume", name, "-g", group, "-o", "start") as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        ran = tidelog("consume", name, "-g", group, "-o", "start", "--exit")
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(
        rf"0 records of {name}, all of its share; member \S+ at 127.0.0.1:\d+, heard [\d.]+ s ago, has {name}-\d\n",
        ran.err,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_a_member_commit_what_it_has_shown_and_leave(
    at: Serving, number: signal.Signals
) -> None:
    name = at.topic()
    at.write(name, b"first", b"second")
    with running(at.bootstrap, "consume", name, "-g", f"of-{name}", "-o", "start") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"first\n", b"second\n"]
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err.decode()) == (128 + number, b"", f"2 records of {name}\n")
    group = described(at, f"of-{name}")
    assert (group.members, [each.offset for each in group.offsets]) == ((), [2])


@pytest.mark.slow
def test_timeout_sends_its_signal_twice_and_that_is_one_stop(at: Serving) -> None:
    name = at.topic()
    at.write(name, b"first")
    with running(at.bootstrap, "consume", name, "-g", f"of-{name}", "-o", "start") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err.decode()) == (143, f"1 record of {name}\n")
    assert described(at, f"of-{name}").members == ()


# ── in words ──────────────────────────────────────────────────────────────────────────────────────────


def member(name: str, target: Sequence[int] = (), revoking: Sequence[int] = ()) -> DescribedMember:
    """A member that is to have these in the end."""
    return DescribedMember(
        name,
        host="h",
        silent_ms=2100,
        target=(TopicPartitions(ID, tuple(target)),),
        revoking=(TopicPartitions(ID, tuple(revoking)),) if revoking else (),
    )


def group(state: str, members: Sequence[DescribedMember], held: dict[TopicPartition, str]) -> DescribedGroup:
    """A group in which these have these partitions; of t-1 two records are consumed."""
    offsets = tuple(
        DescribedOffset(ID, name.topic, name.partition, holder, 2 if name is ONE else -1)
        for name, holder in held.items()
    )
    return DescribedGroup("g", state=state, members=tuple(members), offsets=offsets)


@pytest.mark.parametrize(
    ("state", "me", "whole"),
    [
        ("stable", member("me", [0]), True),
        ("reconciling", member("me", [0]), True),
        ("reconciling", member("me", [0, 1]), False),
        ("reconciling", member("me", [], revoking=[0]), False),
        ("assigning", member("me", [0]), False),
    ],
)
def test_a_share_is_whole_when_the_coordinator_means_to_give_no_more(
    state: str, me: DescribedMember, whole: bool
) -> None:
    other = member("other", [1])
    assert is_whole(group(state, [me, other], {ZERO: "me", ONE: "other"}), {ZERO}) is whole


def test_a_share_that_the_coordinator_sees_with_somebody_else_is_not_whole() -> None:
    assert not is_whole(group("stable", [member("other", [0])], {ZERO: "other"}), {ONE})


def test_who_has_the_rest_is_named_with_how_long_it_was_silent() -> None:
    seen = group("stable", [member("me"), member("other")], {ZERO: "me", ONE: "other"})
    assert others(seen, [ZERO, ONE], {ZERO}) == "member other at h, heard 2.1 s ago, has t-1"
    assert others(seen, [ZERO], {ZERO}) == ""


def test_how_far_a_group_is_behind_is_counted_from_positions_commits_or_where_it_would_begin() -> None:
    ends = {ZERO: Ends(1, 5), ONE: Ends(0, 3)}
    seen = group("stable", [], {ZERO: "", ONE: ""})
    assert behind(seen, ends, {}, from_start=True) == "5 records behind (t-0 at 1 of 5, t-1 at 2 of 3)"
    assert behind(seen, ends, {ZERO: 4}, from_start=True) == "2 records behind (t-0 at 4 of 5, t-1 at 2 of 3)"
    assert behind(seen, ends, {ONE: 3}, from_start=False) == "not behind"
    assert behind(None, ends, {ZERO: 5}, from_start=True) == "3 records behind (t-1 at 0 of 3)"
