"""Ports of the loopback that belong to a cluster while it lives, also while nobody listens there.

A node that was killed comes back where it was, and until then its port refuses. A socket that is bound and does not
listen does both on Linux: nobody else is given the port, and a listener of ours may still take it. Other systems
refuse the listener then; there a port is only looked for, and its number kept.
"""

import socket
import sys

HOST = "127.0.0.1"


class HeldPort:
    """One port. `close` gives it back."""

    def __init__(self, number: int = 0) -> None:
        self._socket: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, number))
            self.number: int = self._socket.getsockname()[1]
        except BaseException:
            self.close()
            raise
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Somebody else may have it."""
        held, self._socket = self._socket, None
        if held is not None:
            held.close()


def is_refused(number: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect((HOST, number))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
