"""How `tidelog log dump` prints what it finds: a table, JSON lines, or the lines of Kafka's own tool.

A layout is told of each file (`begin`, `show`, `end`) and prints as it goes. docs/CLI.md describes the JSON,
which is stable: keys are added, never renamed or given another meaning.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import click
import msgspec

from tidelog.cli.log.items import (
    Batch,
    Block,
    Fault,
    Hole,
    Item,
    Note,
    OffsetEntry,
    Row,
    Severity,
    Summary,
    TimeEntry,
)
from tidelog.cli.log.kinds import FileName, Kind
from tidelog.cli.objects import as_json
from tidelog.cli.options import Layout
from tidelog.cli.terminal import Table, Writer, day, many, printable, quoted, size, span, time, time_on
from tidelog.protocol.batch import DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from tidelog.protocol.compression import CODECS
from tidelog.protocol.records import Columns
from tidelog.protocol.types import NO_OFFSET, SEQUENCES

_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}
_VALUE_CHARACTERS: Final = 120
_ONE: Final = {"entries": "entry"}
"""What one of them is called, where it is not the word without its `s`."""
_COLOURS: Final = {Severity.TORN: "yellow", Severity.DAMAGE: "red", Severity.CACHE: "yellow"}


class File(NamedTuple):
    """The file that the next items come from."""

    path: str
    name: str
    what: FileName
    size: int


class DumpLayout(Protocol):
    """Prints files and what is in them."""

    def begin(self, file: File) -> None:
        """The next items are of this file."""
        ...

    def show(self, item: Item) -> None:
        """Something that was found in it."""
        ...

    def end(self) -> None:
        """Nothing else is in it."""
        ...


def dump_layout(name: Layout, writer: Writer, *, verdicts_only: bool) -> DumpLayout:
    """The layout of that name."""
    if name == "json":
        return JsonDump(writer)
    return KafkaDump(writer) if name == "kafka" else TextDump(writer, verdicts_only=verdicts_only)


def codec_name(header: BatchHeader) -> str:
    """`none`, `zstd`, ... or the number of one that nobody knows yet."""
    return _CODEC_NAMES.get(header.codec, str(header.codec))


def delete_horizon(header: BatchHeader) -> int | None:
    """From when on tombstones in the batch may be dropped."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def sequence_of(header: BatchHeader, offset: int) -> int:
    """The sequence number of the record at that offset; -1 without a producer's."""
    return (
        -1 if header.base_sequence < 0 else (header.base_sequence + offset - header.base_offset) % SEQUENCES
    )


def coloured(fault: Fault) -> str:
    """The fault as a line."""
    severity, colon, rest = str(fault).partition(":")
    return click.style(severity, fg=_COLOURS[fault.severity], bold=True) + colon + rest


# ── for people ────────────────────────────────────────────────────────────────────────────────────────


_TITLES: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.SEGMENT: ("OFFSETS", ">COUNT", ">POSITION", ">SIZE", "LATEST (UTC)", "CODEC", ">EPOCH", "PRODUCER"),
    Kind.OFFSET_INDEX: (">OFFSET", ">POSITION"),
    Kind.TIME_INDEX: ("LATEST SO FAR (UTC)", ">OFFSET"),
    Kind.SNAPSHOT: (">PRODUCER", ">EPOCH", "LAST APPEND (UTC)", "TRANSACTION", "LAST SEQUENCES AT OFFSETS"),
    Kind.EPOCHS: (">EPOCH", ">FROM OFFSET"),
    Kind.OFFSETS: ("PARTITION", ">OFFSET"),
    Kind.PROPERTIES: ("KEY", "VALUE"),
    Kind.MARKER: ("KEY", "VALUE"),
    Kind.LOCK: ("KEY", "VALUE"),
}


