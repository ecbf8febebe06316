"""Simulated hosts live, die and come back as machines do (07-simulation 7.2, 7.3, and the scenario of 7.7)."""

import asyncio
import os
import time
from datetime import UTC, datetime

import pytest

from tests.simulation.demo_network import EVERYBODY, Watched
from tidelog.storage.files import Directory
from tidelog.testing.simulation.faults import Killed, PowerCut
from tidelog.testing.simulation.host import FATAL, Environment, Host
from tidelog.testing.simulation.world import World


def write(directory: Directory, name: str, content: bytes, *, flush: bool) -> None:
    file = directory.open(name, create=True)
    file.write_at(0, content)
    if flush:
        file.flush()
        directory.flush()
    file.close()


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class Diary:
    """A main that notes what happens to it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.environments: list[Environment] = []

    async def main(self, environment: Environment) -> None:
        self.environments.append(environment)
        self.lines.append(f"life {environment.life}")
        try:
            await for_ever()
        finally:
            self.lines.append("finally")


# ── the failure detector ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


def test_everybody_sees_everybody(watched: Watched) -> None:
    assert watched.settle() == EVERYBODY


def test_a_partition_is_seen_by_both_sides_and_its_healing_too(watched: Watched) -> None:
    watched.settle()
    watched.world.network.isolate("c")
    assert watched.settle() == {"a": ["b"], "b": ["a"], "c": []}
    watched.world.network.heal()
    watched.world.run_for(30)
    assert watched.settle() == EVERYBODY


def test_a_one_way_cut_is_seen_by_one_side(watched: Watched) -> None:
    watched.settle()
    watched.world.network.partition("a", "b", both=False)
    watched.world.run_for(2)
    assert watched.sees("b") == ["c"]
    assert watched.sees("c") == ["a", "b"]


def test_a_stopped_host_is_missed_and_comes_back(watched: Watched) -> None:
    watched.settle()
    watched.hosts["b"].stop()
    assert watched.settle() == {"a": ["c"], "c": ["a"]}
    watched.hosts["b"].resume()
    watched.world.run_for(30)
    assert watched.settle() == EVERYBODY


def test_a_killed_host_is_missed_and_comes_back(watched: Watched) -> None:
    watched.settle()
    watched.hosts["b"].kill()
    assert watched.settle() == {"a": ["c"], "c": ["a"]}
    watched.restart("b")
    assert watched.settle() == EVERYBODY


def test_a_host_without_power_is_missed_and_comes_back(watched: Watched) -> None:
    watched.settle()
    watched.hosts["b"].power_cut()
    assert watched.settle() == {"a": ["c"], "c": ["a"]}
    watched.restart("b")
    watched.world.run_for(30)
    assert watched.settle() == EVERYBODY


# ── dying ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_process_does_nothing_more_not_even_its_finally(world: World) -> None:
    diary = Diary()
    host = Host("b1", world)
    host.start(diary.main)
    world.run_for(1)
    host.kill()
    world.run_for(100)
    assert diary.lines == ["life 1"]
    assert not host.alive


def test_what_was_killed_is_finished_in_silence_when_the_world_ends() -> None:
    diary = Diary()
    with World(1).running() as world:
        host = Host("b1", world)
        host.start(diary.main)
        world.run_for(1)
        host.kill()
    assert diary.lines == ["life 1", "finally"]


def test_a_restart_is_another_life_on_the_same_disk(world: World) -> None:
    diary = Diary()
    host = Host("b1", world)
    host.start(diary.main)
    world.run_for(1)
    write(diary.environments[0].directory, "log", b"visible", flush=False)
    host.restart(diary.main)
    world.run_for(1)
    assert diary.lines == ["life 1", "life 2"]
    assert diary.environments[1].directory.open("log").read_at(0, 9) == b"visible"


def test_a_power_cut_keeps_what_was_flushed(world: World) -> None:
    host = Host("b1", world)
    directory = host.disk.open_directory()
    write(directory, "flushed", b"kept", flush=True)
    write(directory, "visible", bytes(100_000), flush=False)
    host.power_cut()
    host.boot()
    found = host.disk.open_directory()
    assert found.open("flushed").read_at(0, 9) == b"kept"


def test_locks_of_a_killed_process_are_free_for_the_next(world: World) -> None:
    host = Host("b1", world)
    host.start()
    host.disk.open_directory().lock(".lock", b"")
    host.restart()
    host.disk.open_directory().lock(".lock", b"")


@pytest.mark.parametrize("crash", [Killed, PowerCut])
def test_a_crash_of_the_disk_ends_its_host_at_once_and_no_other(
    world: World, crash: type[Killed | PowerCut]
) -> None:
    said: list[str] = []

    async def main(environment: Environment) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, write_it, environment)
        finally:
            said.append("the dead speak")

    def write_it(environment: Environment) -> None:
        write(environment.directory, "log", b"x", flush=True)

    host, other = Host("b1", world), Host("b2", world)
    other.start()
    host.disk.crash_at(2, crash=crash)
    host.start(main)
    world.run_for(1)
    assert (host.alive, host.powered, other.alive) == (False, crash is Killed, True)
    assert said == []


def test_a_crash_in_the_middle_of_a_turn_sends_no_last_words(world: World) -> None:
    async def main(environment: Environment) -> None:
        try:
            write(environment.directory, "log", b"x", flush=True)
        finally:
            asyncio.get_running_loop().call_soon(heard.append, "last words")

    heard: list[str] = []
    host = Host("b1", world)
    host.disk.crash_at(2, crash=Killed)
    host.start(main)
    world.run_for(1)
    assert not host.alive
    assert heard == []


@pytest.mark.parametrize("how", ["halt", "os._exit", "SystemExit"])
def test_a_process_can_end_itself_and_the_test_goes_on(world: World, how: str) -> None:
    async def main(environment: Environment) -> None:
        if how == "halt":
            environment.halt("a flush failed")
        if how == "os._exit":
            os._exit(FATAL)
        raise SystemExit(FATAL)

    host = Host("b1", world)
    host.start(main)
    world.run_for(1)
    assert not host.alive
    assert host.exit_code == FATAL


def test_a_main_that_returns_ends_the_other_tasks_of_its_process_first(world: World) -> None:
    diary = Diary()

    async def main(environment: Environment) -> None:
        diary.lines.append("begin")
        task = asyncio.create_task(diary.main(environment))
        await asyncio.sleep(1)
        diary.lines.append("return")
        del task

    host = Host("b1", world)
    host.start(main)
    world.run_until(lambda: not host.alive, 5)
    assert diary.lines == ["begin", "life 1", "return", "finally"]
    assert host.exit_code == 0


# ── stopping ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stopped_process_hears_the_network_before_its_overdue_timers(world: World, host: Host) -> None:
    heard: list[str] = []
    assert host.loop is not None
    host.loop.call_later(1, heard.append, "timer")
    host.stop()
    world.run_for(2)
    host.loop.call_io(heard.append, "segment")
    world.run_for(2)
    assert heard == []
    host.resume()
    world.run_for(1)
    assert heard == ["segment", "timer"]


def test_worker_threads_of_a_stopped_process_stand_still(world: World, host: Host) -> None:
    done: list[float] = []
    assert host.loop is not None
    future = host.loop.run_in_executor(None, lambda: done.append(world.now))
    host.stop()
    world.run_for(100)
    assert done == []
    host.resume()
    world.run_for(1)
    assert future.done()
    assert len(done) == 1


# ── clocks ─────────────────────────────────────────────────────────────────────────────────────────


def test_clocks_of_hosts_have_nothing_in_common_but_their_speed(world: World) -> None:
    a, b = Host("a", world), Host("b", world)
    before = [(h.clock.wall_ms(), h.clock.boot_ms(), h.monotonic()) for h in (a, b)]
    world.run_for(10)
    after = [(h.clock.wall_ms(), h.clock.boot_ms(), h.monotonic()) for h in (a, b)]
    for old, new in zip(before, after, strict=True):
        assert [y - x for x, y in zip(old, new, strict=True)] == pytest.approx([10_000, 10_000, 10])
    assert all(x != y for x, y in zip(*before, strict=True))


def test_a_wall_clock_may_jump_and_the_boot_clock_does_not(host: Host) -> None:
    wall, boot = host.clock.wall_ms(), host.clock.boot_ms()
    host.clock.jump(-60_000)
    assert host.clock.wall_ms() == wall - 60_000
    assert host.clock.boot_ms() == boot


def test_only_a_boot_changes_the_boot_id_and_begins_the_boot_clock_anew(world: World) -> None:
    host = Host("b1", world)
    boot_id = host.boot_id
    host.start()
    world.run_for(5)
    host.restart()
    assert host.boot_id == boot_id
    host.power_cut()
    host.restart()
    assert host.boot_id != boot_id
    assert host.clock.boot_ms() == 0


def test_the_time_module_tells_the_time_of_the_host_whose_code_asks(world: World, host: Host) -> None:
    async def look() -> tuple[float, float]:
        return time.time(), time.monotonic()

    host.clock.jump(5_000)
    wall, monotonic = world.result(host.create_task(look()))
    assert wall == pytest.approx(host.clock.wall_ms() / 1000, abs=0.01)
    assert monotonic == pytest.approx(host.monotonic(), abs=0.01)
    assert datetime.fromtimestamp(wall, UTC).year == 2023
