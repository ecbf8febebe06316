"""`tidelog topic` against a real cluster."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving
from tidelog.cli.main import tidelog as root
from tidelog.client import Client
from tidelog.client.partitioning import partition_of

Topic = Callable[..., Ran]


@pytest.fixture
def topic(three_brokers: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """`tidelog topic` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", three_brokers.bootstrap)
    return lambda *words: tidelog("topic", *words)


# ── create ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_that_was_created_can_be_described_at_once(topic: Topic) -> None:
    ran = topic("create", "made", "-p", "3", "-r", "2", "-c", "retention.ms=60000")
    assert (ran.code, ran.out, ran.err) == (0, "made: 3 partitions, 2 replicas each\n", "")
    described = topic("describe", "made")
    assert described.lines[0] == "made: 3 partitions, 2 replicas each, ok"
    assert "  retention.ms=60000" in described.lines
    assert [line.split()[0] for line in described.lines[-3:]] == ["0", "1", "2"]


def test_several_topics_are_created_and_one_that_is_refused_keeps_no_other_from_it(topic: Topic) -> None:
    ran = topic("create", "many-a", "no good", "many-b")
    assert ran.code == 1
    assert ran.lines == ["many-a: 1 partition, 3 replicas each", "many-b: 1 partition, 3 replicas each"]
    assert ran.err.startswith(
        "error: 'no good' cannot be the name of a topic: it must be 1 to 249 of letters, "
    )
    assert ran.err.count("\n") == 1


