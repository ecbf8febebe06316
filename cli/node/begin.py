"""From what was asked to a running node: look at the machine, then serve. Imported when a node starts, not for help."""

import logging
import os
from collections.abc import Sequence
from typing import Final

from tidelog.cli.node import logs
from tidelog.cli.node.asked import Asked
from tidelog.cli.node.machine import look_at, raise_descriptors, refuse_without_asserts
from tidelog.cli.node.process import Launch, Make, serve
from tidelog.cli.options import Address

DESCRIPTORS_BESIDE: Final = 100
"""Files and sockets beside those that settings count: the program's own, checkpoints, connections to other nodes."""

logger = logging.getLogger(__name__)


def begin(
    asked: Asked,
    listen: Address,
    make: Make,
    *,
    files: int,
    connections: int,
    nameless: str | None,
    others: Sequence[tuple[Address, str | None]] = (),
) -> int:
    """Be that node until it ends; the exit code. `nameless`: what is missing if it listens on all addresses.

    `others`: where it listens as well, each with what is missing if that is all addresses.
    """
    role = asked.role
    launch = Launch(
        role=role,
        id=int(asked.needed("node.id", f"which {role} this is, as --id 1")),
        listen=listen,
        data=_directories(asked),
        http=asked.address("http.listener"),
        ready_file=asked.text("ready.file"),
        json=asked.json,
    )
    refuse_without_asserts()
    raise_descriptors(
        files + connections + DESCRIPTORS_BESIDE,
        f"{files} of logs, {connections} connections, {DESCRIPTORS_BESIDE} others",
    )
    addresses = ((listen, nameless), *others)
    standings = {address: look_at(address) for address, _ in addresses}
    for address, missing in addresses:
        if standings[address].everywhere and missing is not None:
            raise asked.misused(f"--listen {address} means every address of this machine: {missing}")
    seen = look_at(launch.http) if launch.http is not None else None
    moderation = logs.set_up(
        asked.text("logging.level", "info") or "",
        asked.text("logging.format", "auto") or "",
        colour=not os.environ.get("NO_COLOR"),
    )
    for address, standing in standings.items():
        if not standing.loopback:
            logger.warning(
                "%s.open listen=%s note=%s",
                role,
                address,
                "whoever reaches this address may read and write: there is no authentication yet",
            )
    if seen is not None and not seen.loopback:
        logger.warning(
            "%s.open http=%s note=%s",
            role,
            launch.http,
            "whoever reaches this address may read metrics and health",
        )
    return serve(launch, moderation, make)


def _directories(asked: Asked) -> tuple[str, ...]:
    said = asked.needed("log.dir", f"where the {asked.role} keeps its data, as --data ./{asked.role}-1")
    return tuple(said.split(",")) if asked.role == "broker" else (said,)
