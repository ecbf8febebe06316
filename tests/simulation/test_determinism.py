"""One seed is one run, and it is seen when it is not (07-simulation 7.5): mistakes are planted and caught."""

import asyncio
import gc
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from tests.simulation.demo_network import EVERYBODY, LINES_PORT, Watched, ask, echo_scenario, serve_echoes
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.seeds import run_seed, run_seeds
from tidelog.testing.simulation.trace import Trace
from tidelog.testing.simulation.world import Deadlock, World

logger = logging.getLogger(__name__)


def faults_scenario(world: World) -> None:
    """Ten drawn faults on three hosts that watch each other, then peace: they must find each other again."""
    watched, network = Watched(world), world.network
    for _ in range(10):
        world.run_for(world.rng.uniform(0.1, 4))
        name, other = world.rng.sample(sorted(watched.hosts), 2)
        host = watched.hosts[name]
        fault = world.chosen(dict.fromkeys(["cut", "one-way", "heal", "stop", "kill", "power", "reset"], 1))
        world.counts[fault] += 1
        if fault in ("cut", "one-way"):
            network.partition(name, other, both=fault == "cut")
        elif fault == "heal":
            network.heal(name)
        elif fault == "reset":
            for connection in network.connections(name):
                connection.reset()
        else:
            {"stop": host.stop, "kill": host.kill, "power": host.power_cut}[fault]()
    network.heal()
    for name, host in watched.hosts.items():
        host.resume()
        if not host.alive:
            watched.restart(name)
    world.run_until(lambda: all(watched.sees(name) == EVERYBODY[name] for name in EVERYBODY), world.now + 60)


# ── the same seed ──────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    first, again, other = (run_seed(echo_scenario, seed) for seed in (1, 1, 2))
    assert first.failure is None
    assert first == again
    assert first.digest != other.digest
    assert first.counts == {"round trips": 500}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_drawn_faults_heal_and_repeat(seed: int) -> None:
    outcome = run_seed(faults_scenario, seed)
    assert outcome.failure is None, outcome.failure
    assert outcome == run_seed(faults_scenario, seed)


@pytest.mark.slow
def test_a_seed_is_the_same_run_under_every_hash_seed() -> None:
    program = (
        "from tests.simulation.test_determinism import *;"
        "print(run_seed(echo_scenario, 7).digest, run_seed(faults_scenario, 7).digest)"
    )
    digests = {digest_in_process(program, hash_seed) for hash_seed in ("0", "1", "7")}
    assert len(digests) == 1


@pytest.mark.slow
def test_seeds_run_in_other_processes_as_they_do_in_this_one() -> None:
    outcomes = list(run_seeds(faults_scenario, range(4)))
    assert outcomes == [run_seed(faults_scenario, seed) for seed in range(4)]


