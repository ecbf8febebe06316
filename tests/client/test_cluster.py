"""What a client knows of the cluster: never older than before, whatever order answers come in (design 5.2)."""

from random import Random
from time import perf_counter

import pytest
from msgspec.structs import replace

from tidelog.client.cluster import Changes, Cluster
from tidelog.protocol.errors import InconsistentClusterId, UnknownTopicOrPartition
from tidelog.protocol.messages import BrokerEndpoint, MetadataReply, PartitionMetadata, TopicMetadata
from tidelog.protocol.types import NO_BROKER, BrokerId

OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


def partition(
    index: int = 0, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2)
) -> PartitionMetadata:
    return PartitionMetadata(
        index,
        leader=BrokerId(leader),
        leader_epoch=epoch,
        replicas=(BrokerId(1), BrokerId(2)),
        isr=tuple(map(BrokerId, isr)),
    )


def topic(*partitions: PartitionMetadata, name: str = "orders", topic_id: bytes = OLD_ID) -> TopicMetadata:
    return TopicMetadata(name=name, topic_id=topic_id, partitions=partitions or (partition(),))


def absent(name: str = "orders") -> TopicMetadata:
    return TopicMetadata(UnknownTopicOrPartition.code, f"there is no topic {name!r}", name)


def answer(
    offset: int, *topics: TopicMetadata, brokers: tuple[int, ...] = (1, 2), cluster: str = "c"
) -> MetadataReply:
    return MetadataReply(
        cluster_id=cluster,
        metadata_offset=offset,
        brokers=tuple(BrokerEndpoint(BrokerId(n), f"b{n}", 9092, f"r{n}") for n in brokers),
        topics=topics,
    )


def knowing(*replies: MetadataReply) -> Cluster:
    cluster = Cluster()
    for reply in replies:
        cluster.adopt(reply)
    return cluster


# ── what is known ─────────────────────────────────────────────────────────────────────────────────────


def test_what_an_answer_shows_is_known() -> None:
    cluster = knowing(answer(10, topic(partition(0), partition(1, leader=2, epoch=3))))
    assert cluster.leader("orders", 1) == 2
    assert [one.leader_epoch for one in cluster.partitions("orders")] == [0, 3]
    assert cluster.brokers[BrokerId(2)].rack == "r2"
    known = cluster.place(OLD_ID, 1)
    assert known is not None
    assert known.isr == (1, 2)


def test_what_nobody_has_shown_has_no_leader_and_no_partitions() -> None:
    cluster = knowing(answer(10, topic()))
    assert (
        cluster.leader("orders", 1) == cluster.leader("orders", -1) == cluster.leader("bills", 0) == NO_BROKER
    )
    assert cluster.partitions("bills") == ()
    assert cluster.partition("orders", -1) is cluster.place(NEW_ID, 0) is None


# ── never back ────────────────────────────────────────────────────────────────────────────────────────


def test_a_lower_leader_epoch_is_ignored_however_new_its_answer() -> None:
    cluster = knowing(
        answer(10, topic(partition(leader=2, epoch=5))), answer(20, topic(partition(leader=1, epoch=4)))
    )
    assert cluster.leader("orders", 0) == 2


def test_a_higher_leader_epoch_is_taken_however_old_its_answer() -> None:
    cluster = knowing(
        answer(20, topic(partition(leader=1, epoch=4))), answer(10, topic(partition(leader=2, epoch=5)))
    )
    assert cluster.leader("orders", 0) == 2


def test_of_one_leadership_the_newer_answer_holds() -> None:
    newer, older = topic(partition(isr=(1,))), topic(partition(isr=(1, 2)))
    for replies in ([answer(20, newer), answer(10, older)], [answer(10, older), answer(20, newer)]):
        assert knowing(*replies).partitions("orders")[0].isr == (1,)


