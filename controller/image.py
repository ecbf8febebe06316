"""The cluster as the committed facts of the metadata log add up to it: who exists, and who has which partition.

Values only: a node's image is replaced, never changed, so that whoever holds one sees one moment.
"""

from dataclasses import dataclass

from tidelog.protocol.types import NO_BROKER, NO_EPOCH, BrokerId, Epoch, TopicId


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the cluster has decided about one partition.

    `leader_epoch` grows when the leader changes or a replica leaves; `partition_epoch` by one at every change.
    """

    topic_id: TopicId
    index: int
    replicas: tuple[BrokerId, ...]
    """In order of preference: the first leads when it can."""
    isr: tuple[BrokerId, ...]
    """Who must have a record before it is committed."""
    leader: BrokerId = NO_BROKER
    leader_epoch: Epoch = 0
    partition_epoch: Epoch = 0
    min_isr: int = 1
    """How many must be in sync for anything to be committed; clamped to the number of replicas."""
    elr: tuple[BrokerId, ...] = ()
    """Outside the ISR, but guaranteed to hold every committed record."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """Whom to ask when nobody is guaranteed to hold everything (unclean recovery)."""
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    unclean_epoch: Epoch = NO_EPOCH
    """The leader epoch of the last unclean election: what older epochs committed may be lost."""
    recovering: bool = False
    """Elected uncleanly and not yet confirmed by its leader."""
    flush_group: bool = False
    """Whether a record counts only when it is on stable storage (`flush.mode=group`)."""
