"""A cluster for tests: in this process or of real processes, and everything that can go wrong with it.

    async with Cluster(brokers=3, controllers=1) as cluster:
        client = cluster.client()
        await cluster.kill(1)

Nodes are named by broker ids, `1`, `2`, ...; controllers, whose ids have nothing to do with those, are `"c1"` or
`controller=1`. Every verb returns when it is true, and within its time or with an error.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import connect
from tidelog.protocol.messages import Hello, Metadata, MetadataReply
from tidelog.testing.links import CLIENTS, How, Links, both_ways, node_name
from tidelog.testing.nodes import START_S, Node, NodeFailed, NodeSpec, Unsupported, replication_factors
from tidelog.testing.ports import HOST, HeldPort

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.controller.image import Image

_ASK_MS = 1000
_POLL_S = 0.005
_TURNS_OF_AN_ACCEPT = 6


class Network(Protocol):
    """The network of a cluster, whichever kind it is."""

    links: Links

    async def open(self, spec: NodeSpec) -> None:
        """That node runs: let others reach it."""
        ...

    async def close(self, spec: NodeSpec) -> None:
        """That node is gone: its port refuses."""
        ...

    async def changed(self) -> None:
        """Until what was changed in `links` holds."""
        ...

    async def end(self) -> None:
        """Give everything back."""
        ...


class Cluster:
    """Some brokers and controllers, for as long as the block lasts.

    `processes=True`: each node is a process of its own, on a disk and with clocks of this machine; else all run in
    this process, each on a loop of its own inside the running one. `proxied=True` puts a proxy before every process, so
    that `isolate`, `delay` and `heal` work; nodes inside this process need none. `directory` is kept, a temporary one
    is removed. `settings` are given to every node that knows them, by Kafka's names.
    """

    def __init__(
        self,
        brokers: int = 3,
        controllers: int = 1,
        *,
        processes: bool = False,
        directory: str | Path | None = None,
        racks: Mapping[int, str] | Iterable[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        proxied: bool = False,
    ) -> None:
        if brokers < 1 or controllers < 1:
            raise ValueError(
                f"a cluster has at least one broker and one controller, not {brokers} and {controllers}"
            )
        self.nodes: dict[str, Node] = {}
        """Every node by its name: `b1`, `c1`."""
        self.processes = processes
        self.proxied = proxied
        self.ready_s = 0.0
        """How long it took until everybody served."""
        self._brokers = brokers
        self._controllers = controllers
        self._directory = directory
        self._racks = _racks(racks, brokers)
        self._settings = _told(settings, brokers)
        self._network: Network
        self._open = contextlib.AsyncExitStack()

    # ── beginning and end ─────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            specs = self._specs()
            await (self._add_processes if self.processes else self._add_local)(specs)
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
            await _all(
                node.ready(START_S) for node in self.nodes.values()
            )  # also of those that have ended by now
            await self.wait_ready()
        except BaseException:
            await self._open.aclose()
            raise
        self.ready_s = loop.time() - began
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def _specs(self) -> list[NodeSpec]:
        """Every node, with ports and a directory that are its own."""
        directory = self._directory
        if directory is None:
            directory = self._open.enter_context(
                tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True)
            )
        names = [f"c{n + 1}" for n in range(self._controllers)] + [f"b{n + 1}" for n in range(self._brokers)]
        ports = {name: self._port() for name in names}
        advertised = {name: self._port() for name in names} if self.proxied and self.processes else ports
        controllers = tuple((int(name[1:]), HOST, advertised[name]) for name in names if name[0] == "c")
        return [
            NodeSpec(
                name=name,
                directory=Path(directory) / f"{'broker' if name[0] == 'b' else 'controller'}-{name[1:]}",
                port=ports[name],
                advertised=advertised[name],
                controllers=controllers,
                rack=self._racks.get(int(name[1:]), "") if name[0] == "b" else "",
                settings=self._settings[name[0]],
            )
            for name in names
        ]

    def _port(self) -> int:
        held = HeldPort()
        self._open.callback(held.close)
        return held.number

    async def _add_local(self, specs: list[NodeSpec]) -> None:
        # Imported here because whoever runs processes does not need the product in this one.
        from tidelog.testing.inner_lines import Net  # noqa: PLC0415
        from tidelog.testing.local import LocalNode, LogSplitter, threads_for  # noqa: PLC0415

        net, threads = Net(), threads_for(len(specs))
        self._open.callback(threads.shutdown)
        local = {spec.name: LocalNode(spec, net, threads) for spec in specs}
        splitter, logger = LogSplitter(local), logging.getLogger("tidelog")
        logger.addHandler(splitter)
        self._open.callback(logger.removeHandler, splitter)
        self.nodes.update(local)
        self._network = _InnerNetwork(net.links)
        self._open.push_async_callback(self._kill_all)

    async def _add_processes(self, specs: list[NodeSpec]) -> None:
        from tidelog.testing.network import NoProxies, Proxies  # noqa: PLC0415
        from tidelog.testing.processes import ProcessNode  # noqa: PLC0415

        self._network = await Proxies.begin(specs) if self.proxied else NoProxies()
        self._open.push_async_callback(self._network.end)
        self.nodes.update((spec.name, ProcessNode(spec, self._network)) for spec in specs)
        self._open.push_async_callback(self._kill_all)

    async def _kill_all(self) -> None:
        """Nobody needs what they would write at their end."""
        there = [node for node in self.nodes.values() if node.state != "absent"]
        ends = await asyncio.gather(*(node.kill() for node in there), return_exceptions=True)
        for _ in range(
            _TURNS_OF_AN_ACCEPT
        ):  # who was accepted in the last turn is hung up on in the next ones
            await asyncio.sleep(0)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    # ── using it ──────────────────────────────────────────────────────────────────────────────────

    @property
    def bootstrap(self) -> str:
        """Where clients find it: every broker."""
        return ",".join("{}:{}".format(*self._spec(name).address) for name in self._names("b"))

    def client(self, **options: Any) -> "Client":
        """A client of this cluster: an async context manager, with the options of `tidelog.connect`."""
        from tidelog.client import connect as connect_client  # noqa: PLC0415 -- only who uses it pays for it

        return connect_client(self.bootstrap, **options)

    async def wait_ready(self, timeout: float = START_S) -> None:  # noqa: ASYNC109 -- a bound of the whole
        """Until every node that runs serves, and every broker that runs knows that all of them are alive.

        Then a new topic whose replicas they are accepts a write with acks=all.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        running = [node for node in self.nodes.values() if node.state == "running"]
        await _all(node.ready(timeout) for node in running)
        wanted = {node.spec.number for node in running if node.spec.is_broker}
        while True:
            seen = await asyncio.gather(*(self._view(f"b{number}") for number in wanted))
            if all(view is not None and wanted <= view.brokers for view in seen):
                return
            if loop.time() > deadline:
                words = [sorted(view.brokers) if view is not None else "no answer" for view in seen]
                raise NodeFailed(f"brokers {sorted(wanted)} do not all know of each other: they see {words}")
            await asyncio.sleep(_POLL_S)

    async def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Which broker leads, as the one knows that has heard most; None: nobody does, or it is not known."""
        names = [name for name in self._names("b") if self.nodes[name].state == "running"]
        seen = await asyncio.gather(*(self._view(name, topic) for name in names))
        newest = max((view for view in seen if view is not None), key=lambda view: view.offset, default=None)
        leader = newest.leaders.get(partition, -1) if newest is not None else -1
        return leader if leader >= 0 else None

    def logs(self, node: int | str | None = None, *, controller: int | None = None) -> str:
        """What a node has logged."""
        return self._node(node, controller).logs()

    async def _view(self, name: str, topic: str = "") -> "_View | None":
        """What that broker knows, whatever is wrong with its network; None: it does not say."""
        node = self.nodes[name]
        if not self.processes:
            image = getattr(node, "image", None)
            return _view_of_image(image, topic) if image is not None else None
        hello = Hello(client_id="tidelog-testing")
        try:
            connection = await connect(HOST, node.spec.port, hello, timeout_ms=_ASK_MS)
            try:
                asked = Metadata(names=(topic,) if topic else ())
                reply, _ = await connection.call(asked, timeout_ms=_ASK_MS)
            finally:
                connection.abort()
        except TidelogError:
            return None
        assert isinstance(reply, MetadataReply), reply
        partitions = reply.topics[0].partitions if reply.topics else ()
        return _View(
            {broker.id for broker in reply.brokers},
            reply.metadata_offset,
            {known.index: known.leader for known in partitions},
        )

    def _names(self, kind: str = "") -> list[str]:
        return [name for name in self.nodes if name.startswith(kind)]

    def _spec(self, name: str) -> NodeSpec:
        return self.nodes[name].spec

    def _node(self, node: int | str | None, controller: int | None) -> Node:
        if (node is None) == (controller is None):
            raise ValueError("name one node: 1 for broker 1, 'c1' or controller=1 for controller 1")
        name = node_name(node) if node is not None else f"c{controller}"
        if name not in self.nodes:
            raise ValueError(f"there is no node {name}; there are {', '.join(self.nodes)}")
        return self.nodes[name]

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────

    async def kill(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """End a node at once, as by SIGKILL; a paused one as well. One that is gone stays so."""
        found = self._node(node, controller)
        if found.state != "absent":
            await found.kill()

    async def stop(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """Stop a node in order: others lead before it goes, and it closes its log."""
        found = self._node(node, controller)
        if found.state == "paused":
            raise NodeFailed(f"{found.spec.title} is paused: resume it, or kill it")
        if found.state == "running":
            await found.stop()

    async def start(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """Start a node that is gone, and wait until it serves."""
        found = self._node(node, controller)
        if found.state != "absent":
            raise NodeFailed(f"{found.spec.title} is {found.state}: kill or stop it first, or restart it")
        await found.start()
        await found.ready(START_S)

    async def restart(
        self, node: int | str | None = None, *, controller: int | None = None, clean: bool = True
    ) -> None:
        """Stop a node if it runs (`clean=False`: kill it), start it, and wait until it serves."""
        found = self._node(node, controller)
        if found.state == "paused" or not clean:
            await self.kill(found.spec.name)
        await self.stop(found.spec.name)
        await self.start(found.spec.name)

    async def pause(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """Freeze a node, as by SIGSTOP: its connections stay, and nothing answers."""
        found = self._node(node, controller)
        if found.state == "absent":
            raise NodeFailed(f"{found.spec.title} does not run: start it first")
        if found.state == "running":
            await found.pause()

    async def resume(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """Let a paused node go on."""
        found = self._node(node, controller)
        if found.state == "paused":
            await found.resume()

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    async def isolate(
        self, node: int | str, *others: int | str, one_way: bool = False, how: How = "drop"
    ) -> None:
        """Cut a node off from these others, or from all of them and from clients.

        Nothing arrives any more and nobody is told (`how="reset"`: connections break and are refused). With
        `one_way` only what the node sends is lost: it hears, and is not heard. Others may be `"clients"`.
        """
        self._links().cut(self._pairs(node, others, one_way=one_way), how)
        await self._network.changed()

    async def delay(self, node: int | str, *others: int | str, seconds: float, one_way: bool = False) -> None:
        """Let everything between a node and these others, or all, arrive so much later."""
        self._links().delay(self._pairs(node, others, one_way=one_way), seconds)
        await self._network.changed()

    async def heal(self, node: int | str | None = None, *others: int | str) -> None:
        """Undo what is wrong with the network: everywhere, around a node, or between it and these others."""
        self._links().heal(None if node is None else self._pairs(node, others, one_way=False))
        await self._network.changed()

    def _links(self) -> Links:
        if self.processes and not self.proxied:
            raise Unsupported(
                "real processes speak to each other without anybody between them: "
                "make the cluster with Cluster(processes=True, proxied=True)"
            )
        return self._network.links

    def _pairs(
        self, node: int | str, others: tuple[int | str, ...], *, one_way: bool
    ) -> list[tuple[str, str]]:
        known = {*self.nodes, CLIENTS}
        one, rest = node_name(node), {node_name(other) for other in others}
        for name in {one} | rest:
            if name not in known:
                raise ValueError(f"there is no node {name}; there are {', '.join(self.nodes)} and {CLIENTS}")
        pairs = list(product([one], sorted((rest or known) - {one})))
        return pairs if one_way else both_ways(pairs)

    # ── disks ─────────────────────────────────────────────────────────────────────────────────────

    async def fill_disk(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """From now on nothing more fits on this node's disk; what is there can be read, and removed."""
        await self._node(node, controller).fill_disk()

    async def free_disk(self, node: int | str | None = None, *, controller: int | None = None) -> None:
        """There is room again."""
        await self._node(node, controller).free_disk()


