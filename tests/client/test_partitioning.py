"""Keys go where Kafka's own clients send them; records without keys fill one batch after the other."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.partitioning import HASHES_KEPT, TOGETHER, Hashes, a_round, murmur2, partition_of
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


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers())
def test_records_without_keys_fill_each_partition_once_in_a_round(ids: list[int], seed: int) -> None:
    assert sorted(a_round(leaders(*ids), Random(seed), TOGETHER)) == list(range(len(ids)))


def test_partitions_of_one_leader_are_filled_one_behind_the_other_a_few_at_a_time() -> None:
    of = leaders(*(1, 2, 3) * (2 * TOGETHER))
    found = [of[index] for index in a_round(of, Random(1), TOGETHER)]
    runs = [found[at : at + TOGETHER] for at in range(0, len(found), TOGETHER)]
    assert all(len(set(run)) == 1 for run in runs)
    assert sorted(run[0] for run in runs) == [1, 1, 2, 2, 3, 3]
    assert runs != sorted(runs), "no leader is always the first"


def test_partitions_without_a_leader_are_avoided() -> None:
    assert a_round(leaders(NO_BROKER, 2, NO_BROKER), Random(1), TOGETHER) == [1]


def test_where_nobody_leads_any_partition_will_do() -> None:
    assert sorted(a_round(leaders(NO_BROKER, NO_BROKER), Random(1), TOGETHER)) == [0, 1]
