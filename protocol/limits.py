"""What a node takes in at most: one frozen value, checked once.

Every bound of the transport stands here with its reason, so that "can this grow?" has one place to look.
The relations between them are what keeps a full node from waiting for itself (docs/adr/0021).
"""

from dataclasses import dataclass
from typing import Final

from tidelog.protocol.errors import InvalidConfig

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a node's connections; the defaults suit a broker with 150 MB of memory."""

    max_frame_bytes: int = 16 * MIB
    """The largest frame that is accepted: a fetch of 10 MiB, one batch too many, and its head fit.
    Checked before a byte of the frame is buffered."""

    max_head_bytes: int = 4 * MIB
    """The largest head of a frame: the metadata of 10,000 partitions fits. It bounds what decoding can
    cost, because only heads are decoded."""

    receive_buffer_bytes: int = 256 * KIB
    """The buffer that all connections of a node share for what arrives; one per node, not per connection."""

    pooled_bytes: int = 16 * MIB
    """How many bytes of buffers for large frames are kept for the next large frame."""

    max_connections: int = 2000
    """How many connections a node serves; the next one is refused with THROTTLED."""

    max_lingering_connections: int = 64
    """How many refused connections may wait for their peer to read why; the next one is cut off."""

    max_request_bytes: int = 64 * MIB
    """Bytes of requests received or being received and not yet answered, over all connections, beyond each
    connection's allowance. At least one frame fits, or the largest could never be received."""

    connection_allowance_bytes: int = 32 * KIB
    """What each connection may have unanswered before it draws on `max_request_bytes`. Small requests are
    thereby read even when the node is full, above all the fetches for which full produce requests wait."""

    max_held_back_bytes: int = 16 * MIB
    """Requests that arrived behind one that filled their connection's places wait as bytes. While the node
    has more of them than this, no connection reads more than a page at a time."""

    max_requests_in_flight: int = 256
    """Unanswered requests of one connection; beyond it the connection is not read until half are answered."""

    write_high_bytes: int = 1 * MIB
    """What the transport of a connection holds unsent before later frames wait in our own queue, counted."""

    max_unsent_bytes: int = 64 * MIB
    """What waits in that queue for a slow reader; beyond it a server cuts the connection off and a client
    refuses the next request."""

    max_node_unsent_bytes: int = 256 * MIB
    """What waits for all slow readers together; the connection that passes it is cut off."""

    send_timeout_ms: int = 30_000
    """How long a peer may leave what is sent to it unread; then the connection is cut off."""

    frame_timeout_ms: int = 30_000
    """How long a frame may take from its first byte to its last: a slow sender holds memory that others
    wait for. Time during which this node chose not to read does not count."""

    hello_timeout_ms: int = 10_000
    """How long a new connection may take until its first whole frame."""

    idle_timeout_ms: int = 600_000
    """How long a connection may be silent with nothing unanswered; peers that vanished without a word go."""

    linger_ms: int = 1_000
    """How long a closing connection waits for its peer to read the last words."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}, it must be at least 1")
        self._at_most("max_head_bytes", "max_frame_bytes")
        self._at_most("max_frame_bytes", "max_request_bytes")
        self._at_most("max_unsent_bytes", "max_node_unsent_bytes")
        if self.receive_buffer_bytes < 4 * KIB:
            raise InvalidConfig(
                f"receive_buffer_bytes is {self.receive_buffer_bytes}, at least 4096 are needed"
            )

    def _at_most(self, small: str, large: str) -> None:
        if getattr(self, small) > getattr(self, large):
            raise InvalidConfig(
                f"{small} ({getattr(self, small)}) must not be above {large} ({getattr(self, large)})"
            )

    @property
    def sweep_ms(self) -> float:
        """How often the time limits are looked at: often enough to keep the shortest within a quarter."""
        shortest = min(
            self.send_timeout_ms, self.frame_timeout_ms, self.hello_timeout_ms, self.idle_timeout_ms
        )
        return min(shortest / 4, 1000)

    @property
    def sweep_last_words_ms(self) -> float:
        """How often while a connection says its last words, which is seldom."""
        return min(self.sweep_ms, self.linger_ms / 4)


DEFAULT: Final = Limits()
"""The limits of whoever names none."""
