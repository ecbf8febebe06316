"""Compacted topics in simulated clusters: what is deleted stays deleted, whoever was away, and nobody waits for it (I-41)."""

from typing import Any

from tests.simulation.cluster import with_config
from tests.simulation.directed import Town, deliver
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.storage.log import Log
from tidelog.testing.simulation.world import World

QUICK = {"flush": FlushSettings(300, 64 << 10, 300, 300), "upkeep": UpkeepSettings(check_interval_ms=300)}
"""Logs are durable and looked at several times a second."""
COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "delete_retention_ms": "2000",
    "segment_bytes": "1024",
    "file_delete_delay_ms": "0",
}


class Keyed(Town):
    """A compacted topic, and what its keys stand for by all that was acknowledged."""

    def __init__(self, world: World, *, config: dict[str, Any] | None = None, **topic: str) -> None:
        super().__init__(world, config=with_config(**{**QUICK, **(config or {})}), **{**COMPACTED, **topic})
        self.known: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes | None) -> int:
        """This key has another value from now on, or none; the record's offset."""
        offset = self.do(lambda client: deliver(client, self.place, [value], [key]))
        self.known.pop(key, None)
        if value is not None:
            self.known[key] = value
        return offset


def left(log: Log) -> list[str]:
    """The files that have left that log and are still there."""
    return [name for name in log.directory.names() if name.endswith(".deleted")]


def test_what_is_old_goes_while_a_large_log_is_compacted(world: World) -> None:
    """Compaction may take hours; on a disk that fills, retention has to go on meanwhile."""
    town = Keyed(world, config={"upkeep": UpkeepSettings(check_interval_ms=300, compaction_bytes_s=10)})
    other = town.make("clicks", segment_bytes="1024", file_delete_delay_ms="0", retention_bytes="2000")
    for _ in range(20):
        town.put(b"k", b"v" * 100)
    leader = town.leader() or 0
    log = town.partition(leader).log
    town.cluster.until(lambda: log.compaction is not None, 10)
    for _ in range(50):
        town.do(lambda client: deliver(client, other, [b"x" * 100], topic="clicks"))
    clicks = [broker.replicas.partitions[other].log for broker in town.cluster.brokers.values()]
    town.cluster.until(lambda: max(each.size for each in clicks) < 5000, 10)
    town.cluster.until(lambda: not any(map(left, clicks)), 10)
    assert log.compaction is not None
    assert town.cluster.brokers[leader]._upkeep.compactions == 0
