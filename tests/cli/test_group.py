"""`tidelog group` and `tidelog consume -g` against a real cluster."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, running, until
from tidelog.cli.group.look import behind, when
from tidelog.client import Client

Command = Callable[..., Ran]


@pytest.fixture
def command(one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`tidelog` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    return tidelog


@pytest.fixture
def group(one_broker: Serving) -> tuple[str, str]:
    """A topic with ten records in each of two partitions, and a group that has consumed three of the first."""
    topic = one_broker.topic(2)
    for partition in (0, 1):
        one_broker.write(topic, *(b"%d" % at for at in range(10)), partition=partition)

    async def consume(client: Client) -> None:
        async with client.consumer(topic, group=f"g-{topic}", auto_offset_reset="earliest") as consumer:
            await consumer.getone()
            await consumer.commit({name: 3 * (1 - name.partition) for name in consumer.assignment()})

    one_broker.with_client(consume)
    return f"g-{topic}", topic


def test_a_list_without_a_group_says_so(command: Command) -> None:
    ran = command("group", "list", "--topic", "nobody-reads-this")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no group is like that: `tidelog consume TOPIC -g GROUP` makes one\n"
    assert command("group", "list", "--topic", "nobody-reads-this", "-o", "json").err == ""


def test_a_group_is_listed_and_described(command: Command, group: tuple[str, str]) -> None:
    name, topic = group
    assert re.search(rf"^{name} +empty +0 +1$", command("group", "list").out, re.MULTILINE)
    assert re.search(
        rf"^{name} +empty +0 +1 +17 +- +0$", command("group", "list", "--with-lag").out, re.MULTILINE
    ), "of the second partition nobody knows since when"
    told = [json.loads(line) for line in command("group", "list", "--with-lag", "-o", "json").lines]
    [own] = [one for one in told if one["group"] == name]
    assert (own["lag"], own["lag_ms"], own["lag_at_most"], own["unknown_partitions"]) == (17, -1, False, 0)
    assert name in command("group", "list", "-o", "kafka").lines
    assert command("group", "list", "--topic", "nothing").lines == []
    ran = command("group", "describe", name)
    assert ran.lines[0].startswith(f"{name}: empty, 0 members, ")
    assert re.match(rf"{topic} +0 +3 +10 +7 ", ran.lines[2])
    told = [json.loads(line) for line in command("group", "describe", name, "-o", "json").lines]
    assert [one["type"] for one in told] == ["group", "group_offset", "group_offset"]
    assert (told[1]["offset"], told[1]["end_offset"], told[1]["lag"]) == (3, 10, 7)
    assert 0 < told[1]["lag_ms"] < 600_000
    assert told[1]["lag_at_most"] is False
    assert re.match(rf"{topic} +0 +3 +10 +7 +\d+\.\d s +0 ", ran.lines[2])
    kafka = command("group", "describe", name, "-o", "kafka").lines
    assert kafka[1].split()[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert kafka[2].split() == [name, topic, "0", "3", "10", "7", "-", "-", "-"]
    ran = command("group", "describe", "nobody")
    assert (ran.code, ran.out) == (1, "")
    assert "there is no group 'nobody'" in ran.err


def test_what_a_member_has_fits_into_a_terminal(command: Command, one_broker: Serving) -> None:
    topic = one_broker.topic(1)
    one_broker.write(topic, *(b"%d" % at for at in range(10)))

    async def consume(client: Client) -> list[Ran]:
        async with client.consumer(topic, group=f"g-{topic}", auto_offset_reset="earliest") as consumer:
            await consumer.getmany(timeout=10, max_records=3)
            await consumer.commit()
            words = ("group", "describe", f"g-{topic}")
            return [await asyncio.to_thread(command, *words, *more) for more in ((), ("--members",))]

    offsets, members = one_broker.with_client(consume)
    member = members.lines[2].split()[0]
    assert max(map(len, offsets.lines)) <= 80
    assert offsets.lines[1].split() == [
        "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "LOST", "AT", "(UTC)", "MEMBER",
    ]  # fmt: skip
    assert re.search(rf"  0  [0-9: -]+  {member[:8]}\.\.{member[-6:]}$", offsets.lines[2])


def test_the_time_of_a_commit_is_as_short_as_it_can_be_told() -> None:
    now = 1_795_125_601_202  # 2026-11-19 22:00:01.202
    day = 86_400_000
    assert [when(at, now) for at in (now, now - day, now - 400 * day, -1)] == [
        "22:00:01",
        "11-18 22:00",
        "2025-10-15",
        "-",
    ]


def test_help_says_what_each_column_is(tidelog: Tidelog) -> None:
    out = " ".join(tidelog("group", "describe", "--help").out.split())
    for column in (
        "COMMITTED is",
        "AT when",
        "LAG is",
        "BEHIND for how long",
        "LOST is how many",
        "MEMBER is",
    ):
        assert column in out


def test_a_list_says_for_how_long_at_most_the_first_unread_record_is_there(
    command: Command, one_broker: Serving
) -> None:
    topic = one_broker.topic(1)
    one_broker.write(topic, *(b"%d" % at for at in range(10)))

    async def consume(client: Client) -> None:
        async with client.consumer(topic, group=f"g-{topic}", auto_offset_reset="earliest") as consumer:
            await consumer.getmany(timeout=10, max_records=3)
            await consumer.commit()

    one_broker.with_client(consume)
    line = rf"^g-{topic} +empty +0 +1 +7 +<= \d+\.\d s +0$"
    assert re.search(line, command("group", "list", "--with-lag").out, re.MULTILINE)
    told = [json.loads(line) for line in command("group", "list", "--with-lag", "-o", "json").lines]
    [own] = [one for one in told if one["group"] == f"g-{topic}"]
    assert 0 < own["lag_ms"] < 600_000
    assert own["lag_at_most"] is True
    assert [behind(ms) for ms in (-1, 0, 1500, 180_000, 7_200_000)] == ["-", "0", "1.5 s", "3 min", "2.0 h"]


def test_seeking_shows_what_it_would_do_and_does_it_when_told(
    command: Command, group: tuple[str, str]
) -> None:
    name, topic = group
    ran = command("group", "seek", name, "--to", "end")
    assert ran.code == 2
    assert f"would set {name} in {topic}-0: 3 -> 10" in ran.err
    assert "nothing was done" in ran.err
    for target, topics, offsets in (
        ("-1", (), [2, 0]),
        ("7", ("--topic", f"{topic}:1"), [2, 7]),
        ("start", ("--topic", topic), [0, 0]),
        ("+4", (), [4, 4]),
        ("-1h", (), [0, 0]),
        ("end", (), [10, 10]),
    ):
        ran = command("group", "seek", name, "--to", target, *topics, "--yes", "-o", "json")
        assert ran.code == 0, ran.err
        told = command("group", "describe", name, "-o", "json").lines[1:]
        assert [json.loads(line)["offset"] for line in told] == offsets, target
    ran = command("group", "seek", name, "--to", "sometime")
    assert (ran.code, ran.out) == (2, "")
    assert "is none of start, end, OFFSET" in ran.err


def test_deleting_shows_what_it_would_do_and_does_it_when_told(
    command: Command, group: tuple[str, str]
) -> None:
    name, _ = group
    ran = command("group", "delete", name)
    assert (ran.code, ran.out) == (2, "")
    assert f"would delete {name}: 0 members, 2 offsets" in ran.err
    assert command("group", "delete", name, "--yes").out == f"{name}: deleted\n"
    assert command("group", "delete", name, "--yes").code == 1


def test_only_the_offsets_of_some_partitions_are_forgotten(command: Command, group: tuple[str, str]) -> None:
    name, topic = group
    ran = command("group", "delete", name, "--topic", topic)
    assert (ran.code, ran.out) == (2, "")
    assert f"would forget {name} in {topic}-0: 3\n" in ran.err
    assert f"would forget {name} in {topic}-1: 0\n" in ran.err
    ran = command("group", "delete", name, "--topic", f"{topic}:0", "--yes", "-o", "json")
    [told] = [json.loads(line) for line in ran.lines]
    assert {key: told[key] for key in ("type", "partition", "before", "offset", "deleted")} == {
        "type": "group_offset",
        "partition": 0,
        "before": 3,
        "offset": -1,
        "deleted": True,
    }
    left = [json.loads(line) for line in command("group", "describe", name, "-o", "json").lines[1:]]
    assert [(one["partition"], one["offset"]) for one in left] == [(1, 0)]
    ran = command("group", "delete", name, "--topic", f"{topic}:0", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert f"{name} has committed nothing there" in ran.err
    assert (
        command("group", "delete", name, "--topic", topic, "--yes").out
        == f"{name} in {topic}-1: 0 forgotten\n"
    )
    ran = command("group", "delete", name, "other", "--topic", topic, "--yes")
    assert (ran.code, ran.out) == (2, "")


def test_consuming_as_a_member_goes_on_where_the_group_has_come_to(
    command: Command, group: tuple[str, str]
) -> None:
    name, topic = group
    first = command("consume", topic, "-g", name, "-n", "5", "-f", r"%p:%o\n")
    assert first.code == 0, first.err
    rest = command("consume", topic, "-g", name, "--exit", "-f", r"%p:%o\n")
    assert rest.code == 0, rest.err
    assert len(first.lines) == 5
    wanted = [f"0:{at}" for at in range(3, 10)] + [f"1:{at}" for at in range(10)]
    assert sorted(first.lines + rest.lines) == sorted(wanted)
    assert command("consume", topic, "-g", f"{name}-new", "-o", "start", "--exit").code == 0


def test_members_are_shown_while_they_are_there_and_nobody_else_may_seek(
    command: Command, group: tuple[str, str], one_broker: Serving
) -> None:
    name, topic = group
    with running(one_broker.bootstrap, "consume", topic, "-g", name):
        line = until(
            lambda: next(
                (
                    line
                    for line in command("group", "describe", name, "--members").lines
                    if f"{topic}:0,1" in line
                ),
                "",
            ),
            "it has both partitions",
        )
        assert line.startswith("tidelog-cli-")
        told = json.loads(command("group", "describe", name, "--members", "-o", "json").lines[0])
        assert (told["type"], told["assigned"]) == ("group_member", {topic: [0, 1]})
        ran = command("group", "seek", name, "--to", "start", "--yes")
        assert ran.code == 1
        assert "1 members: only they commit" in ran.err
