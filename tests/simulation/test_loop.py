"""The simulated loop keeps asyncio's promises (07-simulation 7.2), on every supported Python."""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.testing.simulation.determinism import RealWorldReached
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.loop import SimulatedLoop
from tidelog.testing.simulation.world import Deadlock, NotReached, Unexpected, World


def test_a_day_of_sleep_passes_at_once_and_counts_as_a_day(world: World, host: Host) -> None:
    world.result(host.create_task(asyncio.sleep(86_400)), deadline=90_000)
    assert world.now == pytest.approx(86_400, abs=0.001)


def test_the_loop_that_runs_is_the_one_of_the_host(world: World) -> None:
    async def my_loop() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop()

    hosts = [Host(name, world) for name in "abc"]
    tasks = [host.create_task(my_loop()) for host in hosts]
    assert [world.result(task) for task in tasks] == [host.loop for host in hosts]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_callbacks_run_in_the_order_of_asking_and_new_ones_in_the_next_turn(world: World, host: Host) -> None:
    ran: list[object] = []
    loop = asyncio_loop(host)

    def first() -> None:
        ran.append(1)
        loop.call_soon(ran.append, 4)

    loop.call_soon(first)
    loop.call_soon(ran.append, 2)
    loop.call_soon_threadsafe(ran.append, 3)
    world.run_for(1)
    assert ran == [1, 2, 3, 4]


def test_timers_fire_in_the_order_of_their_times_and_not_early(world: World, host: Host) -> None:
    fired: list[tuple[int, float]] = []
    loop = asyncio_loop(host)
    begin = loop.time()

    def fire(number: int) -> None:
        fired.append((number, loop.time() - begin))

    for number, delay in enumerate([0.3, 0.1, 0.2, 0.1]):
        loop.call_later(delay, fire, number)
    world.run_for(1)
    assert [number for number, _ in fired] == [1, 3, 2, 0]
    assert [at for _, at in fired] == pytest.approx([0.1, 0.1, 0.2, 0.3], abs=0.001)


def test_a_cancelled_timer_does_not_fire(world: World, host: Host) -> None:
    fired: list[int] = []
    asyncio_loop(host).call_later(0.1, fired.append, 1).cancel()
    world.run_for(1)
    assert fired == []


def test_waits_that_end_early_leave_no_timers_behind(world: World, host: Host) -> None:
    async def wait_often() -> int:
        for _ in range(5000):
            await asyncio.wait_for(asyncio.sleep(0.001), timeout=3600)
        return len(asyncio_loop(host)._timers)

    assert world.result(host.create_task(wait_often())) < 300


def test_tasks_that_have_ended_are_let_go(world: World, host: Host) -> None:
    async def make_tasks() -> int:
        for _ in range(5000):
            await asyncio.create_task(asyncio.sleep(0))
        return len(asyncio_loop(host)._tasks)

    assert world.result(host.create_task(make_tasks())) < 300


def test_timeouts_cancel_what_they_wait_for(world: World, host: Host) -> None:
    async def too_slow() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        world.result(host.create_task(too_slow()))
    assert world.now == pytest.approx(1, abs=0.001)


def test_a_task_group_cancels_the_others_in_the_order_of_their_making(world: World, host: Host) -> None:
    cancelled: list[int] = []

    async def one(number: int) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(one(number))
            await asyncio.sleep(1)
            raise ValueError("the end")

    with pytest.raises(ExceptionGroup):
        world.result(host.create_task(group()))
    assert cancelled == list(range(20))


def test_locks_events_and_queues_work(world: World, host: Host) -> None:
    async def relay() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock, started = asyncio.Lock(), asyncio.Event()

        async def produce() -> None:
            await started.wait()
            for number in range(5):
                async with lock:
                    await queue.put(number)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            started.set()
            return [await queue.get() for _ in range(5)]

    assert world.result(host.create_task(relay())) == [0, 1, 2, 3, 4]


def test_callbacks_take_time_so_that_a_livelock_does_not_stop_the_world(world: World, host: Host) -> None:
    def spin() -> None:
        asyncio_loop(host).call_soon(spin)

    spin()
    world.run_for(0.1)
    assert world.now == pytest.approx(0.1)


