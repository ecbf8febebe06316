"""What a local cluster is to be: how many nodes, and where each of them is (DECISIONS 20).

Pure: what was asked and what is on record go in, the nodes come out, or a refusal in one line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidelog.cli.local.state import State
from tidelog.testing.nodes import NodeSpec
from tidelog.testing.ports import HOST

BROKERS: Final = 3
CONTROLLERS: Final = 1
PORT: Final = 9092
CONTROLLERS_ABOVE: Final = 100
HTTP_ABOVE: Final = 200
"""Metrics and health of each node are at its port and this."""


def settle(
    data: Path, known: State | None, brokers: int | None, controllers: int | None, port: int | None
) -> State:
    """How large the cluster is, and from which port on: as asked, else as it was, else by default."""
    if known is None:
        return State(brokers or BROKERS, controllers or CONTROLLERS, port or PORT)
    if controllers not in {None, known.controllers}:
        raise click.UsageError(
            f"{data} holds a cluster with {_many(known.controllers, 'controller')}, which cannot become "
            f"{controllers}: leave out --controllers, or begin another cluster with --data"
        )
    if brokers is not None and brokers < known.brokers:
        raise click.UsageError(
            f"{data} holds a cluster with {_many(known.brokers, 'broker')}, and some of their partitions may be "
            f"nowhere else: leave out -n, or begin another cluster with --data"
        )
    return State(brokers or known.brokers, known.controllers, port or known.port, settings=known.settings)


def nodes(data: Path, state: State, told: Mapping[str, Mapping[str, str]]) -> list[NodeSpec]:
    """Every node, and what each kind is told: controllers first, because brokers look for them."""
    places = [(f"c{n}", state.port + CONTROLLERS_ABOVE + n - 1) for n in range(1, state.controllers + 1)]
    quorum = tuple((int(name[1:]), HOST, port) for name, port in places)
    places += [(f"b{n}", state.port + n - 1) for n in range(1, state.brokers + 1)]
    return [
        NodeSpec(
            name=name,
            directory=data / f"{'broker' if name[0] == 'b' else 'controller'}-{name[1:]}",
            port=port,
            advertised=port,
            controllers=quorum,
            settings=told[name[0]],
        )
        for name, port in places
    ]


def _many(count: int, thing: str) -> str:
    return f"{count} {thing if count == 1 else thing + 's'}"
