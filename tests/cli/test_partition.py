"""`tidelog partition` against a real cluster."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, serving, until
from tidelog.client.cluster import Partition

Command = Callable[..., Ran]


@pytest.fixture
def partition(three_brokers: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`tidelog partition` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", three_brokers.bootstrap)
    return lambda *words: tidelog("partition", *words)


def first(cluster: Serving, name: str) -> Partition:
    """The topic's partition 0, as it is now."""
    [topic] = cluster.with_client(lambda client: client.admin.describe_topics(name))
    return topic.partitions[0]


def test_partitions_are_listed_all_or_of_some_topics(partition: Command, three_brokers: Serving) -> None:
    one, other = three_brokers.topic(partitions=2), three_brokers.topic()
    rows = [line.split() for line in partition("list").lines[1:]]
    assert [row[:2] for row in rows if row[0] in {one, other}] == [[one, "0"], [one, "1"], [other, "0"]]
    assert [line.split()[0] for line in partition("list", other).lines[1:]] == [other]
    assert json.loads(partition("list", other, "-o", "json").out)["replicas"]
    none = partition("list", "--without-leader", "--under-replicated")
    assert (none.code, none.out, none.err) == (0, "", "no partition is like that\n")
    assert partition("list", "--without-leader", "-o", "json").err == ""


def test_a_move_is_shown_asked_for_and_done(partition: Command, three_brokers: Serving) -> None:
    name = three_brokers.topic(replication_factor=1)
    [old] = first(three_brokers, name).replicas
    new = old % 3 + 1
    for words in (["--dry-run"], []):
        ran = partition("move", name, "-p", f"0:{new}", *words)
        assert ran.code == (0 if words else 2)
        assert f"would move {name}-0: {new} to copy it, {old} to leave\n" in ran.out + ran.err
    assert first(three_brokers, name).replicas == (old,)
    ran = partition("move", name, "-p", f"0:{new}", "--yes")
    assert (ran.code, ran.out) == (0, f"{name}-0: {new} to copy it, {old} to leave\n")
    until(lambda: first(three_brokers, name).replicas == (new,), "it has moved")
    until(lambda: "nothing is being moved" in partition("moves").err, "the move is over")


def test_a_replica_that_leaves_without_another_one_is_named(
    partition: Command, three_brokers: Serving
) -> None:
    name = three_brokers.topic(replication_factor=3)
    one, two, three = first(three_brokers, name).replicas
    ran = partition("move", name, "-p", f"0:{one},{two}", "--dry-run")
    assert (
        ran.out == f"would move {name}-0: replicas {one},{two}, {three} leaves at once, nothing is copied\n"
    )
    ran = partition("move", name, "-p", f"0:{one},{two}", "--yes")
    assert ran.out == f"{name}-0: replicas {one},{two}, {three} leaves at once, nothing is copied\n"
    assert partition("move", name, "-p", f"0:{two},{one}", "--yes").out.endswith("nothing is copied\n")


def test_as_kafka_it_is_the_tools_sentence(partition: Command, three_brokers: Serving) -> None:
    name = three_brokers.topic(replication_factor=1)
    [old] = first(three_brokers, name).replicas
    ran = partition("move", name, "-p", f"0:{old}", "--yes", "-o", "kafka")
    assert ran.out == f"Successfully started partition reassignment for {name}-0\n"
    ran = partition("elect", "preferred", name, "-o", "kafka")
    assert ran.out == f"Valid replica already elected for partitions {name}-0\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["0"], 2, "-p 0 is no PARTITION:BROKER,... as 0:1,2,3 is"),
        (["0:"], 2, "is no PARTITION:BROKER"),
        (["0:1,x"], 2, "is no PARTITION:BROKER"),
        (["7:1"], 2, "there is no partition 7"),
        (["0:9"], 1, "brokers [9] are not registered"),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    partition: Command, three_brokers: Serving, words: list[str], code: int, said: str
) -> None:
    ran = partition("move", three_brokers.topic(), "-p", *words, "--yes")
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_a_throttle_is_a_number_of_bytes(partition: Command, three_brokers: Serving) -> None:
    ran = partition("move", three_brokers.topic(), "-p", "0:1", "--throttle", "fast")
    assert ran.code == 2
    assert "--throttle fast is no rate" in ran.err