class TextDump:
    """Tables; faults and notes stand between the rows where they were met."""

    def __init__(self, writer: Writer, *, verdicts_only: bool) -> None:
        self._writer = writer
        self._verdicts_only = verdicts_only
        self._files = 0
        self._file: File
        self._table: Table
        self._faults = 0
        self._day = ""

    def begin(self, file: File) -> None:
        """Its path, and the table that belongs to its kind."""
        self._file, self._faults, self._day = file, 0, ""
        if not self._verdicts_only:
            if self._files:
                self._writer.line()
            aside = ", set aside by recovery" if file.what.set_aside else ""
            what = f"{file.what.kind}{aside}, {size(file.size)}"
            self._writer.line(f"{click.style(file.path, bold=True)}: {what}")
        self._files += 1
        self._table = Table(self._writer, _TITLES[file.what.kind], indent="  ")

    def show(self, item: Item) -> None:
        """A row, or a line between two."""
        if isinstance(item, Batch):
            self._batch(item)
        elif isinstance(item, Row):
            for cells in _cells(item):
                self._table.row(*cells)
        elif isinstance(item, Fault):
            self._faults += 1
            self._table.line(coloured(item))
        elif isinstance(item, Summary):
            self._summary(item)
        else:
            self._other(item)

    def end(self) -> None:
        """The table is complete."""
        self._table.end()

    def _other(self, item: Hole | Block | OffsetEntry | TimeEntry | Note) -> None:
        if isinstance(item, OffsetEntry):
            self._table.row(str(item.offset), str(item.position))
        elif isinstance(item, TimeEntry):
            self._table.row(time(item.timestamp_ms), str(item.offset))
        elif isinstance(item, Block):
            entries = many(item.entries, "entry", "entries")
            self._table.line(
                f"  block at byte {item.position}: {entries}, up to byte {item.covered} of the log"
            )
        elif isinstance(item, Hole):
            where = "at the end are" if item.at_end else f"from byte {item.position} on are"
            self._table.line(
                click.style(f"  {item.size} bytes {where} no batch: {item.problem}", fg="yellow")
            )
        else:
            self._table.line(f"note: {self._file.path}: {item.text}")

    def _batch(self, batch: Batch) -> None:
        header = batch.header
        if (today := day(header.max_timestamp)) and today != self._day:
            self._day = today
            self._table.line(f"  {today}")
        self._table.row(
            f"{header.base_offset}-{header.last_offset}",
            str(header.record_count),
            str(batch.position),
            size(header.size),
            time_on(header.max_timestamp, self._day),
            codec_name(header),
            str(header.leader_epoch),
            _notes(batch),
        )
        if batch.problem or batch.undecodable:
            self._table.line(click.style(f"    {batch.problem or batch.undecodable}", fg="red"))
        if batch.columns is not None:
            for offset, at, key, value, headers in _rows(batch.columns):
                named = "".join(f"  {printable(name.encode())}={quoted(each, 40)}" for name, each in headers)
                shown = f"{quoted(key, _VALUE_CHARACTERS)}: {quoted(value, _VALUE_CHARACTERS)}"
                self._table.line(f"    {offset}  {time_on(at, self._day)}  {shown}{named}")

    def _summary(self, summary: Summary) -> None:
        counts = summary.counts
        if self._file.what.kind == Kind.SEGMENT:
            held = f"{many(_number(counts, 'batches'), 'batch', 'batches')}, {many(_number(counts, 'records'), 'record')}"
            told = f"{held}, {span(_number(counts, 'first_offset'), _number(counts, 'end_offset'))}"
        else:
            told = ", ".join(
                many(_number(counts, key), _ONE.get(key, key.removesuffix("s")), key) for key in counts
            )
            told = told.replace("covereds", "bytes of log described").replace(
                "covered", "bytes of log described"
            )
        if self._verdicts_only:
            if not self._faults:
                self._table.line(f"{click.style('ok', fg='green', bold=True)}: {self._file.path}: {told}")
        else:
            self._table.line(f"  {told}")


def _number(counts: Any, key: str) -> int:
    value = counts[key]
    assert isinstance(value, int)
    return value


