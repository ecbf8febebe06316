"""`tidelog down`: stop the cluster that `tidelog up` has started."""

from pathlib import Path

import click

from tidelog.cli.local.up import data_option
from tidelog.cli.options import Seconds, Verb

KEEPER_S = 75.0
"""How long a `tidelog up` in another terminal may take to stop all of its nodes."""


@click.command(cls=Verb, examples=("tidelog down", "tidelog down --data /tmp/try"))
@data_option
@click.option(
    "--timeout",
    "patience_s",
    type=Seconds(min=0),
    metavar="SECONDS",
    help="How long nodes may take before they are killed. [default: 45 for brokers, 15 for controllers]",
)
def down(data: Path, patience_s: float | None) -> None:
    """Stop a local cluster in order: brokers hand over what they lead, then controllers end. Its data stays."""
    # Imported here because a help page must not pay for them.
    import asyncio  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from tidelog.cli.local import state as record  # noqa: PLC0415
    from tidelog.cli.local.supervision import end, still_there  # noqa: PLC0415

    found = record.read(data)
    if found is None:
        raise click.ClickException(f"{data} holds no cluster of `tidelog up`: name its directory with --data")

    state = found

    async def stop() -> None:
        keeper = state.keeper
        if keeper is not None and keeper.signal(signal.SIGTERM):
            _say(f"the `tidelog up` that keeps it (pid {keeper.pid}) stops it")
            left = await still_there([*state.living, record.Running("up", *keeper)], patience_s or KEEPER_S)
            if not left:
                return
        await end(state.living, _say, patience_s)

    living = state.living
    if not living:
        _say(f"nothing of {data} runs")
    else:
        asyncio.run(stop())
        left = state.living
        if left:
            raise click.ClickException(
                f"{', '.join(f'{node.title} (pid {node.pid})' for node in left)} cannot be ended: is it another user's?"
            )
        _say(f"{len(living)} nodes have stopped; their data stays in {data}")
    now = record.read(data)
    if now is not None and now.nodes and not now.living:
        now.nodes, now.up = [], None
        record.write(data, now)


def _say(line: str) -> None:
    click.echo(line, err=True)
