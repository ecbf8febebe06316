"""The image is what the log says, and a log that contradicts itself stops the node (design 4.1, 4.10; I-43)."""

import pytest
from msgspec.structs import replace

from tests.controller.book import CLUSTER, NOW, OTHER, TOPIC, Book, ids, named, partition
from tidelog.controller.facts import (
    FACTS,
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterInitialized,
    ConfigChanged,
    Fact,
    FeatureChanged,
    LeaderElected,
    NothingHappened,
    ProducerIdsTaken,
    TopicCreated,
    TopicRemoved,
    Voter,
    VotersNamed,
    encode_facts,
)
from tidelog.controller.image import _ADDING, Image, Indexes, PartitionState, flaw_of
from tidelog.protocol.batch import stamp
from tidelog.protocol.errors import InconsistentMetadata, UnsupportedFormat
from tidelog.protocol.messages import ListenerEndpoint
from tidelog.protocol.types import NO_BROKER, BrokerId

ONE, TWO = ids(1, 2)


def follows(before: PartitionState, **changes: object) -> PartitionState:
    """The state after it, with these differences."""
    return replace(before, partition_epoch=before.partition_epoch + 1, **changes)


def full_book() -> Book:
    """A bit of everything."""
    book = Book(partition((1, 2)), partition((2,), (3,), index=1), live=(1, 2, 3), fenced=(4,))
    book.say(
        book.unfenced(3, shutting_down=True),
        ConfigChanged("topic", "orders", "retention.ms", "1000"),
        ConfigChanged("cluster", "", "min.insync.replicas", "2"),
        FeatureChanged("groups", 2),
        ProducerIdsTaken(ONE, book.epoch(1), 1000),
    )
    book.say(BrokerChanged(TWO, book.epoch(2), False, False, ((TOPIC, 0),)))
    return book


