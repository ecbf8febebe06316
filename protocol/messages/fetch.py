"""Reading a log: one Fetch for followers, consumers and whoever follows the metadata log (design 2.6, 3.4, 5.4).

A consumer leaves every field about replicas at its default. The batches that answer are the frame's
attachment, entry after entry, whole batches and the very bytes of the disk; the first may begin before the
offset asked for.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerEpoch,
    BrokerId,
    Entry,
    Epoch,
    EpochEnd,
    ErrorCode,
    Index,
    Isolation,
    Leader,
    Milliseconds,
    Name,
    Number,
    Offset,
    PartitionIndex,
    ProducerId,
    Reply,
    Request,
    SessionEpoch,
    Size,
    Text,
    TopicId,
    Uuid,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET

READ_UNCOMMITTED = 0
"""`isolation`: everything below the high watermark."""

READ_COMMITTED = 1
"""`isolation`: everything below the last stable offset, aborted transactions named."""

NO_SESSION = -1
"""`session_epoch`: a whole request by itself; a session that `session_id` names is closed."""


class PartitionFetch(Entry, frozen=True):
    """Where to read one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    fetch_offset: Offset
    """The next offset that the reader needs; a follower has everything below it."""

    max_bytes: Size
    """At most so many bytes of this partition, but at least one batch."""

    current_leader_epoch: Epoch = NO_EPOCH
    """The leadership that the reader believes in; -1: a consumer that does not say."""

    last_fetched_epoch: Epoch = NO_EPOCH
    """The epoch of the reader's last batch, to find where two logs part; -1: it has none or does not ask."""

    durable_offset: Offset = NO_OFFSET
    """What the follower has on stable storage, as an end; -1 from consumers."""

    log_start: Offset = NO_OFFSET
    """The follower's own log start; -1 from consumers."""

    high_watermark: Offset = NO_OFFSET
    """What a reader of the metadata log knows to be committed: when there is more, the answer does not wait."""


class AbortedTransaction(Entry, frozen=True):
    """Records that a reader of committed records must skip."""

    producer_id: ProducerId
    """Whose records."""

    first_offset: Offset
    """From where on, up to the producer's abort marker."""


class PartitionFetched(Entry, frozen=True):
    """What one partition answers."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    records_size: Size = 0
    """How many bytes of the attachment are this entry's batches."""

    high_watermark: Offset = NO_OFFSET
    """Everything below is committed; -1: a new leader does not know yet, keep the old value."""

    last_stable_offset: Offset = NO_OFFSET
    """Everything below belongs to decided transactions; -1: unknown, keep the old value."""

    log_start: Offset = NO_OFFSET
    """The smallest offset that can be read."""

    end_offset: Offset = NO_OFFSET
    """The offset that the next record will get; told to replicas only."""

    purge_floor: Offset = NO_OFFSET
    """Below it tombstones were dropped: a follower that lacks older records begins again; -1: nowhere."""

    diverging: EpochEnd | None = None
    """The reader's log parts from this one: the largest common epoch and where it ends; no records follow."""

    refetch_from: Offset = NO_OFFSET
    """With OFFSET_OUT_OF_RANGE: empty the replica and begin here; -1: not needed."""

    preferred_read_replica: BrokerId = NO_BROKER
    """Read from this broker, it is nearer; -1: read here."""

    aborted: Annotated[tuple[AbortedTransaction, ...], ENTRIES] = ()
    """Aborted transactions within these batches, by first offset."""

    current_leader: Leader | None = None
    """Whom to ask instead, when this broker does not lead the partition."""

    snapshot: EpochEnd | None = None
    """Of the metadata log: what the reader lacks is told by this snapshot, fetch it and go on at its end."""


class FetchReply(Reply, frozen=True, tag=18):
    """The batches that are there; in a session, only partitions with something new."""

    partitions: Annotated[tuple[PartitionFetched, ...], ENTRIES] = ()
    """One entry per partition that has records, an error or a moved offset to tell."""

    error: ErrorCode = 0
    """An error of the session as a whole; the reader begins a new one."""

    message: Text | None = None
    """The error's fact with its numbers."""

    session_id: Number = 0
    """The session that was opened or continued; 0: none."""


class Fetch(Request, frozen=True, tag=18):
    """Read from these partitions, now or as soon as there is enough."""

    reply: ClassVar = FetchReply

    max_wait_ms: Milliseconds
    """How long the broker may wait for `min_bytes`."""

    min_bytes: Size
    """Answer at once when so many bytes can be read."""

    max_bytes: Size
    """Stop adding batches when the answer holds so many bytes; one batch always fits."""

    partitions: Annotated[tuple[PartitionFetch, ...], ENTRIES]
    """What to read; within a session, only what is new or has changed."""

    isolation: Isolation = READ_UNCOMMITTED
    """0: up to the high watermark; 1: up to the last stable offset, with the aborted transactions."""

    client_rack: Name = ""
    """Where the consumer stands, to be pointed to a replica nearby; empty: no wish."""

    session_id: Number = 0
    """The session that this request continues; 0: none yet."""

    session_epoch: SessionEpoch = NO_SESSION
    """-1: no session; 0: open one; then 1, 2, ... for each request within it."""

    forget: Annotated[tuple[PartitionIndex, ...], ENTRIES] = ()
    """Partitions to drop from the session."""

    broker_id: BrokerId = NO_BROKER
    """The follower that asks; -1: a consumer."""

    broker_epoch: BrokerEpoch = NO_EPOCH
    """The follower's registration."""

    fetch_seq: Number = 0
    """Grows with every fetch of a follower's process, over all its connections; a smaller one than was heard last is
    refused, for it comes late. 0: not said."""

    directory_id: Uuid | None = None
    """The disk of a controller that reads the metadata log: then `broker_id` is its id among controllers."""


class EndWait(Request, frozen=True, tag=23):
    """Answer the fetch that waits on this connection at once: the reader has something else to ask for."""

    reply: ClassVar = None
