"""A log of the smallest kind that commits in groups, for proving that the simulated disk finds mistakes.

Records go to segments of a few of them. A commit is begun and finished, and records may be appended in between, as
they are while a worker thread flushes. Whoever asks is told how many records are durable: that is the claim.
"""

import zlib
from struct import Struct
from typing import Final

from tidelog.storage.files import Directory, File

HEADER: Final = Struct(">II")
SEGMENT_RECORDS: Final = 8


class ProcessMustDie(Exception):
    """A flush failed: nothing that was not flushed before may be trusted by this process."""


class DemoLog:
    """Opens and recovers what is in the directory; all that it found is durable then."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.records: list[bytes] = []
        self.durable = 0
        self._file: File | None = None
        self._end = 0
        self._unflushed: list[File] = []
        self._names_unflushed = False
        self._recover()

    def append(self, record: bytes) -> None:
        if self._file is None or len(self.records) % SEGMENT_RECORDS == 0:
            self._roll()
        assert self._file is not None
        data = HEADER.pack(len(record), zlib.crc32(record)) + record
        self._file.write_at(self._end, data)
        self._end += len(data)
        self.records.append(record)

    def begin_commit(self) -> int:
        """Flush, and say how many records that covers."""
        covered = len(self.records)
        try:
            self._flush()
        except OSError as error:
            raise ProcessMustDie from error
        return covered

    def finish_commit(self, covered: int) -> None:
        """The flush was reported."""
        self.durable = max(self.durable, covered)

    def _flush(self) -> None:
        for file in self._unflushed:
            file.flush()
        if self._names_unflushed:
            self._flush_names()
        self._unflushed = self._unflushed[-1:]
        self._names_unflushed = False

    def _flush_names(self) -> None:
        self.directory.flush()

    def _roll(self) -> None:
        self._file = self.directory.open(f"{len(self.records):020}.log", create=True)
        self._end = 0
        self._unflushed.append(self._file)
        self._names_unflushed = True

    def _recover(self) -> None:
        for name in self.directory.names():
            if int(name.removesuffix(".log")) != len(self.records) or len(self.records) % SEGMENT_RECORDS:
                self.directory.remove(name)  # behind a torn end
                continue
            self._file = self.directory.open(name)
            content = self._file.read_at(0, self._file.size())
            self._end = 0
            while (record := read_record(content, self._end)) is not None:
                self.records.append(record)
                self._end += HEADER.size + len(record)
            self._file.truncate(self._end)
            self._rewrite(self._file, content[: self._end])
            self._unflushed.append(self._file)
        self._names_unflushed = True
        self._commit_recovered()

    def _commit_recovered(self) -> None:
        self.finish_commit(self.begin_commit())

    def _rewrite(self, file: File, content: bytes) -> None:
        # D12: pages that a failed flush left "clean" become dirty again, and reach the disk with the next flush.
        file.write_at(0, content)


def read_record(content: bytes, position: int) -> bytes | None:
    if len(content) < position + HEADER.size:
        return None
    length, crc = HEADER.unpack_from(content, position)
    record = content[position + HEADER.size : position + HEADER.size + length]
    return record if length and len(record) == length and zlib.crc32(record) == crc else None