def test_brokers_are_those_of_the_newest_answer() -> None:
    cluster = knowing(answer(20, brokers=(2, 3)), answer(10, brokers=(1, 2)))
    assert sorted(cluster.brokers) == [2, 3]
    assert cluster.metadata_offset == 20
    assert sorted(knowing(answer(10, brokers=(1, 2)), answer(20, brokers=(2, 3))).brokers) == [2, 3]


def test_an_old_answer_takes_no_partitions_away() -> None:
    cluster = knowing(answer(20, topic(partition(0), partition(1))), answer(10, topic(partition(0))))
    assert len(cluster.partitions("orders")) == 2


def test_partitions_that_were_added_are_known() -> None:
    cluster = knowing(
        answer(10, topic(partition(0))), answer(20, topic(partition(0), partition(1, leader=2)))
    )
    assert cluster.leader("orders", 1) == 2


# ── topics that go and come ───────────────────────────────────────────────────────────────────────────


def test_a_topic_created_anew_is_another_one_whatever_its_epochs() -> None:
    cluster = knowing(answer(10, topic(partition(leader=2, epoch=9))))
    changes = cluster.adopt(answer(20, topic(partition(leader=1, epoch=0), topic_id=NEW_ID)))
    assert changes.recreated == {"orders"}
    assert (cluster.topics["orders"].id, cluster.leader("orders", 0)) == (NEW_ID, 1)
    assert cluster.place(OLD_ID, 0) is None


def test_an_old_answer_does_not_bring_the_old_topic_back() -> None:
    cluster = knowing(answer(20, topic(topic_id=NEW_ID)))
    assert not cluster.adopt(answer(10, topic(partition(epoch=9), topic_id=OLD_ID)))
    assert cluster.topics["orders"].id == NEW_ID


def test_a_deleted_topic_is_remembered_as_such_and_not_brought_back_by_an_old_answer() -> None:
    cluster = knowing(answer(10, topic()))
    changes = cluster.adopt(answer(20, absent()))
    assert changes.gone == {"orders"}
    assert isinstance(cluster.absent["orders"].error, UnknownTopicOrPartition)
    assert not cluster.adopt(answer(15, topic()))
    assert cluster.leader("orders", 0) == NO_BROKER


def test_an_old_answer_does_not_take_a_new_topic_away() -> None:
    cluster = knowing(answer(20, topic()))
    assert not cluster.adopt(answer(10, absent()))
    assert cluster.leader("orders", 0) == 1
    assert not cluster.absent


def test_a_topic_that_appears_is_absent_no_more() -> None:
    cluster = knowing(answer(10, absent()), answer(11, topic()))
    assert cluster.leader("orders", 0) == 1
    assert not cluster.absent


def test_of_all_topics_those_that_are_not_shown_are_gone() -> None:
    cluster = knowing(answer(10, topic(), topic(name="bills", topic_id=NEW_ID)))
    assert cluster.adopt(answer(20, topic()), all_topics=True).gone == {"bills"}
    assert not cluster.adopt(answer(15), all_topics=True), "an old answer does not know everything"
    assert sorted(cluster.topics) == ["orders"]


def test_a_topic_that_is_forgotten_leaves_nothing() -> None:
    cluster = knowing(answer(10, topic(), absent("bills")))
    cluster.forget(["orders", "bills"])
    assert (cluster.topics, cluster.absent, cluster.names) == ({}, {}, {})


# ── hints, changes, other clusters ────────────────────────────────────────────────────────────────────


def test_a_hint_of_a_newer_leadership_is_taken_and_any_other_not() -> None:
    cluster = knowing(answer(10, topic(partition(leader=1, epoch=4))))
    assert not cluster.hint(OLD_ID, 0, BrokerId(2), 4)
    assert not cluster.hint(NEW_ID, 0, BrokerId(2), 9)
    assert not cluster.hint(OLD_ID, 1, BrokerId(2), 9)
    assert cluster.hint(OLD_ID, 0, BrokerId(2), 5)
    assert cluster.leader("orders", 0) == 2
    assert not cluster.adopt(answer(11, topic(partition(leader=1, epoch=4)))).topics
    cluster.adopt(answer(12, topic(partition(leader=2, epoch=5, isr=(2,)))))
    assert cluster.partitions("orders")[0].isr == (2,)


