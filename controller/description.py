"""DescribeQuorum: who leads the metadata log, and how far everybody has read it (KIP-836).

Only the leader knows. Whoever else is asked says who leads, as far as it has heard, and where the voters listen: so
whoever is told finds the way.
"""

from collections.abc import Mapping

from tidelog.controller.following import Address
from tidelog.controller.image import Image
from tidelog.controller.metadata_log import MetadataLog
from tidelog.controller.progress import Progress
from tidelog.controller.quorum import Leader, Quorum
from tidelog.protocol.errors import NotController
from tidelog.protocol.messages import DescribeQuorum, DescribeQuorumReply, QuorumMember
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, BrokerId

Observers = Mapping[tuple[BrokerId, bytes | None], Progress]
"""Who reads and does not vote, by id and, where it is a controller, disk."""


def describe_quorum(
    request: DescribeQuorum,
    quorum: Quorum,
    metadata: MetadataLog,
    observers: Observers,
    addresses: Mapping[BrokerId, Address],
    now_ms: int,
) -> DescribeQuorumReply:
    """The quorum as this controller sees it; with NOT_CONTROLLER, if it does not lead, who does."""
    role, log_end = quorum.role, metadata.log.end_offset
    if not isinstance(role, Leader) or request.quorum_epoch not in {NO_EPOCH, quorum.epoch}:
        return _refusal(request, quorum, addresses)
    directories = quorum.directories or {}
    voters = []
    for voter in quorum.voters:
        mine = Progress(now_ms, end_offset=log_end)
        progress = role.voters.get(voter, mine)
        voters.append(_controller(voter, directories.get(voter), progress, addresses, log_end, now_ms))
    newest = metadata.archive.snapshots.newest
    return DescribeQuorumReply(
        cluster_id=quorum.cluster_id,
        leader_id=quorum.me,
        quorum_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        log_start=metadata.log.log_start,
        snapshot_end=newest.end if newest is not None else NO_OFFSET,
        voters=tuple(voters),
        observers=tuple(_observers(observers, metadata.working, addresses, log_end, now_ms)),
    )


def who_leads(quorum: Quorum) -> str:
    """As far as this controller knows, in words."""
    if quorum.leader_id == NO_BROKER:
        return "nobody is known to lead the quorum"
    return f"{quorum.leader_id} leads the quorum"


def _refusal(
    request: DescribeQuorum, quorum: Quorum, addresses: Mapping[BrokerId, Address]
) -> DescribeQuorumReply:
    known = "nobody is known to lead"
    if quorum.leads:
        known = f"it leads, and epoch {request.quorum_epoch} was addressed"
    elif quorum.leader_id != NO_BROKER:
        known = f"controller {quorum.leader_id} leads"
    directories = quorum.directories or {}
    return DescribeQuorumReply(
        NotController.code,
        f"controller {quorum.me} is in epoch {quorum.epoch} of the quorum: {known}",
        cluster_id=quorum.cluster_id,
        leader_id=quorum.leader_id,
        quorum_epoch=quorum.epoch,
        voters=tuple(
            QuorumMember(
                voter,
                directories.get(voter),
                host=_at(addresses, voter)[0],
                port=_at(addresses, voter)[1],
                controller=True,
            )
            for voter in quorum.voters
        ),
    )


def _at(addresses: Mapping[BrokerId, Address], controller: BrokerId) -> Address:
    return addresses.get(controller, ("", 0))


def _controller(
    number: BrokerId,
    directory_id: bytes | None,
    progress: Progress,
    addresses: Mapping[BrokerId, Address],
    log_end: int,
    now_ms: int,
) -> QuorumMember:
    host, port = _at(addresses, number)
    return QuorumMember(
        number,
        directory_id,
        progress.end_offset,
        progress.silent_ms(now_ms),
        progress.behind_ms(log_end, now_ms),
        host,
        port,
        controller=True,
    )


def _observers(
    observers: Observers,
    image: Image,
    addresses: Mapping[BrokerId, Address],
    log_end: int,
    now_ms: int,
) -> list[QuorumMember]:
    found = []
    for (number, directory_id), progress in observers.items():
        if directory_id is not None:
            found.append(_controller(number, directory_id, progress, addresses, log_end, now_ms))
            continue
        broker = image.brokers.get(number)
        found.append(
            QuorumMember(
                number,
                broker.directory_id if broker is not None else None,
                progress.end_offset,
                progress.silent_ms(now_ms),
                progress.behind_ms(log_end, now_ms),
                broker.host if broker is not None else "",
                broker.port if broker is not None else 0,
            )
        )
    return sorted(found, key=lambda member: (member.controller, member.id, member.directory_id or b""))
