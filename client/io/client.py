"""What users hold: `tidelog.connect(...)` makes a `Client`, and that makes producers, consumers and admin.

    async with tidelog.connect("127.0.0.1:9092") as client:
        await client.admin.create_topics(tidelog.NewTopic("orders", partitions=3))

Children are cheap: they share the client's connections and what it knows of the cluster, and end before it does.
"""

from collections.abc import Generator, Iterable, Mapping
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidelog.client.config import ClientConfig, client_config, from_options, refuse_unsupported
from tidelog.client.io.admin import Admin
from tidelog.client.io.session import INTERRUPTED_S, Session, interrupted

if TYPE_CHECKING:
    from tidelog.client.io.consumer import Consumer
    from tidelog.client.io.producer import Producer


class Client(Session):
    """A cluster's client: `async with`, or `await client.start()` and `await client.close()`."""

    def __init__(self, config: ClientConfig, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.admin = Admin(self)
        """What operators do: topics, settings, moves."""

    def producer(self, *, config: Mapping[str, Any] | None = None, **options: Any) -> "Producer":
        """A producer: `async with client.producer(acks="all", linger_ms=5) as producer`."""
        from tidelog.client.io.producer import Producer  # noqa: PLC0415 -- who only reads does not load it
        from tidelog.client.options import ProducerConfig  # noqa: PLC0415

        return Producer(self, from_options(ProducerConfig, options, config))

    def consumer(self, *topics: str, config: Mapping[str, Any] | None = None, **options: Any) -> "Consumer":
        """A consumer of these topics: `async with client.consumer("orders") as consumer`."""
        from tidelog.client.io.consumer import Consumer  # noqa: PLC0415 -- who only writes does not load it
        from tidelog.client.options import ConsumerConfig  # noqa: PLC0415

        return Consumer(self, topics, from_options(ConsumerConfig, options, config))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if interrupted(kind):
            self.patience_s = INTERRUPTED_S
        try:
            await self.close()
        except Exception as failure:
            if error is None:
                raise
            # What ended the block is what its author has to know first.
            error.add_note(f"and when the client was closed: {type(failure).__name__}: {failure}")

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()


def connect(
    bootstrap: str | Iterable[str],
    *,
    rack: str = "",
    client_id: str = "tidelog",
    config: Mapping[str, Any] | None = None,
    tls: object = None,
    auth: object = None,
    **options: Any,
) -> Client:
    """A client of the cluster that these brokers belong to: `"h1:9092,h2:9092"`, tried in this order.

    Options are those of `ClientConfig`, by name or, in `config`, by Kafka's dotted names; `connect_timeout` is in seconds.
    Raises InvalidConfig, or Unsupported for what is not there yet. Nothing is connected before `start`.
    """
    refuse_unsupported(tls=tls, auth=auth)
    given = {} if rack == "" else {"rack": rack}  # what was not said here may be said in `config`
    if client_id != "tidelog":
        given["client_id"] = client_id
    return Client(client_config(bootstrap, {**options, **given}, config))
