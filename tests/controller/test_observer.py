"""Following the metadata log on real sockets, and what the controller promises (design 4.5, 4.14, 4.15; I-43, I-50)."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controller.conftest import Quorum
from tests.controller.nodes import PATIENT, Member, sessions_of
from tests.protocol.io.peers import Node, until
from tests.storage.logs import contents
from tidelog.controller.ballot import QUORUM_STATE
from tidelog.controller.config import ControllerConfig
from tidelog.controller.facts import METADATA_TOPIC_ID, NothingHappened
from tidelog.controller.image import Image
from tidelog.controller.liveness import Sessions
from tidelog.protocol.errors import (
    BY_CODE,
    DamagedLog,
    IneligibleReplica,
    InvalidRegistration,
    InvalidRequest,
    InvalidUpdateVersion,
    NoController,
    NotController,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    UnknownTopicId,
    UnsupportedFormat,
)
from tidelog.protocol.io import Incoming, connect
from tidelog.protocol.messages import (
    AllocateProducerIds,
    AlterConfigs,
    BrokerHeartbeat,
    ConfigAlter,
    DeleteTopics,
    Fetch,
    FetchReply,
    Leader,
    PartitionFetch,
    PartitionFetched,
    Produce,
    ResourceAlter,
)
from tidelog.protocol.records import encode
from tidelog.protocol.settings import CLUSTER
from tidelog.protocol.types import BrokerId
from tidelog.storage.crashes import CLEAN_SHUTDOWN, RUNNING
from tidelog.storage.identity import PARTITION_METADATA
from tidelog.storage.log import Log
from tidelog.storage.seal import JSON
from tidelog.storage.segment import Slice

ONE, TWO = BrokerId(1), BrokerId(2)
ALONE = ControllerConfig(node_id=ONE, voters=((1, "127.0.0.1", 0),))


async def two_in_sync(quorum: Quorum) -> tuple[Member, Member, bytes]:
    """Two brokers that are alive, and a topic that the first of them leads."""
    one, two = quorum.member(1), quorum.member(2)
    await one.join()
    await two.join()
    topic_id = await one.place("orders", 1, 2)
    await quorum.all_know()
    return one, two, topic_id


# ── following ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_broker_is_registered_and_unfenced_where_everybody_sees_it(quorum: Quorum) -> None:
    one, two = quorum.member(1), quorum.member(2)
    reply = await one.register()
    assert (await one.beat()).session_timeout_ms == 60_000
    await one.join()
    await quorum.all_know()
    assert two.observer.image.live_epoch(ONE) == reply.broker_epoch
    assert bytes.fromhex(reply.cluster_id) == two.observer.image.cluster_id


async def test_a_topic_is_seen_with_its_leader(quorum: Quorum) -> None:
    one, two, topic_id = await two_in_sync(quorum)
    (p,) = two.observer.image.partitions_of(topic_id)
    assert (p.leader, p.isr, p.min_isr, two.observer.image.topic_ids) == (1, (1, 2), 2, {"orders": topic_id})
    assert one.observer.image.facts() == two.observer.image.facts() == quorum.node.working.facts()


async def test_every_batch_is_told_once_with_what_it_changed(quorum: Quorum) -> None:
    _, two, topic_id = await two_in_sync(quorum)
    told = [changes for changes in two.changes if topic_id in changes.topics]
    assert [changes.partitions for changes in told] == [((topic_id, 0),)]


async def test_who_comes_later_reads_everything(quorum: Quorum) -> None:
    one, _, _ = await two_in_sync(quorum)
    late = quorum.member(3)
    await quorum.all_know()
    assert late.observer.image.facts() == one.observer.image.facts()


async def test_who_restarts_knows_what_was_committed_before_it_has_asked_anybody(quorum: Quorum) -> None:
    one, _, topic_id = await two_in_sync(quorum)
    await quorum.stop()
    await quorum.stop(one)
    one.host.kill_and_open()
    one.begin()
    quorum.follow(one)
    await until(lambda: one.observer.caught_up_to == one.known_committed, "it has read its own copy")
    assert topic_id in one.observer.image.topics
    assert not one.observer.connected


async def test_who_has_lost_all_snapshots_begins_anew_and_reads_everything_again(
    quorum: Quorum, reads: list[int]
) -> None:
    one, _, topic_id = await two_in_sync(quorum)
    await quorum.stop()
    await quorum.stop(one)
    one.host.flush()
    one.host.disk.kill()
    one.host.open(log_start=one.known_committed - 1)
    one.begin()
    reads.clear()
    quorum.follow(one)
    await until(lambda: one.observer.log.end_offset == 0, "it has forgotten what it had")
    assert one.observer.view().high_watermark == 0
    await quorum.start()
    await quorum.all_know()
    assert topic_id in one.observer.image.topics


def test_what_is_said_to_be_committed_but_is_not_here_is_not_waited_for(reads: list[int]) -> None:
    """Whoever takes in what is committed holds up everybody until a step is done."""
    one = Member(1, {1: ("127.0.0.1", 9)})
    assert list(one.observer.fetched(ONE, 1, 5)) == []
    assert reads == []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From where a log was read; to read for ever fails."""
    offsets: list[int] = []
    read = Log.read

    def counted(self: Log, offset: int, max_bytes: int, below: int | None = None) -> Slice:
        offsets.append(offset)
        assert len(offsets) < 1000, "nothing is found, again and again"
        return read(self, offset, max_bytes, below)

    monkeypatch.setattr(Log, "read", counted)
    return offsets