def test_the_preferred_leader_gets_its_place_back(partition: Command, three_brokers: Serving) -> None:
    name = three_brokers.topic()
    leader = first(three_brokers, name).leader
    others = [number for number in (1, 2, 3) if number != leader]
    partition("move", name, "-p", f"0:{others[0]},{others[1]},{leader}", "--yes")
    until(lambda: first(three_brokers, name).replicas[0] == others[0], "another one is preferred")
    ran = partition("elect", "preferred", name)
    assert ran.code == 0
    assert f"{name}-0: broker {others[0]} leads" in ran.out
    until(lambda: first(three_brokers, name).leader == others[0], "it leads")


def test_an_unclean_election_where_somebody_leads_is_not_needed(partition: Command) -> None:
    ran = partition("elect", "unclean")
    assert (ran.code, ran.out, ran.err) == (0, "", "no partition needs that\n")


def test_nothing_to_cancel_is_said(partition: Command, three_brokers: Serving) -> None:
    assert partition("cancel").err == "nothing is being moved\n"
    ran = partition("cancel", three_brokers.topic())
    assert ran.code == 1
    assert partition("cancel", "orders:x").code == 2
    assert partition("elect", "preferred", f"{three_brokers.topic()}:9").code == 2


@pytest.fixture
def mortal() -> Iterator[Serving]:
    """Three brokers that a test may kill."""
    with serving(3) as cluster:
        yield cluster


def test_a_move_to_a_dead_broker_shows_whom_it_waits_for_and_can_be_cancelled(
    mortal: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", mortal.bootstrap)
    name = mortal.topic(replication_factor=1)
    [old] = first(mortal, name).replicas
    new = old % 3 + 1
    mortal.run(mortal.cluster.kill(new))
    until(lambda: "down" in tidelog("broker", "list").out, "the death is known")
    assert tidelog("partition", "move", name, "-p", f"0:{new}", "--throttle", "1MB", "--yes").code == 0
    ran = tidelog("partition", "moves")
    assert ran.lines[1].split() == [f"{name}-0", f"{new},{old}", str(new), str(old), str(old), str(new)]
    assert "throttled to 1.0 MB/s for each broker" in ran.err
    ran = tidelog("partition", "cancel", f"{name}:0")
    assert (ran.code, ran.out) == (0, f"{name}-0: cancelled, replicas {old}\n")
    assert first(mortal, name).replicas == (old,)


def test_an_unclean_election_says_what_it_may_cost_and_asks(
    mortal: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", mortal.bootstrap)
    name = mortal.topic(replication_factor=2, min_insync_replicas="1")
    leader = first(mortal, name).leader
    [follower] = set(first(mortal, name).replicas) - {leader}
    mortal.run(mortal.cluster.kill(follower))
    until(lambda: first(mortal, name).isr == (leader,), "the leader is alone in sync")
    mortal.write(name, b"only the leader has it")
    mortal.run(mortal.cluster.kill(leader))
    mortal.run(mortal.cluster.start(follower))
    until(lambda: first(mortal, name).leader == -1, "nobody leads")
    ran = tidelog("partition", "elect", "unclean", f"{name}:0")
    assert (ran.code, ran.out) == (2, "")
    assert f"lead {name}-0; committed records may be lost" in ran.err
    ran = tidelog("partition", "elect", "unclean", f"{name}:0", "--yes")
    assert ran.code == 0
    until(lambda: first(mortal, name).leader == follower, "the other one leads")
