"""`tidelog controller start`: a controller that is this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.node.command import NodeVerb, by_setting, node_options
from tidelog.cli.options import Address

if TYPE_CHECKING:
    from tidelog.cli.node.asked import Asked

FILES: Final = 512
"""Log files that may be open at once: those of one log, and what `OpenSegments` allows."""


@click.command(
    cls=NodeVerb,
    examples=(
        "tidelog controller start --id 1 --data ./controller-1",
        "tidelog controller start --id 2 --quorum 1@h1:9192,2@h2:9192,3@h3:9192 --data ./controller-2",
        "tidelog controller start -c controller.toml -X quorum.fetch.timeout.ms=1000",
    ),
)
@node_options("controller")
@click.option(
    "--quorum",
    metavar="ID@HOST:PORT,...",
    help="All controllers, this one among them. [default: this one alone, where it listens]",
)
@click.pass_context
def start(ctx: click.Context, /, config: str | None, pairs: Sequence[str], **flags: str | None) -> int:
    """Be a controller, until a signal ends it.

    Settings have Kafka's names. What a flag or -X says wins over the environment (TIDELOG_NUM_PARTITIONS for
    num.partitions), and that over the file.
    """
    # Imported here because a help page must not pay for it.
    from tidelog.cli.node.asked import gather  # noqa: PLC0415

    return _start(gather(ctx, "controller", config, pairs, by_setting(flags)))


def _start(asked: "Asked") -> int:
    # Imported here because a help page must not pay for them.
    from tidelog.cli.controller.node import ControllerNode  # noqa: PLC0415
    from tidelog.cli.node.begin import begin  # noqa: PLC0415
    from tidelog.controller.config import ControllerConfig, told  # noqa: PLC0415
    from tidelog.protocol.errors import InvalidConfig  # noqa: PLC0415
    from tidelog.protocol.types import BrokerId  # noqa: PLC0415

    number = int(asked.needed("node.id", "which controller this is, as --id 1"))
    quorum = asked.text("controller.quorum.voters")
    listen = asked.address("listeners", "127.0.0.1:9192")
    assert listen is not None
    voters = asked.voters(quorum) if quorum is not None else ((number, *listen),)
    if len(voters) > 1 and any(port == 0 for _, _, port in voters):
        raise asked.misused(f"--quorum {quorum}: with port 0 the others would not find it")
    own = next((Address(host, port) for voter, host, port in voters if voter == number), listen)
    if asked.text("listeners") is None:
        listen = own
    try:
        config = told(
            ControllerConfig(
                node_id=BrokerId(number), voters=tuple(voters), host=listen.host, port=listen.port
            ),
            asked.settings,
        )
    except InvalidConfig as error:
        raise asked.misused(str(error)) from error
    return begin(
        asked,
        listen,
        lambda environment: ControllerNode(config, environment),
        files=FILES,
        connections=config.limits.max_connections,
        nameless=None if quorum else "say with --quorum ID@HOST:PORT,... where others find it",
    )
