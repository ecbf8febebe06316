"""What stands in the metadata log stands there for ever, and is never skipped (design 4.1, KAFKA-14275)."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controller.book import NOW, TOPIC, partition
from tests.protocol.strategies import messages, required_fields, struct_of
from tidelog.controller.config import ControllerConfig
from tidelog.controller.election import STEP
from tidelog.controller.facts import (
    BATCH_BYTES_MAX,
    FACTS,
    METADATA,
    METADATA_TOPIC_ID,
    BrokerChanged,
    ConfigChanged,
    Fact,
    NothingHappened,
    PartitionFact,
    TopicRemoved,
    decode_facts,
    encode_facts,
)
from tidelog.protocol.batch import CONTROL
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.messages.shapes import ENTRIES_MAX
from tidelog.protocol.records import encode
from tidelog.protocol.types import BrokerId
from tidelog.storage.names import parse_partition, partition_name

every_fact = pytest.mark.parametrize("cls", FACTS, ids=lambda cls: cls.__name__)

TABLE = {
    1: "ClusterInitialized",
    2: "BrokerRegistered",
    3: "BrokerChanged",
    4: "BrokerUnregistered",
    5: "TopicCreated",
    6: "PartitionCreated",
    7: "PartitionChanged",
    8: "TopicRemoved",
    9: "ConfigChanged",
    10: "ProducerIdsTaken",
    11: "NothingHappened",
    12: "FeatureChanged",
    20: "LeaderElected",
    23: "VotersNamed",
}
"""The table of 4.1, in the past tense."""

SPECIAL: dict[type[Fact], st.SearchStrategy[Fact]] = {
    ConfigChanged: st.builds(
        ConfigChanged,
        st.sampled_from(["cluster", "topic"]),
        st.text(max_size=9),
        st.text(),
        st.none() | st.text(),
    ),
    BrokerChanged: st.builds(
        BrokerChanged,
        st.integers(0, 9).map(BrokerId),
        st.integers(0, 2**63 - 1),
        st.booleans(),
        st.booleans(),
        st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 9))).map(tuple),
    ),
}
"""Facts with fields of kinds that messages do not have."""


def type_of(cls: type[Fact]) -> object:
    return struct_of(cls).tag


def a_batch_of(*values: object) -> bytearray:
    return encode([msgspec.msgpack.encode(value) for value in values], now_ms=NOW)


def test_the_types_are_those_of_the_table() -> None:
    assert {type_of(fact): fact.__name__ for fact in FACTS} == TABLE


def test_every_fact_is_in_the_table() -> None:
    assert {*Fact.__subclasses__(), *PartitionFact.__subclasses__()} == {*FACTS, PartitionFact}


@every_fact
@settings(max_examples=25)
@given(data=st.data())
def test_every_fact_comes_back_as_it_was_said(cls: type[Fact], data: st.DataObject) -> None:
    fact = data.draw(SPECIAL[cls] if cls in SPECIAL else messages(cls))
    assert decode_facts(encode_facts([fact, NothingHappened()], NOW)) == [fact, NothingHappened()]


@every_fact
def test_a_fact_without_a_field_that_it_always_had_is_refused(cls: type[Fact]) -> None:
    if required_fields(cls):
        with pytest.raises(UnsupportedFormat, match="offset 0 of the metadata log"):
            decode_facts(a_batch_of([type_of(cls)]))


def test_a_fact_of_an_unknown_type_stops_the_reader() -> None:
    with pytest.raises(UnsupportedFormat, match="offset 1 of the metadata log"):
        decode_facts(a_batch_of([11], [99, 1, 2]))


def test_a_fact_with_more_fields_than_are_known_stops_the_reader() -> None:
    with pytest.raises(UnsupportedFormat, match="TopicRemoved has 2 fields, 1 are known here"):
        decode_facts(a_batch_of([8, TOPIC, "a field of tomorrow"]))


def test_a_fact_of_yesterday_has_the_defaults_of_today() -> None:
    assert decode_facts(a_batch_of([3, 1, 7, False])) == [BrokerChanged(BrokerId(1), 7, False, False, ())]


@pytest.mark.parametrize("value", [None, [8, b"short"], [9, "planet", "", "key", "v"], 7, [], {}])
def test_whatever_is_no_fact_stops_the_reader(value: object) -> None:
    with pytest.raises(UnsupportedFormat):
        decode_facts(a_batch_of(value))


def test_a_record_without_a_value_stops_the_reader() -> None:
    with pytest.raises(UnsupportedFormat):
        decode_facts(encode([None], now_ms=NOW))


def test_control_batches_carry_no_facts() -> None:
    assert decode_facts(encode([b"who leads the quorum"], now_ms=NOW, attributes=CONTROL)) == []


def test_more_facts_than_a_batch_may_hold_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="10001 facts"):
        encode_facts([NothingHappened()] * 10_001, NOW)


def test_a_fact_that_could_not_be_read_again_is_never_written() -> None:
    with pytest.raises(UnsupportedFormat):
        encode_facts([TopicRemoved(b"an id of more than 16 bytes")], NOW)


def test_ten_thousand_partitions_of_three_replicas_fit_into_a_batch() -> None:
    state = partition((1, 2, 3)).created()
    assert len(decode_facts(encode_facts([state] * 10_000, NOW))) == 10_000


def test_the_largest_fact_about_a_broker_fits_into_a_batch_and_a_controller_takes_it() -> None:
    places = [(TOPIC, 2**31 - number) for number in range(1, 1 + ENTRIES_MAX * 3)]
    twice, once = tuple(places[: ENTRIES_MAX * 2]), tuple(places[ENTRIES_MAX * 2 :])
    moved = [partition((1, 2, 3), index=index).changed() for index in range(STEP)]
    batch = encode_facts([*moved, BrokerChanged(BrokerId(1), 7, True, True, twice, True, once)], NOW)
    most = ControllerConfig(node_id=BrokerId(1), voters=((1, "127.0.0.1", 9092),)).log.max_message_bytes
    assert len(batch) <= BATCH_BYTES_MAX == most


def test_the_metadata_log_lies_in_a_directory_like_any_log() -> None:
    assert partition_name(METADATA) == "__metadata-0"
    assert parse_partition("__metadata-0") == METADATA
    assert TopicRemoved(METADATA_TOPIC_ID).topic_id == bytes(15) + b"\x01"
