from typing import Any

import pytest

from tidelog.protocol.errors import InvalidConfig, Unsupported
from tidelog.protocol.types import TopicPartition
from tidelog.spark import read_stream, read_topic
from tidelog.spark.options import EARLIEST, LATEST, includes_headers, read_options, write_options
from tidelog.spark.reading import _given
from tidelog.spark.source import TidelogDataSource

AT = {"bootstrap.servers": "h:9092", "subscribe": "orders"}


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidConfig, match=r"option startingoffset: .* the nearest is startingOffsets"):
        read_options({**AT, "startingoffset": "earliest"}, "batch")


def test_options_are_known_in_any_spelling_of_upper_and_lower_case() -> None:
    assert read_options({**AT, "MAXOFFSETSPERTRIGGER": "5"}, "stream").max_offsets == 5


def test_an_option_of_streams_is_refused_in_a_batch_and_the_other_way_round() -> None:
    with pytest.raises(InvalidConfig, match=r"maxOffsetsPerTrigger: it is for streams only"):
        read_options({**AT, "maxOffsetsPerTrigger": "5"}, "batch")
    with pytest.raises(InvalidConfig, match=r"endingOffsets: it is for batch reads only"):
        read_options({**AT, "endingOffsets": "latest"}, "stream")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"assign": '{"orders": [0]}'},
            "give one of subscribe, subscribePattern, assign; given: subscribe and",
        ),
        ({"kafka.bootstrap.servers": "h:1"}, "given: bootstrap.servers and kafka.bootstrap.servers"),
        ({"failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"minPartitions": "0"}, "a whole number of at least 1"),
        ({"startingOffsets": "latest"}, "nothing would be read"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "would read nothing"),
        ({"startingOffsets": '{"orders": 5}'}, "it must be earliest, latest, or such as"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "it must be earliest, latest, or such as"),
        ({"startingOffsets": "{"}, "it is no JSON"),
        ({"endingOffsets": f'{{"orders": {{"0": {2**63}}}}}'}, "it must be latest, or such as .*: -1}"),
        ({"startingTimestamp": "2024-01-01"}, "must be a time in ms since 1970"),
        ({"startingTimestamp": "-1"}, "must be a time in ms since 1970"),
        ({"endingTimestamp": str(2**63)}, "must be a time in ms since 1970"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "it must be such as"),
        ({"startingOffsetsByTimestamp": f'{{"orders": {{"0": {10**20}}}}}'}, "it must be such as"),
        ({"isolationLevel": "dirty"}, "must be one of read_committed, read_uncommitted"),
        ({"lastRecords": "3", "startingOffsets": "earliest"}, "give one of lastRecords, startingOffsets"),
        ({"partitions": "all"}, "numbers of partitions"),
        ({"startingOffsets": "begining"}, "it must be earliest, latest, or such as"),
        ({"kafka.group.id": "g"}, r"option kafka\.group\.id: nothing is read in a group; commitGroup names"),
        ({"groupIdPrefix": "g"}, "option groupIdPrefix: nothing is read in a group"),
        ({"path": "orders"}, "option path: topics have no path; subscribe names them"),
        (
            {"kafka.request.timeout": "5"},
            r"option kafka\.request\.timeout: .* the nearest is request\.timeout\.ms",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        read_options({**AT, **wrong}, "batch")
    assert "\n" not in str(refused.value)


def test_an_address_that_is_none_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(InvalidConfig, match=r"^bootstrap: 'h:99999' is no HOST:PORT"):
        read_options({"bootstrap.servers": "h:99999", "subscribe": "orders"}, "batch")


def test_a_setting_of_the_client_that_is_not_there_yet_is_named_as_it_was_given() -> None:
    with pytest.raises(Unsupported, match=r"^option kafka\.security\.protocol: .* leave it out"):
        read_options({**AT, "kafka.security.protocol": "SSL"}, "batch")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="subscribePattern"):
        read_options({"bootstrap.servers": "h", "subscribePattern": "("}, "batch")


def test_a_time_for_all_goes_before_times_for_each_and_these_before_offsets() -> None:
    by = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 7}}',
        "startingTimestamp": "9",
    }
    assert read_options({**AT, **by}, "batch").start.timestamp_ms == 9
    del by["startingTimestamp"]
    assert read_options({**AT, **by}, "batch").start.times_ms == {TopicPartition("orders", 0): 7}
    del by["startingOffsetsByTimestamp"]
    assert read_options({**AT, **by}, "batch").start.offset == EARLIEST


def test_a_batch_begins_at_what_there_is_and_a_stream_with_what_comes() -> None:
    assert read_options(AT, "batch").start.offset == EARLIEST
    assert read_options(AT, "stream").start.offset == LATEST


