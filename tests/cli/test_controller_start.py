"""`tidelog controller start`, as a real process: alone and as one of three, and what is refused."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.node_processes import HOST, Process, get, nodes, port_taken, run

pytestmark = pytest.mark.slow

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with nodes(tmp_path) as started:
        yield started


def three(start: Start, closed_port: Callable[[], int]) -> list[Process]:
    ports = {number: closed_port() for number in (1, 2, 3)}
    quorum = ",".join(f"{number}@{HOST}:{port}" for number, port in ports.items())
    return [
        start("controller", f"c{n}", "--id", str(n), "--quorum", quorum, "--http", f"{HOST}:0") for n in ports
    ]


def test_a_controller_alone_leads_at_once(start: Start) -> None:
    controller = start("controller", "c1", "--id", "1", "--listen", f"{HOST}:0", "--http", f"{HOST}:0")
    about = controller.ready()
    assert (about["role"], about["host"]) == ("controller", HOST)
    assert about["advertised"] == f"{HOST}:{about['port']}"
    controller.until(lambda: controller.out, "it is said on stdout")
    assert f"controller 1 is ready at {HOST}:{about['port']}" in controller.out
    assert get(about["http"], "/readyz") == (200, "ready\n")
    _, metrics = get(about["http"], "/metrics")
    assert "\ntidelog_controller_active 1\n" in metrics
    assert '\ntidelog_controller_role{role="leader"} 1\n' in metrics
    assert controller.stop() == 0
    assert (controller.data / ".clean_shutdown").exists()


def test_others_find_a_controller_where_the_quorum_says(start: Start) -> None:
    controller = start(
        "controller", "c1", "--id", "1", "--listen", f"{HOST}:0", "--quorum", "1@controller-1.example:9192"
    )
    about = controller.ready()
    assert about["advertised"] == "controller-1.example:9192"
    assert about["port"] not in {0, 9192}


def test_one_that_others_reach_is_warned_that_anybody_may_write(start: Start) -> None:
    controller = start(
        "controller", "c1", "--id", "1", "--listen", "0.0.0.0:0", "--quorum", "1@localhost:9192"
    )
    controller.ready()
    [warning] = controller.events("controller.open")
    assert "there is no authentication yet" in warning["note"]


def test_three_controllers_are_ready_when_one_leads(start: Start, closed_port: Callable[[], int]) -> None:
    first, *others = controllers = three(start, closed_port)
    abouts = [controller.ready() for controller in controllers]
    assert len({about["cluster_id"] for about in abouts if about["cluster_id"]}) <= 1
    active = [get(about["http"], "/metrics")[1].count("\ntidelog_controller_active 1\n") for about in abouts]
    assert sum(active) == 1
    first.kill()
    others[0].kill()
    last = others[1]
    [warning, *_] = last.until(lambda: last.events("controllers.unheard"), "it misses the others")
    assert warning["tried"].count("Connection refused") == 2
    status, why = get(abouts[2]["http"], "/readyz")
    assert status == 503
    assert "Connection refused" in why
    assert last.stop() == 0


def test_one_of_three_alone_says_so_and_is_not_ready(start: Start, closed_port: Callable[[], int]) -> None:
    dead = closed_port(), closed_port()
    quorum = f"1@{HOST}:{closed_port()},2@{HOST}:{dead[0]},3@{HOST}:{dead[1]}"
    controller = start("controller", "c1", "--id", "1", "--quorum", quorum, "--http", f"{HOST}:0")
    [warning, *_] = controller.until(lambda: controller.events("controllers.unheard"), "it says so")
    for number, port in zip((2, 3), dead, strict=True):
        assert f"c{number} {HOST}:{port}: Connection refused" in warning["tried"]
    assert warning["note"].endswith("start those controllers, or start this again with other --quorum")
    [listening] = controller.events("http.listening")
    assert get(f"{HOST}:{listening['port']}", "/readyz")[0] == 503
    assert not controller.ready_file.exists()
    controller.signal(signal.SIGTERM)
    assert controller.ends() == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--data", "x"), "--id is missing"),
        (("--id", "1"), "--data is missing"),
        (("--id", "4", "--data", "x", "--quorum", "1@h:1"), "controller 4 among them"),
        (("--id", "1", "--data", "x", "--quorum", "1@h:1,1@h:2"), "each id once"),
        (("--id", "1", "--data", "x", "--quorum", "1@h:0,2@h:2"), "with port 0 the others would not find it"),
        (("--id", "1", "--data", "x", "--listen", "[::]:0"), "say with --quorum"),
        (("--id", "1", "--data", "x", "-X", "broker.rack=a"), "this is for a broker"),
        (("--id", "1", "--data", "x", "-X", "quorum.fetch.timeout.ms=5000"), "it must be below half of"),
    ],
)
@pytest.mark.usefixtures("no_settings")
def test_what_was_typed_wrongly_is_told_in_one_line(
    tidelog: Tidelog, args: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tidelog("controller", "start", *args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert why in ran.err
    assert not list(tmp_path.iterdir())


def test_who_does_not_say_where_listens_on_loopback_only(tmp_path: Path) -> None:
    with port_taken(9192):
        ran = run("controller", "start", "--id", "1", "--data", str(tmp_path / "x"))
    assert ran.code == 1
    assert "error: cannot listen on 127.0.0.1:9192: another process does already" in ran.err
    assert not (tmp_path / "x").exists()


def test_a_host_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    ran = run(
        "controller",
        "start",
        "--id",
        "1",
        "--listen",
        "no-such-host.invalid:1",
        "--data",
        str(tmp_path / "x"),
    )
    assert ran.code == 1
    assert "the host is not known" in ran.err
    assert not (tmp_path / "x").exists()


def test_another_quorum_than_the_one_that_was_founded_is_refused(
    start: Start, closed_port: Callable[[], int]
) -> None:
    controller = start("controller", "c1", "--id", "1", "--listen", f"{HOST}:0")
    port = controller.ready()["port"]
    assert controller.stop() == 0
    quorum = f"1@{HOST}:{port},2@{HOST}:{closed_port()},3@{HOST}:{closed_port()}"
    ran = run("controller", "start", "--id", "1", "--quorum", quorum, "--data", str(controller.data))
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith(
        "error: the configuration names the voters [1, 2, 3], the metadata log [1]: name the controllers that"
    )


# ── a process of its own ──────────────────────────────────────────────────────────────────────────────

ON_ITS_OWN = """
import os, pathlib, sys
{before}
from tidelog.cli import main
main(sys.argv[1:])
"""
FAILING_DISK = """
from tidelog.storage.io import disk
real, broken = disk._flush_data, pathlib.Path(os.environ["BROKEN"])
def flush(fd):
    if broken.exists():
        raise OSError(5, "Input/output error")
    real(fd)
