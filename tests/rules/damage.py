"""The rules by which damage is found, handed over and mended (ADR 105)."""

from typing import cast

from tests.broker import test_damage as brokers
from tests.broker.node import Node
from tests.broker.test_planted_bugs import fixture
from tests.controller import test_damage as controllers
from tests.rules.rule import Catcher, Instead, Rule
from tests.simulation import test_rot
from tests.storage import test_log, test_scrubbing
from tidelog.broker import scrubbing as node
from tidelog.broker.membership import Membership
from tidelog.broker.partition import Partition
from tidelog.controller import liveness
from tidelog.storage import segment as segments
from tidelog.storage.scrubbing import Scrub
from tidelog.storage.segment import Segment


def follower() -> Node:
    return cast("Node", fixture(brokers.node)())


def cut_when(right: str, wrong: str, state: dict[str, object]) -> tuple[Instead, Catcher]:
    """When a replica may be cut, otherwise; and the row of the table that notices."""
    test = brokers.test_it_may_be_cut_when_nothing_is_counted_on_it
    return Instead(brokers, "may_be_cut", right, wrong), Catcher(test, (follower,), (state, "it may not"))


# fmt: off
RULES: dict[str, Rule] = {
    "checksums_are_read_again": Rule("Every checksum of a segment is looked at again.", "ADR 105, I-36", Instead(Scrub, "_check_one", "check_body(data, header, at)", "pass"), Catcher(test_scrubbing.test_damage_is_found_where_a_batch_is_larger_than_what_is_read_at_once)),
    "order_is_read_again": Rule("Offsets and epochs that go back are damage.", "ADR 105, I-36", Instead(Scrub, "_check_one", "header.base_offset < self._expected or header.leader_epoch < self._epoch", "False"), Catcher(test_scrubbing.test_whole_batches_in_the_wrong_order_are_damage)),
    "no_damage_is_served": Rule("No batch is served that is not what was written.", "1.9, I-36", Instead(segments, "measure", "or crc32c(view[at + _BODY_AT : end]) != body_crc", ""), Catcher(test_log.test_a_flipped_bit_is_reported_by_the_read_and_never_served)),
    "what_is_good_before_damage": Rule("What stands before damage is served to who asks for more.", "ADR 11, ADR 105", Instead(Segment, "read", "if not end:\n            data", "if end < len(data):\n            data"), Catcher(test_log.test_a_flipped_bit_is_reported_by_the_read_and_never_served)),
    "scrubbed_in_rounds": Rule("Whatever nobody reads is looked at in rounds.", "ADR 105", Instead(node.Scrubbing, "_round", "await self._look_at(partition, segment, pace)", "pass"), Catcher(test_rot.test_a_follower_that_rots_is_mended_from_its_leader)),
    "scrubbed_slowly": Rule("Rounds take no more of the disk than they may.", "ADR 105", Instead(node.Scrubbing, "_look", "await asyncio.sleep(pace.pause_s(self._spent, loop.time()))", "await asyncio.sleep(0)"), Catcher(test_rot.test_a_round_reads_no_faster_than_it_may)),
    "readers_note_damage": Rule("Damage that a reader finds is known to the replica.", "1.9, ADR 105", Instead(Partition, "_reading", "self.found_damage(error)", "pass"), Catcher(brokers.test_a_reader_that_finds_damage_is_refused_and_the_replica_knows, (follower,))),
    "leaders_note_damage": Rule("Damage that a leader meets as it appends is known to the replica, and to be tried elsewhere.", "1.9, ADR 105", Instead(Partition, "produce", "self.found_damage(error)", "pass"), Catcher(brokers.test_a_leader_that_meets_damage_as_it_appends_refuses_for_now_and_the_replica_knows, (follower,), (1,))),
    "damaged_fetch_nothing": Rule("For a damaged log nothing more is fetched.", "ADR 105, I-4", Instead(Partition, "fetches_from", " and self.damage is None", ""), Catcher(brokers.test_nothing_more_is_fetched_for_it, (follower,))),
    "damage_is_told": Rule("The controller hears of damage until it has drawn its conclusions.", "ADR 105", Instead(Membership, "_heartbeat", "self._replicas.damaged().items()", "()"), Catcher(test_rot.test_a_leader_that_rots_lets_another_lead_and_is_mended_as_its_follower)),
    "damaged_are_let_go": Rule("Who is damaged leads no more and is counted on no more, where another can lead.", "ADR 105, I-3", Instead(liveness, "beat", "offline = offline or relieve_damaged(\n        image, broker, {(entry.topic_id, entry.index): entry.leader_epoch for entry in request.damaged}\n    )", "pass"), Catcher(controllers.test_a_heartbeat_that_says_so_makes_another_lead)),
}
# fmt: on
for name, says, right, wrong, state in (
    ("cut_out_of_sync", "No replica in sync is cut for damage.", "and me not in state.isr\n", "\n", {"leader": 2, "isr": (1, 2, 3)}),
    ("cut_when_not_eligible", "No replica in the ELR is cut for damage.", "and me not in state.elr\n", "\n", {"leader": 2, "isr": (2,), "elr": (1,)}),
    ("cut_in_a_newer_epoch", "What a replica told before it is cut counts for nothing any more.", "state.leader_epoch > damage.leader_epoch", "True", {"leader": 2, "isr": (2, 3), "epoch": 0}),
    ("cut_with_a_leader", "Nothing is cut while nobody leads who has it.", "state.leader not in {me, NO_BROKER}", "state.leader != me", {"leader": -1, "isr": (), "elr": (3,)}),
):  # fmt: skip
    plant, catcher = cut_when(right, wrong, dict(state))
    RULES[name] = Rule(says, "ADR 105, I-4", plant, catcher)
