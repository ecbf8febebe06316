"""`tidelog cluster quorum` against real controllers and brokers, and against what a newcomer takes for them."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.test_log_json import MANUAL
from tests.controller.conftest import Quorum
from tests.controller.nodes import PATIENT, Clock, environment
from tests.protocol.io.peers import DEADLINE_S, until
from tidelog.broker.broker import Broker, Environment
from tidelog.broker.config import BrokerConfig
from tidelog.cli.options import BOOTSTRAP_VARIABLE
from tidelog.controller.controller import Controller
from tidelog.protocol.types import BrokerId
from tidelog.storage.io import open_directory

HOST = "127.0.0.1"
Command = Callable[..., Awaitable[Ran]]


@pytest.fixture
def command(tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`tidelog cluster quorum` in a thread: it has a loop of its own, and the nodes have this one."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)

    async def run(*words: str) -> Ran:
        work = asyncio.get_running_loop().run_in_executor(None, tidelog, "cluster", "quorum", *words)
        return await asyncio.wait_for(work, DEADLINE_S)

    return run


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    """A controller that leads."""
    quorum = Quorum(tmp_path / "controller-1")
    await quorum.start()
    await until(lambda: quorum.node.active, "it leads")
    yield quorum
    await quorum.close()


@pytest.fixture
async def broker(quorum: Quorum, tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker of it that serves."""
    rng = Random(1)

    def halt(reason: str) -> NoReturn:
        raise AssertionError(reason)

    broker = Broker(
        BrokerConfig(broker_id=BrokerId(1), controllers=((1, HOST, quorum.port),), port=0),
        Environment(
            open_directory(str(tmp_path / "broker-1"), create=True),
            Clock(),
            "one boot",
            1,
            rng,
            lambda: rng.randbytes(16),
            nullcontext,
            halt,
        ),
    )
    task = asyncio.create_task(broker.run())
    await until(lambda: broker.serving or task.done(), "the broker serves")
    yield broker
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def at(port: int) -> str:
    return f"{HOST}:{port}"


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_broker_shows_who_leads_and_how_far_everybody_is(
    quorum: Quorum, broker: Broker, command: Command
) -> None:
    ran = await command("-b", at(broker.port))
    assert (ran.code, ran.err) == (0, "")
    cluster = quorum.node.working.cluster_id
    assert cluster is not None
    assert ran.lines[0] == f"cluster {cluster.hex()}: controller c1 leads in epoch 1"
    assert re.fullmatch(r"metadata log: offsets 0 to \d+, committed up to \d+", ran.lines[1])
    assert re.split(r"\s{2,}", ran.lines[3].strip())[:3] == ["NODE", "ROLE", "ADDRESS"]
    leader, reader = (line.split() for line in ran.lines[4:])
    assert leader[:3] == ["c1", "leader", at(quorum.port)]
    assert leader[4:] == ["0", "now", "now"]
    assert reader[:3] == ["b1", "observer", at(broker.port)]


async def test_a_controller_may_be_asked_as_well_and_so_may_the_environment(
    quorum: Quorum, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, at(quorum.port))
    assert "controller c1 leads" in (await command()).lines[0]


async def test_of_several_addresses_one_that_answers_is_enough(
    quorum: Quorum, command: Command, closed_port: Callable[[], int]
) -> None:
    ran = await command("-b", f"{at(closed_port())}, {at(quorum.port)}")
    assert (ran.code, ran.err) == (0, "")


async def test_json_is_as_the_manual_says(quorum: Quorum, broker: Broker, command: Command) -> None:
    ran = await command("-b", at(broker.port), "-o", "json")
    section = MANUAL.read_text().split("### of `cluster quorum`")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in rows}
    objects = [json.loads(line) for line in ran.lines]
    assert [each["type"] for each in objects] == ["quorum", "voter", "observer"]
    for each in objects:
        assert each.keys() - {"type"} == documented[each["type"]]
    about, voter, observer = objects
    assert (about["leader_id"], about["leader_epoch"]) == (1, quorum.node.epoch)
    assert (voter["node"], voter["is_leader"], voter["port"], voter["lag"]) == ("c1", True, quorum.port, 0)
    assert (observer["node"], observer["is_leader"], observer["port"]) == ("b1", False, broker.port)
    assert observer["directory_id"] == quorum.node.working.brokers[BrokerId(1)].directory_id.hex()


