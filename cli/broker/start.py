"""`tidelog broker start`: a broker that is this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.node.command import NodeVerb, by_setting, node_options

if TYPE_CHECKING:
    from tidelog.cli.node.asked import Asked
    from tidelog.cli.options import Address

EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "0"})  # noqa: S104 -- what is refused
"""Hosts that mean every address of a machine."""


@click.command(
    cls=NodeVerb,
    examples=(
        "tidelog broker start --id 1 --controllers 1@127.0.0.1:9192 --data ./broker-1",
        "tidelog broker start --id 2 --listen 127.0.0.1:0 --controllers 1@127.0.0.1:9192 --data ./broker-2 --rack b",
        (
            "tidelog broker start --id 3 --listen 0.0.0.0:9092,host://0.0.0.0:19092 "
            "--advertise broker-3:9092,host://127.0.0.1:9094 --controllers 1@controller-1:9192 --data ./broker-3"
        ),
        "tidelog broker start --id 4 --controllers 1@127.0.0.1:9192 --data /disk1/tidelog --data /disk2/tidelog",
        "tidelog broker start -c broker.toml -X broker.session.timeout.ms=6000",
        "TIDELOG_BROKER_RACK=b tidelog broker start -c broker.toml",
    ),
)
@node_options("broker")
@click.option("--controllers", metavar="ID@HOST:PORT,...", help="The controllers of the cluster.")
@click.option("--rack", metavar="RACK", help="Where it stands: replicas are spread over racks.")
@click.option(
    "--advertise",
    metavar="HOST:PORT[,NAME://...]",
    help="What others are told of where it is. [default: what it listens on]",
)
@click.pass_context
def start(
    ctx: click.Context, /, config: str | None, pairs: Sequence[str], **flags: str | tuple[str, ...] | None
) -> int:
    """Be a broker, until a signal ends it.

    It may listen on several addresses, the others with names: a client that comes in by host:// is told what each broker
    advertises for host://. Brokers themselves use the first address.

    Settings have Kafka's names. What a flag or -X says wins over the environment (TIDELOG_BROKER_RACK for broker.rack),
    and that over the file.
    """
    # Imported here because a help page must not pay for it.
    from tidelog.cli.node.asked import gather  # noqa: PLC0415

    return _start(gather(ctx, "broker", config, pairs, by_setting(flags)))


def _start(asked: "Asked") -> int:
    # Imported here because a help page must not pay for them.
    from tidelog.broker.config import FIELDS, BrokerConfig, OtherListener  # noqa: PLC0415
    from tidelog.cli.broker.node import BrokerNode  # noqa: PLC0415
    from tidelog.cli.node.begin import begin  # noqa: PLC0415
    from tidelog.protocol.errors import InvalidConfig  # noqa: PLC0415
    from tidelog.protocol.settings import configured  # noqa: PLC0415
    from tidelog.protocol.types import BrokerId  # noqa: PLC0415

    (_, listen, advertise), *others = _listeners(asked)
    number = int(asked.needed("node.id", "which broker this is, as --id 1"))
    controllers = asked.needed(
        "controller.quorum.voters", "the controllers, as --controllers 1@127.0.0.1:9192"
    )
    try:
        config = configured(
            BrokerConfig(
                broker_id=BrokerId(number),
                controllers=asked.voters(controllers),
                host=listen.host,
                port=listen.port,
                advertise=advertise,
                other_listeners=tuple(OtherListener(name, *at, told) for name, at, told in others),
                rack=asked.text("broker.rack", "") or "",
            ),
            FIELDS,
            asked.settings,
        )
    except InvalidConfig as error:
        raise asked.misused(str(error)) from error

    return begin(
        asked,
        listen,
        lambda environment: BrokerNode(config, environment),
        files=config.open_segments,
        connections=config.limits.max_connections,
        nameless=_nameless("", advertise),
        others=[(at, _nameless(f"{name}://", told)) for name, at, told in others],
    )


def _listeners(asked: "Asked") -> "list[tuple[str, Address, Address | None]]":
    """Where it listens, under which name, and what others are told of that; brokers use the first."""
    listeners = asked.listeners("listeners", "127.0.0.1:9092")
    told = {each.name: each.address for each in asked.listeners("advertised.listeners")}
    for address in told.values():
        if address.host in EVERYWHERE:
            raise asked.misused(
                f"--advertise {address} is no address of one machine: say where others find it"
            )
    first = listeners[0].name
    if "" in told:
        told.setdefault(first, told.pop(""))
    found = [(name, address, told.pop(name, None)) for name, address in listeners]
    for name, address in told.items():
        raise asked.misused(
            f"--advertise {name}://{address}: --listen has no {name}://HOST:PORT, which it would be told for"
        )
    for at, (name, address, _) in enumerate(found):
        if address.port and address in [other for _, other, _ in found[:at]]:
            raise asked.misused(f"--listen {name}://{address}: it listens there already, take another port")
    return found


def _nameless(prefix: str, advertise: "Address | None") -> str | None:
    """What is missing where an address is no address of one machine."""
    return None if advertise else f"say with --advertise {prefix}HOST:PORT where others find it"
