"""Refusals in plain words: each says a fact once, and names what is near instead of all that there is."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.serving import Serving
from tidelog.cli.asking import briefly, sentence
from tidelog.protocol.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidReplicationFactor,
    InvalidTopic,
    NotController,
    TidelogError,
    TopicAlreadyExists,
)
from tidelog.protocol.io.http import serve_pages
from tidelog.protocol.settings import setting_of


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TopicAlreadyExists("there is a topic t1"), "there is a topic t1; choose another name, or use it (`--if-not-exists`)"),
        (GroupIdNotFound("there is no group 'g9'"), "there is no group 'g9'; check the name with `tidelog group list`"),
        (InvalidTopic("'a/b' is no name"), "'a/b' is no name; take another one"),
        (InvalidReplicationFactor("x: 9"), "x: 9; start brokers or ask for fewer, each needs a live one of its own"),
        (TopicAlreadyExists(), "A topic of that name exists: choose another name, or use it (`--if-not-exists`)."),
        (NotController("c1 is none"), "c1 is none; another controller is active: ask that one."),
    ],
)  # fmt: skip
def test_a_fact_is_said_once(error: TidelogError, said: str) -> None:
    assert sentence(error).removesuffix(".") == said.removesuffix(".")


@pytest.mark.parametrize("verb", ["topic list", "cluster quorum"])
async def test_the_port_of_the_metrics_is_not_taken_for_a_broker_that_is_slow(
    tidelog: Tidelog, verb: str
) -> None:
    pages = await serve_pages("127.0.0.1", 0, {})
    where = f"127.0.0.1:{pages.port}"
    said = (
        f"error: {where} does not speak tidelog's protocol: HTTP is spoken there, as at a node's /metrics; "
    )
    words = [*verb.split(), "-b", where, "--timeout", "60"]
    work = asyncio.get_running_loop().run_in_executor(None, tidelog, *words)
    ran = await asyncio.wait_for(work, 30)
    pages.close()
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(f"{said}give the node's own address, printed in front of that one")


@pytest.mark.parametrize(
    ("level", "key", "names"),
    [
        ("cluster", "foo", "config list cluster"),
        ("broker", "log.dirs", "config list broker ID"),
        ("topic", "zzz", "config list topic NAME"),
    ],
)
def test_of_a_setting_that_there_is_not_the_nearest_is_named_and_where_all_are(
    level: str, key: str, names: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        setting_of(level, key)
    assert len(str(refused.value)) > 300, "all that there are"
    said = sentence(refused.value)
    assert said.startswith(f"{key}: there is no such setting; the nearest is ")
    assert said.endswith(f"; `tidelog {names}` names all")
    assert len(said) < 160
    assert briefly("retention.ms=x: it must be a number") == "retention.ms=x: it must be a number"


def test_a_setting_that_a_broker_does_not_have_is_refused_in_a_line(
    one_broker: Serving, tidelog: Tidelog
) -> None:
    ran = tidelog("config", "set", "broker", "1", "log.dirs=/tmp", "-b", one_broker.bootstrap)
    assert ran.code == 1
    assert len(ran.err) < 160
    assert ran.err.endswith("; `tidelog config list broker ID` names all\n")


def test_up_names_the_nearest_setting_and_where_all_are(tidelog: Tidelog, tmp_path: Path) -> None:
    ran = tidelog("up", "-X", "foo=1", "--data", f"{tmp_path}/data")
    assert ran.code == 2
    assert "error: -X foo: there is no such setting; the nearest is " in ran.err
    assert "; docs/CONFIGURATION.md names all (see `tidelog up --help`)" in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic list --internl", "No such option '--internl'; the nearest is --internal (see `tidelog topic list --help`)"),
        ("up --prt 1", "No such option '--prt'; the nearest is --port (see"),
        ("up --zzzzzz 1", "No such option '--zzzzzz' (see"),
        ("broker describe one", "Invalid value for 'ID': 'one' is not a whole number (see"),
        ("up -n x", "Invalid value for '-n' / '--brokers': 'x' is not a whole number (see"),
        ("topic list --timeout x", "Invalid value for '--timeout': 'x' is not a number (see"),
        ("topic list --timeout nan", "Invalid value for '--timeout': nan is not a number (see"),
        ("topic list --timeout inf", "Invalid value for '--timeout': inf is not a number (see"),
        ("topic list --timeout 1e9", "Invalid value for '--timeout': 1e9 is no number of seconds up to 2147483 (see"),
        ("down --timeout nan", "Invalid value for '--timeout': nan is not a number (see"),
        ("perf consume t --every inf", "Invalid value for '--every': inf is not a number (see"),
        ("perf produce t --rate nan", "Invalid value for '--rate': nan is not a number (see"),
    ],
)  # fmt: skip
def test_what_click_says_is_said_as_all_else(tidelog: Tidelog, line: str, said: str) -> None:
    ran = tidelog(*line.split())
    assert ran.code == 2
    assert f"error: {said}" in ran.err
