"""Damage in a replica: what is known of it, and the way back to a log that does not lie (ADR 105).

    whole ──found──► damaged ──the controller lets it go──► cut at the damaged segment ──► follows again, from there
                        │                                                    whole ◄── in sync, once it has it all
                        └── nobody else is in sync: it serves what it can, and says so loudly

What it keeps true (I-3, I-4):

* A damaged replica asks for no more records: whatever it had told its leader before stays the last word in that leader
  epoch, so nobody takes its log for longer or better than it is.
* It is cut only in a leader epoch that is newer than the damage, in which it has not fetched, does not lead, and is in
  neither ISR nor ELR: nothing is counted on it, and what it told before the cut counts for nothing any more.
* Somebody else leads then, and has every committed record. While nobody else can, not one byte is touched.
"""

from dataclasses import dataclass, replace
from typing import Final

from tidelog.controller.image import PartitionState
from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.types import NO_BROKER, BrokerId, Epoch, Offset
from tidelog.storage.log import Log

_AT_ONCE: Final = 8
"""Segments that are cut off in one step."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a log, as far as it was found."""

    base_offset: Offset
    """Of the first segment that is damaged: nothing from there on is believed once it is cut."""
    end_offset: Offset
    """Where the last one ends. Readers who begin there or above never come across it."""
    leader_epoch: Epoch
    """The newest that this replica knew when the first of it was found: until then it may have told what it has."""
    why: str


def with_damage(known: Damage | None, log: Log, leader_epoch: Epoch, found: DamagedLog) -> Damage:
    """What is known of a log in which this was found."""
    segment = next((each for each in log.segments if each.base_offset == found.base_offset), log.segments[0])
    more = Damage(segment.base_offset, segment.next_offset, leader_epoch, str(found))
    if known is None:
        return more
    first = more if more.base_offset < known.base_offset else known
    return replace(
        first,
        end_offset=max(known.end_offset, more.end_offset),
        leader_epoch=known.leader_epoch,
    )


def step_of_cut(damage: Damage, log: Log) -> Offset:
    """Where to cut next on the way to the damaged segment: removing thousands of files at once would hold others up."""
    segments = log.segments
    return max(damage.base_offset, segments[max(len(segments) - _AT_ONCE, 0)].base_offset)


def may_be_cut(damage: Damage | None, state: PartitionState | None, me: BrokerId) -> bool:
    """Whether nothing is counted on my replica, as of the newest state that I know, nor on what I have ever told."""
    return (
        damage is not None
        and state is not None
        and state.leader_epoch > damage.leader_epoch
        and state.leader not in {me, NO_BROKER}
        and me not in state.isr
        and me not in state.elr
    )


def is_gone(damage: Damage, log: Log) -> bool:
    """Whether what was damaged is no part of the log any more: it was deleted."""
    return log.log_start >= damage.end_offset
