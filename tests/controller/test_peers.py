"""How a controller reaches the others."""

import pytest

from tidelog.controller.peers import Peers
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import RequestTimedOut
from tidelog.protocol.io import Incoming, listen
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.messages import EndEpoch, EndEpochReply, Hello, Welcome
from tidelog.protocol.types import BrokerId, Epoch

PEER = BrokerId(2)


async def test_a_peer_that_was_silent_is_called_on_a_new_connection() -> None:
    connections: list[object] = []

    def serve(incoming: Incoming) -> None:
        if isinstance(incoming.message, Hello):
            connections.append(incoming)
            incoming.reply(Welcome("", PEER, "controller"))
        elif len(connections) > 1:
            incoming.reply(EndEpochReply(epoch=Epoch(1)))

    bounds = Bounds(DEFAULT)
    listener = await listen("127.0.0.1", 0, serve, bounds)
    peers = Peers({PEER: ("127.0.0.1", listener.port)}, Hello(), bounds)
    request = EndEpoch("", PEER, Epoch(1), BrokerId(1))
    try:
        with pytest.raises(RequestTimedOut):
            await peers.call(PEER, request, 50)
        assert isinstance(await peers.call(PEER, request, 5000), EndEpochReply)
        assert len(connections) == 2
    finally:
        peers.close()
        listener.close()
        await listener.wait_closed()
