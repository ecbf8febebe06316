"""Keys go where Kafka's own clients send them; records without keys fill one batch after the other."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.partitioning import HASHES_KEPT, Hashes, murmur2, next_sticky, partition_of
from tidelog.protocol.types import NO_BROKER, BrokerId


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_hash_is_the_one_that_kafka_publishes(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 100))
def test_a_key_goes_to_a_partition_that_exists_and_always_the_same(key: bytes, partitions: int) -> None:
    found = partition_of(key, partitions)
    assert 0 <= found < partitions
    assert found == Hashes()[key] % partitions


def test_the_hashes_that_are_remembered_are_bounded() -> None:
    hashes = Hashes()
    for number in range(HASHES_KEPT + 10):
        assert hashes[b"%d" % number] == murmur2(b"%d" % number) & 0x7FFFFFFF
    assert len(hashes) == 10


def leaders(*ids: int) -> list[BrokerId]:
    return [BrokerId(number) for number in ids]


def test_the_next_batch_without_keys_goes_to_another_partition() -> None:
    rng = Random(1)
    assert all(next_sticky(leaders(1, 2, 3), 1, rng) in {0, 2} for _ in range(50))


def test_partitions_without_a_leader_are_avoided() -> None:
    rng = Random(1)
    assert {next_sticky(leaders(NO_BROKER, 2, NO_BROKER), 0, rng) for _ in range(50)} == {1}


def test_with_one_partition_there_is_no_choice() -> None:
    assert next_sticky(leaders(1), 0, Random(1)) == 0


def test_where_nobody_leads_records_stay_where_they_are() -> None:
    assert next_sticky(leaders(NO_BROKER, NO_BROKER), 1, Random(1)) == 1
