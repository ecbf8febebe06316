"""What a coordinator may be told about groups, by Kafka's names with underscores; validated once."""

from dataclasses import dataclass

from tidelog.protocol.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Of all groups that a broker coordinates."""

    group_consumer_session_timeout_ms: int = 45_000
    """How long a member may be silent before others get its partitions, if it does not say so itself."""
    group_consumer_min_session_timeout_ms: int = 1_000
    """No member is given less."""
    group_consumer_max_session_timeout_ms: int = 1_800_000
    """No member is given more: for so long nobody consumes what a member had that died."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often members are asked to heartbeat. Three must fit into the session timeout."""
    group_max_size: int = 1_000
    """How many members a group may have."""
    offset_metadata_max_bytes: int = 4_096
    """How much may be kept with a committed offset."""
    offsets_retention_minutes: int = 10_080
    """For how long offsets are kept when nobody consumes their topic any more: a week."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often it is looked for offsets that are too old."""
    offsets_topic_num_partitions: int = 16
    """Into how many partitions groups are divided when their topic is made; never changed after that."""
    offsets_topic_replication_factor: int = 3
    """How many brokers keep each of them; until so many are registered there are no groups."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name.replace('_', '.')}={getattr(self, name)}: it must be at least 1")
        if self.group_consumer_heartbeat_interval_ms * 3 > self.group_consumer_session_timeout_ms:
            raise InvalidConfig(
                f"group.consumer.heartbeat.interval.ms={self.group_consumer_heartbeat_interval_ms}: three of them "
                f"must fit into group.consumer.session.timeout.ms={self.group_consumer_session_timeout_ms}"
            )
        lowest, highest = (
            self.group_consumer_min_session_timeout_ms,
            self.group_consumer_max_session_timeout_ms,
        )
        if not lowest <= self.group_consumer_session_timeout_ms <= highest:
            raise InvalidConfig(
                f"group.consumer.session.timeout.ms={self.group_consumer_session_timeout_ms}: it must lie between "
                f"group.consumer.min.session.timeout.ms={lowest} and group.consumer.max.session.timeout.ms={highest}"
            )

    @property
    def retention_ms(self) -> int:
        """For how long offsets are kept, in milliseconds."""
        return self.offsets_retention_minutes * 60_000

    def session_timeout_ms(self, asked_ms: int) -> int:
        """What a member gets that asks for this; 0: it leaves it to us."""
        if asked_ms == 0:
            return self.group_consumer_session_timeout_ms
        lowest, highest = (
            self.group_consumer_min_session_timeout_ms,
            self.group_consumer_max_session_timeout_ms,
        )
        return min(max(asked_ms, lowest), highest)

    def heartbeat_interval_ms(self, session_timeout_ms: int) -> int:
        """How often a member heartbeats, and how long one heartbeat waits for news: three fit into its session."""
        return min(self.group_consumer_heartbeat_interval_ms, session_timeout_ms // 3)