async def test_a_controller_that_restarts_knows_everything_and_leads_in_a_new_epoch(quorum: Quorum) -> None:
    one, two, _ = await two_in_sync(quorum)
    before, epoch = quorum.node.working.facts(), quorum.node.epoch
    await quorum.stop()
    await quorum.start()
    assert (quorum.node.working.facts(), quorum.node.epoch) == (before, epoch + 1)
    await two.create("invoices")
    await quorum.all_know()
    assert sorted(one.observer.image.topic_ids) == ["invoices", "orders"]
    assert (one.observer.quorum_epoch, one.lost, two.lost) == (epoch + 1, 1, 1)


async def test_a_controller_whose_log_was_cut_for_damage_votes_at_no_later_start(quorum: Quorum) -> None:
    """What others count upon is missing from it for good, though the log looks whole again (I-44)."""
    quorum.node.stop()
    await until((quorum.path / CLEAN_SHUTDOWN).exists, "it has stopped")
    name = quorum.path / "__metadata-0" / f"{0:020d}.log"
    content = bytearray(name.read_bytes())
    content[3] ^= 4
    name.write_bytes(content)
    for _ in range(3):
        await quorum.stop()
        with pytest.raises(DamagedLog, match="this one will follow them without a vote"):
            await quorum.start()


def is_gone(log: Path) -> None:
    shutil.rmtree(log)


def is_empty(log: Path) -> None:
    for file in log.iterdir():
        file.unlink()


def is_nobodys(log: Path) -> None:
    (log / PARTITION_METADATA).unlink()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("lost", [is_gone, is_empty, is_nobodys])
async def test_a_controller_whose_log_is_gone_votes_at_no_later_start(
    quorum: Quorum, lost: Callable[[Path], None], stopped: bool
) -> None:
    """It would vote for whoever asks, with a log of its own in which nothing is missed (I-44)."""
    if stopped:
        quorum.node.stop()
        await until((quorum.path / CLEAN_SHUTDOWN).exists, "it has stopped")
    await quorum.stop()
    lost(quorum.path / "__metadata-0")
    for _ in range(3):
        with pytest.raises(
            DamagedLog, match=r"__metadata-0 is gone; .* this one will follow them without a vote"
        ):
            await quorum.start()
        await quorum.stop()


async def test_a_controller_that_refuses_its_start_leaves_its_directory_in_order(quorum: Quorum) -> None:
    """A newer tidelog has written its ballot: where the older one goes back to the newer nothing is scanned."""
    quorum.node.stop()
    await until((quorum.path / CLEAN_SHUTDOWN).exists, "it has stopped")
    await quorum.stop()
    ballot = quorum.path / QUORUM_STATE
    mine = ballot.read_bytes()
    ballot.write_bytes(JSON.seal(b'{"version":9'))
    with pytest.raises(UnsupportedFormat, match="quorum-state is of version 9"):
        await quorum.start()
    await quorum.stop()
    assert (quorum.path / CLEAN_SHUTDOWN).exists()
    assert not (quorum.path / RUNNING).exists()
    ballot.write_bytes(mine)
    await quorum.start()
    await quorum.all_know()


