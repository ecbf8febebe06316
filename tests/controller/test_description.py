"""What the quorum's leader says about it."""

from typing import Any

from tests.controller.conftest import Quorum
from tests.protocol.io.peers import until
from tidelog.controller.readers import OBSERVER_FORGOTTEN_MS
from tidelog.protocol.errors import NotController
from tidelog.protocol.io import connect
from tidelog.protocol.messages import DescribeQuorum, DescribeQuorumReply
from tidelog.protocol.types import Epoch


async def describe(quorum: Quorum, epoch: int = -1) -> DescribeQuorumReply:
    """As a tool asks it."""
    connection = await connect("127.0.0.1", quorum.port, timeout_ms=5000)
    try:
        reply: Any = (await connection.call(DescribeQuorum(Epoch(epoch))))[0]
        return reply  # type: ignore[no-any-return]
    finally:
        connection.close()
        await connection.wait_closed()


async def test_the_leader_describes_itself_and_its_log(quorum: Quorum) -> None:
    await until(lambda: quorum.node.active, "it leads")
    answer = await describe(quorum)
    log, image = quorum.node.log, quorum.node.working
    assert (answer.error, answer.leader_id, answer.quorum_epoch) == (0, 1, quorum.node.epoch)
    assert (answer.cluster_id, answer.log_start, answer.snapshot_end) == (image.cluster_id.hex(), 0, -1)  # type: ignore[union-attr]
    assert 0 < answer.high_watermark <= log.end_offset
    [me] = answer.voters
    assert (me.id, me.controller, me.host, me.port) == (1, True, "127.0.0.1", quorum.port)
    assert me.directory_id == image.voters[0].directory_id
    assert (me.silent_ms, me.behind_ms) == (0, 0)
    assert answer.observers == ()


async def test_brokers_that_read_are_observers_with_their_disks_and_addresses(quorum: Quorum) -> None:
    members = [quorum.member(7), quorum.member(5)]
    for member in members:
        await member.join()
    await quorum.all_know()
    answer = await describe(quorum)
    assert [(one.id, one.controller, one.host, one.port) for one in answer.observers] == [
        (5, False, "127.0.0.1", 9),
        (7, False, "127.0.0.1", 9),
    ]
    assert answer.observers[0].directory_id == quorum.node.working.brokers[members[1].number].directory_id
    assert all(one.end_offset >= 0 and one.behind_ms < 5000 for one in answer.observers)


async def test_an_observer_that_stops_is_seen_to_fall_behind_and_is_forgotten_some_time(
    quorum: Quorum,
) -> None:
    member = quorum.member(5)
    await member.join()
    await quorum.all_know()
    await quorum.stop(member)
    end = quorum.node.log.end_offset
    await until(lambda: quorum.node.log.end_offset > end + 1, "the log goes on")
    [gone] = (await describe(quorum)).observers
    assert gone.end_offset < quorum.node.log.end_offset
    assert 0 < gone.silent_ms <= gone.behind_ms + 1
    readers, now_ms = quorum.node._readers, quorum.node._now_ms()
    assert readers.observers(now_ms + OBSERVER_FORGOTTEN_MS - 10_000)
    assert not readers.observers(now_ms + OBSERVER_FORGOTTEN_MS + 10_000)


async def test_with_the_leadership_the_observers_are_forgotten(quorum: Quorum) -> None:
    member = quorum.member(5)
    await member.join()
    assert (await describe(quorum)).observers
    quorum.node._readers.give_up()
    assert not quorum.node._readers.observers(0)


async def test_whoever_means_another_epoch_is_told_who_leads_in_which(quorum: Quorum) -> None:
    await until(lambda: quorum.node.active, "it leads")
    answer = await describe(quorum, epoch=77)
    assert (answer.error, answer.leader_id, answer.quorum_epoch) == (
        NotController.code,
        1,
        quorum.node.epoch,
    )
    assert "epoch 77 was addressed" in (answer.message or "")
    assert [(one.id, one.port, one.end_offset) for one in answer.voters] == [(1, quorum.port, -1)]
