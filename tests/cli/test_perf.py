"""`tidelog perf`: figures that users can take themselves. Only that they are figures is tested, never how good they are."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.serving import Serving, running, serving, until
from tests.cli.test_json_objects import documented
from tidelog.testing.failover import percentile

WIDE = 80
MS = r"\d[\d,.]* ms"


@pytest.fixture(autouse=True)
def _bootstrap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line of a test that has a cluster is sent there."""
    if "one_broker" in request.fixturenames:
        cluster: Serving = request.getfixturevalue("one_broker")
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", cluster.bootstrap)


def end_of(cluster: Serving, topic: str) -> int:
    """How many records were ever written to it."""
    found = cluster.with_client(lambda client: client.admin.list_offsets(topic, "latest"))
    return sum(each.offset for each in found.values())


def objects(out: str) -> dict[str, list[dict[str, Any]]]:
    """What was printed, by type."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in map(json.loads, out.splitlines()):
        found.setdefault(each["type"], []).append(each)
    return found


def test_a_percentile_is_the_smallest_that_so_many_are_not_above() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile([7], 0.95) == 7


@pytest.mark.slow
def test_failover_kills_real_processes_and_tells_each(tidelog: Tidelog) -> None:
    ran = tidelog("perf", "failover", "--kills", "1", "--controller-kills", "1", "-o", "json")
    assert ran.code == 0, ran
    kills = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["type"] for line in kills] == ["kill", "kill", "failover", "failover"]
    assert [line["node"].split()[0] for line in kills[:2]] == ["broker", "controller"]
    known = documented("perf failover")
    assert all(line.keys() - {"type"} <= known[line["type"]] for line in kills)
    for kill, told in zip(kills[:2], kills[2:], strict=True):
        assert told["kills"] == 1
        assert 0 < kill["ms"] == told["median_ms"] == told["p95_ms"] == told["longest_ms"]


@pytest.mark.slow
def test_failover_shows_people_a_table(tidelog: Tidelog) -> None:
    ran = tidelog("perf", "failover", "orders", "--kills", "1", "--controller-kills", "0")
    assert ran.code == 0, ran
    head, line = ran.out.splitlines()
    assert head.split() == ["KILLED", "KILLS", "MEDIAN", "95", "%", "LONGEST"]
    assert re.fullmatch(rf"leader of a partition +1 +{MS} +- +{MS}", line), "one kill tells no percentile"
    assert "killed broker" in ran.err


@pytest.mark.slow
def test_an_interrupted_failover_shows_the_kills_until_then_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    words = ["-m", "tidelog", "perf", "failover", "--controller-kills", "0", "-o", "json"]
    with subprocess.Popen(
        [sys.executable, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        kill = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert b"interrupted: this is what was measured until then" in err
    assert b"Traceback" not in err
    [told] = objects((kill + out).decode())["failover"]
    assert told["kills"] >= 1
    assert not list(tmp_path.iterdir()), "the cluster's directory is gone"


@pytest.mark.slow
def test_a_failover_that_is_interrupted_before_any_kill_says_that_nothing_was_measured(
    tmp_path: Path,
) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", "perf", "failover"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: any(tmp_path.iterdir()), "the cluster has a directory")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted: nothing was measured yet\n")
    assert not list(tmp_path.iterdir()), "the cluster's directory is gone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["produce", "latency"])
def test_a_measurement_that_is_interrupted_in_its_warm_up_says_that_nothing_was_measured(
    one_broker: Serving, verb: str, number: signal.Signals
) -> None:
    words = [verb, one_broker.topic(), "--warm-up", "1000000000"]
    with running(one_broker.bootstrap, "perf", *words) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"warming up with 1,000,000,000 records\n"
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (128 + number, b"", b"interrupted: nothing was measured yet\n")


@pytest.mark.parametrize("columns", [[], ["--columns"]])
def test_produce_counts_what_was_acknowledged_after_the_warm_up(
    one_broker: Serving, tidelog: Tidelog, columns: list[str]
) -> None:
    name = one_broker.topic(partitions=3)
    words = ["-n", "12345", "-s", "10", "--warm-up", "100", "-o", "json", *columns]
    ran = tidelog("perf", "produce", name, *words)
    assert ran.code == 0, ran
    assert end_of(one_broker, name) == 12_445
    [perf], [latency] = objects(ran.out)["perf"], objects(ran.out)["latency"]
    assert (perf["records"], perf["bytes"], perf["failed"], perf["complete"]) == (12_345, 123_450, 0, True)
    assert perf["records_per_second"] == pytest.approx(12_345 / perf["seconds"], rel=0.001)
    assert 0 < latency["samples"] <= 12_345
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["longest_ms"]


def test_produce_shows_people_tables_that_fit_on_a_terminal(one_broker: Serving, tidelog: Tidelog) -> None:
    ran = tidelog("perf", "produce", one_broker.topic(), "-n", "5000")
    assert ran.code == 0, ran
    head, amounts, empty, titles, latency = ran.lines
    assert head.split() == ["RECORDS", "SIZE", "TIME", "RECORDS/S", "BYTES/S"]
    assert re.fullmatch(r" *5,000 +488\.3 KB +\d+\.\d\d s +[\d,]+ +\d[\d.]* .?B/s", amounts)
    assert (empty, titles.split()[0]) == ("", "UNTIL")
    assert re.fullmatch(rf"acknowledged +{MS}( +({MS}|-)){{4}} +{MS}", latency)
    assert all(len(line) <= WIDE for line in ran.lines)


def test_produce_keeps_to_a_rate_and_prints_a_line_now_and_then(
    one_broker: Serving, tidelog: Tidelog
) -> None:
    ran = tidelog("perf", "produce", one_broker.topic(), "-n", "400", "--rate", "1000", "--every", "0.1")
    assert ran.code == 0, ran
    assert float(ran.lines[1].split()[3]) >= 0.39, "the last is due 0.399 s after the first"
    lines = [line for line in ran.err.splitlines() if "records/s" in line]
    assert lines
    assert all(len(line) <= WIDE for line in lines)
    assert re.fullmatch(rf" +\d+ s +[\d,]+ records/s +\d[\d.]* .?B/s   50 %: {MS}  99 %: {MS}", lines[0])


def test_produce_in_kafkas_layout(one_broker: Serving, tidelog: Tidelog) -> None:
    ran = tidelog("perf", "produce", one_broker.topic(), "-n", "2000", "-o", "kafka")
    assert ran.code == 0, ran
    per_s = r"\d+\.\d records/sec \(\d+\.\d\d MB/sec\)"
    last = r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
    assert re.fullmatch(
        rf"2000 records sent, {per_s}, \d+\.\d\d ms avg latency, \d+\.\d\d ms max latency, {last}",
        ran.lines[-1],
    )


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], 900),
        (["--one-by-one"], 900),
        (["-n", "900"], 900),
        (["-n", "500"], 500),
        (["-n", "500", "--warm-up", "300"], 500),
    ],
)
def test_consume_reads_what_is_there(
    one_broker: Serving, tidelog: Tidelog, words: list[str], read: int
) -> None:
    name = one_broker.topic(partitions=2)
    one_broker.write_many(name, [None, *[b"x" * 10] * 899])
    ran = tidelog("perf", "consume", name, "-o", "json", *words)
    assert ran.code == 0, ran
    [perf] = objects(ran.out)["perf"]
    assert perf["records"] == read
    assert perf["bytes"] in {read * 10, read * 10 - 10}, "one of the 900 has no value"
    assert perf["first_record_ms"] > 0


def test_consume_ends_where_the_last_offsets_hold_no_record(one_broker: Serving, tidelog: Tidelog) -> None:
    name = one_broker.topic()
    ran = tidelog("perf", "consume", name, "-o", "json")
    assert (ran.code, objects(ran.out)["perf"][0]["records"]) == (0, 0), ran


def test_consume_shows_people_one_table_and_kafkas_users_two_lines(
    one_broker: Serving, tidelog: Tidelog
) -> None:
    name = one_broker.topic()
    one_broker.write_many(name, [b"x" * 100] * 500)
    ran = tidelog("perf", "consume", name)
    assert [line.split()[0] for line in ran.lines] == ["RECORDS", "500"]
    assert ran.lines[0].split()[-1] == "FIRST"
    kafka = tidelog("perf", "consume", name, "-o", "kafka")
    titles, values = (line.split(", ") for line in kafka.lines)
    assert titles[:6] == [
        "start.time",
        "end.time",
        "data.consumed.in.MB",
        "MB.sec",
        "data.consumed.in.nMsg",
        "nMsg.sec",
    ]
    assert len(titles) == len(values) == 10
    assert (values[2], values[4], values[6]) == ("0.0477", "500", "0")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", values[0])


@pytest.mark.slow
def test_consume_that_waits_for_more_than_comes_says_so_and_shows_what_came(
    one_broker: Serving, tidelog: Tidelog
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"x")
    ran = tidelog("perf", "consume", name, "-n", "2", "--timeout", "1", "-o", "json")
    assert ran.code == 3
    [perf] = objects(ran.out)["perf"]
    assert (perf["records"], perf["complete"]) == (1, False)
    assert "error: 1 record of 2 read, and no other for 1 s: " in ran.err


def test_latency_is_taken_to_the_acknowledgement_and_to_a_consumer(
    one_broker: Serving, tidelog: Tidelog
) -> None:
    name = one_broker.topic(partitions=2)
    ran = tidelog("perf", "latency", name, "-n", "50", "--warm-up", "10", "-o", "json")
    assert ran.code == 0, ran
    assert end_of(one_broker, name) == 60
    found = objects(ran.out)
    assert [each["until"] for each in found["latency"]] == ["acknowledged", "consumed"]
    assert all(each["samples"] == 50 and each["mean_ms"] > 0 for each in found["latency"])
    assert found["perf"][0]["records"] == 50


def test_latency_for_people_and_in_kafkas_layout(one_broker: Serving, tidelog: Tidelog) -> None:
    name = one_broker.topic()
    ran = tidelog("perf", "latency", name, "-n", "20")
    assert [line.split()[0] for line in ran.lines[-2:]] == ["acknowledged", "consumed"]
    assert all(len(line) <= WIDE for line in ran.lines)
    kafka = tidelog("perf", "latency", name, "-n", "20", "-o", "kafka")
    assert re.fullmatch(r"Avg latency: \d+\.\d{4} ms", kafka.lines[-2])
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", kafka.lines[-1])


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["produce", "none-such"], 1, "there is no topic 'none-such'"),
        (["produce", "T", "-n", "0"], 2, "'-n'"),
        (["produce", "T", "--rate", "0"], 2, "'--rate'"),
        (["latency", "T", "-s", "15"], 2, "'-s'"),
        (["latency", "T", "--every", "0"], 2, "'--every'"),
        (["produce", "T", "-a", "2"], 2, "'-a'"),
        (["consume", "T", "-X", "linger.ms=1"], 2, "there is no such setting"),
        (["produce", "T", "-s", "2000000", "-n", "1"], 1, "max.request.size"),
        (
            ["produce", "T", "-X", "compression.type=zip"],
            2,
            "compression.type='zip': it must be one of none",
        ),
        (["consume", "T", "-X", "fetch.min.bytes=no"], 2, "fetch.min.bytes"),
        (["latency", "T", "-X", "linger.ms=-1"], 2, "linger.ms"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    one_broker: Serving, tidelog: Tidelog, words: list[str], code: int, line: str
) -> None:
    ran = tidelog("perf", *(one_broker.topic() if word == "T" else word for word in words))
    assert ran.code == code
    errors = [each for each in ran.err.splitlines() if each.startswith("error: ")]
    assert len(errors) == 1
    assert line in errors[0]


@pytest.mark.slow
def test_a_run_that_fails_in_the_middle_shows_what_was_measured_until_then() -> None:
    with serving(2) as cluster:
        name = cluster.topic(1, 2, min_insync_replicas="2")

        async def lose() -> None:
            (topic,) = await cluster.cluster.client().admin.describe_topics(name)
            follower = next(each for each in (1, 2) if each != topic.partitions[0].leader)
            await cluster.cluster.kill(follower)

        words = ["perf", "produce", name, "--rate", "200", "-n", "100000", "--warm-up", "0"]
        with running(cluster.bootstrap, *words, "--every", "0.1", "--timeout", "2", "-o", "json") as process:
            assert process.stdout is not None
            assert b"interval" in process.stdout.readline()
            cluster.run(lose())
            out, err = process.communicate()
        [perf] = objects(out.decode())["perf"]
    assert process.returncode == 3, err
    assert 0 < perf["records"] < 100_000
    assert not perf["complete"]
    assert b"error: " in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "verb", "words"),
    [
        (signal.SIGTERM, "produce", ["-n", "100000000", "--rate", "1000"]),
        (signal.SIGTERM, "consume", ["-n", "100000000"]),
        (signal.SIGINT, "latency", ["-n", "100000000", "--warm-up", "0"]),
    ],
)
def test_an_interrupt_shows_what_was_measured(
    one_broker: Serving, number: signal.Signals, verb: str, words: list[str]
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"x")
    more = ["--warm-up", "0", "--every", "0.1", "-o", "json"]
    with running(one_broker.bootstrap, "perf", verb, name, *words, *more) as process:
        assert process.stdout is not None
        line = process.stdout
        until(lambda: json.loads(line.readline())["records"], "a record is counted")
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == 128 + number, err
    [perf] = objects(out.decode())["perf"]
    assert perf["records"] > 0
    assert not perf["complete"]
    assert b"interrupted: this is what was measured until then" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("words", ["produce T -n 2000", "consume T", "latency T -n 20"])
def test_every_type_and_key_of_a_measurement_is_documented(
    one_broker: Serving, tidelog: Tidelog, words: str
) -> None:
    name = one_broker.topic()
    one_broker.write(name, b"x")
    ran = tidelog("perf", *words.replace("T", name).split(), "--every", "0.1", "-o", "json")
    known = documented("perf produce")
    for kind, found in objects(ran.out).items():
        assert all(each.keys() - {"type"} <= known[kind] for each in found)
