"""A user's program, as mypy sees it: `make check` reads this file strictly, and here it runs as well."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import assert_type

import tidelog
import tidelog.sync
from tests.client.nodes import Cluster
from tidelog.client.io.handover import Delivery
from tidelog.client.records import Landed


async def test_a_program_that_awaits(broker: Cluster) -> None:
    async with tidelog.connect(broker.bootstrap, connect_timeout=10) as client:
        await client.admin.create_topics(tidelog.NewTopic("orders", partitions=2, replication_factor=1))
        async with client.producer(acks="all", config={"linger.ms": 1}) as producer:
            sent = await producer.send("orders", b"v", key=b"k", headers=[("h", b"1")])
            assert_type(sent, tidelog.RecordMetadata)
            assert_type(sent.offset, int)
            delivery = await producer.enqueue("orders", None, b"k")
            assert_type(await delivery, tidelog.RecordMetadata)
            assert_type(await producer.send_many("orders", values=[b"a", None], keys=[b"k", b"k"]), Landed)
            assert_type(await producer.partition_for("orders", b"k"), int)
            await producer.flush(timeout=10)
        async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                assert_type(record, tidelog.Record)
                assert_type(record.value, bytes | None)
                assert_type(record.timestamp_ms, int)
                break
            async for batch in consumer.batches(max_records=2, timeout=10):
                assert_type(batch, tidelog.RecordBatch)
                assert_type(batch.values, list[bytes | None])
                assert_type(batch.offsets, Sequence[int])
                if client.metrics()["consumer_records"] == 4:
                    break
            positions = await consumer.positions()
            assert_type(positions, dict[tidelog.TopicPartition, tidelog.PartitionPosition])
            lag = positions[tidelog.TopicPartition("orders", 0)].lag_seconds
            assert_type(lag, float | None)
            assert_type(await consumer.getmany(), dict[tidelog.TopicPartition, list[tidelog.Record]])
            metrics = client.metrics()
        assert_type(metrics, dict[str, float])
        assert metrics["consumer_records"] == 4
        assert metrics["consumer_lag"] == 0
        assert metrics["consumer_fetched_bytes"] > 0
        try:
            await client.admin.describe_topics("nowhere")
        except tidelog.UnknownTopicOrPartition as error:
            assert_type(error.retriable, bool)
            assert_type(error.code, int)


async def test_a_program_that_blocks(broker: Cluster) -> None:
    def program() -> Mapping[str, float]:
        with tidelog.sync.connect(broker.bootstrap) as client:
            client.admin.create_topics(tidelog.NewTopic("bills", partitions=1, replication_factor=1))
            [topic] = client.admin.list_topics()
            assert_type(topic.name, str)
            with client.producer() as producer:
                assert_type(producer.send("bills", b"v"), tidelog.RecordMetadata)
                delivery = producer.enqueue("bills", b"v")
                assert_type(delivery, Delivery)
                assert_type(delivery.result(timeout=10), tidelog.RecordMetadata)
                metrics = client.metrics()
            with client.consumer("bills", auto_offset_reset="earliest") as consumer:
                for record in consumer:
                    assert_type(record, tidelog.Record)
                    break
                for batch in consumer.batches(timeout=0.2):
                    assert_type(batch, tidelog.RecordBatch)
                assert_type(consumer.position(("bills", 0)), int)
                consumer.seek(("bills", 0), 0)
                assert_type(consumer.assignment(), set[tidelog.TopicPartition])
            return metrics

    metrics = await asyncio.to_thread(program)
    assert metrics["producer_records"] == 2
    assert metrics["producer_bytes"] > 0
    assert metrics["producer_queued_records"] == 0
