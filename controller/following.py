"""Following the metadata log: ask who leads, connect, fetch, append, cut what was not committed (design 4.12, 4.14).

    run ──► whom to ask ──► connect ──► fetch ──► append, truncate ──► tell the copy what is committed
               ▲                          │
               └── silence, another leader, the connection ended

A broker follows it to know the cluster, a controller that does not lead to keep it: both by the rules of
`replication.followership`, as for any partition. What differs is the `Copy`.

What it keeps true (I-44): the copy is cut only above what was known to be committed; anything else, and whatever a
newer tidelog wrote, ends `run` with an error. Whoever runs it stops its node then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from tidelog.controller.archive import Archive
from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.image import Image
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.errors import (
    ConnectionFailed,
    CorruptMessage,
    DiskFull,
    FencedLeaderEpoch,
    InconsistentMetadata,
    InvalidAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
)
from tidelog.protocol.io import Connection, connect
from tidelog.protocol.messages import (
    Fetch,
    FetchReply,
    FetchSnapshot,
    Hello,
    Leader,
    PartitionFetch,
    PartitionFetched,
    Reply,
    split_attachment,
)
from tidelog.protocol.types import NO_BROKER, BrokerId, Buffer, Epoch, Offset
from tidelog.replication.breathing import breathing
from tidelog.replication.followership import (
    Append,
    Asked,
    Followership,
    GoOffline,
    Leading,
    LogView,
    Step,
    Truncate,
    Wait,
)
from tidelog.storage.log import Log

logger = logging.getLogger(__name__)

Address: TypeAlias = tuple[str, int]
"""Host and port."""

READ_BYTES: Final = 128 << 10
"""What is asked for at a time: some 2000 facts."""
_NOT_HERE: Final = frozenset(
    error.code for error in (FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch)
)
"""Whoever answers this does not lead, or not in the epoch that we know; it may say who does."""
FLUSH_POLL_S: Final = 0.005
_FULL_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingConfig:
    """How patiently the metadata log is followed."""

    fetch_max_wait_ms: int = 500
    """How long the controller may wait for something new. The controller writes as often while it is idle."""
    fetch_timeout_ms: int = 2000
    """How long a fetch may take before another controller is asked (`quorum.fetch.timeout.ms`)."""
    connect_timeout_ms: int = 1000
    """How long a connection may take: less than a fetch, since there are other controllers to try."""
    retry_ms: int = 50
    """The pause after every controller was tried in vain; doubles up to `retry_max_ms`."""
    retry_max_ms: int = 1000
    """The longest such pause."""


class Copy(Protocol):
    """A node's copy of the metadata log, and whom it believes to lead."""

    @property
    def log(self) -> Log:
        """The metadata log."""
        ...

    @property
    def archive(self) -> Archive:
        """With its snapshots."""
        ...

    @property
    def quorum_epoch(self) -> Epoch:
        """The newest epoch that was heard of."""
        ...

    @property
    def controller_id(self) -> BrokerId:
        """Who leads in it, an id among controllers; -1: not known."""
        ...

    def view(self) -> LogView:
        """The copy, and what is known to be committed of it."""
        ...

    def heard_of(self, controller: BrokerId, epoch: Epoch, *, from_itself: bool = False) -> bool:
        """Somebody, perhaps itself, says that this controller leads in that epoch. Whether that is news."""
        ...

    def heard(self, epoch: Epoch) -> None:
        """The leader of that epoch has answered, though there is nothing to append yet."""
        ...

    def denied(self, controller: BrokerId) -> None:
        """This controller knows of nobody who leads in our epoch: neither itself, if we have believed so."""
        ...

    async def before_fetch(self) -> None:
        """Returns when the next fetch may be sent."""
        ...

    def fetched(self, controller: BrokerId, epoch: Epoch, high_watermark: Offset) -> Iterator[None]:
        """What the leader of that epoch had is appended, and so much is committed: steps to take that in.

        Between two of them others may look at the copy, or give it up.
        """
        ...

    def cut(self) -> None:
        """The log was truncated."""
        ...

    def installed(self, image: Image) -> None:
        """A snapshot has taken the place of what was here: this is what it says, and all of it is committed."""
        ...

    def lost(self, controller: BrokerId) -> None:
        """The connection to the leader has ended, or was given up."""
        ...

    def refused(self, controller: BrokerId) -> None:
        """Nobody listens where this controller should be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """As whom a node asks."""

    hello: Hello
    node_id: BrokerId = NO_BROKER
    directory_id: bytes | None = None
    """Of a controller: then `node_id` is one among controllers."""


class Following:
    """A copy, and the way to whoever leads. `run` it."""

    def __init__(
        self,
        copy: Copy,
        controllers: Mapping[BrokerId, Address],
        reader: Reader,
        *,
        wall_ms: Callable[[], int],
        rng: Random,
        bounds: Bounds | None = None,
        config: FollowingConfig | None = None,
    ) -> None:
        assert controllers, "there is a controller to ask"
        self.connection: Connection | None = None
        """To the leader, once it has answered as such."""
        self.found = asyncio.Event()
        """Set whenever there is a new connection."""
        self.failures: dict[BrokerId, str] = {}
        """Why each controller that was tried last in vain could not be followed, until one can."""
        self.config = config or FollowingConfig()
        self._copy = copy
        self._controllers = dict(controllers)
        self._reader = reader
        self._wall_ms = wall_ms
        self._rng = rng
        self._bounds = bounds
        self._asked_last = -1
        self._patience: asyncio.Timeout | None = None
        """With the controller that is being asked."""
        self._heard = asyncio.Event()
        """Set when somebody else is heard to lead."""
        self._turns = 0
        self._silent: dict[BrokerId, tuple[float, Epoch]] = {}
        """Who did not answer: until when it is let alone, and in which epoch that was."""
        self._alone_since_s: float | None = None

    def look_again(self) -> None:
        """Another one may be heard to lead: who is asked meanwhile is waited for no longer."""
        said = self._copy.controller_id
        if said not in self._controllers:
            return
        if self._patience is None:
            self._asked_last = -1  # that it was asked in vain was before
            self._heard.set()
        elif said != self._asked_last:
            self._patience.reschedule(_now_s())
            self._patience = None

    def nobody_leads(self) -> str:
        """Since when nobody is found who leads, who was asked, and what each has said."""
        now_s, words = asyncio.get_running_loop().time(), []
        alone_s = now_s - (now_s if self._alone_since_s is None else self._alone_since_s)
        for controller, (host, port) in self._controllers.items():
            why = self.failures.get(controller, "it has not answered yet")
            address = f"{host}:{port}"
            words.append(f"c{controller} ({address}): {why.removeprefix(f'{address}: ')}")
        return f"no controller that leads was found for {alone_s:.1f} s: {', '.join(words)}"

    async def run(self) -> None:
        """Follow for ever. Raises what this node cannot go on with."""
        pause_ms, in_vain = self.config.retry_ms, 0
        self._alone_since_s = asyncio.get_running_loop().time()
        while True:
            controller = self._whom_to_ask()
            if await self._try(controller):
                pause_ms, in_vain = self.config.retry_ms, 0
                continue
            in_vain += 1
            if in_vain % len(self._controllers) == 0:
                await self._pause(self._rng.uniform(0.5, 1) * pause_ms / 1000)
                pause_ms = min(pause_ms * 2, self.config.retry_max_ms)

    async def _pause(self, seconds: float) -> None:
        """Until somebody is heard to lead, or so long."""
        self._heard.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()

    def _whom_to_ask(self) -> BrokerId:
        """Who is said to lead, unless it was asked in vain just now; else the next in turn.

        Who did not answer is let alone for as long as a connection may take, unless it leads anew: the others will know
        by then who leads, and it would be waited for.
        """
        said, epoch, now_s = self._copy.controller_id, self._copy.quorum_epoch, _now_s()
        silent = {each for each, (until_s, _) in self._silent.items() if now_s < until_s}
        turn = [each for each in self._controllers if each not in silent] or list(self._controllers)
        is_new = said in silent and self._silent[said][1] < epoch
        if said in self._controllers and self._asked_last != said and (said in turn or is_new):
            chosen = said
        else:
            # All have their turn, however often whoever is said to lead is asked between them.
            others = [each for each in turn if each != said] or turn
            chosen = others[self._turns % len(others)]
            self._turns += 1
        self._asked_last = chosen
        return chosen

    def _failed(self, controller: BrokerId, error: TidelogError) -> None:
        self.failures[controller] = str(error)
        if isinstance(error.__cause__, ConnectionRefusedError):
            self._copy.refused(controller)
        if isinstance(error, RequestTimedOut) or isinstance(error.__cause__, TimeoutError):
            until_s = _now_s() + self.config.connect_timeout_ms / 1000
            self._silent[controller] = until_s, self._copy.quorum_epoch

    async def _try(self, controller: BrokerId) -> bool:
        """Follow that controller as long as it leads; whether it did, or another one was heard to (`look_again`)."""
        try:
            async with asyncio.timeout(None) as self._patience:
                return await self._try_patiently(controller)
        except TimeoutError:
            self.failures[controller] = "it did not answer until another one was heard to lead"
            return True
        finally:
            self._patience = None

    async def _try_patiently(self, controller: BrokerId) -> bool:
        host, port = self._controllers[controller]
        try:
            connection = await connect(
                host,
                port,
                self._reader.hello,
                bounds=self._bounds,
                timeout_ms=self.config.connect_timeout_ms,
            )
        except TidelogError as error:
            logger.debug("controller.unreachable id=%d error=%r", controller, str(error))
            self._failed(controller, error)
            return False
        try:
            return await self._follow(controller, connection)
        finally:
            connection.close()
            if self.connection is connection:
                self.connection = None
                self._alone_since_s = asyncio.get_running_loop().time()
                self._copy.lost(controller)

    async def _follow(self, controller: BrokerId, connection: Connection) -> bool:
        """Until it is silent or does not lead any more; whether it led at all."""
        copy = self._copy
        followership = Followership(Leading(controller, copy.quorum_epoch))
        while True:
            await copy.before_fetch()
            if followership.leading.leader_epoch != copy.quorum_epoch:
                followership = Followership(Leading(controller, copy.quorum_epoch))
            asked = followership.ask(copy.view())
            try:
                entry, data = await self._fetch(connection, asked)
                image = await self._fetch_image(connection, asked.leader_epoch, entry)
            except TidelogError as error:
                logger.info("controller.lost id=%d error=%r", controller, str(error))
                self._failed(controller, error)
                return self.connection is connection
            if image is not None:
                copy.installed(image)
                await copy.archive.installed()
                continue
            if entry.error in _NOT_HERE:
                hint = entry.current_leader
                if hint is not None and hint == Leader(NO_BROKER, copy.quorum_epoch):
                    copy.denied(controller)
                if hint is None or not copy.heard_of(hint.id, hint.leader_epoch) or hint.id != controller:
                    self.failures[controller] = "it does not lead" + _who_else(hint)
                    return self.connection is connection
                followership = Followership(Leading(controller, copy.quorum_epoch))
            elif not entry.error:
                copy.heard_of(controller, asked.leader_epoch, from_itself=True)
            if entry.error in _NOT_HERE or not entry.error:
                self.connection = connection
                self.failures.clear()
                self.found.set()
            if asked.leader_epoch == copy.quorum_epoch and followership.is_current(asked, copy.view()):
                step = followership.on_fetched(asked, entry, copy.view())
                await self._carry_out(followership, step, data)

    async def _fetch(self, connection: Connection, asked: Asked) -> tuple[PartitionFetched, memoryview]:
        """Ask for what follows; from a controller that is new to us, an answer at once."""
        config, log, reader = self.config, self._copy.log, self._reader
        wait_ms = config.fetch_max_wait_ms if connection is self.connection else 0
        place = PartitionFetch(
            METADATA_TOPIC_ID,
            METADATA.partition,
            asked.fetch_offset,
            READ_BYTES,
            current_leader_epoch=asked.leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
            durable_offset=log.durable_offset,
            log_start=log.log_start,
            high_watermark=self._copy.view().high_watermark,
        )
        reply, attachment = await connection.call(
            Fetch(
                wait_ms,
                1,
                READ_BYTES,
                (place,),
                broker_id=reader.node_id,
                directory_id=reader.directory_id,
            ),
            timeout_ms=config.fetch_timeout_ms,
        )
        if not isinstance(reply, FetchReply) or reply.error or len(reply.partitions) != 1:
            raise ConnectionFailed(f"a fetch of the metadata log was answered with {reply}")
        (data,) = split_attachment(attachment, reply.partitions)
        return reply.partitions[0], data

    async def _fetch_image(
        self, connection: Connection, epoch: Epoch, entry: PartitionFetched
    ) -> Image | None:
        """What the snapshot says that the answer names: the log cannot tell what follows. None: it names none."""
        if entry.snapshot is None or entry.error:
            return None
        try:
            ask = partial(self._fetch_snapshot, connection, epoch)
            return await self._copy.archive.fetch(ask, entry.snapshot)
        except DiskFull:
            await asyncio.sleep(_FULL_MS / 1000)  # else the log would be asked for again at once
            raise

    async def _fetch_snapshot(
        self, connection: Connection, epoch: Epoch, request: FetchSnapshot
    ) -> tuple[Reply, Buffer]:
        """Ask for a piece: meanwhile the leader is heard by its answers."""
        named = replace(
            request,
            current_leader_epoch=epoch,
            node_id=self._reader.node_id if self._reader.directory_id is not None else NO_BROKER,
            directory_id=self._reader.directory_id,
        )
        answer = await connection.call(named, timeout_ms=self.config.fetch_timeout_ms)
        self._copy.heard(epoch)
        return answer

    async def _carry_out(self, followership: Followership, step: Step, data: Buffer) -> None:
        log = self._copy.log
        if isinstance(step, Append):
            step = await self._append(followership, step, data)
        elif isinstance(step, Truncate):
            assert not step.loses_committed, step
            while log.is_flushing:  # noqa: ASYNC110 -- rare, and no reason to tell every flusher of us
                await asyncio.sleep(FLUSH_POLL_S)
            try:
                log.truncate_to(step.offset, self._wall_ms())
            except (DiskFull, StorageError) as error:  # nothing was cut: the next answer says the same
                step = Wait(_FULL_MS, f"{log} could not be cut: {error}")
            else:
                self._copy.cut()
        elif isinstance(step, GoOffline):
            raise InconsistentMetadata(f"{log}: {step.why}")
        elif not isinstance(step, Wait):
            raise InconsistentMetadata(f"{log} ends before the controller's log begins: {step}")
        if isinstance(step, Wait):
            if step.tell:
                logger.warning("metadata.bad %s", step.tell)
            await asyncio.sleep(step.delay_ms / 1000)

    async def _append(self, followership: Followership, step: Append, data: Buffer) -> Step:
        copy, leading = self._copy, followership.leading
        if len(data):
            try:
                copy.log.append_as_follower(data, leading.leader_epoch, self._wall_ms())
            except (CorruptMessage, DiskFull, InvalidAppend) as error:
                copy.log.probe()
                return followership.on_bad_bytes(str(error))
        committed = followership.new_high_watermark(step, copy.view())
        await breathing(copy.fetched(leading.leader, leading.leader_epoch, committed))
        return step


def _who_else(hint: Leader | None) -> str:
    """What a controller that does not lead knows of others."""
    if hint is None:
        return ""
    who = "knows of nobody who does" if hint.id == NO_BROKER else f"takes c{hint.id} for the leader"
    return f" in epoch {hint.leader_epoch} and {who}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
