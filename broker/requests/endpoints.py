"""Where a broker is, in the eyes of who asks: the address of the listener by which they have come in (ADR 102)."""

from tidelog.controller.image import BrokerState
from tidelog.protocol.io import Incoming


def endpoint(broker: BrokerState, incoming: Incoming) -> tuple[str, int]:
    """Host and port of that broker's listener of the same name; if it has none, of the one that brokers use."""
    came_in_by = incoming.connection.came_in_by
    for known in broker.listeners:
        if known.listener == came_in_by:
            return known.host, known.port
    return broker.host, broker.port
