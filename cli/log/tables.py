"""How `tidelog log segments` and `tidelog log checkpoints` print what they find: for people and for programs."""

from typing import Any

import click

from tidelog.cli.log.items import Fault
from tidelog.cli.log.layouts import coloured, fault_object, to_json
from tidelog.cli.log.nodes import NodeState, PartitionState
from tidelog.cli.log.segments import PartitionSurvey, SegmentSurvey
from tidelog.cli.terminal import Table, Writer, day, many, period, size, span
from tidelog.protocol.types import NO_EPOCH, NO_TIMESTAMP
from tidelog.storage.epochs import EpochEntry

# ── segments ──────────────────────────────────────────────────────────────────────────────────────────


def segments_as_text(writer: Writer, partition: PartitionSurvey) -> None:
    """A table of the segments, and what lies beside them."""
    offsets = span(partition.start_offset, partition.end_offset)
    writer.line(f"{click.style(partition.path, bold=True)}: {_totals([partition])}, {offsets}")
    on = _only_day(partition.segments)
    table = Table(
        writer,
        (">FROM", ">END", ">SIZE", ">BATCHES", ">RECORDS", "EPOCH", "INDEX", f"{on or 'TIMES'} (UTC)"),
        indent="  ",
    )
    for segment in partition.segments:
        numbers = (
            segment.base_offset,
            segment.end_offset,
            size(segment.size),
            segment.batches,
            segment.records,
        )
        times = _times(segment, on)
        table.row(*map(str, numbers), _epochs(segment), _index(segment), times)
    table.end()
    if partition.topic_id:
        writer.line(f"  topic id {partition.topic_id}")
    if partition.snapshots:
        writer.line(f"  producer snapshots at offsets {', '.join(map(str, partition.snapshots))}")
    for name, count in partition.set_aside:
        writer.line(click.style(f"  set aside by recovery: {name}, {size(count)}", fg="yellow"))
    _faults(writer, partition.faults)


def totals_as_text(writer: Writer, partitions: list[PartitionSurvey]) -> None:
    """The last line, of a data directory."""
    writer.line(f"total: {many(len(partitions), 'partition')}, {_totals(partitions)}")


def _totals(partitions: list[PartitionSurvey]) -> str:
    segments = [segment for partition in partitions for segment in partition.segments]
    batches, records = (
        sum(segment.batches for segment in segments),
        sum(segment.records for segment in segments),
    )
    counts = many(len(segments), "segment"), many(batches, "batch", "batches"), many(records, "record")
    return ", ".join((*counts, size(sum(segment.size for segment in segments))))


def _only_day(segments: list[SegmentSurvey]) -> str:
    """The day that all times are of, so that it is said once; empty when there are several."""
    timed = [segment for segment in segments if segment.max_timestamp_ms != NO_TIMESTAMP]
    days = {day(at) for segment in timed for at in (segment.first_timestamp_ms, segment.max_timestamp_ms)}
    return days.pop() if len(days) == 1 else ""


def _times(segment: SegmentSurvey, on: str) -> str:
    if segment.max_timestamp_ms == NO_TIMESTAMP:
        return "-"
    return period(segment.first_timestamp_ms, segment.max_timestamp_ms, on)


def _epochs(segment: SegmentSurvey) -> str:
    if segment.first_epoch == NO_EPOCH:
        return "-"
    if segment.first_epoch == segment.last_epoch:
        return str(segment.first_epoch)
    return f"{segment.first_epoch}-{segment.last_epoch}"


def _index(segment: SegmentSurvey) -> str:
    if segment.index_covered is None:
        return "none"
    return "all" if segment.index_covered == segment.size else f"{segment.index_covered} of {segment.size} B"