async def test_what_was_not_committed_is_cut_off_when_the_log_parts(quorum: Quorum) -> None:
    one = quorum.member(1)
    await quorum.all_know()
    await quorum.stop()
    end, epoch = one.host.log.end_offset, quorum.node.epoch
    one.host.log.append(encode([b"of a leader that lost it"], now_ms=1), epoch, 1)
    await quorum.start()
    await until(lambda: one.observer.quorum_epoch > epoch and one.observer.caught_up_to > end, "it goes on")
    await quorum.all_know()
    assert contents(quorum.node.log).startswith(contents(one.host.log))


async def test_a_fact_from_the_future_stops_who_reads_it(quorum: Quorum) -> None:
    one = quorum.member(1)
    await quorum.all_know()
    node = quorum.node
    # A newer one, that knows what it is.
    node.metadata.grow = lambda: iter(())  # type: ignore[method-assign]
    node.metadata.commit = lambda *_: False  # type: ignore[method-assign]
    node.log.append(encode([b"\x91\x63"], now_ms=1), node.epoch, 1)
    node._grown()
    with pytest.raises(UnsupportedFormat):
        await quorum.outcome(one)
    assert one.observer.caught_up_to < quorum.node.log.end_offset


# ── whom to ask ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_controller_that_does_not_lead_says_who_does(quorum: Quorum) -> None:
    def point(request: Incoming) -> None:
        assert isinstance(request.message, Fetch)
        entry = PartitionFetched(
            METADATA_TOPIC_ID, 0, NotLeaderOrFollower.code, current_leader=Leader(ONE, 1)
        )
        request.reply(FetchReply((entry,)))

    async with Node() as other:
        other.handler = point
        member = Member(1, {7: ("127.0.0.1", other.port), 1: ("127.0.0.1", quorum.port)}, quorum.ledger)
        quorum.follow(member)
        await until(lambda: member.observer.connected, "the right one is found")
        assert (member.observer.controller_id, member.observer.quorum_epoch) == (1, quorum.node.epoch)
        await quorum.stop(member)


@pytest.mark.slow
async def test_a_silent_controller_is_left_for_another(quorum: Quorum) -> None:
    async with Node() as silent:
        member = Member(1, {7: ("127.0.0.1", silent.port), 1: ("127.0.0.1", quorum.port)}, quorum.ledger)
        quorum.follow(member)
        await member.join()
        assert member.observer.controller_id == 1
        await quorum.stop(member)


async def test_a_request_is_built_anew_for_whoever_leads_then(quorum: Quorum) -> None:
    one = quorum.member(1)
    await one.join()
    epochs: list[int] = []

    def build(epoch: int) -> BrokerHeartbeat:
        epochs.append(epoch)
        return BrokerHeartbeat(ONE, one.epoch, epoch if len(epochs) > 2 else 99, 0)

    assert not (await one.ask(build)).error
    assert epochs == [1, 1, 1]


async def test_nobody_waits_for_a_controller_longer_than_it_likes(quorum: Quorum) -> None:
    one = quorum.member(1)
    await one.join()
    await quorum.stop()
    with pytest.raises(NoController, match="no controller that leads was found"):
        await one.ask(lambda epoch: BrokerHeartbeat(ONE, 1, epoch, 0), 200)
    await until(lambda: one.lost == 1, "it is told that the controller is gone")


async def test_a_request_that_waits_goes_to_the_controller_that_comes(quorum: Quorum) -> None:
    one = quorum.member(1)
    await one.join()
    await quorum.stop()
    waiting = asyncio.create_task(one.create("orders"))
    await until(lambda: not one.observer.connected, "the controller is gone")
    await quorum.start()
    assert not (await waiting).topics[0].error


# ── what is decided ───────────────────────────────────────────────────────────────────────────────────


async def test_a_proposal_is_applied_and_read_in_the_log(quorum: Quorum) -> None:
    one, _, topic_id = await two_in_sync(quorum)
    entry = await one.propose(topic_id, (1,))
    await until(lambda: one.observer.caught_up_to > entry.metadata_offset, "it is read")
    p = one.observer.image.partitions[topic_id, 0]
    assert (entry.error, p.isr, p.elr, p.partition_epoch) == (0, (1,), (2,), 1)


