"""`tidelog cluster info` and `tidelog cluster health` against real clusters that lose brokers and controllers."""

import json
import threading
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.serving import Serving, serving, until


@pytest.fixture
def mortal() -> Iterator[Serving]:
    """Three brokers that a test may kill."""
    with serving(3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)


def test_info_shows_brokers_controller_and_counts(three_brokers: Serving, tidelog: Tidelog) -> None:
    three_brokers.topic(partitions=2)
    ran = tidelog("cluster", "info", "-b", three_brokers.bootstrap)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].endswith(": controller c1 leads")
    assert ran.lines[1] == "1 topic, 2 partitions"
    assert ran.lines[3].split() == ["BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS"]
    assert [line.split()[0] for line in ran.lines[4:]] == ["1", "2", "3"]
    about, *brokers = map(
        json.loads, tidelog("cluster", "info", "-b", three_brokers.bootstrap, "-o", "json").lines
    )
    assert (about["type"], about["controller_id"], about["partitions"]) == ("cluster", 1, 2)
    assert [(one["type"], one["broker"], one["fenced"]) for one in brokers] == [
        ("broker", number, False) for number in (1, 2, 3)
    ]


def test_a_cluster_that_is_well_is_healthy(three_brokers: Serving, tidelog: Tidelog) -> None:
    ran = tidelog("cluster", "health", "-b", three_brokers.bootstrap)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("healthy: 3 brokers, ")
    assert ran.out.endswith(", controller c1 leads\n")


@pytest.mark.slow
def test_what_a_dead_broker_does_is_named_with_the_way_out_until_it_is_back(
    mortal: Serving, tidelog: Tidelog
) -> None:
    alone = mortal.topic(replication_factor=1)
    both = mortal.topic(replication_factor=3, partitions=4)
    leader = mortal.run(mortal.cluster.leader_of(alone))
    assert leader is not None
    mortal.run(mortal.cluster.kill(leader))

    def health() -> dict[str, dict[str, object]]:
        lines = tidelog("cluster", "health", "-b", mortal.bootstrap, "-o", "json").lines
        return {str(one.get("kind")): one for one in map(json.loads, lines)}

    kinds = {"broker_down", "no_leader", "under_replicated"}
    found = until(lambda: (each := health()).keys() >= kinds and each, "the death is known")
    assert (found["no_leader"]["topic"], found["no_leader"]["partition"]) == (alone, 0)
    assert found["broker_down"]["node"] == leader
    assert found["under_replicated"]["topic"] == both
    ran = tidelog("cluster", "health", "-b", mortal.bootstrap)
    assert ran.code == 3
    assert ran.lines[0].startswith("unhealthy: 6 problems in 3 brokers, 2 topics")
    assert (
        f"  each of {both}-0, {both}-1, {both}-2 and 1 more has 2 of 3 replicas in sync, not broker {leader}"
        in ran.lines
    )
    assert len(ran.lines) == 1 + 3 * 2 + 1
    assert ran.lines[-1] == "  -o json names each of the 6"
    assert f"    start broker {leader}, which has every committed record; " in ran.out
    ran = tidelog("topic", "describe", alone, "-b", mortal.bootstrap)
    assert "no leader" in ran.out

    returning = threading.Thread(target=lambda: mortal.run(mortal.cluster.start(leader)))
    returning.start()
    ran = tidelog("cluster", "health", "-b", mortal.bootstrap, "--wait", "--timeout", "20")
    returning.join()
    assert ran.code == 0
    assert ran.out.startswith("healthy: ")


def test_too_few_replicas_in_sync_for_a_write_are_named(mortal: Serving, tidelog: Tidelog) -> None:
    name = mortal.topic(replication_factor=2, min_insync_replicas="2")
    leader = mortal.run(mortal.cluster.leader_of(name))
    [follower] = {1, 2, 3} - {leader} - _outside(mortal, name)
    mortal.run(mortal.cluster.kill(follower))

    def told() -> str:
        out: str = tidelog("cluster", "health", "-b", mortal.bootstrap).out
        return out if "under" in out or "acks=all" in out else ""

    assert f"{name}-0 has 1 in sync of 2 that a write with acks=all needs" in until(
        told, "the ISR has shrunk"
    )


def _outside(cluster: Serving, name: str) -> set[int]:
    [topic] = cluster.with_client(lambda client: client.admin.describe_topics(name))
    return {1, 2, 3} - set(topic.partitions[0].replicas)


@pytest.mark.slow
def test_without_a_controller_that_leads_it_says_so_in_time(mortal: Serving, tidelog: Tidelog) -> None:
    mortal.run(mortal.cluster.kill("c1"))
    ran = tidelog("cluster", "health", "-b", mortal.bootstrap, "--timeout", "2")
    assert ran.code == 3
    assert "  no controller leads: " in ran.out
    assert "see that a majority of the controllers runs" in ran.out
    assert (
        "no controller leads" in tidelog("cluster", "info", "-b", mortal.bootstrap, "--timeout", "1").lines[0]
    )


def test_waiting_ends_when_the_time_is_up(tidelog: Tidelog) -> None:
    ran = tidelog("cluster", "health", "-b", "127.0.0.1:1", "--wait", "--timeout", "0.5")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("waiting: 127.0.0.1:1: Connection refused")
    assert tidelog("cluster", "health", "-b", "127.0.0.1:1").code == 1
