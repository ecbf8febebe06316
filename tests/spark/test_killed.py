"""A driver that is killed, with its JVM and its workers, and another one that goes on from its checkpoints."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import World
from tidelog.spark import pipeline, read_stream
from tidelog.testing.processes import child_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RECORDS, AT_ONCE = 40_000, 10_000

PROGRAM = """
import sys
from pathlib import Path
from tests.spark.conftest import QUICK
from tests.spark.test_killed import run
from tidelog.spark import local_session

bootstrap, source, to, place = sys.argv[1:]
settings = {"spark.sql.warehouse.dir": f"{place}/warehouse", "spark.ui.showConsoleProgress": "false"} | QUICK
run(local_session(2, "killed", settings=settings, quick=True), bootstrap, source, to, Path(place))
"""


def run(spark: SparkSession, bootstrap: str, source: str, to: str, place: Path) -> None:
    """A topic into another one and into files, both once, in small micro-batches."""
    frame = read_stream(spark, source, bootstrap, startingOffsets="earliest", maxOffsetsPerTrigger=AT_ONCE)
    copy = (
        frame.select("value")
        .writeStream.format("tidelog")
        .options(**{"bootstrap.servers": bootstrap, "topic": to})
        .option("checkpointLocation", str(place / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    pipeline.to_parquet(spark, source, place / "lake", bootstrap, maxOffsetsPerTrigger=AT_ONCE)
    assert copy.awaitTermination(120)


@contextmanager
def driver(said: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One of its own, which is gone afterwards with all that it has started."""
    with said.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=child_environment(),
            start_new_session=True,
        )
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_a_driver_killed_between_writing_and_noting_it_is_replaced_and_all_is_there_once(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    source, to = world.topic(2), world.topic(3)
    for half in (0, 1):
        numbers = range(half * RECORDS // 2, (half + 1) * RECORDS // 2)
        world.produce(source, [b"%d" % number for number in numbers], half)

    def noted(checkpoint: str) -> int:
        return len(list((tmp_path / checkpoint / "commits").glob("[0-9]*")))

    def written() -> int:
        return sum(end.offset for end in world.run(world.client.admin.list_offsets(to)).values())

    said = tmp_path / "said"
    with driver(said, world.bootstrap, source, to, str(tmp_path)) as child:
        deadline_s = time.monotonic() + 240
        while True:
            os.killpg(
                child.pid, signal.SIGSTOP
            )  # it notes nothing while it is looked at, however slow this is
            if noted("lake/_checkpoint") and noted("copy") and written() > noted("copy") * AT_ONCE:
                break
            os.killpg(child.pid, signal.SIGCONT)
            assert child.poll() is None, said.read_text()
            assert time.monotonic() < deadline_s, said.read_text()
            time.sleep(0.02)
    assert noted("copy") < RECORDS // AT_ONCE, "it was to die in the middle"
    run(spark, world.bootstrap, source, to, tmp_path)
    assert Counter(world.values(to)) == Counter(b"%d" % number for number in range(RECORDS))
    rows = pipeline.read_parquet(spark, tmp_path / "lake").select("partition", "offset").collect()
    assert len(rows) == len(set(rows)) == RECORDS
