"""`tidelog up` and `tidelog down`: real processes, as users start them and as they end."""

import asyncio
import contextlib
import errno
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

import tidelog
from tests.cli.node_processes import DEADLINE_S, HOST, Ran, clean_environment, command, run
from tidelog.cli.local.identity import Incarnation, began, who_listens
from tidelog.cli.local.plan import CONTROLLERS_ABOVE, HTTP_ABOVE
from tidelog.cli.local.plan import nodes as planned
from tidelog.cli.local.state import FILE, LOCK, State, read, write
from tidelog.cli.local.supervision import Supervision
from tidelog.testing.nodes import replication_factors
from tidelog.testing.processes import Process

pytestmark = pytest.mark.slow


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True


@pytest.fixture
def port() -> int:
    """The first of some that nobody has, below those that the system gives away by itself."""
    above = (0, CONTROLLERS_ABOVE, HTTP_ABOVE, CONTROLLERS_ABOVE + HTTP_ABOVE)
    chosen = (random.randrange(15_000, 30_000) for _ in range(1000))
    return next(base for base in chosen if all(_is_free(base + more + n) for more in above for n in range(3)))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Where the cluster is; whatever of it runs in the end is killed."""
    yield tmp_path / "data"
    for process in on_record(tmp_path / "data"):
        process.signal(signal.SIGKILL)


def on_record(data: Path) -> list[Incarnation]:
    """Every process that is written down."""
    path = data / FILE
    nodes = json.loads(path.read_text())["nodes"] if path.exists() else []
    return [Incarnation(node["pid"], node["began"]) for node in nodes]


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def until_gone(processes: list[Incarnation]) -> None:
    until(lambda: not any(process.alive for process in processes), f"{processes} run")


def up(data: Path, port: int, *more: str) -> Ran:
    return run("up", "-n", "1", "--data", str(data), "--port", str(port), "--detach", *more)


class Foreground:
    """A `tidelog up` at a terminal of its own."""

    def __init__(self, data: Path, port: int) -> None:
        self.popen = subprocess.Popen(
            command("up", "-n", "1", "--data", str(data), "--port", str(port), "-o", "json"),
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        self.said: list[dict[str, Any]] = []
        while not self.said or self.said[-1]["type"] != "ready":
            line = self.popen.stdout.readline()
            assert line, self.popen.communicate()
            self.said.append(json.loads(line))
        self.nodes = on_record(data)

    def hears(self, words: str) -> None:
        """Until it tells that."""
        assert self.popen.stderr is not None
        while words not in (line := self.popen.stderr.readline()):
            assert line, f"it did not tell {words!r}"

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it has told."""
        _, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, err


@pytest.fixture
def foreground(data: Path, port: int) -> Iterator[Foreground]:
    kept = Foreground(data, port)
    yield kept
    with contextlib.suppress(ProcessLookupError):
        kept.popen.kill()
    kept.popen.communicate()


# ── a life ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_detached_cluster_serves_until_down_and_goes_on_with_its_data(data: Path, port: int) -> None:
    ran = up(data, port)
    assert (ran.code, ran.err) == (0, "")
    assert f"at {HOST}:{port}" in ran.out
    assert f"`tidelog down --data {data}`" in ran.out
    nodes = on_record(data)
    assert [process.alive for process in nodes] == [True, True]
    cluster = (data / "broker-1" / "meta.properties").read_text()
    down = run("down", "--data", str(data))
    assert (down.code, down.out) == (0, "")
    assert down.err.index("stopping broker 1") < down.err.index("stopping controller 1")
    until_gone(nodes)
    assert up(data, port).code == 0
    assert (data / "broker-1" / "meta.properties").read_text() == cluster
    assert run("down", "--data", str(data)).code == 0


