"""InitProducerId: an id that nobody else has or had, from blocks that the controller gives to brokers (design 5.3).

What it keeps true (I-67): an id is given once. A block is this process's; what is left of it dies with it. Who has an
id gets the next epoch of it, until epochs run out.
"""

from dataclasses import dataclass
from typing import Final, cast

from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import (
    InvalidRequest,
    RequestTimedOut,
    TidelogError,
    UnsupportedVersion,
    error_of,
)
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    InitProducerId,
    InitProducerIdReply,
    Reply,
)
from tidelog.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Epoch

EPOCH_MAX: Final = 2**15 - 2
"""The last epoch of an id; whoever is at it gets another id (5.8)."""
WAITING: Final = "producer ids"
"""What waiting answers wait for."""


def init_producer_id(context: Context, incoming: Incoming) -> None:
    """Give an id, or the next epoch of the one at hand."""
    request = cast("InitProducerId", incoming.message)
    if request.transactional_id is not None:
        raise UnsupportedVersion("this broker knows no transactions yet")
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest(
            f"producer {request.producer_id} with epoch {request.producer_epoch}: both, or none"
        )
    if request.producer_id != NO_PRODUCER_ID and request.producer_epoch < EPOCH_MAX:
        answer = InitProducerIdReply(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )
        incoming.reply(answer)
        return
    if not context.producer_ids.asked:
        context.producer_ids.refusal = None  # that was for those who waited then
    waiting = _Waiting(context, incoming)
    context.replicas.wait(waiting, (WAITING,), context.clocks.now_ms() + request.timeout_ms)


@dataclass(slots=True)
class _Waiting:
    context: Context
    incoming: Incoming

    def try_complete(self) -> bool:
        ids = self.context.producer_ids
        if not ids.count and ids.refusal is None:
            self._ask()
            return False
        if ids.count:
            self.incoming.reply(InitProducerIdReply(producer_id=ids.take(), producer_epoch=0))
        else:
            self._refuse(ids.refusal or RequestTimedOut())
        return True

    def give_up(self) -> None:
        self._refuse(RequestTimedOut("the controller has given no producer ids in time"))

    def fail(self, error: TidelogError) -> None:
        self._refuse(error)

    def _refuse(self, error: TidelogError) -> None:
        self.incoming.reply(InitProducerIdReply(error.code, str(error)))

    def _ask(self) -> None:
        """One request for a block is enough for all that wait."""
        context, around = self.context, self.context.replicas.around
        ids = context.producer_ids
        if ids.asked:
            return
        ids.asked = True

        def build(quorum_epoch: Epoch) -> AllocateProducerIds:
            return AllocateProducerIds(around.me, around.my_epoch, quorum_epoch)

        def told(answer: Reply | TidelogError) -> None:
            ids.asked = False
            if isinstance(answer, TidelogError):
                ids.refusal = answer
            else:
                assert isinstance(answer, AllocateProducerIdsReply), answer
                ids.refusal = error_of(answer.error, answer.message or "") if answer.error else None
                ids.first, ids.count = answer.first, answer.count
            context.replicas.touched(WAITING)

        request = cast("InitProducerId", self.incoming.message)
        context.ask_controller(build, request.timeout_ms, told)
