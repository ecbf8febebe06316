"""What operators ask of the cluster: handed on to the active controller, whose answer is the answer (DECISIONS 21)."""

from typing import Final, Protocol, cast

import msgspec

from tidelog.broker.requests.context import Context
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import Incoming
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterReassignments,
    ConfigDescribed,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeConfigs,
    DescribeConfigsReply,
    DescribeQuorum,
    ElectLeaders,
    ListReassignments,
    PlanMoves,
    Reply,
    Request,
    ResourceDescribed,
    UnregisterBroker,
)
from tidelog.protocol.settings import DEFAULT, START, Settings
from tidelog.protocol.types import Epoch

HANDED_ON: Final[tuple[type[Request], ...]] = (
    CreateTopics,
    DeleteTopics,
    CreatePartitions,
    AlterConfigs,
    DescribeConfigs,
    ElectLeaders,
    AlterReassignments,
    ListReassignments,
    UnregisterBroker,
    DescribeQuorum,
    PlanMoves,
)
"""All that only the active controller decides or knows."""


class _Patient(Protocol):
    """Any of them: each says how long its answer may take."""

    timeout_ms: int


def hand_on(context: Context, incoming: Incoming) -> None:
    """Ask the controller, whoever that is by then, in the name of a client that does not know it.

    It is asked again when its answer is lost: a topic that "exists already" may be what this very request has made.
    """
    request = incoming.message
    # Less than the client's: why there is no answer is to be heard, and not that there is none.
    patience_ms = cast("_Patient", request).timeout_ms
    timeout_ms = max(patience_ms - max(patience_ms // 10, min(patience_ms // 2, 100)), 1)

    def build(quorum_epoch: Epoch) -> Request:
        return msgspec.structs.replace(request, quorum_epoch=quorum_epoch)

    def told(answer: Reply | TidelogError) -> None:
        if isinstance(answer, TidelogError):
            incoming.refuse(answer)
        elif isinstance(answer, DescribeConfigsReply) and context.started_with:
            incoming.reply(_with_own(answer, context.started_with))
        else:
            incoming.reply(answer)

    context.ask_controller(build, timeout_ms, told)


def _with_own(answer: DescribeConfigsReply, own: Settings) -> DescribeConfigsReply:
    """What this broker goes by where nothing is set through the cluster: the controller cannot know that."""

    def described(entry: ResourceDescribed, config: ConfigDescribed) -> ConfigDescribed:
        value = own.get((entry.resource_type, entry.resource_name, config.key))
        if value is None or config.source != DEFAULT:
            return config
        return msgspec.structs.replace(config, value=value, source=START)

    return msgspec.structs.replace(
        answer,
        resources=tuple(
            msgspec.structs.replace(
                entry, configs=tuple(described(entry, config) for config in entry.configs)
            )
            for entry in answer.resources
        ),
    )
