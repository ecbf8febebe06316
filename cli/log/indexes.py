"""The blocks and entries of an index file, and whether the segment beside it bears them out."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

from tidelog.cli.log.items import (
    REBUILT,
    Block,
    Fault,
    Item,
    OffsetEntry,
    Severity,
    Summary,
    TimeEntry,
)
from tidelog.protocol.errors import CorruptMessage
from tidelog.protocol.types import NO_TIMESTAMP, Offset
from tidelog.storage.files import Directory, read_whole
from tidelog.storage.index import OFFSETS, read_block
from tidelog.storage.scan import Scan

IndexKind: TypeAlias = Literal["I", "q"]
"""Offsets or times (`storage.index`)."""


class IndexFile:
    """One index file: what its valid blocks say, and the faults on the way."""

    def __init__(self, directory: Directory, name: str, base_offset: Offset, *, kind: IndexKind) -> None:
        self.path = f"{directory.path}/{name}"
        self.covered = 0
        self.entries: list[tuple[int, int]] = []
        self.faults: list[Fault] = []
        self._kind = kind
        self._base = base_offset
        self._blocks: list[tuple[Block, list[OffsetEntry | TimeEntry]]] = []
        self._read(read_whole(directory, name))

    def _read(self, content: bytes) -> None:
        at = 0
        while at < len(content):
            try:
                block = read_block(self._kind, content, at)
            except CorruptMessage as problem:
                self._fault(at, f"{problem}; the {len(content) - at} bytes from here on are not believed")
                return
            if block.covered < self.covered:
                self._fault(
                    at, f"a block describes the log up to byte {block.covered}, the one before {self.covered}"
                )
                return
            entries = list(zip(block.keys, block.values, strict=True))
            for before, after in pairwise([*self.entries[-1:], *entries]):
                if after[0] < before[0] or after[1] <= before[1]:
                    self._fault(at, f"entry {after} follows {before}: keys and values must grow")
            self.entries += entries
            self.covered = block.covered
            self._blocks.append(
                (Block(at, len(entries), block.covered), [self._entry(*each) for each in entries])
            )
            at = block.end

    def _entry(self, key: int, value: int) -> OffsetEntry | TimeEntry:
        if self._kind == OFFSETS:
            return OffsetEntry(self._base + key, value)
        return TimeEntry(key, self._base + value)

    def _fault(self, position: int | None, what: str) -> None:
        self.faults.append(Fault(Severity.CACHE, self.path, position, what, REBUILT))

    def items(self) -> Iterator[Item]:
        """Each block and its entries."""
        for block, entries in self._blocks:
            yield block
            yield from entries

    def summary(self) -> Summary:
        """How much there is."""
        return Summary({"blocks": len(self._blocks), "entries": len(self.entries), "covered": self.covered})

    def check(self, directory: Directory, log: str) -> None:
        """Hold every entry against the segment: one walk along the heads of its batches."""
        if not directory.exists(log):
            self._fault(None, f"there is no {log} beside it, and an index without its log is of no use")
            return
        file = directory.open(log)
        try:
            size = file.size()
            if self.covered > size:
                self._fault(None, f"it describes {self.covered} bytes of {log}, which has {size}")
            check = self._check_offsets if self._kind == OFFSETS else self._check_times
            scan = Scan(file, 0, size, bodies=False)
            check(scan, log)
            if scan.problem is not None and self.covered > scan.position:
                what = (
                    f"{log} holds no whole batch at byte {scan.position}: entries behind it were not checked"
                )
                self._fault(None, what)
        finally:
            file.close()

    def _check_offsets(self, scan: Scan, log: str) -> None:
        wanted = dict.fromkeys(position for _, position in self.entries)
        found: dict[int, Offset] = {}
        for position, header, _ in scan:
            if position in wanted:
                found[position] = header.last_offset
        for key, position in self.entries:
            if scan.problem is not None and position >= scan.position:
                return
            last = found.get(position)
            if last is None:
                self._fault(None, f"an entry says that a batch of {log} begins at byte {position}: none does")
            elif last != self._base + key:
                said = f"an entry says that the batch at byte {position} of {log} ends with offset {self._base + key}"
                self._fault(None, f"{said}, it ends with {last}")

    def _check_times(self, scan: Scan, log: str) -> None:
        wanted = dict.fromkeys(self._base + value for _, value in self.entries)
        found: dict[Offset, tuple[int, int]] = {}
        largest, end = NO_TIMESTAMP, self._base
        for _, header, _ in scan:
            end = header.next_offset
            largest = max(largest, header.max_timestamp)
            if header.last_offset in wanted:
                found[header.last_offset] = header.max_timestamp, largest
        for timestamp, value in self.entries:
            if scan.problem is not None and self._base + value >= end:
                return
            at = found.get(self._base + value)
            if at is None:
                self._fault(
                    None, f"an entry names offset {self._base + value}, no batch of {log} ends with it"
                )
            elif at != (timestamp, timestamp):
                said = f"an entry says that {timestamp} is the largest time up to offset {self._base + value} of {log}"
                self._fault(None, f"{said}, it is {at[1]}")
