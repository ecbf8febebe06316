"""The product's own command line as a child that does not outlive its parent, and whose disk can be full.

    python -m tidelog.testing.node [--full-while FILE] broker start --id 1 ...

What it keeps true:

* Nothing of a test outlives it. The parent holds the other end of stdin and says nothing: when that ends, however the
  parent has ended, this process is killed. A paused process cannot look; on Linux the kernel does it.
* The disk is the real one while the first byte of FILE is 0, and a full one (`disk`) while it is not. The byte is
  mapped: every write looks at it, and what a cluster of processes costs is measured.
* Everything else is `python -m tidelog`, which knows nothing of this.
"""

import ctypes
import mmap
import os
import runpy
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the command line behind the option."""
    words = sys.argv[1:]
    if words[0] == "--full-while":
        _watch_the_disk(words[1])
        words = words[2:]
    _die_with_the_parent()
    sys.argv = ["tidelog", *words]
    runpy.run_module("tidelog", run_name="__main__", alter_sys=True)


def _die_with_the_parent() -> None:
    threading.Thread(target=_wait_for_its_end, name="parent", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_its_end() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _watch_the_disk(full_while: str) -> None:
    # Imported here because `tidelog up` does not need them.
    from tidelog.storage import files, io  # noqa: PLC0415
    from tidelog.testing.disk import Life, WatchedDirectory  # noqa: PLC0415

    fd = os.open(full_while, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not os.fstat(fd).st_size:
        os.pwrite(fd, b"\0", 0)
    marker = mmap.mmap(fd, 1)
    os.close(fd)
    life = Life(lambda: marker[0] != 0)
    real = io.open_directory

    def open_directory(path: str, *, create: bool = False) -> files.Directory:
        return WatchedDirectory(real(path, create=create), life)

    io.open_directory = open_directory


if __name__ == "__main__":
    main()
