"""`tidelog log dump`: from the name of a file to what is in it."""

import os
from collections.abc import Iterator

import click

from tidelog.cli.log import batches, indexes, states
from tidelog.cli.log.items import Fault, Item, Row
from tidelog.cli.log.kinds import KNOWN, FileName, Kind, file_name
from tidelog.cli.log.layouts import DumpLayout, File
from tidelog.cli.log.places import is_partition, refuse_cluster, surroundings_of
from tidelog.cli.log.progress import Progress, WatchedFile
from tidelog.cli.read_only import ReadOnlyDirectory
from tidelog.cli.terminal import typed
from tidelog.protocol.errors import TidelogError
from tidelog.storage.index import OFFSETS, TIMES
from tidelog.storage.segment import segment_name

_SMALL = {
    Kind.SNAPSHOT: states.snapshot,
    Kind.EPOCHS: states.epochs,
    Kind.OFFSETS: states.offsets,
    Kind.PROPERTIES: states.properties,
    Kind.MARKER: states.marker,
    Kind.LOCK: states.lock,
}


def require_files(paths: tuple[str, ...]) -> None:
    """Refuse what cannot be dumped before anything is printed."""
    for path in paths:
        shown = click.format_filename(path)
        if os.path.isdir(path):
            refuse_cluster(path, "segments")
            raise click.UsageError(
                f"{shown} is a directory: `tidelog log segments {typed(path)}` lists it, dump takes the files in it"
            )
        if not os.path.lexists(path):
            beside = os.path.dirname(path) or "."
            exists = os.path.isdir(beside) and is_partition(ReadOnlyDirectory(beside))
            known = f"`tidelog log segments {typed(beside)}` shows what does" if exists else "check the path"
            raise click.UsageError(f"{shown} does not exist: {known}")
        if file_name(os.path.basename(path)) is None:
            raise click.UsageError(
                f"{shown} is no file that tidelog knows by its name: dump reads {KNOWN}, a segment has 20 digits"
            )


def dump(layout: DumpLayout, paths: tuple[str, ...], *, show: bool, records: bool, verify: bool) -> bool:
    """Dump one file after the other; whether all could be read and, if they were verified, are without fault."""
    sound = True
    for path in paths:
        try:
            if not _dump(layout, path, show=show, records=records, verify=verify):
                sound = False
        except OSError as error:
            sound = False
            click.echo(f"error: {path}: {error.strerror or error}", err=True)
        except TidelogError as error:
            sound = False
            click.echo(f"error: {error}; {type(error).way_out()}", err=True)
    return sound


def _dump(layout: DumpLayout, path: str, *, show: bool, records: bool, verify: bool) -> bool:
    place, name = os.path.split(path)
    directory = ReadOnlyDirectory(place or ".")
    what = file_name(name)
    assert what is not None, name
    # Only where nothing else is shown meanwhile.
    watched = Progress(name) if verify and not show else None
    with WatchedFile(path, watched) if watched else directory.open(name) as file:
        size = file.size()
        layout.begin(File(path, name, what, size))
        sound = True
        try:
            if what.kind == Kind.SEGMENT:
                base = None if what.set_aside else what.base_offset
                extent = batches.Extent(path, file, size, base)
                around = _surroundings(directory, name, what)
                found = batches.listed(extent, around, show=show, records=records, verify=verify)
            else:
                found = _of_small_file(directory, name, what, show=show, verify=verify)
            for item in found:
                layout.show(item)
                sound = sound and not isinstance(item, Fault)
        finally:
            if watched:
                watched.end()
            layout.end()
    return sound or not verify


def _of_small_file(
    directory: ReadOnlyDirectory, name: str, what: FileName, *, show: bool, verify: bool
) -> Iterator[Item]:
    if what.kind in _SMALL:
        for item in _SMALL[what.kind](directory, name):
            if show or not isinstance(item, Row):
                yield item
        return
    kind: indexes.IndexKind = OFFSETS if what.kind == Kind.OFFSET_INDEX else TIMES
    index = indexes.IndexFile(directory, name, what.base_offset, kind=kind)
    if verify:
        index.check(directory, segment_name(what.base_offset))
    if show:
        yield from index.items()
    yield from index.faults
    yield index.summary()


def _surroundings(directory: ReadOnlyDirectory, name: str, what: FileName) -> batches.Surroundings:
    """What the directory knows of a segment."""
    if what.set_aside or name != segment_name(what.base_offset):
        return batches.Surroundings()
    later = [
        each
        for each in directory.names()
        if each > name and each.endswith(".log") and file_name(each) is not None
    ]
    return surroundings_of(directory.path, min(later, default=None))
