"""The first words on a connection, and the answer to a request that cannot be served at all.

The side that connected says Hello before anything else; the other side answers Welcome, or Refused and hangs
up. Refused may stand in place of any reply: the request as a whole met an error before its own handler could
say more.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerId,
    ErrorCode,
    Name,
    Number,
    Reply,
    Request,
    Size,
    Text,
)
from tidelog.protocol.types import NO_BROKER


class Refused(Reply, frozen=True, tag=0):
    """The request was not served; nothing of it was done unless the error says that this is unknown."""

    error: ErrorCode
    """Why, as a code."""

    message: Text = ""
    """The fact with its numbers."""


class Welcome(Reply, frozen=True, tag=1):
    """Who answers here and what it takes."""

    cluster_id: Name = ""
    """The cluster that it belongs to; empty while it belongs to none yet."""

    node_id: BrokerId = NO_BROKER
    """Its id among the nodes of its role."""

    role: Name = "broker"
    """`broker` or `controller`; clients talk to brokers."""

    software: Name = ""
    """Its name and version, for logs and people."""

    frame_bytes_max: Size = 0
    """The largest frame that it takes; 0: it does not say."""

    requests: Annotated[tuple[Number, ...], ENTRIES] = ()
    """The tags of the requests that it answers; empty: it does not say."""


class Hello(Request, frozen=True, tag=1):
    """Who is calling."""

    reply: ClassVar = Welcome

    client_id: Name = ""
    """The caller's name, for logs, metrics and quotas."""

    software: Name = ""
    """The caller's library and version, for logs and people."""

    cluster_id: Name = ""
    """The cluster that the caller means to reach, refused if it is another; empty: any."""
