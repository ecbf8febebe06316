"""Between controllers: who leads the metadata log, and what of it is too old to be fetched (design 4.12, 4.13).

A controller's id and a broker's have nothing to do with each other (decision 8). A voter is a controller with its
disk: with another disk it does not remember what it has promised, so requests name the disk they mean, once the
cluster knows it (decision 1).
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerId,
    Entry,
    Epoch,
    EpochEnd,
    ErrorCode,
    Flag,
    Milliseconds,
    Name,
    Number,
    Offset,
    Port,
    Reply,
    Request,
    Size,
    Text,
    Uuid,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET


class VoteReply(Reply, frozen=True, tag=112):
    """What a voter says to a candidate."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    epoch: Epoch = NO_EPOCH
    """The newest epoch that the voter knows."""

    leader_id: BrokerId = NO_BROKER
    """Who leads in that epoch; -1: not known."""

    granted: Flag = False
    """Whether it votes for the candidate, or would."""

    directory_id: Uuid | None = None
    """The voter's disk."""


class Vote(Request, frozen=True, tag=112):
    """Somebody wants to lead the metadata log, or asks whether it could."""

    reply: ClassVar = VoteReply

    cluster_id: Name
    """The cluster, as 32 hexadecimal digits; empty while there is none yet."""

    voter_id: BrokerId
    """Who is asked."""

    voter_directory_id: Uuid | None
    """With which disk; nil: the first election of a cluster, which needs every voter."""

    epoch: Epoch
    """The epoch that the candidate wants to lead; when it only asks whether it could, the one it is in."""

    candidate_id: BrokerId
    """Who wants to lead."""

    candidate_directory_id: Uuid
    """With which disk."""

    last_epoch: Epoch
    """The epoch of the candidate's last batch; -1: its log is empty."""

    end_offset: Offset
    """Where the candidate's log ends."""

    pre_vote: Flag = False
    """Whether it only asks if it could win: nobody votes by it."""


class BeginEpochReply(Reply, frozen=True, tag=113):
    """Whether the leader is known now."""

    error: ErrorCode = 0
    """0: it is."""

    message: Text | None = None
    """The error's fact with its numbers."""

    epoch: Epoch = NO_EPOCH
    """The newest epoch that the voter knows."""

    leader_id: BrokerId = NO_BROKER
    """Who leads in that epoch; -1: not known."""


class BeginEpoch(Request, frozen=True, tag=113):
    """The sender has been elected: fetch from it."""

    reply: ClassVar = BeginEpochReply

    cluster_id: Name
    """The cluster, as 32 hexadecimal digits."""

    voter_id: BrokerId
    """Who is told."""

    epoch: Epoch
    """The epoch that the sender leads."""

    leader_id: BrokerId
    """The sender."""


class EndEpochReply(Reply, frozen=True, tag=114):
    """The voter knows that nobody leads any more."""

    error: ErrorCode = 0
    """0: it knows."""

    message: Text | None = None
    """The error's fact with its numbers."""

    epoch: Epoch = NO_EPOCH
    """The newest epoch that the voter knows."""

    leader_id: BrokerId = NO_BROKER
    """Who leads in that epoch; -1: not known."""


class EndEpoch(Request, frozen=True, tag=114):
    """The sender leads no more: elect another one."""

    reply: ClassVar = EndEpochReply

    cluster_id: Name
    """The cluster, as 32 hexadecimal digits."""

    voter_id: BrokerId
    """Who is told."""

    epoch: Epoch
    """The epoch that the sender led."""

    leader_id: BrokerId
    """The sender."""

    successors: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who should lead next, the most complete first: the first asks for votes at once, the others later."""


class FetchSnapshotReply(Reply, frozen=True, tag=115):
    """A piece of a snapshot: the frame's attachment."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    size: Number = 0
    """Of the whole snapshot, in bytes."""

    position: Number = 0
    """Where in it the attachment begins."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""

    leader_id: BrokerId = NO_BROKER
    """Who leads in that epoch; -1: not known."""


class FetchSnapshot(Request, frozen=True, tag=115):
    """What the metadata log said before it begins is told by a snapshot: hand out a piece of it."""

    reply: ClassVar = FetchSnapshotReply

    snapshot: EpochEnd
    """Which one: its end, and the epoch of the last batch in it."""

    position: Number
    """From which byte on."""

    max_bytes: Size
    """At most so many."""

    current_leader_epoch: Epoch = NO_EPOCH
    """The quorum's epoch that the reader knows."""

    node_id: BrokerId = NO_BROKER
    """The controller that reads; -1: a broker, or nobody who votes."""

    directory_id: Uuid | None = None
    """Its disk: a voter that reads is heard by the leader."""


class QuorumMember(Entry, frozen=True):
    """How far a controller is, or a broker that follows the metadata log."""

    id: BrokerId
    """Its id, among controllers or among brokers."""

    directory_id: Uuid | None = None
    """Its disk; nil: not known."""

    end_offset: Offset = NO_OFFSET
    """How far its log reaches, as the leader knows; -1: it has not fetched in this epoch."""

    silent_ms: Milliseconds = 0
    """How long ago it fetched last."""

    behind_ms: Milliseconds = 0
    """How long ago it had everything; before it has, for how long it is known not to."""

    host: Name = ""
    """Where it listens; empty: not known."""

    port: Port = 0
    """Its port."""

    controller: Flag = False
    """Whether it is a controller: as the id of a broker the same number means somebody else."""


class DescribeQuorumReply(Reply, frozen=True, tag=79):
    """The quorum, as its leader sees it."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    cluster_id: Name = ""
    """The cluster, as 32 hexadecimal digits."""

    leader_id: BrokerId = NO_BROKER
    """The active controller."""

    quorum_epoch: Epoch = NO_EPOCH
    """Its epoch."""

    high_watermark: Offset = NO_OFFSET
    """How far the metadata log is committed."""

    log_start: Offset = NO_OFFSET
    """Where it begins; a snapshot tells what was before."""

    snapshot_end: Offset = NO_OFFSET
    """Where the newest snapshot ends; -1: there is none."""

    voters: Annotated[tuple[QuorumMember, ...], ENTRIES] = ()
    """The controllers that vote, by id."""

    observers: Annotated[tuple[QuorumMember, ...], ENTRIES] = ()
    """Brokers and others that follow, by id."""


class DescribeQuorum(Request, frozen=True, tag=79):
    """Tell who leads the metadata log, and how far everybody has read it."""

    reply: ClassVar = DescribeQuorumReply

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""
