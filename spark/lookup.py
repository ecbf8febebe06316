"""What a query reads: topics, partitions and offsets, as the cluster says at this moment.

What it keeps true: the end of everything is what is committed; topics are meant by their ids, so that one that was made
anew is another one; what a user has asked for and does not exist is refused with what there is instead.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.client.admin import At
from tidelog.client.cluster import Topic
from tidelog.client.io.client import Client
from tidelog.protocol.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from tidelog.protocol.messages import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.protocol.types import NO_OFFSET, Offset, TopicId, TopicPartition
from tidelog.spark.options import EARLIEST, LATEST, ReadOptions, Where

Offsets = dict[TopicPartition, Offset]

_AT: Final[Mapping[int, At]] = {EARLIEST: "earliest", LATEST: "latest"}


class Found(NamedTuple):
    """What there is to read."""

    ids: dict[str, TopicId]
    earliest: Offsets
    latest: Offsets
    """Behind the last committed record of each partition."""


async def find(client: Client, options: ReadOptions, may_lack: Collection[str] | None = None) -> Found:
    """All partitions that the options mean, where they begin and end now.

    All that is asked for must be there when it is looked for first (`may_lack` None). A stream that goes on says which topics
    need not exist any more; and whom it asks may not have heard of all partitions yet.
    """
    topics = await _topics(client, options, may_lack or ())
    names = []
    for topic in topics:
        there = range(len(topic.partitions))
        wanted = options.assign.get(topic.name, tuple(there))
        for number in wanted:
            if number not in there:
                raise UnknownTopicOrPartition(
                    f"assign: {topic.name} has the partitions 0 to {len(there) - 1}, not {number}"
                )
        names += [
            TopicPartition(topic.name, number)
            for number in wanted
            if options.partitions is None or number in options.partitions
        ]
    if topics and options.partitions is not None and (may_lack is None or not names):
        _all_found(options, topics, options.partitions - {name.partition for name in names})
    isolation = isolation_of(options)
    earliest = await offsets_at(client, names, EARLIEST, isolation)
    latest = await offsets_at(client, names, LATEST, isolation)
    return Found({topic.name: topic.id for topic in topics}, earliest, latest)


def _all_found(options: ReadOptions, topics: Collection[Topic], missing: Collection[int]) -> None:
    """Each number of `partitions` must be that of a partition which is read, in any of the topics."""
    if not missing:
        return
    lacks = f"partitions: there is no {', '.join(map(str, sorted(missing)))}"
    if options.assign:
        raise InvalidConfig(
            f"{lacks} in assign, which names all that is read: name it in both, or leave it out"
        )
    largest = max(topics, key=lambda topic: len(topic.partitions))
    count = len(largest.partitions)
    has = f"{count} partitions (0 to {count - 1})" if count > 1 else "1 partition (0)"
    more = ", and no other topic has more" if len(topics) > 1 else ""
    raise UnknownTopicOrPartition(
        f"{lacks}; {largest.name} has {has}{more}: leave it out, or add partitions to the topic first"
    )


def means(options: ReadOptions, name: TopicPartition) -> bool:
    """Whether the options ask for this partition, whether or not anybody shows it."""
    if options.pattern:
        asked = re.fullmatch(options.pattern, name.topic) is not None
    else:
        asked = name.topic in (options.subscribe or options.assign)
    return (
        asked
        and (name.topic not in options.assign or name.partition in options.assign[name.topic])
        and (options.partitions is None or name.partition in options.partitions)
    )


def isolation_of(options: ReadOptions) -> int:
    """As it travels."""
    return READ_COMMITTED if options.read_committed else READ_UNCOMMITTED


async def offsets_at(client: Client, names: Iterable[TopicPartition], at: int, isolation: int) -> Offsets:
    """Where these begin (EARLIEST), end (LATEST), or have their first record of a time or later (-1: none)."""
    wanted = list(names)
    if not wanted:
        return {}
    found = await client.admin.list_offsets(
        dict.fromkeys(wanted, _AT.get(at, at)),
        isolation=isolation,
    )
    return {name: answer.offset for name, answer in found.items()}


async def _topics(client: Client, options: ReadOptions, may_lack: Collection[str]) -> list[Topic]:
    if options.pattern:
        pattern = re.compile(options.pattern)
        there = await client.admin.list_topics()
        return [topic for topic in there if pattern.fullmatch(topic.name)]
    named = options.subscribe or tuple(options.assign)
    found = await topics_named(client, [name for name in named if name not in may_lack])
    return found + [topic for name in named if name in may_lack for topic in await topic_if_any(client, name)]


async def topic_if_any(client: Client, name: str) -> list[Topic]:
    """This topic as it is now, unless it is gone."""
    try:
        return await topics_named(client, [name])
    except UnknownTopicOrPartition:
        return []


async def topics_named(client: Client, names: Iterable[str]) -> list[Topic]:
    """These topics as they are now, whatever this client knew of them before."""
    wanted = list(names)
    await client.refresh(wanted, newer=True)
    return [await client.topic(name) for name in wanted]


async def place(client: Client, where: Where, options: ReadOptions, found: Found) -> Offsets:
    """Where each partition begins or ends by what the user said; not yet checked against what is there."""
    names = list(found.latest)
    if where.offsets is not None:
        _all_named(where.option, where.offsets, names)
        meant = {EARLIEST: found.earliest, LATEST: found.latest}
        return {
            name: meant[at][name] if at in meant else at
            for name, at in where.offsets.items()
            if name in found.latest
        }
    if where.timestamp_ms is None and where.times_ms is None:
        return dict(found.earliest if where.offset == EARLIEST else found.latest)
    times = where.times_ms or dict.fromkeys(names, where.timestamp_ms or 0)
    _all_named(where.option, times, names)
    placed: Offsets = {}
    for at in sorted({times[name] for name in names}):
        of_time = [name for name in names if times[name] == at]
        placed |= await offsets_at(client, of_time, at, isolation_of(options))
    for name, offset in placed.items():
        if offset == NO_OFFSET or offset > found.latest[name]:
            if where is options.start and options.when_too_late == "error":
                raise OffsetOutOfRange(
                    f"{where.option}: {name} has no record of {times[name]} ms or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
            placed[name] = found.latest[name]
    return placed


def behind_the_end(
    where: Where, name: TopicPartition, offset: Offset, found: Found
) -> OffsetOutOfRange | None:
    """What is wrong with an offset that was never there; what was there and is lost is another matter."""
    if where.offsets is None or offset <= found.latest[name]:
        return None
    return OffsetOutOfRange(
        f"{where.option}: offset {offset} is behind the end of {name}, which is {found.latest[name]}"
    )


def _all_named(option: str, given: Mapping[TopicPartition, int], names: Iterable[TopicPartition]) -> None:
    known = set(names)
    missing, strange = sorted(known - given.keys()), sorted(given.keys() - known)
    if missing:
        raise InvalidConfig(f"{option}: it must name every partition; {missing[0]} is missing")
    if strange:
        raise InvalidConfig(f"{option}: {strange[0]} is none of the partitions that are read")
