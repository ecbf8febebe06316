"""A cluster of one broker, a process of its own, and a warm Spark beside it, for as long as a bench lasts."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.benches import spark_kafka as kafka
from scripts.benches.measure import Settings

from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
_QUICK = {"spark.sql.codegen.wholeStage": "false"}
"""Not worth compiling anything for a few rows."""
_SESSION = {
    "spark.ui.showConsoleProgress": "false",
    # How far a stream has come is summed over all of its micro-batches; Spark forgets all but a hundred.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


@dataclass(frozen=True, slots=True)
class Beside:
    """Both of them, and the loop in which the cluster's clients live."""

    runner: asyncio.Runner
    cluster: Cluster
    spark: "SparkSession"


_kept: dict[int, Beside] = {}
"""Of quick runs, by their settings."""


@contextmanager
def spark_beside(settings: Settings) -> Iterator[Beside]:
    """Begin both, and end both; benches of a quick run share them, for a JVM takes long to start."""
    if not settings.quick:
        with _begun(settings) as beside:
            yield beside
        return
    beside_all = _kept.get(id(settings))
    if beside_all is None:
        settings.shared.callback(_kept.pop, id(settings), None)
        beside_all = _kept[id(settings)] = settings.shared.enter_context(_begun(settings))
    yield beside_all


@contextmanager
def _begun(settings: Settings) -> Iterator[Beside]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    from pyspark import SparkContext  # noqa: PLC0415 -- only these benches need Spark

    from tidelog.spark import local_session  # noqa: PLC0415

    with asyncio.Runner() as runner:
        cluster = runner.run(Cluster(1, processes=True, directory=settings.directory / "spark").__aenter__())
        try:
            with _talk_to(settings.directory / "spark.log"):
                chosen = _SESSION | kafka.session() | (_QUICK if settings.quick else {})
                spark = local_session(2, "bench", settings=chosen, quick=settings.quick)
            spark.sparkContext.setLogLevel("ERROR")
            gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 -- Spark does not end its JVM itself
            try:
                yield Beside(runner, cluster, spark)
            finally:
                spark.stop()
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait(60)
                # Or the next session of this process would look for that JVM.
                SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 -- as above
        finally:
            runner.run(cluster.__aexit__(None, None, None))


def worker_mb() -> float:
    """The most memory that one of Spark's Python workers has had."""
    peaks = [0.0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            if b"pyspark.daemon" in words:
                lines = (process / "status").read_text("utf-8").splitlines()
                peaks += [float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
        except OSError:
            continue  # it has ended meanwhile
    return max(peaks)


@contextmanager
def _talk_to(file: Path) -> Iterator[None]:
    """Let what is started meanwhile write its warnings there: a JVM keeps the stderr that it was born with."""
    kept = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
