"""`tidelog produce` against a real cluster."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, running, serving, until
from tidelog.client import Client
from tidelog.client.partitioning import partition_of
from tidelog.protocol.records import Record

DEADLINE_S = 30
Produce = Callable[..., Ran]


@pytest.fixture
def produce(
    one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Produce:
    """`tidelog produce` at the cluster, of these bytes in a file."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)

    def run(topic: str, data: bytes, *words: str) -> Ran:
        (tmp_path / "lines").write_bytes(data)
        return tidelog("produce", topic, tmp_path / "lines", *words)

    return run


def records(cluster: Serving, topic: str) -> list[Record]:
    """All that is there."""

    async def read(client: Client) -> list[Record]:
        async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            left = sum(ends.values())
            return [await anext(consumer) for _ in range(left)]

    return cluster.with_client(read)


def test_every_line_is_a_record_whatever_bytes_it_has(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic()
    ran = produce(name, b"one\n\n\xff\x00\x1b\r\nlast")
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(
        rf"4 records written to {name}, 11 B in \d+\.\d\d s \([\d,]+ records/s, [\d.]+ \w+/s\)\n", ran.err
    )
    found = records(one_broker, name)
    assert [record.value for record in found] == [b"one", b"", b"\xff\x00\x1b\r", b"last"]
    assert {record.key for record in found} == {None}


def test_keys_stand_before_a_separator_or_are_the_same_for_all(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic(partitions=5)
    assert produce(name, b"a=>1=>2\nplain\n=>empty\nb=>", "-K", "=>", "-Z").code == 0
    assert produce(name, b"x\n", "-k", "all", "-H", "h=1", "-H", "h=2", "-H", "i==").code == 0
    assert produce(name, b"y\n", "-k", "all", "-p", "4").code == 0
    found = {record.value: record for record in records(one_broker, name)}
    assert [found[value].key for value in (b"1=>2", b"plain", b"empty", None)] == [b"a", None, b"", b"b"]
    assert found[b"1=>2"].partition == partition_of(b"a", 5)
    assert found[b"x"].headers == (("h", b"1"), ("h", b"2"), ("i", b"="))
    assert (found[b"x"].key, found[b"y"].partition) == (b"all", 4)


def test_a_tab_may_be_written_as_one(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic()
    produce(name, b"k\tv\n", "-K", "\\t")
    assert [(record.key, record.value) for record in records(one_broker, name)] == [(b"k", b"v")]


def test_a_line_that_is_too_long_is_named_and_the_others_are_written(
    produce: Produce, one_broker: Serving
) -> None:
    name = one_broker.topic()
    ran = produce(name, b"a\n" + b"x" * 2000 + b"\nb\n", "-X", "max.request.size=1000")
    assert ran.code == 1
    first, _, last = ran.err.splitlines()
    assert first == (
        "not written: line 2: it has 2,000 bytes, and max.request.size is 1,000; -X max.request.size=3000 lets it out, "
        f"and `tidelog topic alter {name} -c max.message.bytes=3000` lets it in"
    )
    assert last == f"error: 1 line of {name} was not written"
    assert [record.value for record in records(one_broker, name)] == [b"a", b"b"]


def test_what_a_broker_refuses_is_named_with_its_lines(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic()
    # A broker takes 1 MiB unless it is told otherwise.
    ran = produce(name, b"a\n" + b"x" * 1_500_000 + b"\nb\n", "-X", "max.request.size=2000000")
    assert ran.code == 1
    assert ran.err.startswith("not written: line 2: ")
    assert "max.message.bytes" in ran.err.splitlines()[0]
    assert [record.value for record in records(one_broker, name)] == [b"a", b"b"]


@pytest.mark.parametrize("most", ["1000", "2000", "2000000"])
def test_what_is_told_of_a_line_that_is_too_large_is_the_way_to_write_it(
    produce: Produce, tidelog: Tidelog, one_broker: Serving, most: str
) -> None:
    name = one_broker.topic(max_message_bytes="1900")
    line, words = b"x" * 1_995 + b"\n", ["-k", "key", "-H", "name=value"]
    said = produce(name, line, *words, "-X", f"max.request.size={most}").err.splitlines()[0]
    found = re.search(
        r"; (-X max.request.size=\d+) lets it out, and `tidelog (topic alter [^`]*)` lets it in$", said
    )
    assert found is not None, said
    assert tidelog(*found[2].split()).code == 0
    assert produce(name, line, *words, *found[1].split()).code == 0


def test_many_lines_keep_their_order_in_each_partition(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic(partitions=3)
    ran = produce(name, b"".join(b"%d\n" % number for number in range(30_000)), "-X", "compression.type=lz4")
    assert ran.code == 0
    assert ran.err.startswith("30,000 records written")
    found = records(one_broker, name)
    assert sorted(int(record.value or b"") for record in found) == list(range(30_000))
    for partition in range(3):
        mine = [int(record.value or b"") for record in found if record.partition == partition]
        assert mine == sorted(mine)


def test_json_says_what_was_written(produce: Produce, one_broker: Serving) -> None:
    name = one_broker.topic()
    told = json.loads(produce(name, b"a\nbc\n", "-o", "json").out)
    assert told.pop("seconds") > 0
    assert told == {"type": "produced", "topic": name, "records": 2, "bytes": 3, "failed": 0}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-k", "a", "-K", ":"], 2, "-k and -K are two ways to give keys"),
        (["-K", ""], 2, "-K: the separator must be at least one character"),
        (["-H", "h"], 2, "-H 'h' is no NAME=VALUE"),
        (["-p", "7"], 2, "there is no partition 7"),
        (["--acks", "2"], 2, "--acks"),
        (["-X", "linger.mss=1"], 2, "the nearest is linger.ms"),
        (["-X", "compression.type=zip"], 2, "compression.type='zip': it must be one of none, gzip"),
        (["-X", "enable.idempotence=true", "--acks", "1"], 2, "acks=1"),
    ],
)
def test_what_cannot_be_produced_is_refused(
    produce: Produce, one_broker: Serving, words: list[str], code: int, said: str
) -> None:
    ran = produce(one_broker.topic(), b"a\n", *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_file_or_a_topic_that_is_not_there_is_named(
    tidelog: Tidelog, one_broker: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    name = one_broker.topic()
    assert tidelog("produce", name, tmp_path / "none").code == 2
    (tmp_path / "lines").touch()
    ran = tidelog("produce", name + "x", tmp_path / "lines")
    assert (ran.code, ran.err) == (1, f"error: there is no topic '{name}x'; the nearest is {name}\n")


# ── as a process ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lines_are_sent_while_they_come_and_a_signal_loses_none_that_was_taken(
    one_broker: Serving, number: signal.Signals
) -> None:
    name = one_broker.topic()
    with running(one_broker.bootstrap, "produce", name, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\nsecond\nhalf")
        process.stdin.flush()
        until(lambda: len(records(one_broker, name)) == 2, "two lines are written while stdin is open")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert err.decode().startswith(f"2 records written to {name}")


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [b"", b"only\n"])
def test_stdin_may_be_a_pipe_that_ends(one_broker: Serving, stdin: bytes) -> None:
    name = one_broker.topic()
    with running(one_broker.bootstrap, "produce", name, stdin=subprocess.PIPE) as process:
        _, err = process.communicate(stdin, timeout=DEADLINE_S)
    assert process.returncode == 0
    assert err.decode().startswith(f"{len(stdin.splitlines())} record")


@pytest.mark.slow
def test_without_a_stdin_nothing_is_written(one_broker: Serving) -> None:
    words = [sys.executable, "-m", "tidelog", "produce", one_broker.topic(), "-b", one_broker.bootstrap]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split(" written")[0]) == (0, "0 records")


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_who_waits_for_a_broker_is_told_so_and_nothing_is_lost(interrupted: bool) -> None:
    with serving(1) as cluster:
        name = cluster.topic()
        with running(cluster.bootstrap, "produce", name, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            until(lambda: len(records(cluster, name)) == 1, "the first line is written")
            cluster.run(cluster.cluster.pause(1))
            process.stdin.write(b"two\n")
            process.stdin.flush()
            assert process.stderr.readline() == (
                b"nothing was acknowledged for 3 s; 1 line waits, for 120 s at most: `tidelog cluster health` says what is "
                b"wrong\n"
            )
            if interrupted:
                process.send_signal(signal.SIGINT)
            cluster.run(cluster.cluster.resume(1))
            _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == (130 if interrupted else 0)
        assert err.decode().startswith(f"2 records written to {name}")


@pytest.mark.slow
def test_who_sends_sigterm_again_a_second_later_waits_for_nothing() -> None:
    with serving(1) as cluster:
        name = cluster.topic()
        with running(cluster.bootstrap, "produce", name, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            until(lambda: len(records(cluster, name)) == 1, "the first line is written")
            cluster.run(cluster.cluster.kill(1))
            process.stdin.write(b"two\n")
            process.stdin.flush()
            assert process.stderr is not None
            assert process.stderr.readline().startswith(b"nothing was acknowledged for 3 s")

            def ended() -> bool:
                process.terminate()
                return process.poll() is not None

            until(ended, "it ends")
            _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (143, b"")


@pytest.mark.slow
def test_a_line_at_fault_is_told_while_others_go_on(one_broker: Serving) -> None:
    name = one_broker.topic()
    with running(
        one_broker.bootstrap, "produce", name, "-X", "max.request.size=2000000", stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"x" * 1_500_000 + b"\n")
        process.stdin.flush()
        assert process.stderr.readline().startswith(b"not written: line 1: ")
        _, err = process.communicate(b"fine\n", timeout=DEADLINE_S)
    assert process.returncode == 1
    assert err.decode().splitlines()[-1] == f"error: 1 line of {name} was not written"
    assert [record.value for record in records(one_broker, name)] == [b"fine"]


@pytest.mark.slow
def test_a_leader_that_dies_in_mid_stream_costs_no_line_and_repeats_none() -> None:
    with serving(3) as cluster:
        name = cluster.topic(replication_factor=3)
        leader = cluster.run(cluster.cluster.leader_of(name))
        with running(
            cluster.bootstrap, "produce", name, "-X", "batch.size=2000", stdin=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"".join(b"%d\n" % number for number in range(5_000)))
            process.stdin.flush()
            cluster.run(cluster.cluster.kill(leader))
            rest = b"".join(b"%d\n" % number for number in range(5_000, 10_000))
            _, err = process.communicate(rest, timeout=DEADLINE_S)
        assert (process.returncode, err.decode().split(" written")[0]) == (0, "10,000 records")
        assert [int(record.value or b"") for record in records(cluster, name)] == list(range(10_000))


@pytest.mark.slow
def test_lines_that_no_broker_takes_any_more_are_all_accounted_for() -> None:
    with serving(1) as cluster:
        name = cluster.topic()
        with running(cluster.bootstrap, "produce", name, "--timeout", "1", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(b"written\n")
            process.stdin.flush()
            until(lambda: len(records(cluster, name)) == 1, "the first line is written")
            cluster.run(cluster.cluster.kill(1))
            _, err = process.communicate(b"lost\n" * 3, timeout=DEADLINE_S)
    lines = err.decode().splitlines()
    assert process.returncode == 1
    assert lines[0].startswith("not written: lines 2 to 4: ")
    assert lines[1].startswith(f"1 record written to {name}")
    assert lines[2].startswith(f"error: 3 lines of {name} were not written")


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_how_far_it_is_stands_at_a_terminal_and_leaves_no_trace(
    one_broker: Serving, tmp_path: Path, environment: dict[str, str]
) -> None:
    name, lines = one_broker.topic(), tmp_path / "lines"
    lines.write_bytes(b"a line\n" * 50_000)
    program = (
        "import sys\n"
        "import tidelog.cli.produce.sending as sending\n"
        "from tidelog.cli.main import main\n"
        "sending._PROGRESS_S = 0.0\n"
        "main(['produce', *sys.argv[1:]])\n"
    )
    terminal = (
        "import os, pty, sys\n"
        "sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', *sys.argv[1:]])))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", terminal, program, name, str(lines), "-b", one_broker.bootstrap],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env={**os.environ, "TERM": "xterm", **environment},
        timeout=60,
    )
    assert re.search(rb"\r[\d,]+ records?, [\d,]+/s\x1b\[K", ran.stdout), ran.stdout
    last = ran.stdout.rpartition(b"/s\x1b[K")[2]
    assert last.startswith(b"\r\x1b[K"), "the line is taken away"
    assert f"50,000 records written to {name}".encode() in last
    assert re.search(rb"\r[\d,]+ records?, ", last) is None