def segments_as_json(writer: Writer, partition: PartitionSurvey) -> None:
    """The partition, its segments, what was set aside, and the faults: an object each."""
    fields: dict[str, Any] = {
        "topic_id": partition.topic_id,
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
        "segments": len(partition.segments),
        "size": sum(segment.size for segment in partition.segments),
        "snapshots": partition.snapshots,
    }
    writer.line(to_json({"directory": partition.path, "type": "partition", **fields}))
    for segment in partition.segments:
        writer.line(to_json({"directory": partition.path, "type": "segment", **segment._asdict()}))
    for name, count in partition.set_aside:
        writer.line(to_json({"directory": partition.path, "type": "set_aside", "name": name, "size": count}))
    for fault in partition.faults:
        writer.line(to_json(fault_object(fault)))


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────


def node_as_text(writer: Writer, node: NodeState) -> None:
    """Who it is, how it ended, and a table of the partitions."""
    writer.line(click.style(node.path, bold=True))
    identity = node.identity
    if identity is not None:
        cluster = identity.cluster_id.hex() if identity.cluster_id else "not known yet"
        writer.line(f"  identity     {identity.role} {identity.node_id}")
        writer.line(f"  directory id {identity.directory_id.hex()}")
        writer.line(f"  cluster id   {cluster}")
    if node.pid is not None:
        writer.line(f"  in use       {'yes, by' if node.in_use else 'no, last by'} process {node.pid}")
    if node.in_use:
        writer.line(f"  if killed    {node.last_end.name.lower()}: {node.evidence}")
    else:
        writer.line(f"  last end     {node.last_end.name.lower()}: {node.evidence}")
    for file in node.files:
        held = "missing or unreadable" if file.entries is None else many(file.entries, "entry", "entries")
        writer.line(f"  {file.name:<32} {held}")
    writer.line()
    titles = ("PARTITION", ">START", ">HIGH WATERMARK", ">RECOVERY POINT", ">LOG END", "EPOCHS@START")
    table = Table(writer, titles, indent="  ")
    for partition in node.partitions:
        table.row(*_partition_cells(partition))
    table.end()
    if not node.partitions:
        writer.line("  no partitions")
    _faults(writer, node.faults)


def _partition_cells(partition: PartitionState) -> tuple[str, ...]:
    offsets = partition.log_start, partition.high_watermark, partition.recovery_point, partition.end_offset
    shown = ["-" if offset is None else str(offset) for offset in offsets]
    return partition.name, *shown, _entries(partition.epochs)


def _entries(epochs: tuple[EpochEntry, ...] | None) -> str:
    """The last epochs and where they begin, older ones counted."""
    if not epochs:
        return "-"
    older = f"{len(epochs) - 3} older, " if len(epochs) > 3 else ""
    return older + ", ".join(f"{epoch}@{start}" for epoch, start in epochs[-3:])


def node_as_json(writer: Writer, node: NodeState) -> None:
    """The node, its checkpoint files, its partitions and the faults: an object each."""
    identity = node.identity
    fields: dict[str, Any] = {
        "role": identity.role if identity else None,
        "node_id": identity.node_id if identity else None,
        "directory_id": identity.directory_id.hex() if identity else None,
        "cluster_id": identity.cluster_id.hex() if identity and identity.cluster_id else None,
        "last_end": node.last_end.name.lower(),
        "evidence": node.evidence,
        "pid": node.pid,
        "in_use": node.in_use,
    }
    writer.line(to_json({"directory": node.path, "type": "node", **fields}))
    for file in node.files:
        writer.line(to_json({"directory": node.path, "type": "checkpoint", **file._asdict()}))
    for partition in node.partitions:
        values = partition._asdict()
        values["epochs"] = None if partition.epochs is None else [list(entry) for entry in partition.epochs]
        writer.line(to_json({"directory": node.path, "type": "partition", **values}))
    for fault in node.faults:
        writer.line(to_json(fault_object(fault)))


def _faults(writer: Writer, faults: list[Fault]) -> None:
    for fault in faults:
        writer.line(f"  {coloured(fault)}")
