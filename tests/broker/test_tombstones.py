"""Tombstones wait for whoever copies the log, so that a copy ends however often the log is compacted; for nobody else (C7)."""

import pytest

from tests.broker.leaders import LAG_MAX_MS, Led
from tests.broker.node import Node
from tidelog.broker.leadership import STANDING_LAGS
from tidelog.broker.upkeep import Upkeep, UpkeepSettings
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import OffsetOutOfRange
from tidelog.protocol.records import decode, encode
from tidelog.storage.config import LogConfig

TURN_MS = 100


class Purging(Node):
    """Broker 1 leads a log that is compacted at every turn; 2 has everything at once, 3 is not in sync."""

    def __init__(self) -> None:
        super().__init__(
            config=LogConfig(
                segment_bytes=1024,
                index_interval_bytes=256,
                cleanup_policy="compact",
                min_cleanable_dirty_ratio=0.01,
                delete_retention_ms=0,
            )
        )

        async def saved() -> bool:
            return True

        self.lead(isr=(1, 2))
        self.upkeep = Upkeep(self.replicas, self.context.clocks, UpkeepSettings(), save_log_starts=saved)
        self.at = 0
        """Where the copy of broker 3 ends."""
        self.copied: dict[bytes, bytes] = {}
        self.begun_anew = 0
        self.written = 0
        self.known: dict[bytes, bytes] = {}
        """What the keys stand for."""

    @property
    def floor(self) -> int:
        return self.partition.log.purge_floor

    def put(self, key: bytes, value: bytes | None) -> None:
        self.produce(bytes(encode([value], [key], now_ms=0)), acks=1)
        note(self.known, key, value)

    async def turn_over(self, keys: int = 2) -> None:
        """Some keys come, others go; all of it is committed, and compacted."""
        self.wait(TURN_MS)
        for _ in range(keys):
            self.put(b"%d" % self.written, b"v" * 100)
            self.put(b"%d" % max(self.written - 40, 0), None)
            self.written += 1
        self.fetched(2, self.partition.log.end_offset)
        self.partition.log.roll()
        self.partition.log.flush()
        self.data.write_recovery_points().run()
        await self.upkeep._compact()

    def copy(self, max_bytes: int = 400) -> bool:
        """Broker 3 fetches once. Whether it has everything."""
        asked = self.fetched(3, self.at, partition_bytes=max_bytes)
        if asked.error == OffsetOutOfRange.code:
            self.at = asked.entry.refetch_from
            self.begun_anew += 1
            self.copied.clear()
        else:
            assert not asked.error, asked.entry
            data = memoryview(asked.data)
            for position, head in walk(data):
                columns = decode(data, position)
                for key, value in zip(columns.keys, columns.values, strict=True):
                    note(self.copied, key or b"", value)
                self.at = head.next_offset
        return self.at == self.partition.log.end_offset


def note(known: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    known.pop(key, None)
    if value is not None:
        known[key] = value


@pytest.fixture
async def node() -> Purging:
    """Tombstones have gone, and do so at every turn."""
    node = Purging()
    floors = []
    for _ in range(40):
        await node.turn_over()
        floors.append(node.floor)
    assert floors[-1] > floors[-2] > floors[-3]
    return node


async def test_a_copy_ends_though_the_log_is_purged_faster_than_it_is_copied(node: Purging) -> None:
    for _ in range(60):
        if any(node.copy() for _ in range(3)):
            break
        await node.turn_over()
    else:
        raise AssertionError(f"it has begun anew {node.begun_anew} times, and is at {node.at}")
    assert node.begun_anew == 0
    assert node.copied == node.known
    before = node.floor
    await node.turn_over()
    assert node.floor > before, "what waited for it goes"


async def test_for_a_copy_that_nobody_goes_on_with_no_tombstone_waits(node: Purging) -> None:
    before = node.floor
    node.copy()
    for _ in range(LAG_MAX_MS // TURN_MS):
        await node.turn_over(1)
    assert node.floor == before > node.at
    await node.turn_over()
    assert node.floor > before


# ── where they stay ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def led() -> Led:
    """Both members of the ISR have everything, and 3 is on its way."""
    led = Led(isr=(1, 2), end=10, hwm=10)
    led.fetch(2, 10)
    led.fetch(3, 4)
    return led


def below(led: Led, now_ms: int) -> int:
    return led.leader.purge_below(now_ms)


def test_tombstones_stay_that_a_follower_on_its_way_has_not_come_to(led: Led) -> None:
    assert below(led, 0) == 4
    led.fetch(3, 7)
    assert below(led, 0) == 7
    led.fetch(3, 0)
    assert below(led, 0) == 0, "it begins anew"
    led.fetch(3, 10)
    assert below(led, 0) == 10, "what is not committed is not compacted"


def test_a_follower_that_is_not_heard_of_is_not_on_its_way(led: Led) -> None:
    assert (below(led, LAG_MAX_MS), below(led, LAG_MAX_MS + 1)) == (4, 10)


def test_a_follower_that_stands_still_is_on_its_way_for_a_while(led: Led) -> None:
    longest = STANDING_LAGS * LAG_MAX_MS
    for now_ms in range(0, longest + LAG_MAX_MS, LAG_MAX_MS // 2):
        led.at(now_ms).fetch(3, 4)
        assert below(led, now_ms) == (4 if now_ms <= longest else 10)
    led.fetch(3, 5)
    assert below(led, led.now_ms) == 5, "it goes on"
