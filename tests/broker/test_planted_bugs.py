"""Each rule of the requests is undone, one at a time from outside, and a sentence of these tests then fails."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias, cast

import msgspec
import pytest

from tests.broker import (
    test_controller_requests,
    test_fetch,
    test_fetch_nearby,
    test_membership,
    test_offsets,
    test_partition,
    test_produce,
    test_replicas,
)
from tests.broker.node import Node
from tidelog.broker.leadership import Leadership
from tidelog.broker.membership import Membership
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests import delete_records, fetch, produce
from tidelog.broker.requests.context import Context, ProducerIds
from tidelog.protocol.errors import CorruptMessage
from tidelog.protocol.types import NO_BROKER
from tidelog.replication.sessions import Session
from tidelog.storage.log import Log

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def wrap(owner: type, name: str, made: Callable[[Any], Any]) -> Plant:
    """Replace a method by what `made` makes of it."""
    return lambda plant: plant.setattr(owner, name, made(getattr(owner, name)))


def always(owner: Any, name: str, value: Any) -> Plant:
    """A function or method that always answers the same."""
    return lambda plant: plant.setattr(owner, name, lambda *_, **__: value)


def led() -> Node:
    node = Node()
    node.lead()
    return node


def with_times() -> Node:
    return cast("Node", fixture(test_offsets.node)())


def fixture(made: Any) -> Any:
    """The function behind a fixture."""
    found = getattr(made, "__wrapped__", None) or getattr(made, "_fixture_function", None)
    assert isinstance(found, FunctionType)
    return found


def in_racks() -> Node:
    return cast("Node", fixture(test_fetch_nearby.racks)(led()))


def following() -> Node:
    return cast("Node", fixture(test_fetch_nearby.following)(in_racks()))


def adding() -> Node:
    return cast("Node", fixture(test_fetch.adding)(led()))


def a_follower() -> Partition:
    return cast("Partition", fixture(test_partition.partition)(fixture(test_partition.node)()))


def every_answer_renews(take: Any) -> Any:
    return lambda self, reply, *more: take(self, msgspec.structs.replace(reply, renews=True), *more)


def epochs_before_leadership(plant: pytest.MonkeyPatch) -> None:
    made = Partition.produce

    def planted(self: Partition, batch: Any, acks: int, believed_epoch: int, **times: int) -> Any:
        self.led(believed_epoch)
        return made(self, batch, acks, believed_epoch, **times)

    plant.setattr(Partition, "produce", planted)


def a_duplicate_counts_as_committed(made: Any) -> Any:
    def planted(self: Log, *args: Any) -> Any:
        appended = made(self, *args)
        return appended._replace(next_offset=0) if appended.duplicate else appended

    return planted


def leadership_is_not_looked_at_again(plant: pytest.MonkeyPatch) -> None:
    def planted(self: Any) -> bool:
        for at, owed in list(self.owed.items()):
            if owed.partition.high_watermark >= owed.next_offset:
                self._settle(at, produce._written(owed))
        if not self.owed:
            self.answer()
        return not self.owed

    plant.setattr(produce._Waiting, "try_complete", planted)


def only_my_own_log_start_counts(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Partition, "low_watermark", property(lambda self: self.log.log_start))


def deleted_before_it_is_on_disk(made: Any) -> Any:
    def planted(self: Any) -> bool:
        self.saved = True
        return bool(made(self))

    return planted


def followers_judge_their_own_end(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(
        Partition, "_check_as_follower", lambda self, asked, _: self.led(asked.current_leader_epoch)
    )


def a_cut_during_a_flush(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Log, "is_flushing", property(lambda _: False))


def turns_by_how_many_were_served(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Session, "served", lambda *_: None)


def news_of_log_starts_is_no_news(made: Any) -> Any:
    def planted(self: Partition, *args: Any) -> Any:
        before = self.high_watermark
        return made(self, *args)._replace(news=self.high_watermark > before)

    return planted


def a_log_on_its_way_out_is_removed_at_once(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Replicas, "_leave", lambda self, place: self._remove(self.partitions.pop(place)))


def nobody_looks_for_room(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Log, "probe", lambda *_: False)


def an_id_is_given_twice(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(ProducerIds, "take", lambda self: self.first)


def epochs_of_consumers_are_forgotten(plant: pytest.MonkeyPatch) -> None:
    """Another leadership is noticed only by who names his."""

    def planted(self: Any, asked: Any, _wanted: int) -> int:
        return int(self._partition(asked).high_watermark > asked.fetch_offset)

    plant.setattr(fetch._Waiting, "_readable", planted)


CAUGHT: list[tuple[str, Plant, Callable[[], object]]] = [
    (
        "no lease is needed",
        always(Replicas, "has_lease", True),
        lambda: test_produce.test_without_a_lease_nothing_is_written(led()),
    ),
    (
        "epochs come before leadership",
        epochs_before_leadership,
        lambda: test_produce.test_who_does_not_lead_says_who_does_before_it_looks_at_epochs(led()),
    ),
    (
        "too few in sync come before a bad batch",
        always(Log, "check_new", None),
        lambda: test_produce.test_a_bad_batch_is_told_before_too_few_replicas(
            test_produce.flipped(), CorruptMessage, (1,)
        ),
    ),
    (
        "a duplicate does not wait",
        wrap(Log, "append", a_duplicate_counts_as_committed),
        lambda: test_produce.test_a_duplicate_waits_for_the_original_to_be_committed(led()),
    ),
    (
        "leadership is not looked at again",
        leadership_is_not_looked_at_again,
        lambda: test_produce.test_another_leadership_ends_the_waiting_in_the_same_burst(
            led(), {"leader": 2, "leader_epoch": 1}
        ),
    ),
    (
        "leaders are not named",
        always(Context, "leader", None),
        lambda: test_fetch.test_who_asks_the_wrong_broker_hears_who_leads(led()),
    ),
    (
        "consumers wait in another leadership",
        epochs_of_consumers_are_forgotten,
        lambda: test_fetch.test_another_leadership_ends_every_waiting_in_the_same_burst(
            led(), {"leader_epoch": 1}
        ),
    ),
    (
        "min_bytes are not waited for",
        always(fetch._Waiting, "_readable", None),
        lambda: test_fetch.test_min_bytes_are_waited_for(led()),
    ),
    (
        "every answer begins with the same partition",
        turns_by_how_many_were_served,
        lambda: test_fetch.test_partitions_take_turns_where_there_is_room_for_one(led()),
    ),
    (
        "anybody in sync is near",
        wrap(
            Leadership,
            "nearest",
            lambda _: lambda self, there, offset: next(iter(there), NO_BROKER),  # noqa: ARG005
        ),
        lambda: (
            test_fetch_nearby.test_nobody_is_sent_to_who_is_fenced_behind_out_of_sync_or_lacks_the_beginning(
                in_racks()
            )
        ),
    ),
    (
        "followers judge what is out of range",
        followers_judge_their_own_end,
        lambda: test_fetch_nearby.test_behind_the_end_of_a_follower_nothing_is_out_of_range(following()),
    ),
    (
        "nobody is reminded of commits",
        always(fetch._Waiting, "_remind_of_commits", None),
        lambda: test_fetch_nearby.test_while_consumers_read_nearby_followers_hear_soon_what_is_committed(
            in_racks()
        ),
    ),
    (
        "every answer is a lease",
        wrap(Membership, "_take", every_answer_renews),
        test_membership.test_an_answer_that_does_not_renew_leaves_what_there_is_and_is_asked_for_again_soon,
    ),
    (
        "members in sync are throttled",
        always(fetch._Waiting, "_throttled", True),
        lambda: test_fetch.test_a_replica_in_sync_is_never_throttled(adding()),
    ),
    (
        "a new leader guesses",
        wrap(Leadership, "known_high_watermark", lambda _: property(lambda self: self.high_watermark)),
        lambda: test_offsets.test_a_new_leader_does_not_guess_what_is_committed(with_times(), -1),
    ),
    (
        "only my own log start counts",
        only_my_own_log_start_counts,
        lambda: test_partition.test_the_low_watermark_waits_for_who_has_not_said_where_it_begins(
            fixture(test_partition.node)()
        ),
    ),
    (
        "deleted before it is on disk",
        wrap(delete_records._Waiting, "try_complete", deleted_before_it_is_on_disk),
        lambda: test_offsets.test_a_deletion_waits_for_the_disk_and_for_everybody(with_times(), 2, 2),
    ),
    (
        "a follower's log start is no news",
        wrap(Partition, "fetch_as_follower", news_of_log_starts_is_no_news),
        lambda: test_offsets.test_a_follower_that_follows_ends_the_waiting_at_once(with_times()),
    ),
    (
        "logs are cut while they are flushed",
        a_cut_during_a_flush,
        lambda: test_partition.test_nothing_is_cut_while_it_is_flushed(a_follower()),
    ),
    (
        "logs are removed while they are flushed",
        a_log_on_its_way_out_is_removed_at_once,
        lambda: test_replicas.test_what_is_removed_while_it_is_flushed_goes_when_that_is_over(led()),
    ),
    (
        "nobody looks for room",
        nobody_looks_for_room,
        lambda: test_replicas.test_a_full_disk_serves_again_when_there_is_room(led()),
    ),
    (
        "an id is given twice",
        an_id_is_given_twice,
        lambda: test_controller_requests.test_one_block_is_asked_for_and_all_who_wait_get_an_id_each(Node()),
    ),
]


@pytest.mark.parametrize(
    ("plant", "sentence"), [case[1:] for case in CAUGHT], ids=[case[0] for case in CAUGHT]
)
def test_a_planted_bug_is_caught(
    plant: Plant, sentence: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        sentence()