def test_a_topic_that_exists_is_an_error_that_says_how_it_is_none(topic: Topic) -> None:
    topic("create", "twice")
    ran = topic("create", "twice")
    assert (ran.code, ran.out) == (1, "")
    assert "--if-not-exists" in ran.err
    ran = topic("create", "twice", "--if-not-exists")
    assert (ran.code, ran.out, ran.err) == (0, "", "twice exists already\n")


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(topic: Topic) -> None:
    assert topic("create", "dry", "-p", "2", "--dry-run").out == "dry: can be created\n"
    assert topic("describe", "dry").code == 1
    assert topic("create", "dry", "-r", "9", "--dry-run").code == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["x", "-r", "9"], 1, "9 replicas need as many brokers, 3 are registered"),
        (["x", "-c", "retentin.ms=1"], 1, "the nearest is retention.ms"),
        (["x", "-c", "retention.ms"], 2, "-c retention.ms is no KEY=VALUE"),
        (["x", "-c", "a=1", "-c", "a=2"], 2, "-c a is given twice"),
        (["x", "-p", "0"], 2, "-p"),
        (["\udcff"], 2, "'\\udcff' cannot be the name of a topic"),
        (["a" * 250], 2, "cannot be the name of a topic: it must be 1 to 249 of letters, digits"),
        (["x", "-c", "retention.ms=\udcff"], 2, "is no UTF-8"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_created_is_named(topic: Topic, words: list[str], code: int, said: str) -> None:
    ran = topic("create", *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_kafkas_word_for_it_is_kept(topic: Topic) -> None:
    assert topic("create", "as-kafka", "-o", "kafka").out == "Created topic as-kafka.\n"


# ── list and describe ─────────────────────────────────────────────────────────────────────────────────


def test_topics_are_listed_by_name_in_three_layouts(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic(partitions=2)
    row = next(line.split() for line in topic("list").lines if line.startswith(name + " "))
    assert row == [name, "2", "3", "ok"]
    assert name in topic("list", "-o", "kafka").lines
    objects = [json.loads(line) for line in topic("list", "-o", "json").lines]
    assert [each["topic"] for each in objects] == sorted(each["topic"] for each in objects)
    one = next(each for each in objects if each["topic"] == name)
    assert (one["partitions"], one["replication_factor"], one["without_leader"]) == (2, 3, 0)


def test_describe_as_kafka_has_kafkas_tabs_and_words(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic(partitions=2, retention_ms="60000")
    head, *partitions = topic("describe", "-o", "kafka", name).lines
    assert re.fullmatch(
        rf"Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: retention.ms=60000",
        head,
    )
    for index, line in enumerate(partitions):
        assert re.fullmatch(
            rf"\tTopic: {name}\tPartition: {index}\tLeader: [123]\tReplicas: [123],[123],[123]\tIsr: [123],[123],[123]"
            r"\tElr: \tLastKnownElr: ",
            line,
        )


def test_describe_as_json_has_an_object_per_topic_and_partition(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic(partitions=2, retention_ms="60000")
    about, *partitions = [json.loads(line) for line in topic("describe", name, "-o", "json").lines]
    assert (about["type"], about["configs"]) == ("topic", {"retention.ms": "60000"})
    assert [(one["type"], one["partition"]) for one in partitions] == [("partition", 0), ("partition", 1)]
    assert all(sorted(one["replicas"]) == [1, 2, 3] and one["leader"] in one["isr"] for one in partitions)


def test_the_configured_and_the_effective_min_isr_are_shown_where_they_differ(
    topic: Topic, three_brokers: Serving
) -> None:
    name = three_brokers.topic(replication_factor=1)
    assert "  min.insync.replicas=2 (1 holds)" in topic("describe", name).lines


def test_an_unknown_topic_names_the_nearest_that_there_is(topic: Topic) -> None:
    topic("create", "payments")
    for words in (["describe", "paymnets"], ["delete", "paymnets"], ["offsets", "paymnets"]):
        ran = topic(*words)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == "error: there is no topic 'paymnets'; the nearest is payments\n"


def test_a_name_that_is_no_text_is_no_topic(topic: Topic) -> None:
    ran = topic("describe", "\udcff")
    assert (ran.code, ran.err) == (
        1,
        "error: there is no topic '\\udcff': no name is so long, or has such bytes\n",
    )
    long = "a" * 250
    assert (
        topic("describe", long).err
        == f"error: there is no topic '{long}': no name is so long, or has such bytes\n"
    )


# ── change ────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_altered_all_or_none(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic()
    ran = topic("alter", name, "-c", "retention.ms=1000", "-c", "segment.bytes=none")
    assert ran.code == 1
    assert "retention.ms" not in topic("describe", name).out
    assert topic("alter", name, "-c", "retention.ms=1000").out == f"{name}: retention.ms=1000\n"
    assert "  retention.ms=1000" in topic("describe", name).lines


def test_partitions_are_added_and_what_that_means_for_keys_is_said(
    topic: Topic, three_brokers: Serving
) -> None:
    name = three_brokers.topic()
    ran = topic("add-partitions", name, "-p", "3")
    assert (ran.code, ran.out) == (0, f"{name}: 3 partitions\n")
    assert "key" in ran.err
    assert topic("add-partitions", name, "-p", "2").code == 1


# ── delete and trim ───────────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_nothing_is_deleted_unless_yes_is_said(
    topic: Topic, three_brokers: Serving
) -> None:
    name = three_brokers.topic(partitions=2)
    three_brokers.write(name, b"a", b"b")
    ran = topic("delete", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        f"would delete {name}: 2 partitions, 3 replicas each, 2 records",
        "error: nothing was done: add --yes to do this (see `tidelog topic delete --help`)",
    ]
    ran = topic("delete", name, "--yes")
    assert (ran.code, ran.out, ran.err) == (0, f"{name}: deleted\n", "")
    assert topic("describe", name).code == 1


def test_who_would_delete_the_books_of_all_groups_is_told(topic: Topic) -> None:
    topic("create", "__consumer_offsets", "-p", "1", "--if-not-exists")
    ran = topic("delete", "__consumer_offsets")
    assert ran.code == 2
    assert ran.err.splitlines()[0].endswith("; every group forgets how far it has come")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_at_a_terminal_it_is_asked(
    topic: Topic, three_brokers: Serving, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    name = three_brokers.topic()
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer)
    monkeypatch.setattr("tidelog.cli.consent.at_a_terminal", lambda: True)
    ran = topic("delete", name)
    assert ran.code == code
    assert (topic("describe", name).code == 0) == (answer == "n")


def test_what_was_shown_is_deleted_and_nothing_that_took_its_name_meanwhile(
    topic: Topic, three_brokers: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = three_brokers.topic()

    async def make_anew(client: Client) -> None:
        await client.admin.delete_topics(name)
        await client.admin.create_topics(name)

    monkeypatch.setattr(
        "tidelog.cli.topic.remove.require_consent", lambda *_, **__: three_brokers.with_client(make_anew)
    )
    ran = topic("delete", name)
    assert (ran.code, ran.out) == (1, "")
    assert topic("describe", name).code == 0


@pytest.mark.slow
def test_trim_says_what_goes_and_lets_it_go(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic()
    three_brokers.write(name, b"a", b"b", b"c")
    ran = topic("trim", name, "-p", "0", "--before", "2")
    assert ran.code == 2
    assert ran.err.startswith(f"would delete of {name}-0: offsets 0 to 1, 2 records at most\n")
    assert topic("offsets", name).lines[1].split() == ["0", "0", "3", "3"]
    assert topic("trim", name, "-p", "0", "--before", "2", "--yes").out == f"{name}-0: begins at offset 2\n"
    assert topic("offsets", name).lines[1].split() == ["0", "2", "3", "1"]
    assert topic("trim", name, "-p", "0", "--before", "end", "--yes").out == f"{name}-0: begins at offset 3\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "7", "--before", "0"], "there is no partition 7"),
        (["-p", "0", "--before", "9"], "-0 ends at offset 0"),
        (["-p", "0", "--before", "soon"], "--before soon is no offset"),
        (["--before", "1"], "Missing option '-p'"),
    ],
)
def test_what_cannot_be_trimmed_is_refused(
    topic: Topic, three_brokers: Serving, words: list[str], said: str
) -> None:
    ran = topic("trim", three_brokers.topic(), *words, "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


# ── offsets and keys ──────────────────────────────────────────────────────────────────────────────────


def test_offsets_are_shown_at_both_ends_or_at_a_time(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic()
    three_brokers.write(name, b"old", timestamp_ms=1_600_000_000_000)
    three_brokers.write(name, b"new", timestamp_ms=1_700_000_000_000)
    assert topic("offsets", name, "--at", "2021-01-01").lines[1].split() == [
        "0", "1", "2023-11-14", "22:13:20.000",
    ]  # fmt: skip
    assert topic("offsets", name, "--at", "-1h").lines[1].split() == ["0", "-", "-"]
    assert topic("offsets", name, "--at", "earliest").lines[1].split()[:2] == ["0", "0"]
    assert topic("offsets", name, "-o", "kafka").out == f"{name}:0:2\n"
    [one] = [json.loads(line) for line in topic("offsets", name, "-o", "json").lines]
    assert (one["start_offset"], one["end_offset"]) == (0, 2)
    assert topic("offsets", name, "--at", "yesterday").code == 2


@pytest.mark.slow
def test_the_partition_of_a_key_is_where_the_producer_writes_it(topic: Topic, three_brokers: Serving) -> None:
    name = three_brokers.topic(partitions=7)
    three_brokers.write(name, b"v", key="schlüssel".encode())
    found = topic("partition-of", name, "schlüssel").out.strip()
    assert int(found) == partition_of("schlüssel".encode(), 7)
    assert topic("offsets", name).lines[1 + int(found)].split()[2] == "1"


# ── who is not there ──────────────────────────────────────────────────────────────────────────────────


def test_where_no_cluster_is_each_address_is_named_and_the_way_to_one(tidelog: Tidelog) -> None:
    ran = tidelog("topic", "list", "-b", "127.0.0.1:1,127.0.0.1:2")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "error: no broker can be reached: 127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused. Start a "
        "cluster here with `tidelog up`, or say with -b HOST:PORT where one is\n"
    )


def test_settings_of_the_client_are_taken_and_unknown_ones_are_refused(topic: Topic) -> None:
    assert topic("list", "-X", "client.id=me").code == 0
    ran = topic("list", "-X", "clint.id=me")
    assert ran.code == 2
    assert "-X clint.id: there is no such setting; the nearest is client.id" in ran.err
    assert topic("list", "-X", "request.timeout.ms=soon").code == 2


@pytest.mark.usefixtures("topic")
def test_topics_are_completed_while_the_cluster_answers_and_nothing_is_said_when_not(
    three_brokers: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = three_brokers.topic()
    monkeypatch.setenv("COMP_WORDS", f"tidelog topic describe {name[:-1]}")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv("_TIDELOG_COMPLETE", "bash_complete")

    def completed() -> tuple[str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit):
            root.main([], prog_name="tidelog", complete_var="_TIDELOG_COMPLETE")
        return capsys.readouterr()

    out, err = completed()
    assert f"plain,{name}\n" in out
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "127.0.0.1:1")
    nothing = completed()
    assert (nothing[0].strip(), nothing[1], err) == ("", "", "")


@pytest.mark.slow
def test_help_of_a_verb_asks_nobody_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from tidelog.cli.main import run, tidelog\n"
        "for words in (['topic'], ['topic', 'create'], ['produce'], ['consume'], ['cluster', 'health'], ['broker', 'drain'],\n"
        "              ['config', 'set'], ['partition', 'move']):\n"
        "    run(tidelog, [*words, '--help'])\n"
        "heavy = {'asyncio', 'msgspec', 'msgpack', 'uvloop', 'cramjam', 'crc32c', 'ssl'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
