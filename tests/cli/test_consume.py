"""`tidelog consume` against a real cluster."""

import asyncio
import json
import re
import signal
import socket
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, running, serving, until
from tidelog.cli.consume.ranges import END, START, Extent, Range
from tidelog.cli.consume.reading import Wanted, _Reading
from tidelog.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.types import TopicPartition

DEADLINE_S = 30
Consume = Callable[..., Ran]


@pytest.fixture
def consume(one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Consume:
    """`tidelog consume` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    return lambda *words: tidelog("consume", *words)


@pytest.fixture(scope="module")
def ten(one_broker: Serving) -> str:
    """A topic with ten records, v0 to v9, a second apart from 2023-11-14 22:13:20 on."""
    name = one_broker.topic()
    for number in range(10):
        one_broker.write(
            name,
            f"v{number}".encode(),
            key=f"k{number % 2}".encode(),
            timestamp_ms=1_700_000_000_000 + number * 1000,
            headers=[("n", str(number).encode())],
        )
    return name


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-o", "start", "--exit"], range(10)),
        (["-o", ":end"], range(10)),
        (["-o", "3:6"], range(3, 6)),
        (["-o", "8:100"], range(8, 10)),
        (["-o", "-3:end"], range(7, 10)),
        (["-o", "-3", "--exit"], range(7, 10)),
        (["-o", ":-8"], range(2)),
        (["-o", "start", "-n", "4"], range(4)),
        (["-o", "@2023-11-14T22:13:25Z:end"], range(5, 10)),
        (["-o", "@2023-11-14T22:13:22Z:3s"], range(2, 5)),
        (["-o", "@1700000000000:@1700000001500"], range(2)),
        (["-o", "@-1h:end"], []),
        (["-o", "start", "--exit", "--key", "k1"], range(1, 10, 2)),
        (["-o", "start", "--exit", "--grep", "[37]$"], [3, 7]),
        (["-o", "start", "--exit", "--header", "n=4"], [4]),
        (["-o", "start", "--exit", "--key", "k0", "-n", "2"], [0, 2]),
        (["-o", "start", "--exit", "-p", "0", "--rack", "b"], range(10)),
    ],
)
def test_what_is_in_the_range_is_shown(
    consume: Consume, ten: str, words: list[str], values: list[int]
) -> None:
    ran = consume(ten, *words)
    assert (ran.code, ran.lines) == (0, [f"v{number}" for number in values])
    count = len(list(values))
    assert ran.err == f"{count} record{'s' * (count != 1)} of {ten}\n"


@pytest.mark.parametrize("words", [["-o", "100", "--exit"], ["-o", "100:200"]])
def test_a_range_that_begins_behind_the_end_says_where_that_is(
    consume: Consume, ten: str, words: list[str]
) -> None:
    ran = consume(ten, *words)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        f"{ten}-0 ends at 10: the range begins behind that, at 100",
        f"0 records of {ten}",
    ]


def test_a_range_that_begins_behind_the_end_of_some_partitions_says_nothing_of_them(
    consume: Consume, one_broker: Serving
) -> None:
    name = one_broker.topic(partitions=6)
    one_broker.write(name, b"a", b"b", partition=0)
    assert consume(name, "-o", "1", "--exit").err == f"1 record of {name}\n"
    first, _ = consume(name, "-o", "7", "--exit").err.splitlines()
    assert first.startswith(f"{name}-0 ends at 2, {name}-1 ends at 0, ")
    assert first.endswith(f"{name}-4 ends at 0, and 1 other as well: the range begins behind that, at 7")


def test_every_partition_is_read_in_its_order(consume: Consume, one_broker: Serving) -> None:
    name = one_broker.topic(partitions=3)
    for partition in range(3):
        one_broker.write(name, *(b"%d-%d" % (partition, number) for number in range(5)), partition=partition)
    lines = consume(name, "-o", "start", "--exit").lines
    for partition in range(3):
        mine = [line for line in lines if line.startswith(f"{partition}-")]
        assert mine == [f"{partition}-{number}" for number in range(5)]
    assert consume(name, "-o", "-1:end", "-p", "1", "-p", "2", "-f", "%p:%s ").out.split() in (
        ["1:1-4", "2:2-4"],
        ["2:2-4", "1:1-4"],
    )
    ran = consume(name, "-p", "9")
    assert ran.code == 2
    assert f"there is no partition 9: {name} has the partitions 0 to 2" in ran.err


def test_without_a_range_only_what_comes_is_read_and_with_exit_that_is_said(
    consume: Consume, ten: str
) -> None:
    ran = consume(ten, "--exit")
    assert (ran.code, ran.out) == (0, "")
    assert "-o start is from the beginning" in ran.err


def test_the_word_behind_o_is_a_layout_or_a_range_and_both_may_be_said(
    consume: Consume, tidelog: Tidelog, ten: str
) -> None:
    spoken = [
        consume(ten, "-o", "4:5", "-o", "json"),
        consume(ten, "-o", "json", "-o", "4:5"),
        consume(ten, "--output", "json", "-o", "4:5"),
        tidelog("-o", "json", "consume", ten, "-o", "4:5"),
    ]
    assert len({ran.out for ran in spoken}) == 1
    assert json.loads(spoken[0].out)["value"] == "v4"
    assert consume(ten, "-o", "4:5", "-o", "5:6").code == 2


def test_as_kafka_it_is_the_console_consumers_line(consume: Consume, ten: str) -> None:
    ran = consume(ten, "-o", "4:5", "-o", "kafka")
    assert ran.out == "CreateTime:1700000004000\tPartition:0\tOffset:4\tk0\tv4\n"
    assert ran.err == "Processed a total of 1 messages\n"


def test_bytes_that_are_no_text_are_escaped_as_text_and_base64_in_json(
    consume: Consume, one_broker: Serving
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"\xff\x1b[2J\n", None)
    assert consume(name, "-o", "start", "--exit").lines == ["\\xff\\x1b[2J\\n", "null"]
    one, other = map(json.loads, consume(name, "-o", "start", "--exit", "-o", "json").lines)
    assert (one["value"], one["value_encoding"]) == ("/xtbMkoK", "base64")
    assert (other["value"], "value_encoding" in other) == (None, False)


def test_records_that_compaction_or_a_trim_has_taken_end_no_range_too_late(
    consume: Consume, one_broker: Serving
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"a", b"b", b"c")

    async def trim(client: Client) -> None:
        await client.admin.delete_records({TopicPartition(name, 0): 2})

    one_broker.with_client(trim)
    assert consume(name, "-o", "0:3").lines == ["c"]
    assert consume(name, "-o", "0:2").lines == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-o", "20:10"], 2, "-o '20:10' ends before it begins"),
        (["-f", "%q"], 2, "-f %q is unknown"),
        (["--grep", "("], 2, "--grep '(' is no regular expression"),
        (["-f", "%s", "-o", "json"], 2, "two ways to print a record"),
        (["-g", "mine", "-o", "3:"], 2, "-g and a range: the group says where to go on"),
        (["-g", "mine", "-p", "0"], 2, "-g and -p: the group says who reads which partition"),
        (["-X", "fetch.max.bites=1"], 2, "the nearest is fetch.max.bytes"),
        (["-X", "fetch.max.bytes=many"], 2, "fetch.max.bytes='many': it must be a whole number"),
        (["-g", "mine", "-X", "assignor=best"], 2, "assignor='best': it must be one of"),
        (["-X", "retry.backoff.ms=0"], 2, "retry_backoff_ms=0: it must be"),
    ],
)
def test_what_cannot_be_consumed_is_refused(
    consume: Consume, ten: str, words: list[str], code: int, said: str
) -> None:
    ran = consume(ten, *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_topic_that_is_not_there_is_named_with_the_nearest(consume: Consume, one_broker: Serving) -> None:
    one_broker.topic()
    ran = consume("t0", "-o", "start", "--exit")
    assert (ran.code, ran.out) == (1, "")
    assert "there is no topic 't0'; the nearest is t" in ran.err


class Passed:
    """A consumer whose position is behind where the last record of a range was."""

    def __init__(self, position: int) -> None:
        self._position = position
        self.assigned: list[TopicPartition] | None = None

    async def position(self, _: TopicPartition) -> int:
        """Where it is."""
        return self._position

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """What is still read."""
        self.assigned = list(names)


@pytest.mark.parametrize(("position", "left"), [(9, True), (10, False)])
def test_a_partition_whose_last_records_are_no_more_ends_where_its_position_does(
    position: int, left: bool
) -> None:
    consumer = Passed(position)
    name = TopicPartition("t", 0)

    async def look() -> bool:
        wanted = Wanted("t", (), Range(START, END), None, None, 30.0, ends=False)
        reading = _Reading(cast("Client", None), wanted, lambda _: None, lambda: None)
        reading._left = {name: Extent(0, 10)}
        await reading._look_for_ends(cast("Consumer", consumer))
        return name in reading._left

    assert asyncio.run(look()) is left
    assert consumer.assigned == (None if left else [])


# ── when a leader dies ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_leader_that_dies_in_mid_stream_costs_no_record() -> None:
    with serving(3) as cluster:
        name = cluster.topic(replication_factor=3)
        cluster.write_many(name, [b"%d" % number for number in range(20_000)])
        leader = cluster.run(cluster.cluster.leader_of(name))
        with running(
            cluster.bootstrap, "consume", name, "-o", ":end", "-X", "fetch.max.bytes=20000"
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            cluster.run(cluster.cluster.kill(leader))
            out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert (first + out).splitlines() == [b"%d" % number for number in range(20_000)]


@pytest.mark.slow
def test_who_waits_is_told_when_it_is_the_brokers_that_are_silent_and_when_nobody_leads() -> None:
    with serving(2) as cluster:
        name = cluster.topic(replication_factor=1)
        leader = cluster.run(cluster.cluster.leader_of(name))
        cluster.write(name, b"before")
        with running(cluster.bootstrap, "consume", name, "-o", "start") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"before\n"
            cluster.run(cluster.cluster.kill(leader))
            told = process.stderr.readline().decode()
            assert re.fullmatch(
                rf"(nobody leads {name}-0|no broker answers for 3 s): it is tried on; `tidelog cluster health` says what is "
                r"wrong\n",
                told,
            )
            cluster.run(cluster.cluster.start(leader))
            cluster.write(name, b"after")
            assert process.stdout.readline() == b"after\n"


# ── as processes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_records_are_shown_when_they_come_and_a_signal_ends_with_a_summary(
    one_broker: Serving, number: signal.Signals
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"first")
    with running(one_broker.bootstrap, "consume", name, "-o", "start") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        one_broker.write(name, b"second")
        assert process.stdout.readline() == b"second\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err.decode()) == (128 + number, b"", f"2 records of {name}\n")


@pytest.mark.slow
def test_a_signal_ends_also_who_waits_for_a_first_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        with running(f"127.0.0.1:{silent.getsockname()[1]}", "consume", "t") as process:
            connection, _ = silent.accept()
            with connection:
                process.terminate()
                out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (143, b"", b"")


@pytest.mark.slow
def test_partitions_that_are_added_are_read_from_their_start(one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"first")
    with running(
        one_broker.bootstrap, "consume", name, "-o", "start", "-f", "%p:%s\\n", "-X", "topic.refresh.ms=100"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0:first\n"
        one_broker.with_client(lambda client: client.admin.add_partitions(name, 2))
        one_broker.write(name, b"second", partition=1)
        assert process.stdout.readline() == b"1:second\n"
        one_broker.write(name, b"third", partition=0)
        assert process.stdout.readline() == b"0:third\n"


@pytest.mark.slow
def test_a_range_that_begins_beyond_the_end_waits_for_its_first_offset(one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"v0")
    with running(one_broker.bootstrap, "consume", name, "-o", "3", "-n", "2", "-v") as process:
        assert process.stderr is not None
        assert b"ends at 1: the range begins behind that, at 3" in process.stderr.readline()
        assert b"offset=1 stop=None" in process.stderr.readline()
        one_broker.write(name, *(b"v%d" % number for number in range(1, 6)))
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"v3\nv4\n")


@pytest.mark.slow
def test_a_topic_that_is_deleted_ends_the_reading_with_a_word(one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"first")
    with running(
        one_broker.bootstrap, "consume", name, "-o", "start", "-X", "topic.refresh.ms=100"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        one_broker.with_client(lambda client: client.admin.delete_topics(name))
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"error: ")
    assert name.encode() in err
    assert err.count(b"\n") == 1


@pytest.mark.slow
def test_when_nobody_reads_any_more_it_ends_by_itself_without_a_word(one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"first")
    with running(one_broker.bootstrap, "consume", name, "-o", "start") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        # Nothing else comes, so that no write could tell.
        assert until(lambda: process.poll() is not None, "it ends")
        assert process.returncode == 0


@pytest.mark.slow
def test_raw_bytes_go_through_a_pipe_unchanged(one_broker: Serving) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"\xff\x00\n", None, key=b"\x80")
    with running(one_broker.bootstrap, "consume", name, "-o", ":end", "-f", "%k=%s|%S\\n") as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == b"\x80=\xff\x00\n|3\n\x80=|-1\n"
