"""Programs run on the fastest loop there is."""

import asyncio
import gc
import sys

import pytest

from tidelog.protocol.io.runner import fastest_loop, run, tune_malloc


def test_a_program_runs_and_returns() -> None:
    async def name_of_the_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(name_of_the_loop()).startswith("uvloop")


def test_without_uvloop_asyncio_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert fastest_loop() is asyncio.new_event_loop


def test_memory_is_tuned_where_there_is_glibc() -> None:
    assert tune_malloc() in {True, False}


def test_a_system_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not tune_malloc()


def test_what_a_process_keeps_is_not_looked_at_time_and_again() -> None:
    async def thresholds() -> tuple[int, int, int]:
        return gc.get_threshold()

    before = gc.get_threshold()
    try:
        assert run(thresholds()) > (700, 10, 10)
    finally:
        gc.set_threshold(*before)