async def test_proposals_are_refused_with_their_reasons(quorum: Quorum) -> None:
    one, two, topic_id = await two_in_sync(quorum)
    answers = [
        await two.propose(topic_id, (1, 2)),
        await one.propose(topic_id, (2,), 2),
        await one.propose(topic_id, (1,), 2),
        await one.propose(topic_id, (1,), 3),
    ]
    assert [BY_CODE[entry.error] if entry.error else None for entry in answers] == [
        InvalidRequest,
        InvalidRequest,
        InvalidUpdateVersion,
        None,
    ]


async def test_who_is_fenced_does_not_join_the_isr(quorum: Quorum) -> None:
    one, two, topic_id = await two_in_sync(quorum)
    await two.beat(want_fence=True)
    await quorum.all_know()
    assert one.observer.image.partitions[topic_id, 0].isr == (1,)
    assert (await one.propose(topic_id, (1, 2))).error == IneligibleReplica.code


async def test_an_older_process_is_not_heard(quorum: Quorum) -> None:
    one, _, topic_id = await two_in_sync(quorum)
    old, one.life = one.epoch, 2
    await one.register()
    new, one.epoch = one.epoch, old
    assert new > old
    assert (await one.beat()).error == StaleBrokerEpoch.code
    assert (await one.propose(topic_id, (1,))).error == StaleBrokerEpoch.code


async def test_a_registration_that_comes_too_late_is_told_which_start_is_registered(quorum: Quorum) -> None:
    one = quorum.member(1)
    await one.register(start=7)
    one.life = 0
    reply = await one.register(start=6)
    assert (reply.error, reply.start) == (InvalidRegistration.code, 7)
    assert "start 6" in (reply.message or "")


async def test_a_broker_that_has_not_read_what_was_taken_from_it_gets_no_lease(quorum: Quorum) -> None:
    one, two, _ = await two_in_sync(quorum)
    assert [(await each.beat()).renews for each in (one, two)] == [True, True]
    knew = one.observer.caught_up_to
    await one.beat(want_fence=True)
    await quorum.all_know()
    assert [(await one.beat_at(end)).renews for end in (knew, one.observer.caught_up_to)] == [False, True]


async def test_a_name_is_taken_once(quorum: Quorum) -> None:
    one, _, _ = await two_in_sync(quorum)
    assert (await one.create("orders")).topics[0].error == TopicAlreadyExists.code


async def test_a_removed_topic_is_gone_everywhere(quorum: Quorum) -> None:
    one, two, topic_id = await two_in_sync(quorum)
    reply = await one.ask(lambda epoch: DeleteTopics(("orders",), (topic_id,), quorum_epoch=epoch))
    assert [entry.error for entry in reply.topics] == [0, UnknownTopicId.code]
    await until(lambda: two.observer.caught_up_to >= reply.metadata_offset, "it is read")
    assert two.observer.image.partitions == {}


async def test_producer_ids_are_given_out_once_whatever_happens(quorum: Quorum) -> None:
    one = quorum.member(1)
    await one.join()

    async def block() -> range:
        reply = await one.ask(lambda epoch: AllocateProducerIds(ONE, one.epoch, epoch))
        return range(reply.first, reply.first + reply.count)

    blocks = [await block(), await block()]
    await quorum.stop()
    await quorum.start()
    blocks.append(await block())
    assert [(one.start, one.stop) for one in blocks] == [(0, 1000), (1000, 2000), (2000, 3000)]


async def test_a_request_for_another_epoch_is_refused(quorum: Quorum) -> None:
    connection = await connect("127.0.0.1", quorum.port)
    reply, _ = await connection.call(BrokerHeartbeat(ONE, 1, 99, 0))
    assert (reply.error, reply.quorum_epoch) == (NotController.code, 1)  # type: ignore[attr-defined]
    connection.close()
    await connection.wait_closed()


async def test_a_controller_keeps_no_other_log(quorum: Quorum) -> None:
    connection = await connect("127.0.0.1", quorum.port)
    with pytest.raises(UnknownTopicId):
        await connection.call(Fetch(0, 0, 0, (PartitionFetch(bytes(16), 0, 0, 0),)))
    with contextlib.suppress(Exception):
        await connection.call(Produce(-1, 0, ()))
    connection.close()
    await connection.wait_closed()