def test_what_has_changed_is_told_and_only_that() -> None:
    cluster = knowing(answer(10, topic(), topic(name="bills", topic_id=NEW_ID)))
    assert not cluster.adopt(answer(11, topic(), topic(name="bills", topic_id=NEW_ID)))
    changes = cluster.adopt(answer(12, topic(partition(epoch=1)), topic(name="bills", topic_id=NEW_ID)))
    assert changes == Changes(False, frozenset({"orders"}), frozenset(), frozenset())
    assert cluster.adopt(answer(13, brokers=(1,))).brokers


def test_another_cluster_is_refused_and_changes_nothing() -> None:
    cluster = knowing(answer(10, topic()))
    with pytest.raises(InconsistentClusterId, match="belongs to cluster c, the answer came from d"):
        cluster.adopt(answer(20, absent(), brokers=(), cluster="d"))
    assert cluster.leader("orders", 0) == 1
    assert len(cluster.brokers) == 2


@pytest.mark.parametrize("seed", range(50))
def test_in_whatever_order_answers_come_the_end_is_that_of_the_newest(seed: int) -> None:
    """A history of a topic, its answers in any order and some more than once."""
    rng, replies = Random(seed), []
    epoch, leader, topic_id, there, count = 0, 1, OLD_ID, True, 1
    for offset in range(1, 30):
        what = rng.random()
        if what < 0.1:
            there, count, epoch = not there, 1, 0
            topic_id = rng.randbytes(16) if there else topic_id
        elif what < 0.2 and there:
            count += 1
        elif there:
            epoch, leader = epoch + 1, rng.choice([-1, 1, 2])
        shown = (
            topic(*(partition(n, leader, epoch) for n in range(count)), topic_id=topic_id)
            if there
            else absent()
        )
        replies.append(answer(offset, shown, brokers=(1, 2) if rng.random() < 0.5 else (2, 3)))
    mixed = [*replies, *rng.sample(replies, 10)]
    rng.shuffle(mixed)
    cluster, newest = knowing(*mixed), knowing(replies[-1])
    assert cluster.brokers == newest.brokers
    assert cluster.topics.keys() == newest.topics.keys()
    for name, known in newest.topics.items():
        assert cluster.topics[name].id == known.id
        assert [replace(one, shown_at=0) for one in cluster.partitions(name)] == [
            replace(one, shown_at=0) for one in known.partitions
        ]
    assert cluster.names.keys() == {known.id for known in cluster.topics.values()}


# ── many partitions ───────────────────────────────────────────────────────────────────────────────────


def test_a_look_up_costs_the_same_among_five_thousand_partitions_as_in_one() -> None:
    few = knowing(answer(10, topic()))
    many = knowing(answer(10, topic(*(partition(index) for index in range(5000)))))

    def cost_s(cluster: Cluster, index: int) -> float:
        began = perf_counter()
        for _ in range(2000):
            cluster.leader("orders", index)
        return perf_counter() - began

    small = min(cost_s(few, 0) for _ in range(20))
    large = min(cost_s(many, 4999) for _ in range(20))
    assert large < small * 2


def test_what_an_answer_does_not_change_is_the_very_same_object() -> None:
    cluster = knowing(answer(10, topic(partition(0), partition(1))))
    before = cluster.partitions("orders")
    assert not cluster.adopt(answer(20, topic(partition(0), partition(1, epoch=1)))).brokers
    after = cluster.partitions("orders")
    assert after[0] is before[0]
    assert after[1] is not before[1]


def test_of_one_leadership_an_older_answer_changes_nothing_though_a_newer_one_has_not_either() -> None:
    same, other = topic(partition(isr=(1, 2))), topic(partition(isr=(1,)))
    assert knowing(answer(10, same), answer(30, same), answer(20, other)).partitions("orders")[0].isr == (
        1,
        2,
    )
