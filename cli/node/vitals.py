"""What a process tells of itself, whatever node it is: how long its loop was held up, what it takes of the machine."""

import os
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from tidelog import __version__
from tidelog.protocol.io import StallMeter
from tidelog.protocol.metrics import Sample, counter, gauge

# fmt: off
INFO: Final = gauge("tidelog_process_info", "1, with what this process is as labels.", "version", "role", "id", "loop")
READY: Final = gauge("tidelog_process_ready", "1 if /readyz would say so, else 0.")
STARTED: Final = gauge("tidelog_process_start_time_seconds", "When the process began, in seconds since 1970.")
STALL: Final = gauge("tidelog_process_loop_stall_max_ms", "The longest time within the last minute for which the event loop was kept from its work.")
CPU: Final = counter("tidelog_process_cpu_seconds_total", "Processor time that the process has used.")
MEMORY: Final = gauge("tidelog_process_resident_memory_bytes", "Memory of the process; on macOS the most that it ever had.")
DESCRIPTORS: Final = gauge("tidelog_process_open_fds_max", "Files and connections that the process may have open at once.")
# fmt: on

_SPAN: Final = 60
_STATM: Final = "/proc/self/statm"


class Vitals:
    """Of one process. `look` once a second."""

    def __init__(self, role: str, number: int) -> None:
        self.stall = StallMeter()
        self._role = role
        self._number = number
        self._began_s = time.time()
        self._loop = ""
        self._stalls: deque[float] = deque(maxlen=_SPAN)

    def start(self, loop: str) -> None:
        """Begin to measure the running loop, which is of that kind."""
        self._loop = loop
        self.stall.start()

    def look(self) -> None:
        """A second has passed."""
        self._stalls.append(self.stall.reset())

    def collect(self, *, ready: bool) -> Iterator[Sample]:
        """Every metric."""
        yield INFO.at(1, __version__, self._role, self._number, self._loop)
        yield READY.at(ready)
        yield STARTED.at(self._began_s)
        yield STALL.at(round(max(self.stall.longest_ms, *self._stalls, 0.0), 3))
        yield CPU.at(time.process_time())
        yield MEMORY.at(_resident_bytes())
        yield DESCRIPTORS.at(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _resident_bytes() -> int:
    try:
        with open(_STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
