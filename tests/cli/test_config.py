"""`tidelog config` against a real cluster."""

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, serving, until

Config = Callable[..., Ran]


@pytest.fixture
def config(one_broker: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Config:
    """`tidelog config` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", one_broker.bootstrap)
    return lambda *words: tidelog("config", *words)


def test_a_setting_is_set_got_and_unset(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic()
    default = config("get", "topic", name, "retention.ms").out
    ran = config("set", "topic", name, "retention.ms=60000", "segment_bytes=1048576")
    assert (ran.code, ran.lines) == (
        0,
        [f"topic {name}: retention.ms=60000", f"topic {name}: segment_bytes=1048576"],
    )
    assert config("get", "topic", name, "retention.ms").out == "60000\n"
    assert config("get", "topic", name, "retention.ms", "segment.bytes").lines == [
        "retention.ms=60000",
        "segment.bytes=1048576",
    ]
    assert config("unset", "topic", name, "retention.ms").out == f"topic {name}: retention.ms unset\n"
    assert config("get", "topic", name, "retention.ms").out == default


def test_the_list_says_where_each_setting_stands(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic(cleanup_policy="compact")
    rows = {line.split()[0]: line.split()[1:] for line in config("list", "topic", name).lines[1:]}
    assert rows["cleanup.policy"] == ["compact", "topic"]
    assert rows["retention.bytes"] == ["-1", "default"]
    # One broker: so one replica.
    assert rows["min.insync.replicas"] == ["2", "(1", "holds)", "default"]
    own = [json.loads(line) for line in config("list", "topic", name, "--set", "-o", "json").lines]
    assert [(one["key"], one["value"], one["source"]) for one in own] == [
        ("cleanup.policy", "compact", "topic")
    ]
    assert own[0]["documentation"]


def test_what_is_set_for_the_cluster_holds_for_its_topics(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic()
    assert config("set", "cluster", "segment.ms=3600000").code == 0
    rows = {line.split()[0]: line.split()[1:] for line in config("list", "topic", name).lines[1:]}
    assert rows["segment.ms"] == ["3600000", "cluster"]
    assert config("unset", "cluster", "segment.ms").code == 0
    assert config("get", "cluster", "segment.ms").out == "604800000\n"


def test_settings_of_a_broker_that_are_read_at_its_start_say_so(config: Config) -> None:
    line = next(each for each in config("list", "broker", "1").lines if each.startswith("open.segments"))
    assert line.split()[1:] == ["512", "default,", "at", "start"]
    ran = config("set", "broker", "1", "open.segments=16")
    assert ran.code == 1
    assert ran.err.startswith("error: open.segments: it cannot be set here; ")


def test_what_a_broker_was_started_with_it_says_itself(
    config: Config, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(2, settings={"open.segments": 33}) as cluster:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", cluster.bootstrap)
        for number in ("1", "2"):
            rows = {
                line.split()[0]: line.split()[1:]
                for line in config("list", "broker", number, "--set").lines[1:]
            }
            assert rows["open.segments"] == ["33", "start,", "at", "start"]
        assert config("get", "broker", "2", "open.segments").out == "33\n"
        cluster.run(cluster.cluster.kill(2))
        until(lambda: "down" in tidelog("broker", "list").out, "it is fenced")
        down = config("get", "broker", "2", "open.segments")
        assert (down.out, down.err) == (
            "512\n",
            "note: broker 2 is down: what it was started with is not known\n",
        )


def test_kafkas_layout_is_kept(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic(retention_ms="60000")
    assert config("list", "topic", name, "--set", "-o", "kafka").lines == [
        f"All configs for topic {name} are:",
        "  retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000}",
    ]


def test_a_dry_run_changes_nothing(config: Config, one_broker: Serving) -> None:
    name = one_broker.topic()
    ran = config("set", "topic", name, "retention.ms=1", "--dry-run")
    assert (ran.code, ran.out) == (0, f"topic {name}: would have retention.ms=1\n")
    assert config("list", "topic", name, "--set").out == ""
    assert config("set", "topic", name, "retention.ms=soon", "--dry-run").code == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["get", "topic"], 2, "which topic? Say `tidelog config get topic NAME`"),
        (["get", "cluster"], 2, "which setting? `tidelog config list cluster` names all"),
        (["set", "cluster"], 2, "Say `tidelog config set cluster KEY=VALUE`"),
        (["set", "cluster", "retention.ms"], 2, "retention.ms is no KEY=VALUE"),
        (["unset", "cluster", "retention.ms=1"], 2, "Say `tidelog config unset cluster KEY`"),
        (["list", "cluster", "retention.ms"], 2, "`tidelog config get cluster retention.ms` shows one"),
        (["list", "broker", "one"], 2, "one is no broker's id"),
        (["list", "broker", "9"], 1, "there is no broker 9; there are 1"),
        (["list", "group", "g"], 2, "'group' is not one of"),
        (["get", "topic", "nowhere", "retention.ms"], 1, "there is no topic 'nowhere'"),
        (["set", "cluster", "retentin.ms=1"], 1, "the nearest is retention.ms"),
    ],
)
def test_what_was_typed_wrongly_is_told_with_what_would_be_right(
    config: Config, words: list[str], code: int, said: str
) -> None:
    ran = config(*words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
