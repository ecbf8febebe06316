"""`tidelog log`: look into the files of a node without any broker, and without changing a byte.

The verbs are thin. What files hold is found by modules that print nothing (`batches`, `indexes`, `states`,
`segments`, `nodes`) and printed by others (`layouts`, `tables`).
"""

import click

from tidelog.cli.options import Verb, layout, output_option


@click.group()
def log() -> None:
    """Look into the files of a node: offline, reading only.

    None of these verbs needs a broker, changes a byte or takes a lock. They work beside a broker that
    is running, and where you may not write.
    """


@log.command(
    cls=Verb,
    examples=(
        "tidelog log dump data/orders-0/00000000000000000000.log",
        "tidelog log dump --data -o kafka data/orders-0/*.log | less",
        "tidelog log dump --data -o json data/orders-0/*.log | jq .value",
        "tidelog log dump --verify data/*/*.log data/*/*index",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--data", is_flag=True, help="Show the records, not only the batches.")
@click.option("--verify", is_flag=True, help="Check everything; print faults and a verdict per file.")
@output_option
@click.pass_context
def dump(ctx: click.Context, files: tuple[str, ...], data: bool, verify: bool) -> int:
    """Show what is in files of a data directory.

    Knows each file by its name: segments (.log, .log.corrupt), .index, .timeindex, .snapshot, the
    checkpoints, meta.properties, partition.metadata, .running, .clean_shutdown.

    With --verify, and without --data, only faults and verdicts are printed: exit 1 if there is a fault.
    """
    # Imported here, as in the other verbs, because a help page must not pay for them.
    from tidelog.cli.log.dump import dump as dump_files  # noqa: PLC0415
    from tidelog.cli.log.dump import require_files  # noqa: PLC0415
    from tidelog.cli.log.layouts import dump_layout  # noqa: PLC0415
    from tidelog.cli.terminal import Writer  # noqa: PLC0415

    asked = layout(ctx, "text", "json", "kafka")
    require_files(files)
    show = data or not verify
    writer = Writer()
    sound = dump_files(
        dump_layout(asked, writer, verdicts_only=not show), files, show=show, records=data, verify=verify
    )
    writer.flush()
    return 0 if sound else 1


@log.command(
    cls=Verb,
    examples=(
        "tidelog log segments data",
        "tidelog log segments data/orders-0",
        "tidelog log segments data -o json | jq 'select(.type == \"fault\")'",
    ),
)
@click.argument("directory", metavar="DIR", type=click.Path())
@output_option
@click.pass_context
def segments(ctx: click.Context, directory: str) -> None:
    """List the segments of one partition or of all.

    DIR is a partition's directory, or a data directory with partitions in it.

    Per segment: offsets (the end is exclusive), sizes, times, leader epochs, how far the index reaches. What
    looks wrong stands below the table, beginning with `torn`, `damage` or `cache`.
    """
    from tidelog.cli.log import places, tables  # noqa: PLC0415
    from tidelog.cli.log.segments import survey  # noqa: PLC0415
    from tidelog.cli.terminal import Writer  # noqa: PLC0415

    asked = layout(ctx, "text", "json")
    place = places.require_directory(directory, "segments")
    writer, found = Writer(), []
    whole = not places.is_partition(place)
    for inside in [place.directory(name) for name in places.partitions_in(place)] if whole else [place]:
        partition = survey(inside, places.surroundings_of(inside.path))
        found.append(partition)
        if asked == "json":
            tables.segments_as_json(writer, partition)
        else:
            tables.segments_as_text(writer, partition)
            writer.line()
        writer.flush()
    if whole and asked == "text":
        tables.totals_as_text(writer, found)
    writer.flush()


@log.command(
    cls=Verb,
    examples=(
        "tidelog log checkpoints data",
        "tidelog log checkpoints data/orders-0",
        "tidelog log checkpoints data -o json | jq 'select(.type == \"partition\")'",
    ),
)
@click.argument("directory", metavar="DIR", type=click.Path())
@output_option
@click.pass_context
def checkpoints(ctx: click.Context, directory: str) -> None:
    """Show identity, last end, checkpoints and epochs.

    Of a data directory: whose it is, how its last end will be classified, and of each partition: log start, high
    watermark, recovery point, log end and leader epochs. Of a partition's directory: topic id and epochs.
    """
    from tidelog.cli.log import places, tables  # noqa: PLC0415
    from tidelog.cli.log.dump import dump as dump_files  # noqa: PLC0415
    from tidelog.cli.log.layouts import dump_layout  # noqa: PLC0415
    from tidelog.cli.log.nodes import inspect  # noqa: PLC0415
    from tidelog.cli.terminal import Writer  # noqa: PLC0415

    asked = layout(ctx, "text", "json")
    place = places.require_directory(directory, "checkpoints")
    writer = Writer()
    if places.is_partition(place):
        paths = places.state_files(place)
        dump_files(
            dump_layout(asked, writer, verdicts_only=False), paths, show=True, records=False, verify=False
        )
    elif asked == "json":
        tables.node_as_json(writer, inspect(place))
    else:
        tables.node_as_text(writer, inspect(place))
    writer.flush()
