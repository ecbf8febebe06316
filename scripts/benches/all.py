"""The benches there are, in the order of the page that explains them (docs/performance.md)."""

from scripts.benches import (
    append,
    client,
    codec,
    command,
    compaction,
    controllers,
    failover,
    frames,
    groups,
    machines,
    many,
    opening,
    processes,
    read,
    rpc,
    spark,
    spark_streams,
    steps,
)
from scripts.benches.measure import Bench

BENCHES: tuple[Bench, ...] = (
    codec.BENCH,
    append.BENCH,
    read.BENCH,
    rpc.BENCH,
    frames.BENCH,
    opening.BENCH,
    compaction.BENCH,
    command.BENCH,
    machines.BENCH,
    steps.BENCH,
    many.BENCH,
    controllers.BENCH,
    processes.BENCH,
    failover.BENCH,
    client.BENCH,
    groups.BENCH,
    spark.BENCH,
    spark_streams.BENCH,
)