def _notes(batch: Batch) -> str:
    header = batch.header
    notes = []
    if header.producer_id >= 0:
        notes.append(f"{header.producer_id}:{header.producer_epoch}")
    if header.base_sequence >= 0:
        notes.append(f"seq {header.base_sequence}-{header.last_sequence}")
    notes += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    if header.attributes & LOG_APPEND_TIME:
        notes.append("append time")
    if (horizon := delete_horizon(header)) is not None:
        notes.append(f"deletes from {time(horizon)}")
    if batch.problem or batch.undecodable:
        notes.append("DAMAGED")
    return " ".join(notes)


def _rows(columns: Columns) -> Any:
    return zip(
        columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers, strict=True
    )


def _cells(row: Row) -> list[tuple[str, ...]]:
    values: Any = row.values
    if row.type == "producer":
        batches = " ".join(f"{first}-{last}@{at}" for first, last, at, _, _ in values["batches"])
        opened = values["transaction_start"]
        transaction = "-" if opened == NO_OFFSET else f"since {opened}"
        cells = (values["producer_id"], values["producer_epoch"], time(values["last_append_ms"]), transaction)
        return [(*map(str, cells), batches)]
    if row.type == "epoch":
        return [(str(values["epoch"]), str(values["start_offset"]))]
    if row.type == "offset":
        return [(f"{values['topic']}-{values['partition']}", str(values["offset"]))]
    if row.type == "property":
        return [(printable(values["key"].encode()), printable(values["value"].encode()))]
    return [
        (key, " ".join(value) if isinstance(value, list) else printable(str(value).encode()))
        for key, value in values.items()
    ]


# ── as Kafka's tool does ──────────────────────────────────────────────────────────────────────────────


class KafkaDump:
    """What `kafka-dump-log --print-data-log` prints; what it has no line for, as `key: value` pairs."""

    def __init__(self, writer: Writer) -> None:
        self._line = writer.line
        self._file: File

    def begin(self, file: File) -> None:
        """Its path, and of a segment where it starts."""
        self._file = file
        self._line(f"Dumping {file.path}")
        if file.what.kind == Kind.SEGMENT:
            self._line(f"Log starting offset: {file.what.base_offset}")

    def show(self, item: Item) -> None:
        """Its lines."""
        if isinstance(item, Batch):
            self._batch(item)
        elif isinstance(item, Hole):
            if item.at_end:
                self._line(f"Found {item.size} invalid bytes at the end of {self._file.name}")
            else:
                self._line(
                    f"Found {item.size} invalid bytes at position {item.position} of {self._file.name}"
                )
        elif isinstance(item, OffsetEntry):
            self._line(f"offset: {item.offset} position: {item.position}")
        elif isinstance(item, TimeEntry):
            self._line(f"timestamp: {item.timestamp_ms} offset: {item.offset}")
        elif isinstance(item, Row):
            self._line(_kafka_row(item))
        elif isinstance(item, Fault):
            self._line(coloured(item))

    def end(self) -> None:
        """Nothing is said."""

    def _batch(self, batch: Batch) -> None:
        header = batch.header
        horizon = delete_horizon(header)
        until = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
        kind = "LogAppendTime" if header.attributes & LOG_APPEND_TIME else "CreateTime"
        self._line(
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
            f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_lower(header.is_transactional)} "
            f"isControl: {_lower(header.is_control)} deleteHorizonMs: {until} position: {batch.position} "
            f"{kind}: {header.max_timestamp} size: {header.size} magic: {header.magic} "
            f"compresscodec: {codec_name(header)} crc: {header.body_crc} isvalid: {_lower(batch.problem is None)}"
        )
        if batch.columns is None:
            return
        for offset, at, key, value, headers in _rows(batch.columns):
            names = ",".join(printable(name.encode()) for name, _ in headers)
            line = (
                f"| offset: {offset} {kind}: {at} keySize: {_length(key)} valueSize: {_length(value)} "
                f"sequence: {sequence_of(header, offset)} headerKeys: [{names}]"
            )
            line += "" if key is None else f" key: {printable(key)}"
            self._line(line + ("" if value is None else f" payload: {printable(value)}"))


