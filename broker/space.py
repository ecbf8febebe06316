"""Whether a data directory of this broker has room for what clients send, and what is said when that changes.

What it keeps true (DECISIONS 9, ADR 103): a directory is low on space below `storage.min.free.bytes`, and as long as one
of its logs has refused what did not fit, or some of its reserve is out. What can wait is not begun where it may not fit.
"""

import logging
from typing import Final

from tidelog.storage.data_directory import DataDirectory

logger = logging.getLogger(__name__)

LOOK_BYTES: Final = 16 << 20
"""After so many bytes it is looked again, besides once a second: a fast disk fills in less."""


def look_at(data: DataDirectory, min_free: int) -> bool:
    """Look how much room there is. Whether that changes what is taken from clients."""
    room, reserve = data.room, data.reserve
    room.min_free = min_free
    refused = (reserve is not None and reserve.is_out) or any(log.is_full for log in data.logs.values())
    changed = room.look(data.directory.free_space(), refused=refused)
    if changed and room.low:
        logger.error(
            "disk.low path=%s free=%d min_free=%d reserve=%d: records are refused, make room",
            room.path,
            room.free,
            min_free,
            reserve.held if reserve is not None else 0,
        )
    elif changed:
        logger.warning("disk.has_room path=%s free=%d: records are taken again", room.path, room.free)
    return changed


def has_room_for(data: DataDirectory, size: int) -> bool:
    """Whether so many bytes fit that nobody waits for, and none of them is what the reserve lacks."""
    if data.reserve is not None and data.reserve.is_out:
        return False
    try:
        return data.directory.free_space() >= size
    except OSError:  # who looks for room finds that it has failed
        return False
