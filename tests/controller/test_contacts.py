"""Which brokers are connected to a controller, and what it remembers of those that were not (DECISIONS 3)."""

import asyncio
from collections.abc import Coroutine, Generator
from types import SimpleNamespace
from typing import Any

from tests.controller.book import Book
from tidelog.controller.contacts import Contacts
from tidelog.controller.facts import BrokerRegistered
from tidelog.protocol.bounds import Bounds
from tidelog.protocol.limits import DEFAULT
from tidelog.protocol.types import BrokerId
from tidelog.testing.ports import HOST, HeldPort

ONE = BrokerId(1)


def one_at(port: int) -> Book:
    """Broker 1 counts as alive and is to be found there."""
    book = Book(live=())
    book.say(BrokerRegistered(ONE, book.image.end_offset, bytes(16), bytes(16), HOST, port))
    book.say(book.unfenced(1))
    return book


async def test_a_broker_that_dies_again_and_again_is_counted_and_takes_no_more_room() -> None:
    held, fenced = HeldPort(), dict[BrokerId, int]()
    active: Any = SimpleNamespace(image=one_at(held.number).image, fence=lambda *_: iter(()))
    probes: list[Coroutine[Any, Any, None]] = []

    async def back_at_once(_steps: Generator[None, None, None]) -> None:
        """It is never fenced, so it may die again."""

    contacts = Contacts(
        active, lambda: True, spawn=probes.append, drive=back_at_once, fenced=fenced, bounds=Bounds(DEFAULT)
    )
    for _ in range(3):
        contacts.suspect_all()
    await asyncio.gather(*probes)
    held.close()
    assert fenced == {ONE: 3}
