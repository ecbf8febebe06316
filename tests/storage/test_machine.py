"""The machine as a node is given it: clocks that go on, an id per boot, files, ids, chance."""

import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from tidelog.storage.io import MachineClock, boot_id, machine, open_directory, real_environment


def test_the_clock_for_leases_goes_on_and_counts_milliseconds() -> None:
    clock = MachineClock()
    before, began = clock.boot_ms(), time.monotonic()
    while time.monotonic() - began < 0.01:
        pass
    assert 9 < clock.boot_ms() - before < 5000


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of Linux")
def test_on_linux_it_counts_the_time_that_the_machine_slept() -> None:
    assert abs(MachineClock().boot_ms() - time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) < 1000


def test_a_clock_that_the_kernel_does_not_know_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 999, raising=False)
    assert abs(MachineClock().boot_ms() - time.monotonic() * 1000) < 1000


def test_the_wall_clock_counts_from_1970() -> None:
    assert abs(MachineClock().wall_ms() - time.time() * 1000) < 1000


def test_a_boot_has_one_id() -> None:
    assert boot_id() == boot_id()
    if sys.platform == "linux":
        assert len(boot_id()) == 36


def test_where_nobody_knows_the_boot_it_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LINUX_BOOT_ID", "/nowhere/boot_id")
    monkeypatch.setattr(machine, "_MACOS_BOOT_ID", ("/nowhere/sysctl",))
    assert boot_id() == ""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert boot_id() == ""


def test_an_environment_is_all_that_a_node_needs(tmp_path: Path) -> None:
    def halt(reason: str) -> NoReturn:
        raise SystemExit(reason)

    one, other = (real_environment(open_directory(str(tmp_path)), halt) for _ in range(2))
    assert len(one.new_id()) == 16
    assert one.new_id() != one.new_id()
    assert one.rng.random() != other.rng.random()
    with one.new_guard():
        pass
