"""Brokers that will not come back: who may be sent away, and what is given up by it."""

import pytest

from tests.controller.book import TOPIC, Book, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import departures
from tidelog.controller.departures import unregister_broker
from tidelog.controller.facts import BrokerUnregistered, ConfigChanged
from tidelog.protocol.errors import BrokerIdNotRegistered, InvalidRequest
from tidelog.protocol.messages import UnregisterBroker
from tidelog.protocol.types import BrokerId


def unregister(book: Book, broker: int, *, force: bool = False) -> None:
    for facts in unregister_broker(book.image, UnregisterBroker(BrokerId(broker), force)).batches:
        book.carry_out(facts)


def refusal(book: Book, broker: int, *, force: bool = False) -> str:
    with pytest.raises(InvalidRequest) as refused:
        unregister(book, broker, force=force)
    return str(refused.value)


def test_a_broker_that_has_nothing_and_is_fenced_may_go_and_its_settings_go_with_it() -> None:
    book = Book(partition((1, 2)), live=(1, 2, 3), fenced=(4,))
    book.say(ConfigChanged("broker", "4", "leader.replication.throttled.rate", "5"))
    unregister(book, 4)
    assert (sorted(book.image.brokers), book.image.configs) == ([1, 2, 3], {})


def test_a_broker_that_is_alive_is_not_sent_away_not_even_by_force() -> None:
    book = Book(live=(1, 2, 3))
    assert refusal(book, 3, force=True) == (
        f"broker 3 is alive at 127.0.0.1:9003 under epoch {book.epoch(3)}: it must be stopped first, and fenced"
    )


def test_a_broker_that_is_a_replica_goes_by_force_alone_and_it_is_told_of_what() -> None:
    book = Book(partition((1, 2)), partition((), (3,), index=1), live=(1, 2), fenced=(3,))
    assert refusal(book, 3) == (
        "broker 3 is a replica of 2 partitions, orders-0 first; of 1 nobody else has every record: move them away "
        "first, or use force"
    )


def test_what_a_broker_has_that_goes_by_force_is_given_up() -> None:
    book = Book(partition((1,), (3,)), partition((), (3,), index=1), live=(1, 2), fenced=(3,))
    unregister(book, 3, force=True)
    assert 3 not in book.image.brokers
    for p in book.image.partitions_of(TOPIC):
        assert (p.elr, p.last_known_elr) == ((), ())
        assert 3 in p.replicas


def test_that_it_is_gone_is_said_last() -> None:
    book = Book(partition((1,), (3,)), live=(1, 2), fenced=(3,))
    book.say(ConfigChanged("broker", "3", "leader.replication.throttled.rate", "5"))
    [facts] = unregister_broker(book.image, UnregisterBroker(BrokerId(3), force=True)).batches
    assert isinstance(facts[-1], BrokerUnregistered)
    assert len(facts) == 3


def test_who_is_not_registered_cannot_go() -> None:
    with pytest.raises(BrokerIdNotRegistered, match=r"broker 9 is not registered: \[1, 2, 3\] are"):
        unregister(Book(), 9)


BUGS = (
    Bug("sent away alive", "if not known.fenced:", "if False:"),
    Bug("sent away with what it has", "if kept and not request.force:", "if False:"),
    Bug("gone and guaranteed to have everything", "leave(image, broker, lambda _: gone)", "leave(image, broker)"),
    Bug("gone and worth asking", "everything=True", "everything=False"),
    Bug("its settings wait for the next", "    facts += [ConfigChanged(*key, None) for key in settings]\n", ""),
    Bug("gone at first", "[*facts, BrokerUnregistered(broker, known.epoch)]", "[BrokerUnregistered(broker, known.epoch), *facts]"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), departures, bug, monkeypatch)