disk._flush_data = flush
"""
ARGUMENTS = ("controller", "start", "--id", "1", "--listen", f"{HOST}:0")


def test_a_disk_that_fails_ends_it_with_one_line(tmp_path: Path) -> None:
    program = [sys.executable, "-c", ON_ITS_OWN.format(before=FAILING_DISK), *ARGUMENTS]
    controller = Process(tmp_path, program=program, environment={"BROKEN": str(tmp_path / "broken")})
    try:
        controller.ready()
        (tmp_path / "broken").touch()
        assert controller.ends() == 70
        [halted] = controller.events("process.halted")
        assert halted["exit"] == 70
        assert "Input/output error" in halted["reason"]
        assert controller.err.splitlines()[-1].count("process.halted") == 1
        assert not (controller.data / ".clean_shutdown").exists()
    finally:
        controller.kill()


def test_without_uvloop_it_runs_on_the_loop_of_asyncio(tmp_path: Path) -> None:
    before = 'sys.modules["uvloop"] = None'
    program = [sys.executable, "-c", ON_ITS_OWN.format(before=before), *ARGUMENTS, "--http", f"{HOST}:0"]
    controller = Process(tmp_path, program=program)
    try:
        assert 'loop="asyncio"' in get(controller.ready()["http"], "/metrics")[1]
        assert controller.stop() == 0
    finally:
        controller.kill()


def test_a_terminal_that_goes_away_stops_it_in_order(tmp_path: Path) -> None:
    master, slave = os.openpty()
    take = (
        "import fcntl, signal, termios\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have been told to ignore it\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    )
    program = [sys.executable, "-c", ON_ITS_OWN.format(before=take), *ARGUMENTS]
    controller = Process(tmp_path, program=program, stdin=slave)
    os.close(slave)
    try:
        controller.ready()
        os.close(master)
        assert controller.ends() == 0
        assert [event["signal"] for event in controller.events("controller.stopping")] == ["SIGHUP"]
    finally:
        controller.kill()