def test_a_function_in_the_executor_runs_now_and_is_heard_of_later(world: World, host: Host) -> None:
    host.slow_disk((10, 20))
    written: list[str] = []

    async def flush() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()
        written.append("before")
        covered = loop.run_in_executor(None, written.copy)
        loop.call_later(0.041, written.append, "late")
        await asyncio.sleep(0.0001)
        written.append("while it waits")
        return await covered, written

    covered, _ = world.result(host.create_task(flush()))
    assert covered == ["before", "while it waits"]
    assert 0.02 < world.now < 0.041


def test_what_a_function_in_the_executor_raises_comes_to_who_waits(world: World, host: Host) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    async def flush() -> None:
        await asyncio.to_thread(fail)

    with pytest.raises(OSError, match="the disk is gone"):
        world.result(host.create_task(flush()))


def test_no_loop_runs_in_a_worker_thread(world: World, host: Host) -> None:
    async def look() -> object:
        return await asyncio.get_running_loop().run_in_executor(None, asyncio._get_running_loop)

    assert world.result(host.create_task(look())) is None


@pytest.mark.parametrize(
    "reach",
    [
        lambda: asyncio.get_running_loop().run_forever(),
        lambda: asyncio.get_running_loop().add_reader(0, print),
        lambda: asyncio.get_running_loop().add_signal_handler(2, print),
        lambda: asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), print),
        lambda: time.sleep(1),
        socket.socket,
        lambda: threading.Thread(target=print).start(),
    ],
)
def test_what_would_leave_the_simulation_is_refused(world: World, host: Host, reach: object) -> None:
    async def try_it() -> None:
        assert callable(reach)
        reach()

    with pytest.raises((NotImplementedError, RealWorldReached)):
        world.result(host.create_task(try_it()))


def test_an_error_that_nobody_caught_ends_the_run_with_its_time() -> None:
    def fail() -> None:
        raise ValueError("forgotten")

    def run() -> None:
        with World(1).running() as world:
            asyncio_loop(started(world)).call_later(3, fail)
            world.run(10)

    with pytest.raises(Unexpected, match=r"at 3\.0.* on b1: .*ValueError"):
        run()


def test_a_failed_task_that_nobody_asks_about_is_an_error() -> None:
    async def fail() -> None:
        raise ValueError("forgotten")

    def run() -> None:
        with World(1).running() as world:
            task = started(world).create_task(fail())
            del task
            world.run(10)

    with pytest.raises(Unexpected, match="forgotten"):
        run()


def test_a_main_that_fails_is_an_error_unless_expected(world: World) -> None:
    async def main(_environment: Environment) -> None:
        raise ValueError("no such config")

    host = Host("b1", world)
    world.expect(ValueError, "no such")
    host.start(main)
    world.run_until(lambda: not host.alive)
    assert [str(error.error) for error in world.errors] == ["no such config"]
    assert host.exit_code == 1


def test_a_lost_wake_up_is_found_when_nothing_is_due(world: World, host: Host) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"Event\.wait"):
        world.result(host.create_task(wait_for_ever()))


def test_a_lost_wake_up_is_found_by_its_deadline_when_timers_go_on(world: World, host: Host) -> None:
    def tick() -> None:
        asyncio_loop(host).call_later(0.1, tick)

    tick()
    with pytest.raises(NotReached, match="not reached by 5 s"):
        world.run_until(lambda: False, deadline=5)


def test_shuffled_callbacks_run_in_any_order_within_a_turn() -> None:
    with World(1, shuffle=True).running() as world:
        ran: list[int] = []
        loop = asyncio_loop(started(world))
        for number in range(20):
            loop.call_soon(ran.append, number)
        world.run_for(1)
    assert ran != sorted(ran)
    assert sorted(ran) == list(range(20))


def asyncio_loop(host: Host) -> SimulatedLoop:
    assert host.loop is not None
    return host.loop


def started(world: World) -> Host:
    host = Host("b1", world)
    host.start()
    return host
