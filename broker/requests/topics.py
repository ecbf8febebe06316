"""CreateTopics and DeleteTopics: handed on to the active controller, whose answer is the answer (DECISIONS 21)."""

from typing import cast

import msgspec

from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import CreateTopics, DeleteTopics, Reply, Request
from tidelog.protocol.types import Epoch


def hand_on(context: Context, incoming: Incoming) -> None:
    """Ask the controller, whoever that is by then, in the name of a client that does not know it.

    It is asked again when its answer is lost: a topic that "exists already" may be what this very request has made.
    """
    request = cast("CreateTopics | DeleteTopics", incoming.message)

    def build(quorum_epoch: Epoch) -> Request:
        return msgspec.structs.replace(request, quorum_epoch=quorum_epoch)

    def told(answer: Reply | TidelogError) -> None:
        if isinstance(answer, TidelogError):
            incoming.refuse(answer)
        else:
            incoming.reply(answer)

    context.ask_controller(build, request.timeout_ms, told)
