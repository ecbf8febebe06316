"""The world of a real process: its disk, and what else a node is given of the machine that it runs on."""

from tidelog.storage.io.disk import open_directory
from tidelog.storage.io.machine import MachineClock, boot_id, real_environment

__all__ = ["MachineClock", "boot_id", "open_directory", "real_environment"]
