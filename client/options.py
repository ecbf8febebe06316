"""What a producer and a consumer may be told, by Kafka's names; what contradicts itself is refused at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.client.config import option
from tidelog.protocol.compression import CODECS
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.messages import ACKS_ALL, READ_COMMITTED, READ_UNCOMMITTED

_I31: Final = 2**31 - 1
IN_FLIGHT_MAX: Final = 5
"""A broker remembers so many batches of a producer: with more of them under way a repeated one could appear twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """One producer's settings."""

    acks: int | str = option("all", choices=(0, 1, "all", -1))
    """Who must have a record before it counts as written: nobody (0), its leader (1), every replica in sync ("all")."""
    enable_idempotence: bool | None = option(None)
    """Whether a repeated record is written once, in order. None: yes with `acks="all"`, which it needs."""
    batch_size: int = option(1_000_000, low=1, high=_I31)
    """How many bytes of one partition travel together at most, and never more than its topic takes."""
    linger_ms: float = option(5, low=0, high=_I31)
    """How long records wait for company, but only while the broker is busy with others: an idle one is sent to at once."""
    buffer_memory: int = option(64 << 20, low=1)
    """How many bytes of records may be under way: with more, who sends waits."""
    compression: str = option("none", choices=tuple(CODECS), also=("compression.type",))
    """How batches are made smaller."""
    delivery_timeout_ms: int = option(120_000, low=1, high=_I31)
    """After how long a record counts as not delivered, whatever was tried."""
    request_timeout_ms: int = option(30_000, low=1, high=_I31)
    """How long a broker may take to answer before the batch is sent again."""
    max_in_flight: int = option(
        IN_FLIGHT_MAX, low=1, high=1000, also=("max.in.flight.requests.per.connection",)
    )
    """How many requests to one broker may be unanswered."""
    max_request_size: int = option(1 << 20, low=1, high=_I31)
    """How many bytes go into one request (and never more than a broker takes), and the largest record (before compression)."""
    max_block_ms: int = option(60_000, low=0, high=_I31)
    """How long a topic may be looked for before a record for it is refused."""

    def __post_init__(self) -> None:
        if self.enable_idempotence and self.required_acks != ACKS_ALL:
            raise InvalidConfig(f"acks={self.acks}: with enable.idempotence=true it must be all")
        if self.idempotent and self.max_in_flight > IN_FLIGHT_MAX:
            raise InvalidConfig(
                f"max.in.flight={self.max_in_flight}: at most {IN_FLIGHT_MAX} of an idempotent producer; "
                "ask for fewer, or set enable.idempotence=false"
            )

    @property
    def required_acks(self) -> int:
        """`acks` as it travels."""
        return ACKS_ALL if isinstance(self.acks, str) else self.acks

    @property
    def idempotent(self) -> bool:
        """Whether records are numbered; only who asked for it is refused other acks than all."""
        if self.enable_idempotence is not None:
            return self.enable_idempotence
        return self.required_acks == ACKS_ALL

    @property
    def codec(self) -> int:
        """`compression` as it travels."""
        return CODECS[self.compression]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """One consumer's settings."""

    group: str | None = option(None, also=("group.id",))
    """The group that shares the partitions of its topics among its members."""
    auto_offset_reset: str = option("latest", choices=("earliest", "latest", "none"))
    """Where to begin without a position, or when the position is no longer there; "none": with an error."""
    isolation_level: str = option("read_uncommitted", choices=("read_uncommitted", "read_committed"))
    """Whether records of open transactions are seen. There are no transactions yet: both mean the same."""
    fetch_max_wait_ms: int = option(500, low=0, high=_I31)
    """How long a broker may wait for `fetch_min_bytes`."""
    fetch_min_bytes: int = option(1, low=0, high=_I31)
    """How many bytes are worth an answer."""
    fetch_max_bytes: int = option(10 << 20, low=1, high=_I31)
    """How many bytes an answer may hold at most; most hold less, unless the broker is far away (`answers`)."""
    max_partition_fetch_bytes: int = option(1 << 20, low=1, high=_I31)
    """How many bytes of one partition an answer may hold; one batch always fits."""
    prefetch_bytes: int = option(32 << 20, low=1)
    """How many bytes may lie here that nobody has read yet."""
    max_poll_records: int = option(500, low=1)
    """How many records `getmany` gives at most, unless it is told another number."""
    request_timeout_ms: int = option(30_000, low=1, high=_I31)
    """How long a broker may take to answer."""
    default_api_timeout_ms: int = option(60_000, low=1, high=_I31)
    """How long a question about offsets may be asked again, a missing topic be looked for, and every broker be away before
    who reads is told."""
    topic_refresh_ms: int = option(30_000, low=1, high=_I31)
    """How often topics are looked at for new partitions."""
    enable_auto_commit: bool | None = option(None)
    """Whether the group is told by itself how far the application is: every `auto_commit_interval_ms`, before partitions
    go to others, and at the end. None: yes, until the application commits something itself."""
    auto_commit_interval_ms: int = option(5_000, low=1, high=_I31)
    """How often that is."""
    instance_id: str | None = option(None, also=("group.instance.id",))
    """The same for each process that takes the place of the one before: it gets what that one had, and nobody else
    notices. None: whoever leaves is gone."""
    assignor: str = option("", choices=("", "uniform", "range"), also=("group.remote.assignor",))
    """Who shares out partitions; empty: whichever the group uses."""
    session_timeout_ms: int = option(0, low=0, high=_I31)
    """How long the process may be silent before others get its partitions; 0: as the broker has it."""
    rebalance_timeout_ms: int = option(300_000, low=1, high=_I31, also=("max.poll.interval.ms",))
    """How long the application may keep records of a partition in hand that others are to have: after that they are
    read again by those."""
    on_assigned: Callable[..., object] | None = option(None)  # noqa: RUF009 -- a field, as all others
    """Told of partitions that are about to be read, with a list; it may seek, and it may be a coroutine function."""
    on_revoked: Callable[..., object] | None = option(None)  # noqa: RUF009 -- a field, as all others
    """Told of partitions that others are to have; while it runs they may still be committed."""
    on_lost: Callable[..., object] | None = option(None)  # noqa: RUF009 -- a field, as all others
    """Told of partitions that others may have already: nothing of them can be committed any more."""

    def __post_init__(self) -> None:
        if self.group is not None:
            if not self.group:
                raise InvalidConfig("group='': a group has a name; leave it out to read all partitions")
            return
        alone = ConsumerConfig.__dataclass_fields__
        for name in ("instance_id", "assignor", "on_assigned", "on_revoked", "on_lost"):
            if getattr(self, name) != alone[name].default:
                raise InvalidConfig(f"{name}: it is for members of a group; say which by group=")
        if self.enable_auto_commit:
            raise InvalidConfig("enable.auto.commit=true: there is nothing to commit to without group=")

    @property
    def isolation(self) -> int:
        """`isolation_level` as it travels."""
        return READ_COMMITTED if self.isolation_level == "read_committed" else READ_UNCOMMITTED