class _View(NamedTuple):
    """The cluster as one broker knows it."""

    brokers: set[int]
    """Who is alive."""
    offset: int
    """How much of the metadata log it has read."""
    leaders: dict[int, int]
    """Of the topic that was asked about."""


def _view_of_image(image: "Image", topic: str) -> _View:
    topic_id = image.topic_ids.get(topic)
    partitions = image.partitions_of(topic_id) if topic_id is not None else ()
    return _View(
        {broker.id for broker in image.brokers.values() if not broker.fenced},
        image.end_offset,
        {state.index: state.leader for state in partitions},
    )


class _InnerNetwork:
    """The network of nodes inside this process: their own loops look at the links."""

    def __init__(self, links: Links) -> None:
        self.links = links

    async def open(self, spec: NodeSpec) -> None:
        """Whoever listens is reached."""

    async def close(self, spec: NodeSpec) -> None:
        """Whoever is gone does not listen."""

    async def changed(self) -> None:
        """It is so at once."""

    async def end(self) -> None:
        """Nothing is open."""


async def _all(works: Iterable[Any]) -> None:
    """All of them; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _told(settings: Mapping[str, Any] | None, brokers: int) -> dict[str, dict[str, str]]:
    """What brokers (`b`) and controllers (`c`) are told."""
    if not settings:
        return replication_factors(brokers)
    from tidelog.testing.told import settings_for  # noqa: PLC0415 -- loads the product, which processes do by themselves

    return settings_for(settings, brokers)


def _racks(racks: Mapping[int, str] | Iterable[str] | None, brokers: int) -> dict[int, str]:
    if racks is None:
        return {}
    if isinstance(racks, Mapping):
        return dict(racks)
    given = list(racks)
    return {number: given[(number - 1) % len(given)] for number in range(1, brokers + 1)}


__all__ = ["Cluster", "NodeFailed", "Unsupported"]