def test_further_settings_of_the_client_go_through_by_kafkas_names() -> None:
    address = read_options({**AT, "rack": "a", "kafka.request.timeout.ms": "500"}, "batch").address
    assert address == ("h:9092", "a", (("request.timeout.ms", "500"),))


def test_headers_are_asked_for_before_anything_else_is_known() -> None:
    assert includes_headers({"INCLUDEHEADERS": "true"})
    assert not includes_headers({})


def test_a_delay_is_written_with_its_unit() -> None:
    assert read_options({**AT, "maxTriggerDelay": "90s"}, "stream").max_delay_ms == 90_000
    with pytest.raises(InvalidConfig, match="maxTriggerDelay"):
        read_options({**AT, "maxTriggerDelay": "soon"}, "stream")


def test_a_sink_refuses_what_it_does_not_know_and_overlooks_what_is_sparks() -> None:
    to = {"bootstrap.servers": "h", "topic": "out"}
    assert write_options({**to, "checkpointlocation": "/c", "queryname": "q"}).topic == "out"
    with pytest.raises(InvalidConfig, match="the nearest is topic"):
        write_options({**to, "topics": "out"})
    with pytest.raises(InvalidConfig, match="option path: records go to a topic"):
        write_options({**to, "path": "out"})
    with pytest.raises(InvalidConfig, match="never overwritten"):
        write_options(to, overwrite=True)


def test_a_table_is_for_reading_and_for_writing() -> None:
    table = {**AT, "compression": "lz4", "topic": "out"}
    assert read_options(table, "batch", table=True).subscribe == ("orders",)
    with pytest.raises(InvalidConfig, match="option compression: it is for writing only"):
        read_options({**AT, "compression": "lz4"}, "batch")
    assert write_options(table, table=True).topic == "out"
    assert write_options(AT, table=True).topic == "orders"


@pytest.mark.parametrize(
    "several",
    [
        {"subscribe": "orders,payments"},
        {"assign": '{"orders": [0]}'},
        {"subscribePattern": "orders-.*"},
    ],
)
def test_rows_of_a_table_that_may_mean_several_topics_name_their_own(several: dict[str, str]) -> None:
    assert write_options({"bootstrap.servers": "h", **several}, table=True).topic == ""


# ── when it is told ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"startingOffset": "earliest"}, "option startingoffset: .* the nearest is startingOffsets"),
        ({"maxOffsetPerTrigger": "5"}, "the nearest is maxOffsetsPerTrigger"),
        ({"startingTimestamp": "2024-01-01"}, "must be a time in ms since 1970"),
        ({"topic": "out"}, "option topic: it is for writing only"),
    ],
)
def test_what_is_wrong_for_batches_and_for_streams_is_told_when_spark_asks_for_the_schema(
    wrong: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        TidelogDataSource({**AT, **wrong}).schema()


@pytest.mark.parametrize(
    "right",
    [
        {**AT, "maxOffsetsPerTrigger": "5", "startingOffsets": "latest"},
        {**AT, "endingOffsets": "latest"},
        {"bootstrap.servers": "h", "topic": "out"},
        {"provider": "tidelog"},
        {"provider": "tidelog", "option.bootstrap.servers": "h"},
        {"provider": "tidelog", "option.subscribe": "orders", "option.topic": "out", "owner": "somebody"},
    ],
)
def test_what_may_be_right_for_any_query_has_a_schema(right: dict[str, str]) -> None:
    assert TidelogDataSource(right).schema().names[:2] == ["key", "value"]


def test_a_misspelt_option_of_a_table_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(InvalidConfig, match=r"option subscripe: .* the nearest is subscribe"):
        TidelogDataSource({"provider": "tidelog", "option.subscripe": "orders"}).schema()


def test_the_one_liners_refuse_what_is_wrong_before_they_ask_spark_for_anything() -> None:
    no_spark: Any = None
    with pytest.raises(InvalidConfig, match="the nearest is startingOffsets"):
        read_topic(no_spark, "orders", schema="value string", startingOffset="earliest")
    with pytest.raises(InvalidConfig, match="maxOffsetsPerTrigger: it is for streams only"):
        read_topic(no_spark, "orders", maxOffsetsPerTrigger=5)
    with pytest.raises(InvalidConfig, match="endingOffsets: it is for batch reads only"):
        read_stream(no_spark, "orders", schema="value string", endingOffsets="latest")


def test_the_one_liners_take_mappings_and_lists_for_what_they_are() -> None:
    given = _given("orders", "h", {"startingOffsets": {"orders": {0: 5}}, "partitions": [0, 2]}, "batch")
    assert (given["startingOffsets"], given["partitions"]) == ('{"orders": {"0": 5}}', "0,2")
    assert _given("orders", "h", {"failOnDataLoss": False}, "batch")["failOnDataLoss"] == "false"
