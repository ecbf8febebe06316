"""A quorum of real controllers, one story at a time (I-44 to I-51; 4.2, 4.3, 4.12)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controller.nodes import Member, sessions_of
from tests.simulation.controllers import BEAT_S, FAST, FETCH_MS, PORT, QUORUM, SESSION_MS, Controllers
from tests.simulation.controllers_witness import Placed, batches
from tidelog.controller.following import FollowingConfig
from tidelog.controller.quorum import QuorumConfig
from tidelog.protocol.errors import NotController, TopicAlreadyExists
from tidelog.protocol.io import connect
from tidelog.protocol.messages import BrokerHeartbeat, CreateTopics, NewTopic, Vote, VoteReply
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

CHECK_S = QUORUM.check_quorum_ms / 1000
FETCH_S = FETCH_MS / 1000
SESSION_S = SESSION_MS / 1000
SEEDS = range(4)
ONE, TWO = 1, 2


@pytest.fixture(params=SEEDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world that is running."""
    with World(request.param).running() as world:
        yield world


def settled(
    world: World, controllers: int = 3, members: tuple[int, ...] = (ONE, TWO), **config: Any
) -> Controllers:
    """A quorum that serves, and members that are not fenced."""
    quorum = Controllers(world, controllers, members, **config)
    quorum.until(quorum.settled)
    quorum.all_read()
    return quorum


def asked(quorum: Controllers, member: Member, coroutine: Any) -> Any:
    """What a member's request comes to."""
    return quorum.result(quorum.member_hosts[member.number].create_task(coroutine))


def cut_off(quorum: Controllers, number: int) -> None:
    quorum.world.network.isolate(quorum.hosts[number].name)


def is_fenced(quorum: Controllers, member: int) -> bool:
    return quorum.leader.metadata.committed.brokers[BrokerId(member)].fenced


# ── who leads ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_election_needs_everybody_and_the_next_a_majority(world: World) -> None:
    quorum = Controllers(world, 3)
    quorum.hosts[3].kill()
    quorum.run_for(2)
    assert (quorum.active, quorum.witness.leaders) == (None, {})
    quorum.start(3)
    quorum.hosts[quorum.until_active()].kill()
    quorum.until_active()
    assert world.counts["founding elections"] == 1


def test_a_leader_that_is_cut_off_answers_nobody_and_another_one_leads(world: World) -> None:
    quorum = settled(world)
    old = quorum.until_active()
    node = quorum.nodes[old]
    asking = Host("asks", world)
    cut_off(quorum, old)
    world.network.heal(quorum.hosts[old].name, asking.name)
    quorum.run_for(FETCH_S + 0.05)
    beat = BrokerHeartbeat(BrokerId(ONE), quorum.members[ONE].epoch, node.epoch, 1 << 40)
    assert "does not hear a majority" in quorum.result(asking.create_task(refusal(quorum.hosts[old], beat)))
    quorum.run_for(CHECK_S - FETCH_S)
    assert node.active is None
    quorum.until(lambda: quorum.active not in {None, old}, 2)
    world.network.heal()
    quorum.until(quorum.settled)
    assert quorum.nodes[old].active is None


async def ask(host: Host, request: Any) -> Any:
    connection = await connect(host.machine.address, PORT)
    try:
        reply, _ = await connection.call(request, timeout_ms=2000)
    finally:
        connection.close()
        await connection.wait_closed()
    return reply


async def refusal(host: Host, request: Any) -> str:
    """Why that controller does not take it as the active one would; empty if it does."""
    try:
        await ask(host, request)
    except NotController as error:
        return str(error)
    return ""


def test_what_a_leader_that_was_cut_off_could_not_commit_is_cut_off(world: World) -> None:
    quorum = settled(world)
    old = quorum.until_active()
    for other in quorum.others(old):
        world.network.partition(f"c{old}", f"c{other}")
    left, member = quorum.nodes[old].metadata, quorum.members[ONE]
    made = quorum.member_hosts[ONE].create_task(member.create("orders"))
    quorum.until(lambda: left.log.end_offset > left.committed.end_offset)
    quorum.until(lambda: quorum.active not in {None, old})
    world.network.heal()
    quorum.until(quorum.settled)
    quorum.all_read()
    assert quorum.result(made).topics[0].error == 0
    assert "orders" in quorum.leader.working.topic_ids
    assert world.counts["tails cut"] == 1