# ── who is alive ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_who_is_silent_is_fenced_and_others_lead(quorum: Quorum) -> None:
    await quorum.again(replace(PATIENT, active=sessions_of(500)))
    _, two, topic_id = await two_in_sync(quorum)

    def led_by_two() -> bool:
        return two.observer.image.partitions[topic_id, 0].leader == TWO

    beating = asyncio.create_task(beat_for_ever(two))
    await until(led_by_two, "the silent one is fenced")
    beating.cancel()
    assert two.observer.image.live_epoch(ONE) is None
    assert quorum.node.fenced_fast == {}


async def beat_for_ever(member: Member) -> None:
    while True:
        await member.beat()
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_silence_is_looked_for_when_it_can_have_lasted_long_enough(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    overdue = Sessions.overdue

    def counted(self: Sessions, image: Image, now_ms: int) -> BrokerId | None:
        looks.append(now_ms)
        return overdue(self, image, now_ms)

    monkeypatch.setattr(Sessions, "overdue", counted)
    await quorum.again(replace(PATIENT, active=sessions_of(500)))
    _, two, topic_id = await two_in_sync(quorum)
    beating = asyncio.create_task(beat_for_ever(two))
    await until(lambda: two.observer.image.partitions[topic_id, 0].leader == TWO, "the silent one is fenced")
    before, now_ms = len(looks), looks[-1]
    # Somebody is heard every 50 ms, and so never for 550 ms: to look every 25 ms would find nothing.
    await until(lambda: looks[-1] - now_ms > 1000, "it is looked for all the same")
    beating.cancel()
    assert len(looks) - before <= 6, [at - now_ms for at in looks[before:]]


async def test_who_is_gone_and_whose_port_refuses_is_fenced_at_once(quorum: Quorum) -> None:
    await quorum.again(replace(PATIENT, fast_fencing=True))
    one, two, topic_id = await two_in_sync(quorum)
    await quorum.stop(one)  # its port is nobody's
    quorum.members.remove(one)
    await until(lambda: two.observer.image.partitions[topic_id, 0].leader == TWO, "the other one leads")
    assert quorum.node.fenced_fast == {ONE: 1}


async def test_fast_fencing_may_be_switched_on_while_everything_runs(quorum: Quorum) -> None:
    one, two, _ = await two_in_sync(quorum)  # these controllers were started without
    fast = ResourceAlter(CLUSTER, "", (ConfigAlter("fast.fencing.enable", "true"),))
    await two.ask(lambda epoch: AlterConfigs((fast,), quorum_epoch=epoch))
    await quorum.stop(one)
    quorum.members.remove(one)
    await until(lambda: quorum.node.fenced_fast == {ONE: 1}, "it is fenced fast")


@pytest.mark.parametrize(
    ("said", "then", "fences"),
    [(True, None, True), (False, None, False), (True, "false", False), (False, "true", True)],
)
def test_what_is_set_for_the_cluster_wins_over_what_a_controller_was_started_with(
    said: bool, then: str | None, fences: bool
) -> None:
    settings = {} if then is None else {(CLUSTER, "", "fast.fencing.enable"): then}
    assert replace(ALONE, fast_fencing=said).fences_fast(settings) is fences


async def test_who_is_gone_but_whose_port_accepts_is_given_its_time(quorum: Quorum) -> None:
    await quorum.again(replace(PATIENT, fast_fencing=True))
    async with Doorkeeper() as door:
        one = quorum.member(1, port=door.port)
        await one.join()
        await quorum.stop(one)
        await until(lambda: door.callers == 1, "somebody looks whether it is there")
    assert quorum.node.working.live_epoch(ONE) is not None


class Doorkeeper(Node):
    """Somebody who listens where the broker did."""

    callers = 0

    def _handle(self, request: Incoming) -> None:
        self.callers += 1
        super()._handle(request)


async def test_idle_time_is_written_down(quorum: Quorum) -> None:
    one = quorum.member(1)
    await quorum.all_know()
    end = one.observer.caught_up_to
    await until(lambda: one.observer.caught_up_to > end, "an idle controller says that nothing happened")
    assert quorum.node.log.end_offset > end
    assert NothingHappened() not in one.observer.image.facts()