# ── what it says ──────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_may_join_an_isr_when_it_is_neither_fenced_nor_shutting_down() -> None:
    image = full_book().image
    assert [image.live_epoch(broker) is not None for broker in ids(1, 2, 3, 4, 5)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_broker_may_not_lead_what_it_cannot_serve() -> None:
    image = full_book().image
    assert [image.can_lead(TWO, (TOPIC, index)) for index in (0, 1)] == [False, True]


def test_a_new_registration_serves_everything_again() -> None:
    book = Book(live=(), fenced=(1,))
    book.say(BrokerChanged(ONE, book.epoch(1), True, False, ((TOPIC, 0),)))
    book.register(1)
    assert book.image.brokers[ONE].offline == frozenset()


def test_the_listeners_of_a_registration_are_in_an_image_made_of_facts() -> None:
    book, outside = Book(), ListenerEndpoint("outside", "h", 2)
    book.say(
        BrokerRegistered(ONE, book.image.end_offset, named("p"), named("d"), "h", 1, listeners=(outside,))
    )
    loaded = Image()
    for fact in book.image.facts():
        loaded.apply(fact)
    assert loaded.brokers[ONE] == book.image.brokers[ONE]
    assert loaded.brokers[ONE].listeners == (outside,)


def test_what_changed_is_told_once_and_in_order() -> None:
    book = Book(partition((1, 2)), partition((1, 2), index=1))
    first, second = book.state(1), book.state(0)
    once = follows(first, isr=ids(1), elr=ids(2))
    changes = book.say(
        once.changed(), book.unfenced(2), follows(second, min_isr=1).changed(), follows(once).changed()
    )
    assert changes == (((TOPIC, 1), (TOPIC, 0)), (TWO,), (), ())


def test_a_removed_topic_takes_its_partitions_and_settings_along() -> None:
    book = full_book()
    changes = book.say(TopicRemoved(TOPIC))
    assert changes.partitions == ((TOPIC, 0), (TOPIC, 1))
    assert (changes.topics, changes.configs) == ((TOPIC,), (("topic", "orders", "retention.ms"),))
    assert (book.image.partitions, book.image.topic_ids, len(book.image.configs)) == ({}, {}, 1)


def test_a_name_may_be_used_again_for_another_topic() -> None:
    book = full_book()
    book.say(TopicRemoved(TOPIC), TopicCreated(OTHER, "orders"))
    assert book.image.topic_ids == {"orders": OTHER}
    assert book.image.partitions_of(OTHER) == []


def test_settings_and_features_are_forgotten_when_they_are_unset() -> None:
    book = full_book()
    book.say(ConfigChanged("topic", "orders", "retention.ms", None), FeatureChanged("groups", 0))
    assert (len(book.image.configs), book.image.features) == (1, {})


def test_an_offset_that_says_nothing_counts() -> None:
    book = Book()
    end = book.image.end_offset
    assert book.say(NothingHappened()) == ((), (), (), ())
    assert book.image.end_offset == end + 1


# ── equal images ──────────────────────────────────────────────────────────────────────────────────────


def test_an_image_is_what_its_own_facts_add_up_to() -> None:
    image, twin = full_book().image, Image()
    for fact in image.facts():
        twin.apply(fact)
    twin.check()
    twin.end_offset = image.end_offset
    assert twin.to_bytes() == image.to_bytes() == image.copy().to_bytes()


def test_the_order_of_events_leaves_no_trace() -> None:
    def image_of(*facts: Fact) -> bytes:
        book = Book()
        book.say(*facts)
        return book.image.to_bytes()

    one, other = (TopicCreated(TOPIC, "a"), TopicCreated(OTHER, "b"))
    keys = [ConfigChanged("cluster", "", key, "1") for key in "xy"]
    assert image_of(one, *keys, other) == image_of(other, *reversed(keys), one)


def test_a_copy_goes_its_own_way() -> None:
    book = full_book()
    before, twin = book.image.to_bytes(), book.image.copy()
    twin.apply(TopicRemoved(TOPIC))
    twin.check()
    book.image.check()
    assert book.image.to_bytes() == before != twin.to_bytes()


def test_indexes_that_were_not_kept_are_found() -> None:
    book = full_book()
    book.image.indexes = Indexes()
    with pytest.raises(AssertionError):
        book.image.check()


# ── what cannot be ────────────────────────────────────────────────────────────────────────────────────

BOOK = full_book()
AFTER = follows(BOOK.state(0), isr=ids(1), elr=ids(2))

IMPOSSIBLE: dict[str, Fact] = {
    "a second cluster": ClusterInitialized(CLUSTER, NOW),
    "a broker that still leads is fenced": BrokerChanged(ONE, BOOK.epoch(1), True),
    "a change of an older registration": BrokerChanged(ONE, BOOK.epoch(1) - 1, False),
    "a change of a stranger": BrokerChanged(BrokerId(9), 1, False),
    "a broker that still leads is unregistered": BrokerUnregistered(ONE, BOOK.epoch(1)),
    "a broker that still leads registers": BrokerRegistered(
        ONE, BOOK.image.end_offset, named("p"), named("d"), "h", 1
    ),
    "a registration under another epoch than its offset": BrokerRegistered(
        BrokerId(4), BOOK.image.end_offset + 1, named("p"), named("d"), "h", 1
    ),
    "a topic of the same id": TopicCreated(TOPIC, "new"),
    "a topic of the same name": TopicCreated(OTHER, "orders"),
    "an unknown topic is removed": TopicRemoved(OTHER),
    "a partition of an unknown topic": partition((1,), topic=OTHER).created(),
    "a partition that is there": partition((1, 2)).created(),
    "a partition behind a gap": partition((1, 2), index=3).created(),
    "an unknown partition changes": partition((1, 2), index=2).changed(),
    "a partition epoch is left out": replace(AFTER, partition_epoch=AFTER.partition_epoch + 1).changed(),
    "a partition epoch comes twice": replace(AFTER, partition_epoch=AFTER.partition_epoch - 1).changed(),
    "another leader in the same leader epoch": replace(AFTER, isr=ids(1, 2), elr=(), leader=TWO).changed(),
    "a replica leaves in the same leader epoch": replace(AFTER, replicas=ids(1, 2)).changed(),
    "a leader epoch is left out": replace(AFTER, leader_epoch=AFTER.leader_epoch + 2).changed(),
    "a leader epoch goes back": replace(AFTER, leader_epoch=AFTER.leader_epoch - 1).changed(),
    "a fenced broker in the isr": replace(AFTER, replicas=ids(1, 2, 3, 4), isr=ids(1, 4), elr=()).changed(),
    "a stranger in the isr": replace(AFTER, replicas=ids(1, 2, 3, 9), isr=ids(1, 9), elr=()).changed(),
    "producer ids are given out twice": ProducerIdsTaken(ONE, BOOK.epoch(1), 1000),
}


@pytest.mark.parametrize("fact", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_stops_the_node(fact: Fact) -> None:
    with pytest.raises(InconsistentMetadata):
        full_book().say(fact)


def test_the_change_that_those_were_made_from_is_possible() -> None:
    assert full_book().say(AFTER.changed()).partitions == ((TOPIC, 0),)


def test_a_batch_that_does_not_continue_the_log_stops_the_node() -> None:
    batch = encode_facts([NothingHappened()], NOW)
    stamp(batch, 1, 1)
    with pytest.raises(InconsistentMetadata, match="a batch at offset 1 follows 0"):
        Image().replay(batch)


SOUND = partition((1, 2), replicas=(1, 2, 3))
FLAWS: dict[str, PartitionState] = {
    "no replicas": replace(SOUND, replicas=(), isr=(), leader=NO_BROKER),
    "a replica twice": replace(SOUND, replicas=ids(1, 2, 2)),
    "somebody in sync twice": replace(SOUND, isr=ids(1, 1)),
    "the isr beyond the replicas": replace(SOUND, isr=ids(1, 4)),
    "the elr beyond the replicas": replace(SOUND, isr=ids(1), elr=ids(4)),
    "isr and elr share somebody": replace(SOUND, isr=ids(1), elr=ids(1)),
    "known and guaranteed": replace(SOUND, isr=ids(1), elr=ids(2), last_known_elr=ids(2)),
    "the leader is out of sync": replace(SOUND, leader=BrokerId(3)),
    "a full isr leaves an elr": replace(SOUND, elr=ids(3)),
    "a full isr leaves somebody to ask": replace(SOUND, last_known_elr=ids(3)),
    "nobody needs to be in sync": replace(SOUND, min_isr=0),
    "more in sync than there are replicas": replace(SOUND, min_isr=4),
    "somebody comes who is no replica": replace(SOUND, adding=ids(4)),
    "somebody comes and goes": replace(SOUND, adding=ids(3), removing=ids(3)),
}


@pytest.mark.parametrize("state", FLAWS.values(), ids=FLAWS)
def test_a_state_that_contradicts_itself_is_noticed(state: PartitionState) -> None:
    assert flaw_of(SOUND) is None
    assert flaw_of(state) is not None


def test_the_voters_are_in_the_image_and_in_its_copy() -> None:
    book = Book()
    voters = tuple(
        Voter(BrokerId(number), bytes([number]) * 16, "127.0.0.1", 9100 + number) for number in (1, 2)
    )
    book.say(LeaderElected(BrokerId(2), 1, (BrokerId(1), BrokerId(2))), VotersNamed(voters))
    assert book.image.voters == book.image.copy().voters == voters


def test_voters_are_named_once_and_in_their_order() -> None:
    twice = tuple(Voter(BrokerId(1), bytes([number]) * 16, "127.0.0.1", 9101) for number in (1, 2))
    with pytest.raises(InconsistentMetadata, match="once each"):
        Book().say(VotersNamed(twice))


def test_a_fact_that_nobody_has_a_rule_for_stops_the_node() -> None:
    with pytest.raises(UnsupportedFormat, match="Fact is a fact that this tidelog cannot add up"):
        Image().apply(Fact())


def test_there_is_a_rule_for_every_fact_that_there_is() -> None:
    assert set(FACTS) <= set(_ADDING)