def test_who_lacks_what_is_committed_does_not_lead(world: World) -> None:
    quorum = settled(world)
    leader = quorum.until_active()
    behind, complete = quorum.others(leader)
    quorum.hosts[behind].kill()
    assert not asked(quorum, quorum.members[ONE], quorum.members[ONE].create("orders")).topics[0].error
    quorum.hosts[leader].kill()
    quorum.hosts[complete].kill()
    quorum.start(behind)
    quorum.run_for(0.1)
    quorum.start(complete)
    assert quorum.until_active() == complete


def test_one_that_stops_hands_over_at_once(world: World) -> None:
    quorum = settled(world)
    old = quorum.until_active()
    quorum.stop(old)
    quorum.until(lambda: quorum.active not in {None, old}, FETCH_S)
    quorum.until(lambda: quorum.hosts[old].exit_code == 0, 5)


def test_one_that_is_killed_is_replaced_before_a_time_out(world: World) -> None:
    quorum = settled(world)
    quorum.hosts[quorum.until_active()].kill()
    quorum.until(lambda: quorum.active is not None, FETCH_S)


@pytest.mark.slow
def test_one_that_is_killed_while_another_one_begins_is_replaced_before_a_time_out(world: World) -> None:
    """Who has only heard of the leader, and finds nobody at its port, does not believe in it either."""
    quorum = settled(world, quorum=QuorumConfig(), following=FollowingConfig())
    for later_s in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2):
        leader = quorum.until_active()
        begins = quorum.others(leader)[0]
        quorum.hosts[begins].kill()
        quorum.run_for(0.5)
        quorum.start(begins)
        quorum.until(lambda: begins in quorum.nodes)  # noqa: B023 -- called before the next turn
        quorum.run_for(later_s)
        quorum.hosts[leader].kill()
        quorum.until(lambda: quorum.active not in {None, leader}, 1.0)  # noqa: B023 -- as above
        quorum.start(leader)
        quorum.until(quorum.settled)


def test_one_that_finds_its_log_damaged_as_it_decides_ends_and_the_next_one_decides(world: World) -> None:
    quorum = settled(world, idle_ms=60_000, log=LogConfig(index_interval_bytes=0))
    leader = quorum.until_active()
    log = quorum.nodes[leader].metadata.log
    segment = log.segments[-1]
    segment.close()
    quorum.hosts[leader].disk.rot(f"{log.directory.path}/{segment.name}", 5)
    world.expect(ExceptionGroup)
    assert not asked(quorum, quorum.members[ONE], quorum.members[ONE].create("orders")).topics[0].error
    assert not quorum.hosts[leader].alive
    assert quorum.active in quorum.others(leader)


@pytest.mark.slow
def test_one_that_hangs_is_replaced_when_it_is_missed_and_hardly_later(world: World) -> None:
    """Nobody waits for it once more while another one leads, and those who miss it do not vote for themselves."""
    quorum = settled(world, quorum=QuorumConfig(), following=FollowingConfig())
    for _ in range(8):
        leader = quorum.until_active()
        quorum.hosts[leader].stop()
        quorum.until(lambda: quorum.active not in {None, leader}, 2.3)  # noqa: B023 -- called before the next turn
        quorum.hosts[leader].resume()
        quorum.until(quorum.settled)


def test_a_quorum_of_three_survives_any_one_and_not_two(world: World) -> None:
    quorum = settled(world)
    for number in quorum.hosts:
        quorum.hosts[number].kill()
        quorum.until_active()
        assert (
            asked(quorum, quorum.members[ONE], quorum.members[ONE].create(f"without-{number}"))
            .topics[0]
            .error
            == 0
        )
        quorum.start(number)
        quorum.until(quorum.settled)
    one, two = [quorum.until_active(), *quorum.others(quorum.until_active())][1:]
    quorum.hosts[one].kill()
    quorum.hosts[two].kill()
    before = quorum.witness.end
    quorum.run_for(CHECK_S + 1)
    assert quorum.active is None
    assert quorum.witness.end == before
    quorum.start(one)
    quorum.until_active()


def test_a_quorum_of_one_comes_back_by_itself(world: World) -> None:
    quorum = settled(world, 1)
    for end in (quorum.hosts[1].kill, quorum.hosts[1].power_cut):
        epoch = quorum.nodes[1].epoch
        end()
        quorum.start(1)
        quorum.until(lambda: len(quorum.nodes) == 1 and quorum.active == 1)
        quorum.until(quorum.settled)
        assert quorum.nodes[1].epoch > epoch


