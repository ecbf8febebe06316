"""How every test runs: Hypothesis without stop-watches, because a busy machine is not a bug, and Ctrl-C as usual."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.shares import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from tests.telling import pytest_terminal_summary, tell
from tidelog.testing.ports import HeldPort

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "pytest_xdist_make_scheduler",
    "tell",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected lives as long as the run: whoever looks for garbage need not look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def closed_port() -> Iterator[Callable[[], int]]:
    """Gives ports where nobody listens: until the test ends nobody but itself may, whoever looks for a free one."""
    with ExitStack() as held:

        def one() -> int:
            port = HeldPort()
            held.callback(port.close)
            return port.number

        yield one


settings.register_profile("tidelog", deadline=None, print_blob=True)
settings.load_profile("tidelog")

# A shell starts its background jobs with SIGINT ignored, and programs inherit that from whoever starts them: a test
# that interrupts a program would wait for ever. With a handler here, what tests start has the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: here it is still of no effect
    signal.signal(signal.SIGHUP, lambda *_: None)