async def test_kafkas_habits_are_kept(quorum: Quorum, command: Command) -> None:
    lines = (await command("-b", at(quorum.port), "-o", "kafka")).lines
    assert [line.partition(":")[0] for line in lines[:8]] == [
        "ClusterId",
        "LeaderId",
        "LeaderEpoch",
        "HighWatermark",
        "MaxFollowerLag",
        "MaxFollowerLagTimeMs",
        "CurrentVoters",
        "CurrentObservers",
    ]
    assert lines[9].split() == [
        "NodeId",
        "DirectoryId",
        "LogEndOffset",
        "Lag",
        "LastFetchTimestamp",
        "LastCaughtUpTimestamp",
        "Status",
    ]
    assert lines[10].split()[-1] == "Leader"


# ── what a newcomer does ──────────────────────────────────────────────────────────────────────────────


async def test_where_nobody_listens_it_says_so(command: Command, closed_port: Callable[[], int]) -> None:
    port = closed_port()
    ran = await command("-b", at(port))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"error: {at(port)}: Connection refused: is a broker running there? `tidelog up` starts a cluster here, -b HOST:PORT names another one\n"
    )


async def test_a_host_that_is_not_known_is_said_to_be_that(command: Command) -> None:
    ran = await command("-b", "no-such-host.invalid:9092")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: no-such-host.invalid:9092: the host is not known: ")


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_what_is_no_tidelog_is_named(command: Command, says: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(other, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    ran = await command("-b", at(port))
    server.close()
    assert (ran.code, ran.out) == (1, "")
    assert f"{at(port)} " in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.endswith(
        "is a broker running there? `tidelog up` starts a cluster here, -b HOST:PORT names another one\n"
    )
    if says:
        assert "does not speak tidelog's protocol" in ran.err


async def test_what_listens_and_never_answers_takes_no_longer_than_it_may(command: Command) -> None:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        ran = await command("-b", at(listening.getsockname()[1]), "--timeout", "0.2")
    assert (ran.code, ran.out) == (3, "")
    assert re.search(r"no answer in \d+ ms: is a broker running there", ran.err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-b", "localhost"], "--bootstrap localhost is no HOST:PORT, as 127.0.0.1:9092 is"),
        (["-b", "broker..3:9092"], "--bootstrap broker..3:9092 is no HOST:PORT"),
        (["-b", "127.0.0.1:kafka"], "--bootstrap 127.0.0.1:kafka is no HOST:PORT"),
        (["-b", ","], "names nobody"),
        (["--timeout", "0"], "--timeout"),
    ],
)
async def test_a_wrong_word_is_refused_before_anybody_is_asked(
    command: Command, words: list[str], said: str
) -> None:
    ran = await command(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


# ── no leader ─────────────────────────────────────────────────────────────────────────────────────────


async def test_without_a_leader_it_says_which_controllers_are_needed(
    tmp_path: Path, command: Command, closed_port: Callable[[], int]
) -> None:
    dead = closed_port()
    config = replace(PATIENT, voters=((1, HOST, 0), (2, HOST, dead), (3, HOST, dead)))
    node = Controller(
        config, environment(open_directory(str(tmp_path / "controller-1"), create=True), Random(1))
    )
    ready = asyncio.Event()
    task = asyncio.create_task(node.run(ready.set))
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    ran = await command("-b", at(node.port), "--timeout", "0.3")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == (
        f"error: no controller leads in epoch 0 of the quorum. 2 of c1 ({at(node.port)}), c2 ({at(dead)}), "
        f"c3 ({at(dead)}) must run and hear each other: start those that do not, or wait for the election\n"
    )


async def test_a_broker_without_a_controller_says_so_in_time(
    quorum: Quorum, broker: Broker, command: Command
) -> None:
    await quorum.stop()
    ran = await command("-b", at(broker.port), "--timeout", "0.5")
    assert (ran.code, ran.out) == (3, "")
    assert re.search(r"no controller that leads was found for [\d.]+ s: c1 \(127.0.0.1:\d+\): ", ran.err)
    assert "see that a majority of the controllers runs" in ran.err
