"""What keeps tests apart, and ends what they started, where the kernel does not help: played on whatever system this is."""

import socket
import subprocess
import sys

import pytest

from tidelog.testing.ports import HOST, HeldPort

CHILD = """
import sys
sys.platform = "darwin"
from tidelog.testing import node
node._die_with_the_parent()
print("ready", flush=True)
import signal
while True:
    signal.pause()
"""


def test_a_port_that_cannot_be_held_is_a_number_that_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    port = HeldPort()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as another:
        another.bind((HOST, port.number))  # as nobody could who is not let share it
        assert another.getsockname()[1] == port.number
    port.close()


@pytest.mark.slow
def test_a_node_ends_with_its_parents_end_of_stdin() -> None:
    """On Linux the kernel would do it as well, and nobody would see whether this works."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(30) == -9
