"""DescribeLogDirs: the data directories of this broker, how much room they have, and how much of it each log takes."""

from collections.abc import Iterator
from typing import cast

from tidelog.broker.requests.context import Context
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import DescribeLogDirs, DescribeLogDirsReply, LogDirectory, ReplicaOnDisk
from tidelog.storage.data_directory import DataDirectory


def log_dirs(context: Context, incoming: Incoming) -> None:
    """All of them. No lease is needed: what lies on a disk is nobody else's to say."""
    wanted = frozenset(cast("DescribeLogDirs", incoming.message).topics)
    incoming.reply(
        DescribeLogDirsReply(
            directories=tuple(_directory(context, data, wanted) for data in context.replicas.data.all)
        )
    )


def _directory(context: Context, data: DataDirectory, wanted: frozenset[str]) -> LogDirectory:
    path, directory_id, failure = data.room.path, data.life.directory_id, data.failure
    if failure is not None:
        return LogDirectory(path, directory_id, failure.code, str(failure))
    found = sorted(_replicas(context, data), key=lambda one: (one.topic, one.index))
    return LogDirectory(
        path,
        directory_id,
        free=data.room.free,
        low_space=data.room.low,
        replicas=tuple(one for one in found if not wanted or one.topic in wanted),
    )


def _replicas(context: Context, data: DataDirectory) -> Iterator[ReplicaOnDisk]:
    for name, log in data.logs.items():
        here = context.replicas.partitions.get((data.topic_ids[name], name.partition))
        lag = 0 if here is None else max(here.high_watermark - log.end_offset, 0)
        yield ReplicaOnDisk(*name, size=log.size, end_offset=log.end_offset, lag=lag)
    for name, error in data.report.offline.items():
        if name not in data.logs:
            yield ReplicaOnDisk(*name, error.code, str(error))