@pytest.mark.parametrize("inward", [True, False])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_what_is_cut_off_one_way_causes_no_endless_elections(world: World, who: str, inward: bool) -> None:
    quorum = settled(world)
    leader = quorum.until_active()
    victim = leader if who == "leader" else quorum.others(leader)[0]
    for name in [*(f"c{other}" for other in quorum.others(victim)), "m1", "m2"]:
        a, b = (name, f"c{victim}") if inward else (f"c{victim}", name)
        world.network.partition(a, b, both=False)
    quorum.run_for(3)
    elections = world.counts["quorum elections"]
    assert elections <= 3
    assert quorum.active not in {None, victim} if who == "leader" else quorum.active == leader
    quorum.run_for(5)
    assert world.counts["quorum elections"] == elections
    world.network.heal()
    quorum.until(quorum.settled)


def test_one_that_is_not_heard_does_not_depose_the_leader(world: World) -> None:
    quorum = settled(world)
    leader = quorum.until_active()
    deaf, other = quorum.others(leader)
    world.network.partition(f"c{leader}", f"c{deaf}", both=False)
    quorum.run_for(2 * CHECK_S)
    assert (quorum.active, world.counts["quorum elections"]) == (leader, 1)
    assert quorum.nodes[other].quorum.leader_id == leader


def test_a_paused_leader_that_comes_back_changes_nothing(world: World) -> None:
    quorum = settled(world)
    old = quorum.until_active()
    node, member = quorum.nodes[old], quorum.members[ONE]
    quorum.hosts[old].stop()
    waiting = quorum.member_hosts[ONE].create_task(member.create("orders"))
    assert quorum.result(waiting).topics[0].error == 0
    quorum.until(lambda: quorum.active not in {None, old})
    leader, end = quorum.leader, quorum.witness.end
    quorum.hosts[old].resume()
    quorum.run_for(1)
    assert (node.active, quorum.leader, leader.epoch) == (None, leader, node.epoch)
    assert quorum.witness.end > end
    quorum.until(quorum.settled)
    assert "orders" in node.working.topic_ids


def test_a_request_to_a_follower_is_refused_and_says_who_leads(world: World) -> None:
    quorum = settled(world)
    leader = quorum.until_active()
    follower = quorum.others(leader)[0]
    beat = BrokerHeartbeat(BrokerId(ONE), quorum.members[ONE].epoch, quorum.nodes[leader].epoch, 0)
    why = quorum.result(Host("asks", world).create_task(refusal(quorum.hosts[follower], beat)))
    assert why == f"controller {follower} is not active, {leader} leads the quorum"
    for other in quorum.others(follower):
        quorum.hosts[other].kill()
    quorum.run_for(CHECK_S)
    why = quorum.result(Host("asks again", world).create_task(refusal(quorum.hosts[follower], beat)))
    assert why == f"controller {follower} is not active, nobody is known to lead the quorum"


def test_a_request_that_addresses_another_epoch_changes_nothing(world: World) -> None:
    quorum = settled(world)
    for epoch in (quorum.leader.epoch - 1, quorum.leader.epoch + 1):
        reply = quorum.result(
            Host(f"asks in {epoch}", world).create_task(
                ask(
                    quorum.hosts[quorum.until_active()],
                    CreateTopics((NewTopic("orders", 1),), quorum_epoch=epoch),
                )
            )
        )
        assert reply.error == NotController.code
    assert "orders" not in quorum.leader.working.topic_ids


def test_a_controller_votes_once_in_an_epoch_whatever_becomes_of_its_process(world: World) -> None:
    quorum = settled(world)
    voter, *others = quorum.hosts
    epoch, asking = quorum.leader.epoch + 5, Host("asks", world)
    disks = quorum.nodes[voter].quorum.directories
    assert disks is not None

    def granted(candidate: int) -> bool:
        me = BrokerId(candidate)
        vote = Vote(
            "",
            BrokerId(voter),
            disks[BrokerId(voter)],
            epoch,
            me,
            disks[me],
            1 << 20,
            1 << 20,
            pre_vote=False,
        )
        reply: VoteReply = quorum.result(asking.create_task(ask(quorum.hosts[voter], vote)))
        return reply.granted

    for other in others:
        quorum.hosts[other].kill()
    assert [granted(other) for other in others] == [True, False]
    for end in (quorum.hosts[voter].kill, quorum.hosts[voter].power_cut):
        end()
        quorum.start(voter)
        quorum.until(lambda: hasattr(quorum.nodes.get(voter), "quorum"))
        assert [granted(other) for other in reversed(others)] == [False, True]


