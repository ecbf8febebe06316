"""`tidelog up`: a local cluster of real processes in one command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.local import DATA
from tidelog.cli.options import Layout, Verb, layout, output_option

if TYPE_CHECKING:
    from tidelog.cli.local.state import State
    from tidelog.cli.local.supervision import Supervision
    from tidelog.testing.nodes import NodeSpec

DIED: Final = 3
AT_ONCE: Final = 130

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    metavar="DIR",
    help=f"Where the nodes keep their data and their logs. [default: ./{DATA}]",
)


@click.command(
    cls=Verb,
    examples=(
        "tidelog up",
        "tidelog up -n 1 --data /tmp/try",
        "tidelog up -n 3 --controllers 3 --detach && tidelog cluster quorum; tidelog down",
        "tidelog up --detach -o json | jq -r 'select(.type == \"ready\") | .bootstrap'",
    ),
)
@click.option(
    "-n", "--brokers", type=click.IntRange(1, 99), metavar="N", help="Brokers. [default: 3, or as before]"
)
@click.option(
    "--controllers",
    type=click.IntRange(1, 9),
    metavar="N",
    help="Controllers; 3 survive the loss of one. [default: 1, or as before]",
)
@data_option
@click.option(
    "--port",
    type=click.IntRange(1, 65_000),
    metavar="P",
    help="Brokers are at P, P+1, ...; controllers at P+100, ... [default: 9092, or as before]",
)
@click.option(
    "-X",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of all nodes that know it; repeatable. [default: as before; none with -X '']",
)
@click.option("--detach", is_flag=True, help="Return when all serve, and leave them to `tidelog down`.")
@output_option
@click.pass_context
def up(
    ctx: click.Context,
    /,
    brokers: int | None,
    controllers: int | None,
    data: Path,
    port: int | None,
    pairs: Sequence[str],
    *,
    detach: bool,
) -> int:
    """Run a local cluster of real processes, until Ctrl-C.

    Its data and settings stay: the next `up` goes on with them. A broker that dies is reported and the others go on; the exit code is
    3 then. With --detach, the next `up --detach` starts the nodes that have died, and leaves the others alone. A second Ctrl-C ends everything at once, as a power cut of the processes.
    """
    # Imported here because a help page must not pay for them.
    import asyncio  # noqa: PLC0415

    from tidelog.cli.local import plan  # noqa: PLC0415
    from tidelog.cli.local import state as record  # noqa: PLC0415

    asked = layout(ctx, "text", "json")
    held = record.take(data)
    try:
        known = record.read(data)
        _refuse_if_running(data, known)
        state = plan.settle(data, known, brokers, controllers, port)
        settings = _settings(ctx, pairs) if pairs else state.settings
        every = plan.nodes(data, state, _told(ctx, settings, state.brokers))
        specs = _missing(data, known, state, every, detach=detach)
        _refuse_if_taken(specs)
        return asyncio.run(_run(data, state, specs, settings, asked, detach=detach))
    finally:
        held.give_back()


def _settings(ctx: click.Context, pairs: Sequence[str]) -> dict[str, str]:
    said = {}
    for pair in filter(None, pairs):
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"-X {pair} is no KEY=VALUE", ctx)
        said[key] = value
    return said


def _told(ctx: click.Context, settings: dict[str, str], brokers: int) -> "Mapping[str, Mapping[str, str]]":
    from tidelog.testing.nodes import replication_factors  # noqa: PLC0415 -- a help page must not pay for it

    if not settings:
        return replication_factors(brokers)
    from tidelog.cli.asking import briefly  # noqa: PLC0415 -- seldom needed, and slow
    from tidelog.protocol.errors import InvalidConfig  # noqa: PLC0415 -- as above
    from tidelog.testing.told import settings_for  # noqa: PLC0415 -- as above

    try:
        return settings_for(settings, brokers)
    except InvalidConfig as error:
        raise click.UsageError(f"-X {briefly(error.message, 'docs/CONFIGURATION.md')}", ctx) from error


def _refuse_if_running(data: Path, known: "State | None") -> None:
    if known is None or len(known.living) < known.brokers + known.controllers:
        return
    from tidelog.cli.local.state import option  # noqa: PLC0415 -- a help page must not pay for it

    raise click.ClickException(
        f"a cluster of {data} already runs, at {known.bootstrap}: use it, or stop it with `tidelog down{option(data)}`"
    )


def _missing(
    data: Path, known: "State | None", state: "State", specs: "Sequence[NodeSpec]", *, detach: bool
) -> "Sequence[NodeSpec]":
    """The nodes that are to be started: all, or those that a detached cluster lacks, which keeps the others."""
    living = known.living if known is not None else []
    if known is None or not living:
        return specs
    from tidelog.cli.local.state import option  # noqa: PLC0415 -- as above

    there = {node.name for node in living}
    missing = [spec for spec in specs if spec.name not in there]
    most = {True: known.brokers, False: known.controllers}
    if known.up is not None:  # whose nodes are ending by themselves, unless they are paused
        raise click.ClickException(
            f"{len(living)} of {sum(most.values())} nodes of {data} still run{'s' * (len(living) == 1)}, and the `tidelog up` "
            f"that kept them is gone: `tidelog down{option(data)}` ends them"
        )
    if not detach or (state.brokers, state.port) != (known.brokers, known.port):
        titles = [spec.title.replace("-", " ") for spec in missing if spec.number <= most[spec.is_broker]]
        raise click.ClickException(
            f"{len(living)} of {sum(most.values())} nodes of {data} run{'s' * (len(living) == 1)}, at {known.bootstrap}, "
            f"and not {', '.join(titles)}: `tidelog up{option(data)} --detach` starts what is missing, "
            f"`tidelog down{option(data)}` stops the rest"
        )
    state.nodes = living
    return missing


def _refuse_if_taken(specs: "Sequence[NodeSpec]") -> None:
    import os  # noqa: PLC0415

    from tidelog.cli.local.identity import is_free, who_listens  # noqa: PLC0415
    from tidelog.testing.ports import HOST  # noqa: PLC0415

    for spec in specs:
        error = is_free(HOST, spec.port)
        if error is None:
            continue
        where = f"port {spec.port}, which {spec.title.replace('-', ' ')} needs,"
        if isinstance(error, PermissionError):
            raise click.ClickException(
                f"{where} may not be used by user {os.geteuid()}: choose one from 1024 on with --port"
            )
        who = who_listens(spec.port)
        raise click.ClickException(
            f"{where} is taken{f' by {who}' if who else ''}: stop that, or choose another with --port"
        )


async def _run(
    data: Path,
    state: "State",
    specs: "Sequence[NodeSpec]",
    settings: dict[str, str],
    asked: Layout,
    *,
    detach: bool,
) -> int:
    import asyncio  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from tidelog.cli.local.supervision import Supervision  # noqa: PLC0415
    from tidelog.testing.nodes import NodeFailed  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    began = loop.time()
    nodes = Supervision(data, state, specs, settings, _say, detached=detach)
    starting = asyncio.ensure_future(nodes.start())
    early: list[signal.Signals] = []

    def heard(number: signal.Signals) -> None:
        if starting.done():
            nodes.told(number)
        else:
            early.append(number)
            starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, heard, number)
    try:
        await starting
    except asyncio.CancelledError:
        if not early:
            raise
        _say("interrupted before all nodes served; those that had begun are ended")
        return 128 + early[0]
    except NodeFailed as error:
        fact, _, lines = str(error).partition("\n")
        _say(lines)
        raise click.ClickException(f"{fact.rstrip(':')}, which is above") from error
    _print(data, state, nodes, loop.time() - began, asked, detached=detach)
    if detach:
        return 0
    in_order = await nodes.keep()
    if not in_order:
        return AT_ONCE
    return DIED if nodes.died else 0


def _say(line: str) -> None:
    click.echo(line, err=True)


def _print(
    data: Path, state: "State", nodes: "Supervision", seconds: float, asked: Layout, *, detached: bool
) -> None:
    from tidelog.cli.local.state import option  # noqa: PLC0415
    from tidelog.cli.terminal import Table, Writer, many, typed  # noqa: PLC0415

    writer = Writer()
    if asked == "json":
        _print_json(writer, data, state, nodes, seconds)
        writer.flush()
        return
    table = Table(writer, ("NODE", "ADDRESS", ">PID", "METRICS", "DATA"))
    for spec, about in nodes.about():
        http = f"{about['http']}/metrics" if about.get("http") else "-"
        table.row(
            spec.title.replace("-", " "),
            f"127.0.0.1:{spec.port}",
            str(about.get("pid", "")),
            http,
            spec.directory.name,
        )
    table.end()
    port = "" if state.port == 9092 else f" -b {state.bootstrap}"
    others = len(state.nodes) - len(nodes.about())
    if others:
        writer.line()
        writer.line(f"{many(others, 'node')} ran already and {'was' if others == 1 else 'were'} left alone")
    writer.line()
    writer.line(f"ready in {seconds:.1f} s at {state.bootstrap}; data and logs are in {typed(data)}")
    for key, value in state.settings.items():
        writer.line(f"  with {key}={value}")
    writer.line()
    writer.line(f"  tidelog{port} topic create orders -p 3")
    writer.line(f"  seq 10 | tidelog{port} produce orders")
    writer.line(f"  tidelog{port} consume orders -o start --exit")
    writer.line(f'  spark.read.format("tidelog").option("bootstrap.servers", "{state.bootstrap}") \\')
    writer.line('      .option("subscribe", "orders").load()')
    writer.line()
    writer.line(f"stop it with `tidelog down{option(data)}`" if detached else "stop it with Ctrl-C")
    writer.flush()


def _print_json(writer: Any, data: Path, state: "State", nodes: "Supervision", seconds: float) -> None:
    import json  # noqa: PLC0415

    for spec, about in nodes.about():
        node = {key: about.get(key) for key in ("role", "id", "host", "port", "http", "pid", "data")}
        writer.line(json.dumps({"type": "node", **node, "log": str(data / f"{spec.title}.log")}))
    ready = {"type": "ready", "bootstrap": state.bootstrap, "seconds": round(seconds, 3), "data": str(data)}
    size = {"brokers": state.brokers, "controllers": state.controllers}
    writer.line(json.dumps(ready | size | {"settings": state.settings}))