def _lower(value: bool) -> str:
    return "true" if value else "false"


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _kafka_row(row: Row) -> str:
    values: Any = row.values
    if row.type == "producer":
        opened = values["transaction_start"]
        since = "OptionalLong.empty" if opened == NO_OFFSET else f"OptionalLong[{opened}]"
        line = (
            f"producerId: {values['producer_id']} producerEpoch: {values['producer_epoch']} "
            f"coordinatorEpoch: {values['coordinator_epoch']} currentTxnFirstOffset: {since} "
            f"lastTimestamp: {values['last_append_ms']} "
        )
        for first, last, first_offset, last_offset, at in values["batches"][-1:]:
            line += f"firstSequence: {first} lastSequence: {last} lastOffset: {last_offset} "
            line += f"offsetDelta: {last_offset - first_offset} timestamp: {at}"
        return line.rstrip()
    if row.type == "property":
        return f"{printable(values['key'].encode())}={printable(values['value'].encode())}"
    if row.type in {"epoch", "offset"}:  # as in the file itself, which Kafka's users read without a tool
        return " ".join(map(str, values.values()))
    return " ".join(f"{key}: {printable(str(value).encode())}" for key, value in values.items())


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────


class JsonDump:
    """One object per line, each with the `file` that it is of and its `type`."""

    def __init__(self, writer: Writer) -> None:
        self._line = writer.line
        self._file: File

    def begin(self, file: File) -> None:
        """The file itself."""
        self._file = file
        what = file.what
        fields = {"kind": what.kind.value, "base_offset": what.base_offset, "size": file.size}
        self._object("file", {**fields, "set_aside": what.set_aside})

    def show(self, item: Item) -> None:
        """One object, and one for each record of a batch."""
        if isinstance(item, Batch):
            self._batch(item)
        elif isinstance(item, Row):
            self._object(item.type, dict(item.values))
        elif isinstance(item, Fault):
            self._line(to_json(fault_object(item)))
        elif isinstance(item, Summary):
            self._object("summary", dict(item.counts))
        else:
            self._object(_JSON_TYPES[type(item)], item._asdict())

    def end(self) -> None:
        """Nothing is said."""

    def _object(self, kind: str, fields: dict[str, Any]) -> None:
        self._line(to_json({"file": self._file.path, "type": kind, **fields}))

    def _batch(self, batch: Batch) -> None:
        header = batch.header
        self._object(
            "batch",
            {
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "count": header.record_count,
                "base_sequence": header.base_sequence,
                "last_sequence": header.last_sequence,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "leader_epoch": header.leader_epoch,
                "is_transactional": header.is_transactional,
                "is_control": header.is_control,
                "delete_horizon_ms": delete_horizon(header),
                "position": batch.position,
                "timestamp_type": timestamp_type(header),
                "base_timestamp_ms": header.base_timestamp,
                "max_timestamp_ms": header.max_timestamp,
                "size": header.size,
                "magic": header.magic,
                "codec": codec_name(header),
                "crc": header.body_crc,
                "is_valid": batch.problem is None,
                "problem": batch.problem or batch.undecodable,
            },
        )
        if batch.columns is not None:
            for offset, at, key, value, headers in _rows(batch.columns):
                fields = {
                    "offset": offset,
                    "timestamp_ms": at,
                    **as_json("key", key),
                    **as_json("value", value),
                }
                named = [{"name": name, **as_json("value", each)} for name, each in headers]
                self._object("record", {**fields, "headers": named, "sequence": sequence_of(header, offset)})


_JSON_TYPES: Final[dict[type, str]] = {
    Hole: "hole",
    Block: "block",
    OffsetEntry: "offset_entry",
    TimeEntry: "time_entry",
    Note: "note",
}

to_json: Final[Callable[[object], str]] = lambda value: msgspec.json.encode(value).decode()  # noqa: E731


def timestamp_type(header: BatchHeader) -> str:
    """Whose clock the batch's times are of."""
    return "append" if header.attributes & LOG_APPEND_TIME else "create"


def fault_object(fault: Fault) -> dict[str, Any]:
    """A fault for programs."""
    fields = fault._asdict()
    return {"file": fields.pop("path"), "type": "fault", **fields, "severity": fault.severity.value}
