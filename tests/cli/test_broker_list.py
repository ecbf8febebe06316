"""`tidelog broker list, describe, drain, undrain, unregister` against a real cluster."""

import json
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.cli.conftest import Ran, Tidelog
from tests.cli.serving import Serving, serving, until
from tidelog.protocol.types import TopicPartition

Broker = Callable[..., Ran]


@pytest.fixture(scope="module")
def racks() -> Iterator[Serving]:
    """Four brokers, so that one can be drained of topics with three replicas."""
    with serving(4, racks=["a", "b"]) as cluster:
        yield cluster


@pytest.fixture
def broker(racks: Serving, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """`tidelog broker` at the cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", racks.bootstrap)
    return lambda *words: tidelog("broker", *words)


def test_brokers_are_listed_with_where_they_are_and_what_they_do(broker: Broker, racks: Serving) -> None:
    racks.topic(partitions=4)
    ran = broker("list")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split() for line in ran.lines[1:]]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "a", "alive"),
        ("2", "b", "alive"),
        ("3", "a", "alive"),
        ("4", "b", "alive"),
    ]
    assert [row[1] for row in rows] == racks.bootstrap.split(",")
    objects = [json.loads(line) for line in broker("list", "-o", "json").lines]
    assert sum(each["leads"] for each in objects) >= 4


def test_a_broker_is_described_with_what_it_leads_and_keeps(broker: Broker, racks: Serving) -> None:
    name = racks.topic(replication_factor=4)
    leader = racks.run(racks.cluster.leader_of(name))
    for number in (1, 2, 3, 4):
        ran = broker("describe", str(number))
        row = next(line.split() for line in ran.lines if line.split()[:1] == [name])
        assert row == [name, "0", "leader" if number == leader else "follower", "yes"]
    about, *replicas = [json.loads(line) for line in broker("describe", "1", "-o", "json").lines]
    assert (about["type"], about["broker"]) == ("broker", 1)
    assert {one["type"] for one in replicas} == {"replica"}
    racks.with_client(lambda client: client.admin.delete_topics(name))


@pytest.mark.parametrize("verb", ["describe", "drain", "undrain", "unregister"])
def test_a_broker_that_is_not_there_is_named_with_those_that_are(broker: Broker, verb: str) -> None:
    ran = broker(verb, "9")
    assert (ran.code, ran.out, ran.err) == (1, "", "error: there is no broker 9; there are 1, 2, 3, 4\n")


def test_a_drain_is_shown_asked_for_done_and_undone(broker: Broker, racks: Serving) -> None:
    name = racks.topic(partitions=4, replication_factor=3)

    def kept(number: int) -> list[int]:
        [topic] = racks.with_client(lambda client: client.admin.describe_topics(name))
        return [one.index for one in topic.partitions if number in one.replicas]

    before = kept(2)
    assert before
    ran = broker("drain", "2")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("would move ") >= len(before)
    assert ran.err.splitlines()[-1].startswith("error: nothing was done: add --yes")
    assert broker("drain", "2", "--dry-run").out.count("would move ") == ran.err.count("would move ")
    assert kept(2) == before

    ran = broker("drain", "2", "--yes")
    assert ran.code == 0
    assert "`tidelog partition moves` shows how far" in ran.err
    until(lambda: not kept(2), "broker 2 keeps nothing")
    ran = broker("undrain", "2", "--yes")
    assert ran.code == 0
    until(lambda: kept(2), "broker 2 has its share")
    until(lambda: "0 moves" in _moves(racks), "the moves end")


def test_what_was_shown_is_moved_and_nothing_that_came_meanwhile(
    broker: Broker, racks: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    racks.topic(partitions=4, replication_factor=2)
    shown: list[str] = []
    later: list[str] = []

    def consent(_: object, would: Iterable[str], **__: object) -> None:
        shown.extend(would)
        later.append(racks.topic(partitions=4, replication_factor=3))

    monkeypatch.setattr("tidelog.cli.broker.draining.require_consent", consent)
    ran = broker("drain", "3")
    assert ran.code == 0
    assert shown
    assert [f"would move {line}" for line in ran.lines] == shown
    assert not any(line.startswith(later[0]) for line in ran.lines)
    until(lambda: "0 moves" in _moves(racks), "the moves end")
    assert broker("undrain", "3", "--yes").code == 0
    until(lambda: "0 moves" in _moves(racks), "the moves end")


def _moves(cluster: Serving) -> str:
    found = cluster.with_client(lambda client: client.admin.list_reassignments())
    return f"{len(found.partitions)} moves"


def test_a_broker_that_nobody_can_replace_is_not_drained(broker: Broker, racks: Serving) -> None:
    name = racks.topic(replication_factor=4)
    ran = broker("drain", "1", "--dry-run")
    assert ran.code == 1
    assert "cannot be drained" in ran.err
    racks.with_client(lambda client: client.admin.delete_topics(name))


def test_who_is_alive_or_keeps_something_stays_on_the_list_and_who_is_gone_for_good_leaves_it(
    tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(3) as cluster:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", cluster.bootstrap)
        name = cluster.topic(partitions=2, replication_factor=2)
        cluster.with_client(lambda client: client.admin.reassign({TopicPartition(name, 0): [1, 2]}))
        cluster.with_client(lambda client: client.admin.reassign({TopicPartition(name, 1): [2, 1]}))
        until(lambda: "0 moves" in _moves(cluster), "the moves end")

        def unregister(number: int, *words: str) -> Ran:
            return tidelog("broker", "unregister", str(number), *words)

        def listed() -> list[str]:
            return [line.split()[0] for line in tidelog("broker", "list").lines[1:]]

        alive = unregister(3, "--yes")
        assert (alive.code, alive.out) == (1, "")
        assert "is alive: only who is down can be taken off the list" in alive.err
        for number in (2, 3):
            cluster.run(cluster.cluster.kill(number))
        until(lambda: tidelog("broker", "list").out.count("down") == 2, "both are fenced")

        kept = unregister(2, "--yes")
        assert kept.code == 1
        assert "is a replica of 2 partitions: move them to others with `tidelog broker drain 2`" in kept.err
        unasked = unregister(3)
        assert (unasked.code, unasked.out, listed()) == (2, "", ["1", "2", "3"])
        assert unasked.err.splitlines()[0].startswith("would take broker 3 (127.0.0.1:")

        gone = unregister(3, "--yes", "-o", "json")
        assert (gone.code, [json.loads(line) for line in gone.lines]) == (
            0,
            [{"type": "broker", "broker": 3, "unregistered": True}],
        )
        forced = unregister(2, "--force", "--yes")
        assert forced.code == 0
        assert forced.out.endswith("is not part of the cluster any more\n")
        until(lambda: listed() == ["1"], "the broker that is left has heard")
        assert "broker 3" not in tidelog("cluster", "health").out
