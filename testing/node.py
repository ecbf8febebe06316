"""The product's own command line as a child that does not outlive its parent, and whose disk can be full.

    python -m tidelog.testing.node [--orphaned KILL|TERM] [--full-while FILE] broker start --id 1 ...

What it keeps true:

* Nothing of a test outlives it. The parent holds the other end of stdin and says nothing: when that ends, however the
  parent has ended, this process gets the signal. A paused process cannot look; on Linux the kernel sends it.
* The disk is the real one while FILE does not exist, and a full one (`disk`) while it does.
* Everything else is `python -m tidelog`, which knows nothing of this.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the command line behind the options."""
    words, orphaned = sys.argv[1:], signal.SIGKILL
    while words[0].startswith("--"):
        option, value, *words = words
        if option == "--orphaned":
            orphaned = signal.Signals[f"SIG{value}"]
        else:
            assert option == "--full-while", option
            _watch_the_disk(value)
    _obey_the_end_of_the_parent(orphaned)
    sys.argv = ["tidelog", *words]
    runpy.run_module("tidelog", run_name="__main__", alter_sys=True)


def _obey_the_end_of_the_parent(orphaned: signal.Signals) -> None:
    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), orphaned)

    threading.Thread(target=wait, name="parent", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, orphaned)


def _watch_the_disk(full_while: str) -> None:
    # Imported here because `tidelog up` does not need them.
    from tidelog.storage import files, io  # noqa: PLC0415
    from tidelog.testing.disk import Life, WatchedDirectory  # noqa: PLC0415

    life = Life(lambda: os.path.exists(full_while))
    real = io.open_directory

    def open_directory(path: str, *, create: bool = False) -> files.Directory:
        return WatchedDirectory(real(path, create=create), life)

    io.open_directory = open_directory


if __name__ == "__main__":
    main()
