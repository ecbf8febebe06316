"""What lies in a partition's directory: its segments one by one, and what looks wrong between them.

The heads of all batches are walked, their bodies are not read: `dump --verify` does that.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tidelog.cli.log.batches import Surroundings
from tidelog.cli.log.indexes import IndexFile
from tidelog.cli.log.items import REBUILT, RESTORE, Fault, Severity
from tidelog.cli.log.kinds import Kind, file_name
from tidelog.cli.read_only import ReadOnlyDirectory
from tidelog.cli.terminal import typed
from tidelog.protocol.batch import DELETE_HORIZON
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.types import NO_EPOCH, NO_TIMESTAMP, Epoch, Offset
from tidelog.storage.identity import PARTITION_METADATA, read_topic_id
from tidelog.storage.index import OFFSETS
from tidelog.storage.producer_snapshots import snapshot_offsets
from tidelog.storage.scan import Scan
from tidelog.storage.segment import INDEX, segment_name

LEFTOVERS = (".tmp", ".part", ".deleted", ".cleaned", ".swap")


class SegmentSurvey(NamedTuple):
    """One segment file, as the heads of its batches tell."""

    base_offset: Offset
    end_offset: Offset
    size: int
    batches: int
    records: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    first_epoch: Epoch
    last_epoch: Epoch
    index_covered: int | None
    """How many bytes of the segment its offset index describes; None when there is no index file."""
    unread: int
    """Bytes behind the last batch that could be read."""
    problem: str | None
    """Why those could not be read."""


class PartitionSurvey(NamedTuple):
    """All that lies in a partition's directory."""

    path: str
    topic_id: str | None
    segments: list[SegmentSurvey]
    snapshots: list[Offset]
    set_aside: list[tuple[str, int]]
    faults: list[Fault]

    @property
    def start_offset(self) -> Offset:
        """Of the first segment."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> Offset:
        """Behind the last batch."""
        return self.segments[-1].end_offset if self.segments else 0


def bases(directory: ReadOnlyDirectory) -> list[Offset]:
    """The base offsets of the segments, lowest first."""
    named = [(name, file_name(name)) for name in directory.names() if name.endswith(".log")]
    return sorted(what.base_offset for _, what in named if what is not None and what.kind == Kind.SEGMENT)


def survey_segment(directory: ReadOnlyDirectory, base: Offset) -> SegmentSurvey:
    """Walk one segment."""
    with directory.open(segment_name(base)) as file:
        size = file.size()
        scan = Scan(file, 0, size, bodies=False)
        batches = records = 0
        first_time = largest = NO_TIMESTAMP
        first_epoch = last_epoch = NO_EPOCH
        end = base
        try:
            for _, header, _ in scan:
                if not batches:
                    first_epoch = header.leader_epoch
                    horizon = header.attributes & DELETE_HORIZON
                    first_time = header.max_timestamp if horizon else header.base_timestamp
                batches += 1
                records += header.record_count
                largest = max(largest, header.max_timestamp)
                last_epoch, end = header.leader_epoch, header.next_offset
        except UnsupportedFormat as error:
            where = f"{directory.path}/{segment_name(base)}"
            raise UnsupportedFormat(f"{where} at byte {scan.position}: {error}") from None
        # A broker that writes meanwhile: what was cut off has been completed since, and is left out.
        growing = file.size() != size
        size = scan.position if growing else size
    covered = _covered(directory, base)
    times = first_time, largest, first_epoch, last_epoch
    problem = None if scan.problem is None or growing else "no batch begins there that is whole"
    return SegmentSurvey(base, end, size, batches, records, *times, covered, size - scan.position, problem)


def _covered(directory: ReadOnlyDirectory, base: Offset) -> int | None:
    try:
        return IndexFile(directory, segment_name(base, INDEX), base, kind=OFFSETS).covered
    except FileNotFoundError:
        return None


def survey(directory: ReadOnlyDirectory, around: Surroundings) -> PartitionSurvey:
    """Walk all segments of a partition. What a broker removes meanwhile is left out."""
    segments = []
    for base in bases(directory):
        try:
            segments.append(survey_segment(directory, base))
        except FileNotFoundError:
            continue
    topic_id = read_topic_id(directory)[0] if directory.exists(PARTITION_METADATA) else None
    names = directory.names()
    aside = [name for name in names if (what := file_name(name)) is not None and what.set_aside]
    faults = [*_between(directory.path, segments), *_within(directory.path, segments, around)]
    faults += _beside(directory, segments)
    return PartitionSurvey(
        directory.path,
        topic_id.hex() if topic_id else None,
        segments,
        snapshot_offsets(directory),
        [(name, directory.size_of(name)) for name in aside],
        faults,
    )


def _between(path: str, segments: list[SegmentSurvey]) -> Iterator[Fault]:
    """Segments that do not continue one another."""
    for before, after in pairwise(segments):
        if before.problem is not None or before.end_offset == after.base_offset:
            continue
        name, end, base = segment_name(after.base_offset), before.end_offset, after.base_offset
        what = f"{name} begins at offset {base}, the segment before it ends at {end}: "
        what += f"offsets {end} to {base - 1} are in no file" if base > end else "both hold what lies between"
        yield Fault(Severity.DAMAGE, path, None, what, RESTORE)


def _within(path: str, segments: list[SegmentSurvey], around: Surroundings) -> Iterator[Fault]:
    """What looks wrong in a single segment."""
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        name = f"{path}/{segment_name(segment.base_offset)}"
        if segment.problem is not None:
            durable = around.recovery_point is not None and around.recovery_point > segment.end_offset
            what = f"{segment.problem}: {segment.unread} bytes are left over"
            way_out = f"`tidelog log dump --verify {typed(name)}` tells how much of it is damage"
            if last and not durable:
                way_out = f"normal after a crash if nothing follows; {way_out}"
            severity = Severity.TORN if last and not durable else Severity.DAMAGE
            yield Fault(severity, name, segment.size - segment.unread, what, way_out)
        if segment.batches and segment.records > segment.end_offset - segment.base_offset:
            what = f"{segment.records} records in {segment.end_offset - segment.base_offset} offsets"
            yield Fault(Severity.DAMAGE, name, None, what, RESTORE)
        if not last and segment.index_covered is None:
            yield Fault(
                Severity.CACHE, name, None, "its offset index is missing", "the next start rebuilds it"
            )
        elif not last and segment.index_covered is not None and segment.index_covered != segment.size:
            what = f"its offset index reaches {segment.index_covered} of {segment.size} bytes"
            yield Fault(
                Severity.CACHE, name, None, what, "reads find their way without it; a start completes it"
            )


def _beside(directory: ReadOnlyDirectory, segments: list[SegmentSurvey]) -> Iterator[Fault]:
    """Files that belong to nothing."""
    names = set(directory.names())
    end = segments[-1].end_offset if segments else 0
    for name in sorted(names):
        path, what = f"{directory.path}/{name}", file_name(name)
        if name.endswith(LEFTOVERS):
            way_out = "harmless: the next start removes it"
            yield Fault(Severity.CACHE, path, None, "left half-made by a crash, or in work just now", way_out)
        elif what is None:
            # Not to be moved away: where the directory was mistaken for a partition's it may be anybody's.
            way_out = "no broker reads it: see whose it is"
            yield Fault(Severity.CACHE, path, None, "no file of a partition has this name", way_out)
        elif (
            what.kind in (Kind.OFFSET_INDEX, Kind.TIME_INDEX) and segment_name(what.base_offset) not in names
        ):
            yield Fault(Severity.CACHE, path, None, "an index without its segment", REBUILT)
        elif what.kind == Kind.SNAPSHOT and what.base_offset > end:
            said = f"producer state beyond the log, which ends at {end}"
            yield Fault(Severity.CACHE, path, None, said, "the next start removes it")