def test_what_was_lost_with_an_epoch_is_cut_off_by_whoever_read_it(world: World) -> None:
    quorum = settled(world, 1, (ONE,))
    node, member = quorum.leader, quorum.members[ONE]
    quorum.hosts[1].slow_disk((5000.0, 5000.0))
    lost = quorum.member_hosts[ONE].create_task(member.create("orders"))
    quorum.until(lambda: member.observer.log.end_offset == node.log.end_offset > node.log.durable_offset + 1)
    quorum.member_hosts[ONE].stop()
    quorum.hosts[1].power_cut()
    quorum.hosts[1].slow_disk(FAST)
    quorum.start(1)
    quorum.until(lambda: quorum.active == 1 and quorum.nodes.get(1) is not node)
    made = quorum.enter(TWO)
    quorum.until(lambda: quorum.leader.metadata.committed.brokers.get(made.number))
    quorum.member_hosts[ONE].resume()
    quorum.until(quorum.settled)
    assert quorum.result(lost).topics[0].error in {0, TopicAlreadyExists.code}, (
        "it was asked for in both epochs"
    )
    assert "orders" in quorum.leader.working.topic_ids
    end = member.observer.caught_up_to
    assert contents(member.observer.log, end) == contents(quorum.leader.log, end)


def contents(log: Log, end: int) -> list[Placed]:
    return [placed for _, placed, _ in batches(log, 0, end)]


# ── disks ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_controller_with_a_new_disk_follows_and_does_not_vote(world: World) -> None:
    quorum = settled(world)
    leader = quorum.until_active()
    replaced, other = quorum.others(leader)
    replace_disk(quorum, replaced)
    assert not quorum.nodes[replaced].quorum.is_voter
    quorum.hosts[leader].kill()
    quorum.run_for(2)
    assert quorum.active is None, "one vote is not a majority of three"
    quorum.start(leader)
    assert quorum.until_active() in {leader, other}
    quorum.until(quorum.settled)


def test_a_controller_with_a_new_disk_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    quorum = settled(world)
    replaced = quorum.others(quorum.until_active())[0]
    replace_disk(quorum, replaced)
    assert caplog.text.count(f"quorum.votes_not id={replaced}") == 1


def replace_disk(quorum: Controllers, number: int) -> None:
    """It comes back with an empty one, and reads everything."""
    quorum.replace_disk_of(number)
    quorum.start(number)
    quorum.until(quorum.settled)
    quorum.all_read()


# ── who is alive ──────────────────────────────────────────────────────────────────────────────────────


def test_heartbeats_during_an_election_fence_nobody(world: World) -> None:
    quorum = settled(world)
    known = world.counts["fenced when it asked"]
    for _ in range(2):
        killed = quorum.until_active()
        quorum.hosts[killed].kill()
        quorum.until_active()
        quorum.start(killed)
        quorum.run_for(SESSION_S + 1)
        assert not any(is_fenced(quorum, member) for member in quorum.members)
    assert world.counts["fenced when it asked"] == known
    assert [member.life for member in quorum.members.values()] == [1, 1]


def test_a_killed_broker_is_fenced_within_a_second(world: World) -> None:
    quorum = settled(world, active=sessions_of(9000))
    quorum.member_hosts[ONE].kill()
    quorum.until(lambda: is_fenced(quorum, ONE), 1)
    assert quorum.leader.fenced_fast == {ONE: 1}


def test_one_that_hangs_up_and_lives_is_not_fenced(world: World) -> None:
    quorum = settled(world)
    for connection in world.network.connections("m1"):
        connection.reset()
    quorum.run_for(SESSION_S)
    assert not is_fenced(quorum, ONE)
    assert quorum.leader.fenced_fast == {}


def test_a_stopped_broker_is_fenced_by_its_lease_only(world: World) -> None:
    quorum = settled(world)
    quorum.run_for(FETCH_S + 1.1 * SESSION_S)
    quorum.member_hosts[ONE].stop()
    # A session and a tenth from its last heartbeat, which was a beat and its way before this at the most.
    quorum.run_for(1.1 * SESSION_S - 1.1 * BEAT_S)
    assert not is_fenced(quorum, ONE)
    quorum.until(lambda: is_fenced(quorum, ONE), 1)
    assert quorum.leader.fenced_fast == {}


def test_one_that_lives_and_is_reset_and_refused_is_fenced_and_comes_back(world: World) -> None:
    quorum = settled(world)
    epoch = quorum.members[ONE].epoch
    world.network.refuse("m1")
    quorum.until(lambda: is_fenced(quorum, ONE), 1)
    world.network.admit("m1")
    quorum.until(lambda: not is_fenced(quorum, ONE), 3)
    assert quorum.members[ONE].epoch == epoch