def digest_in_process(program: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


# ── planted mistakes ───────────────────────────────────────────────────────────────────────────────


def in_the_order_of_addresses(world: World) -> None:
    """Clients ask in the order of a set of objects: that of their addresses."""

    class Client:
        pass

    ballast.append([object() for _ in range(random.Random(len(ballast)).randrange(1000))])
    Host("server", world).start(serve_echoes)
    world.run(until=1)
    clients = {Client(): number for number in range(20)}
    host = Host("c", world)
    for client in set(clients):
        host.spawn(ask("server", LINES_PORT, clients[client]))
    world.run(until=20)


ballast: list[object] = []


def in_the_order_of_hashes(world: World) -> None:
    """Clients ask in the order of a set of strings: that of their hashes."""
    Host("server", world).start(serve_echoes)
    world.run(until=1)
    host = Host("c", world)
    names = frozenset(["orders", "payments", "clicks", "views", "carts"])
    for name in names:
        host.spawn(ask("server", LINES_PORT, len(name)))
    world.run(until=20)


def by_real_time(world: World) -> None:
    """A message says when it was sent, by a clock that nobody injected."""

    async def stamp() -> None:
        _, writer = await asyncio.open_connection("server", LINES_PORT)
        writer.write(datetime.now(UTC).isoformat().encode() + b"\n")
        await asyncio.sleep(1)
        writer.close()

    Host("server", world).start(serve_echoes)
    world.run(until=1)
    world.result(Host("c", world).create_task(stamp()))


def with_a_lost_wake_up(world: World) -> None:
    """Who has waited is told only if it waited before the news came."""
    waiters: list[asyncio.Future[None]] = []

    async def wait() -> None:
        await asyncio.to_thread(time.monotonic)
        waiters.append(asyncio.get_running_loop().create_future())
        await waiters[0]

    async def tell() -> None:
        await asyncio.to_thread(time.monotonic)
        for waiter in waiters:
            waiter.set_result(None)

    host = Host("b1", world)
    waiting = host.create_task(wait())
    host.spawn(tell())
    world.result(waiting)


@pytest.mark.slow
def test_the_order_of_a_set_of_objects_is_caught() -> None:
    assert len({run_seed(in_the_order_of_addresses, 1).digest for _ in range(10)}) > 1


@pytest.mark.slow
def test_the_order_of_a_set_of_strings_is_caught() -> None:
    program = (
        "from tests.simulation.test_determinism import *; print(run_seed(in_the_order_of_hashes, 1).digest)"
    )
    assert len({digest_in_process(program, hash_seed) for hash_seed in "0123"}) > 1


def test_a_use_of_real_time_is_caught() -> None:
    assert run_seed(by_real_time, 1).digest != run_seed(by_real_time, 1).digest


@pytest.mark.slow
def test_a_lost_wake_up_is_caught_by_some_seed_and_says_where() -> None:
    failures = [
        outcome.failure for seed in range(10) if (outcome := run_seed(with_a_lost_wake_up, seed)).failure
    ]
    assert 0 < len(failures) < 10
    assert all(Deadlock.__name__ in failure and "wait, line" in failure for failure in failures)


# ── the measures ───────────────────────────────────────────────────────────────────────────────────


def test_chance_comes_from_the_seed_whoever_asks() -> None:
    def draw(seed: int) -> list[object]:
        with World(seed).running():
            return [
                random.random(),
                random.Random().random(),
                os.urandom(4),
                uuid.uuid4(),
                secrets.token_hex(4),
                random.SystemRandom().random(),
            ]

    assert draw(1) == draw(1)
    assert not set(draw(1)) & set(draw(2))


def test_another_thread_of_the_process_is_no_part_of_the_world() -> None:
    """A client that a test has not closed goes on trying beside the tests that follow."""

    def live() -> float:
        logger.warning("metadata.not_refreshed")
        os.urandom(4)
        random.Random()
        with socket.socket():
            return time.time()

    def alone(world: World) -> None:
        world.run(1)

    def accompanied(world: World) -> None:
        alone(world)
        assert pool.submit(live).result() >= began

    began = time.time()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(live).result()  # its thread begins before the worlds
        outcome = run_seed(accompanied, 1)
    assert outcome.failure is None, outcome.failure
    assert outcome == run_seed(alone, 1)


def test_all_is_as_it_was_when_a_run_is_over() -> None:
    before = (time.time, os.urandom, os._exit, random.getstate(), asyncio.TaskGroup.__init__, gc.isenabled())
    with World(1).running():
        assert time.time is not before[0]
        random.random()
    after = (time.time, os.urandom, os._exit, random.getstate(), asyncio.TaskGroup.__init__, gc.isenabled())
    assert after == before


def test_log_records_carry_virtual_time_and_their_host(world: World, host: Host) -> None:
    async def log() -> None:
        await asyncio.sleep(3)
        logger.warning("isr.shrunk partition=%s", "orders-0")

    world.result(host.create_task(log()))
    (line,) = [event for event in world.trace.events("b1") if event.what == "warning"]
    assert line.details == ("isr.shrunk partition=orders-0",)
    assert line.time == pytest.approx(3, abs=0.001)


def test_a_trace_keeps_its_last_events_and_its_digest_all() -> None:
    one, other = Trace(keep=2), Trace(keep=2)
    for number in range(3000):
        one.note(number, "b1", "event", number)
        other.note(number, "b1", "event", number or -1)
    assert str(one) == str(other)
    assert [event.details for event in one.events()] == [(2998,), (2999,)]
    assert one.digest() != other.digest()


def test_a_failing_seed_says_all_that_is_needed_to_see_it_again() -> None:
    failure = run_seed(fail_at_three_seconds, 5).failure
    assert failure is not None
    assert "seed 5, Python 3." in failure
    assert "at 3.000000 s" in failure
    assert "b1           start" in failure


def fail_at_three_seconds(world: World) -> None:
    Host("b1", world).start()
    world.run(until=3)
    raise AssertionError("as planned")