def test_what_it_says_to_type_next_writes_and_reads(data: Path, port: int, tmp_path: Path) -> None:
    ran = up(data, port)
    typed = [line.strip() for line in ran.out.splitlines() if re.match(r"  (seq .*\| )?tidelog ", line)]
    assert [re.findall(r"tidelog(?: -b \S+)? (\w+)", line) for line in typed] == [
        ["topic"],
        ["produce"],
        ["consume"],
    ]
    (tmp_path / "tidelog").write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    (tmp_path / "tidelog").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = [
        subprocess.run(
            ["sh", "-c", line],
            env=clean_environment(PATH=path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        for line in typed
    ]
    assert [each.returncode for each in done] == [0, 0, 0], done
    assert sorted(map(int, done[-1].stdout.split())) == [*range(1, 11)]
    assert run("down", "--data", str(data)).code == 0


AT_A_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have been told to ignore it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("sh", ["sh", "-c", '"$@" && echo IT IS UP; read answer', "sh", *sys.argv[1:]])
"""


def test_a_detached_cluster_outlives_the_terminal_that_it_was_started_at(
    data: Path, port: int, tmp_path: Path
) -> None:
    master, slave = os.openpty()
    words = command("up", "-n", "1", "--data", str(data), "--port", str(port), "--detach")
    with subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, *words],
        env=clean_environment(),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as shell:
        os.close(slave)
        shown = b""
        while b"IT IS UP" not in shown:
            shown += os.read(master, 1 << 16)  # OSError: the shell has ended
        os.close(master)
        assert shell.wait(DEADLINE_S) == -signal.SIGHUP
    nodes = on_record(data)
    assert [process.alive for process in nodes] == [True, True]
    assert shell.pid not in [os.getsid(process.pid) for process in nodes]
    bootstrap = f"{HOST}:{port}"
    assert run("-b", bootstrap, "topic", "create", "orders").code == 0
    (tmp_path / "lines").write_text("one\n")
    assert run("-b", bootstrap, "produce", "orders", str(tmp_path / "lines")).code == 0
    assert run("-b", bootstrap, "consume", "orders", "-o", "start", "--exit").out == "one\n"
    assert run("down", "--data", str(data)).code == 0


async def test_ready_means_that_a_new_topic_takes_a_write_of_all_of_its_replicas(
    data: Path, port: int
) -> None:
    assert run("up", "-n", "3", "--data", str(data), "--port", str(port), "--detach").code == 0
    async with tidelog.connect(f"{HOST}:{port}") as client:
        await client.admin.create_topics("orders")
        async with client.producer(acks="all") as producer:
            assert (await producer.send("orders", b"v")).offset == 0
    assert run("down", "--data", str(data)).code == 0


def test_every_node_says_where_it_is(foreground: Foreground, port: int) -> None:
    controller, broker, ready = foreground.said
    assert (controller["role"], controller["port"]) == ("controller", port + CONTROLLERS_ABOVE)
    assert (broker["role"], broker["port"]) == ("broker", port)
    assert broker["http"] == f"{HOST}:{port + HTTP_ABOVE}"
    assert Path(broker["log"]).exists()
    assert ready["bootstrap"] == f"{HOST}:{port}"
    assert [process.pid for process in foreground.nodes] == [controller["pid"], broker["pid"]]


def test_ctrl_c_stops_it_in_order(foreground: Foreground, data: Path) -> None:
    foreground.popen.send_signal(signal.SIGINT)
    code, err = foreground.ends()
    assert (code, err) == (0, "stopping broker 1\nstopping controller 1\n")
    assert not any(process.alive for process in foreground.nodes)
    assert on_record(data) == []
    assert "broker.stopped" in (data / "broker-1.log").read_text()


def test_a_second_ctrl_c_ends_it_at_once(foreground: Foreground) -> None:
    broker = foreground.nodes[1]
    broker.signal(signal.SIGSTOP)  # it does not hear that it is to stop
    foreground.popen.send_signal(signal.SIGINT)
    foreground.hears("stopping broker 1")
    foreground.popen.send_signal(signal.SIGINT)
    code, _ = foreground.ends()
    assert code == 130
    assert not any(process.alive for process in foreground.nodes)


def test_a_node_that_dies_is_reported_with_its_log_and_the_others_go_on(foreground: Foreground) -> None:
    controller, broker = foreground.nodes
    broker.signal(signal.SIGKILL)
    foreground.hears("broker 1 has been ended by SIGKILL; the end of ")
    foreground.hears("broker.ready")
    foreground.hears("1 node goes on; Ctrl-C and `tidelog up --data ")
    assert controller.alive
    foreground.popen.send_signal(signal.SIGTERM)
    assert foreground.ends()[0] == 3


def test_nothing_outlives_an_up_that_is_killed(foreground: Foreground) -> None:
    foreground.popen.kill()
    until_gone(foreground.nodes)


def test_down_in_another_terminal_ends_the_up_that_keeps_it(foreground: Foreground, data: Path) -> None:
    down = run("down", "--data", str(data))
    assert down.code == 0
    assert f"the `tidelog up` that keeps it (pid {foreground.popen.pid}) stops it" in down.err
    assert foreground.ends()[0] == 0
    assert not any(process.alive for process in foreground.nodes)


def test_down_kills_with_a_word_who_does_not_stop_in_time(data: Path, port: int) -> None:
    assert up(data, port).code == 0
    nodes = on_record(data)
    down = run("down", "--data", str(data), "--timeout", "0")
    assert down.code == 0
    assert f"broker 1 (pid {nodes[1].pid}) did not stop in 0 s and is killed" in down.err
    assert not any(process.alive for process in nodes)


def test_down_stops_a_paused_node(data: Path, port: int) -> None:
    assert up(data, port).code == 0
    nodes = on_record(data)
    nodes[1].signal(signal.SIGSTOP)
    down = run("down", "--data", str(data))
    assert down.code == 0
    assert "killed" not in down.err
    assert not any(process.alive for process in nodes)


# ── what cannot be ────────────────────────────────────────────────────────────────────────────────────


def test_up_twice_says_where_the_first_one_is_and_how_it_is_stopped(data: Path, port: int) -> None:
    assert up(data, port).code == 0
    again = up(data, port + 10)
    assert again.code == 1
    assert again.err == (
        f"error: a cluster of {data} already runs, at {HOST}:{port}: use it, or stop it with `tidelog down --data {data}`\n"
    )
    assert run("down", "--data", str(data)).code == 0


def test_up_starts_again_who_is_missing_of_a_detached_cluster_and_leaves_the_others_alone(
    data: Path, port: int
) -> None:
    assert up(data, port).code == 0
    controller, broker = on_record(data)
    broker.signal(signal.SIGKILL)
    until_gone([broker])
    refused = run("up", "--data", str(data))
    assert refused.code == 1
    assert refused.err == (
        f"error: 1 of 2 nodes of {data} runs, at {HOST}:{port}, and not broker 1: `tidelog up --data {data} --detach` "
        f"starts what is missing, `tidelog down --data {data}` stops the rest\n"
    )
    elsewhere = up(data, port + 10)
    assert elsewhere.code == 1
    assert f"1 of 2 nodes of {data} runs, at {HOST}:{port}" in elsewhere.err
    again = run("up", "--data", str(data), "--detach")
    assert (again.code, again.err) == (0, "")
    assert "1 node ran already and was left alone" in again.out
    assert "controller 1" not in again.out
    assert on_record(data)[0] == controller
    assert [process.alive for process in on_record(data)] == [True, True]
    assert run("-b", f"{HOST}:{port}", "topic", "create", "orders").code == 0
    assert run("down", "--data", str(data)).code == 0


def test_nodes_that_outlive_who_kept_them_are_not_added_to(data: Path, port: int) -> None:
    data.mkdir()
    record = {"format": 1, "brokers": 1, "controllers": 1, "port": port, "up": [os.getpid(), "long ago"]}
    lives = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    nodes = [{"name": "c1", "pid": lives.pid, "began": began(lives.pid)}]
    (data / FILE).write_text(json.dumps(record | {"nodes": nodes}))
    ran = up(data, port)
    lives.communicate()
    assert ran.code == 1
    assert (
        f"1 of 2 nodes of {data} still runs, and the `tidelog up` that kept them is gone: `tidelog down"
        in ran.err
    )


def test_a_missing_node_that_cannot_start_leaves_those_that_run_on_record(data: Path, port: int) -> None:
    assert up(data, port).code == 0
    controller, broker = on_record(data)
    broker.signal(signal.SIGKILL)
    until_gone([broker])
    (data / "broker-1" / "meta.properties").write_text("")
    assert up(data, port).code == 1
    assert on_record(data) == [controller]
    assert controller.alive
    assert run("down", "--data", str(data)).code == 0
    assert not controller.alive


def test_what_is_to_be_pasted_is_quoted(tmp_path: Path, port: int) -> None:
    data = tmp_path / "my data"
    try:
        ran = up(data, port)
        assert f"`tidelog down --data '{data}'`" in ran.out
        assert f"in '{data}'" in ran.out
        assert f"`tidelog down --data '{data}'`" in up(data, port).err
        assert run("down", "--data", str(data)).code == 0
    finally:
        for process in on_record(data):
            process.signal(signal.SIGKILL)


def test_what_up_prints_fits_into_a_terminal(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        ran = run("up", "-n", "1", "--port", str(port), "--detach")
        assert max(map(len, ran.out.splitlines())) <= 80, ran.out
        assert run("down").code == 0
    finally:
        for process in on_record(tmp_path / "tidelog-data"):
            process.signal(signal.SIGKILL)


def test_up_beside_one_in_the_foreground_names_it(foreground: Foreground, data: Path, port: int) -> None:
    again = up(data, port + 10)
    assert again.code == 1
    assert f"another `tidelog up` (pid {foreground.popen.pid}) has {data}" in again.err


def test_a_port_that_is_taken_is_named_with_who_has_it_and_nothing_is_made(data: Path, port: int) -> None:
    with socket.socket() as other:
        other.bind((HOST, port + CONTROLLERS_ABOVE))
        other.listen(1)
        ran = up(data, port)
        assert who_listens(port + CONTROLLERS_ABOVE) is not None or not Path("/proc/net/tcp").exists()
    assert ran.code == 1
    assert f"port {port + CONTROLLERS_ABOVE}, which controller 1 needs, is taken" in ran.err
    assert str(os.getpid()) in ran.err or not Path("/proc/net/tcp").exists()
    assert not data.exists()


def test_a_cluster_cannot_become_smaller_or_have_another_quorum(data: Path, port: int) -> None:
    data.mkdir()
    (data / FILE).write_text(
        json.dumps({"format": 1, "brokers": 3, "controllers": 1, "port": port, "up": None, "nodes": []})
    )
    fewer = up(data, port)
    assert fewer.code == 2
    assert "holds a cluster with 3 brokers" in fewer.err
    quorum = run("up", "--data", str(data), "--controllers", "3", "--detach")
    assert quorum.code == 2
    assert "holds a cluster with 1 controller, which cannot become 3" in quorum.err


def test_a_record_of_processes_that_have_ended_keeps_nobody_from_starting(data: Path, port: int) -> None:
    data.mkdir()
    record = {"format": 1, "brokers": 1, "controllers": 1, "port": port, "up": [os.getpid(), "long ago"]}
    nodes = [{"name": "b1", "pid": os.getpid(), "began": "long ago"}]
    (data / FILE).write_text(json.dumps(record | {"nodes": nodes}))
    down = run("down", "--data", str(data))
    assert (down.code, down.err) == (0, f"nothing of {data} runs\n")
    assert up(data, port).code == 0
    assert run("down", "--data", str(data)).code == 0


def test_a_file_is_no_data_directory(tmp_path: Path, port: int) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        ran = up(data, port)
        assert ran.code == 1
        assert "is a file: --data must name a directory" in ran.err


def test_the_file_itself_is_named_that_is_no_directory(tmp_path: Path, port: int) -> None:
    (tmp_path / "file").write_text("")
    assert f"error: {tmp_path}/file is a file: --data" in up(tmp_path / "file" / "a" / "b", port).err


def test_down_where_nothing_was_started_says_so(tmp_path: Path) -> None:
    ran = run("down", "--data", str(tmp_path))
    assert ran.code == 1
    assert ran.err == (
        f"error: {tmp_path} holds no cluster of `tidelog up`: name its directory with --data\n"
    )


def test_a_node_that_cannot_start_is_shown_with_its_log_and_nobody_is_left(data: Path, port: int) -> None:
    (data / "broker-1").mkdir(parents=True)
    (data / "broker-1" / "somebody-else's").write_text("data")
    ran = up(data, port)
    assert ran.code == 1
    assert "but no meta.properties: choose an empty directory" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: broker 1 has ended with exit code 1")
    assert on_record(data) == []


def test_a_first_up_that_fails_leaves_no_cluster_whose_size_could_not_be_changed(
    data: Path, port: int
) -> None:
    words = command("up", "-n", "3", "--data", str(data), "--port", str(port), "--detach")
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh", *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert limited.returncode == 1
    assert "error: 300 files may be open at once" in limited.stderr
    assert [path.name for path in data.iterdir() if path.suffix != ".log"] == [LOCK]
    assert up(data, port).code == 0, "one broker is no fewer than before"
    assert run("down", "--data", str(data)).code == 0


class Starting:
    """A first start that is looked at while it goes on: nobody of it ever serves."""

    def __init__(self, data: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        data.mkdir(exist_ok=True)
        state = State(1, 1, port)
        self.recorded: list[int] = []
        """How many processes were on record when the next one began."""
        self.waits = asyncio.Event()
        specs = planned(data, state, replication_factors(state.brokers))
        self.nodes = Supervision(data, state, specs, {}, lambda _: None, detached=True)
        start = Process.start

        def begin(process: Process, **options: Any) -> None:
            self.recorded.append(len(on_record(data)))
            start(process, **options)

        async def never_ready(*_: object) -> None:
            self.waits.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Process, "start", begin)
        monkeypatch.setattr(Process, "ready", never_ready)
        self.task = asyncio.create_task(self.nodes.start())


async def test_a_process_is_on_record_before_the_next_one_begins(
    data: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = Starting(data, port, monkeypatch)
    await starting.waits.wait()
    assert starting.recorded == [0, 1]
    assert [process.alive for process in on_record(data)] == [True, True]
    starting.task.cancel()
    await asyncio.wait([starting.task])


@pytest.mark.parametrize("before", [[], ["broker-1"]])
async def test_an_interrupted_first_up_leaves_what_was_there_before(
    data: Path, port: int, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    """Where a node's directory was there, it may know by now of those that were made: then they stay too."""
    for name in before:
        (data / name).mkdir(parents=True)
    starting = Starting(data, port, monkeypatch)
    await starting.waits.wait()
    processes = on_record(data)
    controller = data / "controller-1"
    await asyncio.to_thread(until, controller.exists, "the controller has begun")
    starting.task.cancel()
    await asyncio.wait([starting.task])
    assert not any(process.alive for process in processes)
    assert not (data / FILE).exists()
    assert controller.exists() == (data / "broker-1").exists() == bool(before)


def test_an_up_without_room_for_its_record_says_so_in_a_line(
    data: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data.mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(
        ClickException, match=r"cluster.json cannot be written .No space left on device.: make room"
    ):
        write(data, State(1, 1, port))


def test_an_unknown_setting_is_refused_before_anything_is_made(data: Path, port: int) -> None:
    ran = up(data, port, "-X", "broker.sesion.timeout.ms=1")
    assert ran.code == 2
    assert "the nearest is broker.session.timeout.ms" in ran.err
    assert not data.exists()


def test_settings_are_as_before_unless_others_are_said(data: Path, port: int) -> None:
    def settings_of_next(*words: str) -> tuple[dict[str, str], str]:
        ran = up(data, port, "-o", "json", *words)
        assert ran.code == 0, ran
        told = run("-b", f"127.0.0.1:{port}", "config", "list", "broker", "1", "-o", "json")
        [flush] = [each for each in map(json.loads, told.out.splitlines()) if each["key"] == "flush.ms"]
        assert run("down", "--data", str(data)).code == 0
        said: dict[str, str] = json.loads(ran.out.splitlines()[-1])["settings"]
        return said, str(flush["value"])

    assert settings_of_next("-X", "flush.ms=3000") == ({"flush.ms": "3000"}, "3000")
    assert settings_of_next() == ({"flush.ms": "3000"}, "3000")
    assert settings_of_next("-X", "flush.ms=4000")[0] == {"flush.ms": "4000"}
    assert settings_of_next("-X", "")[0] == {}


def test_a_setting_with_which_no_node_starts_is_not_used_again(data: Path, port: int) -> None:
    assert up(data, port, "-X", "flush.ms=3000").code == 0
    assert run("down", "--data", str(data)).code == 0
    ran = up(data, port, "-X", "broker.heartbeat.interval.ms=86400000")
    assert ran.code == 1, ran
    known = read(data)
    assert known is not None
    assert known.settings == {"flush.ms": "3000"}


def test_a_record_that_is_damaged_says_what_to_do(tmp_path: Path, port: int) -> None:
    (tmp_path / FILE).write_text("{")
    for ran in (up(tmp_path, port), run("down", "--data", str(tmp_path))):
        assert ran.code == 1
        assert "is damaged" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, FILE]
