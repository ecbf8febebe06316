"""Which partition a record goes to: by its key as Java's clients do it, without a key wherever a batch is open.

What it keeps true: the same key goes to the same partition as from any of Kafka's clients, for as long as the number
of partitions stays; records without keys fill one batch before they begin the next, and prefer partitions that have
a leader.
"""

from collections.abc import Sequence
from random import Random
from struct import unpack_from
from typing import Final

from tidelog.protocol.types import NO_BROKER, BrokerId

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
STEP_BYTES: Final = 65_536
"""A batch takes room of so much at a time."""
TOGETHER: Final = 4
"""So many steps are filled before any is sent: a request that carries four small batches costs little more than one."""
HASHES_KEPT: Final = 32_768
"""How many keys' hashes are remembered: hashing a key costs thirty times a look-up."""


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key: 32 bits, unsigned (org.apache.kafka.common.utils.Utils.murmur2)."""
    size = len(key)
    words = size >> 2
    h = (_SEED ^ size) & _MASK
    for k in unpack_from(f"<{words}I", key):
        k = (k * _M) & _MASK  # noqa: PLW2901 -- the word as it is mixed
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    rest = key[words << 2 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


class Hashes(dict[bytes, int]):
    """Each key's hash, without its sign as Kafka takes it: a look-up, for keys that were seen of late."""

    __slots__ = ()

    def __missing__(self, key: bytes) -> int:
        if len(self) >= HASHES_KEPT:
            self.clear()
        found = self[key] = murmur2(key) & 0x7FFFFFFF
        return found


def partition_of(key: bytes, partitions: int) -> int:
    """Where a record with that key goes in a topic of so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def a_round(leaders: Sequence[BrokerId], rng: Random, together: int) -> list[int]:
    """In which order partitions are filled: each once, and so many of one leader together, for one request to take them.

    Partitions without a leader are left out, unless no partition has one.
    """
    by_leader: dict[BrokerId, list[int]] = {}
    for index, leader in enumerate(leaders):
        by_leader.setdefault(leader, []).append(index)
    if len(by_leader) > 1:
        by_leader.pop(NO_BROKER, None)
    runs: list[list[int]] = []
    for indexes in by_leader.values():
        rng.shuffle(indexes)
        runs += [indexes[at : at + together] for at in range(0, len(indexes), together)]
    rng.shuffle(runs)
    return [index for run in runs for index in run]
