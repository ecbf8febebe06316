"""`tidelog broker start`, as a real process: what it needs, what it says, how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.node_processes import (
    HOST,
    Process,
    clean_environment,
    command,
    get,
    nodes,
    port_taken,
    run,
)
from tidelog.storage.identity import read_identity
from tidelog.storage.io import open_directory

pytestmark = pytest.mark.slow

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with nodes(tmp_path) as started:
        yield started


@pytest.fixture
def controller(start: Start) -> Process:
    process = start("controller", "c1", "--id", "1", "--listen", f"{HOST}:0")
    process.ready()
    return process


def at(controller: Process) -> str:
    return f"1@{HOST}:{controller.ready()['port']}"


def broker_of(start: Start, controller: Process, *more: str, name: str = "b1", **environment: str) -> Process:
    return start(
        "broker",
        name,
        "--id",
        "1",
        "--listen",
        f"{HOST}:0",
        "--controllers",
        at(controller),
        *more,
        **environment,
    )


# ── serving ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_says_when_and_where_it_serves(start: Start, controller: Process) -> None:
    broker = broker_of(start, controller, "-o", "json", "--http", f"{HOST}:0")
    about = broker.ready()
    assert json.loads(broker.until(lambda: broker.out, "it is said on stdout")) == about
    assert (about["type"], about["role"], about["id"], about["pid"]) == (
        "ready",
        "broker",
        1,
        broker.popen.pid,
    )
    assert about["advertised"] == f"{HOST}:{about['port']}"
    assert about["cluster_id"] == controller.ready()["cluster_id"] or not controller.ready()["cluster_id"]
    assert get(about["http"], "/readyz") == (200, "ready\n")
    assert get(about["http"], "/healthz") == (200, "ok\n")
    status, metrics = get(about["http"], "/metrics")
    assert status == 200
    assert "\ntidelog_broker_lease 1\n" in metrics
    with socket.create_connection((HOST, about["port"])):
        pass


def test_a_stop_in_order_ends_with_0_and_leaves_nothing_to_scan(start: Start, controller: Process) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    assert broker.stop() == 0
    assert (broker.data / ".clean_shutdown").exists()
    assert not broker.ready_file.exists()
    assert [*broker.events("broker.stopping"), *broker.events("broker.stopped")]


def test_ctrl_c_stops_in_order(start: Start, controller: Process) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    broker.signal(signal.SIGINT)
    assert broker.ends() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(
    start: Start, controller: Process, number: signal.Signals, code: int
) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    controller.kill()  # nobody can relieve it: its stop would wait
    broker.signal(signal.SIGTERM)
    broker.until(lambda: broker.events("broker.stopping"), "it is stopping")
    broker.signal(number)
    assert broker.ends() == code
    assert (broker.data / ".running").exists()


def test_a_terminal_that_goes_away_is_nothing_to_a_detached_one(start: Start, controller: Process) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    broker.signal(signal.SIGHUP)
    assert broker.stop() == 0
    assert [event["signal"] for event in broker.events("broker.stopping")] == ["SIGTERM"]


def test_it_is_told_where_others_find_it(
    start: Start, controller: Process, closed_port: Callable[[], int]
) -> None:
    port = closed_port()
    broker = start(
        *("broker", "b1", "--id", "1", "--listen", f"0.0.0.0:{port}", "--advertise", "broker-1.example:0"),
        *("--controllers", at(controller), "--http", "0.0.0.0:0"),
    )
    about = broker.ready()
    assert about["advertised"] == f"broker-1.example:{port}"
    records, metrics = broker.events("broker.open")
    assert "there is no authentication yet" in records["note"]
    assert (metrics["http"], metrics["note"]) == (
        "0.0.0.0:0",
        "whoever reaches this address may read metrics and health",
    )


def test_each_side_is_told_the_addresses_that_it_can_use(start: Start, controller: Process) -> None:
    broker = start(
        *("broker", "b1", "--id", "1", "--listen", f"{HOST}:0,host://0.0.0.0:0"),
        *("--advertise", "broker-1.example:9092,host://localhost:0", "--controllers", at(controller)),
    )
    assert broker.ready()["advertised"] == "broker-1.example:9092"
    first, other = broker.events("broker.listening")
    assert (other["name"], other["advertised"]) == ("host", f"localhost:{other['port']}")
    assert [event["listen"] for event in broker.events("broker.open")] == ["0.0.0.0:0"]
    for port, told in (
        (first["port"], ("broker-1.example", 9092)),
        (other["port"], ("localhost", other["port"])),
    ):
        ran = run("-b", f"{HOST}:{port}", "-o", "json", "broker", "list")
        about = json.loads(ran.out)
        assert (about["host"], about["port"]) == told, ran


def test_settings_come_from_file_environment_and_flags(
    start: Start, controller: Process, tmp_path: Path
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'controller.quorum.voters = "{at(controller)}"\n[node]\nid = 9\n[broker]\nrack = "a"\n')
    broker = start(
        *("broker", "b1", "-c", str(file), "-X", "open.segments=100", "--listen", f"{HOST}:0"),
        TIDELOG_NODE_ID="7",
    )
    assert broker.ready()["id"] == 7


def test_unreachable_controllers_are_named_while_it_keeps_trying(
    start: Start, closed_port: Callable[[], int]
) -> None:
    dead = closed_port()
    broker = start(
        *("broker", "b1", "--id", "1", "--listen", f"{HOST}:0", "--controllers", f"1@{HOST}:{dead}"),
        *("--http", f"{HOST}:0"),
    )
    [warning, *_] = broker.until(lambda: broker.events("controllers.unheard"), "it says so")
    assert warning["tried"] == f"c1 {HOST}:{dead}: Connection refused"
    assert warning["note"].endswith("start those controllers, or start this again with other --controllers")
    [listening] = broker.events("http.listening")
    status, why = get(f"{HOST}:{listening['port']}", "/readyz")
    assert status == 503
    assert f"{HOST}:{dead}: Connection refused" in why
    assert broker.stop() == 0


def test_a_second_broker_of_the_same_number_says_why_it_waits(start: Start, controller: Process) -> None:
    first = broker_of(start, controller)
    first.ready()
    second = broker_of(start, controller, "--http", f"{HOST}:0", name="b2")
    [warning, *_] = second.until(lambda: second.events("broker.not_registered"), "it says so")
    [listening] = second.events("http.listening")
    status, why = get(f"{HOST}:{listening['port']}", "/readyz")
    assert (status, warning["level"]) == (503, "warning")
    assert why == f"the broker has not joined the cluster yet: {warning['reason']}\n"
    assert (first.stop(), second.stop()) == (0, 0)


def test_a_broker_comes_back_to_its_data(start: Start, controller: Process) -> None:
    first = broker_of(start, controller)
    first.ready()
    assert first.stop() == 0
    second = broker_of(start, controller)
    assert second.ready()["id"] == 1


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────

ARGUMENTS = ("--id", "1", "--controllers", f"1@{HOST}:1")


def refused(*args: str, **environment: str) -> tuple[int, str]:
    """The exit code and the one line."""
    ran = run("broker", "start", *args, **environment)
    assert ran.out == ""
    lines = [line for line in ran.err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, ran.err
    return ran.code, lines[0]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--data", "x", "--controllers", "1@h:1"), "--id is missing"),
        (("--id", "1", "--data", "x"), "--controllers is missing"),
        (("--id", "1", "--controllers", "1@h:1"), "--data is missing"),
        (
            ("--id", "one", "--controllers", "1@h:1", "--data", "x"),
            "--id: node.id=one: it must be a whole number",
        ),
        (("--id", "1", "--controllers", "h:1", "--data", "x"), "it must be ID@HOST:PORT"),
        ((*ARGUMENTS, "--data", "x", "--listen", "9092"), "--listen: listeners=9092: it must be HOST:PORT"),
        (
            (*ARGUMENTS, "--data", "x", "--listen", "0.0.0.0:0"),
            "say with --advertise HOST:PORT where others find it",
        ),
        ((*ARGUMENTS, "--data", "x", "--advertise", "0.0.0.0:1"), "is no address of one machine"),
        (
            (*ARGUMENTS, "--data", "x", "--advertise", "broker..3:9092"),
            "advertised.listeners=broker..3:9092: it must be HOST:PORT",
        ),
        (
            (*ARGUMENTS, "--data", "x", "--listen", "127.0.0.1:0,host://0.0.0.0:0"),
            "say with --advertise host://HOST:PORT where others find it",
        ),
        (
            (*ARGUMENTS, "--data", "x", "--advertise", "h:1,host://h:2"),
            "--listen has no host://HOST:PORT",
        ),
        (
            (*ARGUMENTS, "--data", "x", "--listen", "127.0.0.1:1,host://127.0.0.1:1"),
            "it listens there already, take another port",
        ),
        (
            (*ARGUMENTS, "--data", "x", "-X", "replica.lag=1"),
            "-X replica.lag: replica.lag: there is no such setting",
        ),
        ((*ARGUMENTS, "--data", "x", "-X", "broker.heartbeat.interval.ms=5000"), "three of them must fit"),
        ((*ARGUMENTS, "--data", "x", "-c", "nowhere.toml"), "-c nowhere.toml cannot be read: No such file"),
        ((*ARGUMENTS, "--data", "x", "-c", "/"), "-c / is a directory"),
        ((*ARGUMENTS, "--data", "x", "--ready-file", "/nowhere/ready"), "there is no such directory"),
    ],
)
@pytest.mark.usefixtures("no_settings")
def test_what_was_typed_wrongly_is_told_in_one_line(
    tidelog: Tidelog, args: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tidelog("broker", "start", *args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert why in ran.err
    assert not list(tmp_path.iterdir())


def test_a_broken_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[broker\nrack = 1\n")
    code, line = refused(*ARGUMENTS, "--data", str(tmp_path / "x"), "-c", str(file))
    assert code == 2
    assert f"{file} is not TOML" in line
    assert "line 1" in line
    file.write_bytes(b'[broker]\nrack = "\xff"\n')
    code, line = refused(*ARGUMENTS, "--data", str(tmp_path / "x"), "-c", str(file))
    assert code == 2
    assert f"{file} is not TOML: byte 17 is not UTF-8" in line
    assert not (tmp_path / "x").exists()


def test_a_taken_port_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        where = f"{HOST}:{taken.getsockname()[1]}"
        code, line = refused(*ARGUMENTS, "--listen", where, "--data", str(tmp_path / "new" / "data"))
    assert code == 1
    assert f"cannot listen on {where}: another process does already" in line
    assert not (tmp_path / "new").exists()


def test_who_does_not_say_where_listens_on_loopback_only(tmp_path: Path) -> None:
    with port_taken(9092):
        code, line = refused(*ARGUMENTS, "--data", str(tmp_path / "x"))
    assert code == 1
    assert line.startswith("error: cannot listen on 127.0.0.1:9092: another process does already")


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    code, line = refused(*ARGUMENTS, "--listen", "192.0.2.1:9092", "--data", str(tmp_path / "x"))
    assert code == 1
    assert "this is not an address of this machine" in line
    assert not (tmp_path / "x").exists()


def test_a_directory_in_use_is_refused_with_the_process_that_has_it(
    start: Start, controller: Process
) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    code, line = refused(*ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(broker.data))
    assert code == 1
    assert f"is locked by process {broker.popen.pid}" in line
    assert broker.stop() == 0


def test_a_directory_of_another_broker_or_of_a_controller_is_refused(
    start: Start, controller: Process
) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    assert broker.stop() == 0
    arguments = ("--id", "2", "--controllers", at(controller), "--listen", f"{HOST}:0")
    code, line = refused(*arguments, "--data", str(broker.data))
    assert code == 1
    assert "belongs to broker 1, this is broker 2" in line
    controller.stop()
    code, line = refused(*ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(controller.data))
    assert code == 1
    assert "belongs to the controller, this is the broker" in line


def test_a_directory_of_another_cluster_is_refused(start: Start, controller: Process) -> None:
    broker = broker_of(start, controller)
    broker.ready()
    assert broker.stop() == 0
    other = start("controller", "other", "--id", "1", "--listen", f"{HOST}:0")
    other.ready()
    code, line = refused(
        "--id", "1", "--controllers", at(other), "--listen", f"{HOST}:0", "--data", str(broker.data)
    )
    assert code == 1
    identity = read_identity(open_directory(str(broker.data)))
    assert identity.cluster_id is not None
    assert identity.cluster_id.hex() in line
    assert other.ready()["cluster_id"] in line
    assert "check the addresses and the data directory" in line
    assert broker_of(start, controller).ready()["cluster_id"] == identity.cluster_id.hex()


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("mine")
    code, line = refused(*ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(file))
    assert (code, line) == (
        1,
        f"error: {file} is a file: --data must name a directory, which need not be there yet",
    )
    assert file.read_text() == "mine"


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    code, line = refused(*ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(tmp_path))
    assert code == 1
    assert "holds thesis.tex" in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    where = "/sys/tidelog" if os.geteuid() == 0 and os.path.isdir("/sys") else str(tmp_path / "x")
    tmp_path.chmod(0o500)
    code, line = refused(*ARGUMENTS, "--listen", f"{HOST}:0", "--data", where)
    tmp_path.chmod(0o700)
    assert code == 1
    assert "cannot be written" in line


def test_too_few_descriptors_are_refused_with_the_numbers(tmp_path: Path) -> None:
    limited = [
        "sh",
        "-c",
        'ulimit -n 300 && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "tidelog",
        "broker",
        "start",
    ]
    ran = subprocess.run(
        [*limited, *ARGUMENTS, "--data", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        "error: 300 files may be open at once, 2612 are needed (512 of logs, 2000 connections, 100 others): raise the"
    )
    assert not (tmp_path / "x").exists()


def test_an_interpreter_without_asserts_is_refused(tmp_path: Path) -> None:
    code, line = refused(*ARGUMENTS, "--data", str(tmp_path / "x"), PYTHONOPTIMIZE="1")
    assert code == 1
    assert line.startswith("error: python -O (or PYTHONOPTIMIZE) leaves out the checks")
    assert not (tmp_path / "x").exists()


def test_a_listening_port_of_pages_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        where = f"{HOST}:{taken.getsockname()[1]}"
        code, line = refused(
            *ARGUMENTS, "--listen", f"{HOST}:0", "--http", where, "--data", str(tmp_path / "x")
        )
    assert code == 1
    assert f"cannot listen on {where}" in line
    assert not (tmp_path / "x").exists()


def test_a_disk_that_has_no_room_is_refused_in_a_line(tmp_path: Path) -> None:
    """As below, on every machine: the same command line, on a disk that says that it is full."""
    (tmp_path / "full").write_bytes(b"\1")
    node = [sys.executable, "-m", "tidelog.testing.node", "--full-while", str(tmp_path / "full")]
    arguments = ["broker", "start", *ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*node, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.wait(60) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert f"the disk that holds {tmp_path / 'data'} is full" in said
    assert not (tmp_path / "data").exists()


def test_a_full_disk_at_the_first_start_is_refused(tmp_path: Path) -> None:
    mount = (
        'mount -t tmpfs -o size=64k none "$1" && head -c 1000000 /dev/zero > "$1/ballast"; shift; exec "$@"'
    )
    alone = ["unshare", *(() if os.geteuid() == 0 else ("-r",)), "-m", "sh", "-c", mount, "sh", str(tmp_path)]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    arguments = (*ARGUMENTS, "--listen", f"{HOST}:0", "--data", str(tmp_path / "data"))
    script = 'dir=$1; shift; "$@"; code=$?; ls -A "$dir"; exit $code'
    ran = subprocess.run(
        [*alone, "sh", "-c", script, "sh", str(tmp_path), *command("broker", "start", *arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env=clean_environment(),
    )
    assert ran.returncode == 1, ran
    assert (
        f"the disk that holds {tmp_path / 'data'} is full (0 bytes are free): make room on it" in ran.stderr
    )
    assert ran.stdout == "ballast\n"


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path, controller: Process) -> None:
    limited = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh", *command("broker", "start")]
    arguments = ("--id", "1", "--listen", f"{HOST}:0", "--controllers", at(controller), "--http", f"{HOST}:0")
    broker = Process(tmp_path / "b1", program=[*limited, *arguments])
    try:
        metrics = get(broker.ready()["http"], "/metrics")[1]
        assert int(metrics.partition("\ntidelog_process_open_fds_max ")[2].partition("\n")[0]) > 2600
    finally:
        broker.kill()
