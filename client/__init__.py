"""The Python client: producer, consumer and admin over one connection pool."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.io.client import Client as Client
    from tidelog.client.io.client import connect as connect
else:

    def __getattr__(name):
        """`connect` and `Client`, loaded when they are asked for: the modules beside them need neither."""
        if name not in ("Client", "connect"):
            raise AttributeError(f"module 'tidelog.client' has no attribute {name!r}")
        from tidelog.client.io import client  # noqa: PLC0415

        return getattr(client, name)
