"""How `tidelog consume -g` reads: as a member of a group, which goes on where the group has come to.

What it keeps true: what was shown is committed when more is asked for and at the end, and nothing else is: who ends it
by a signal, or after `-n` records, finds the next record the next time. With `--exit` it ends well only where the share
that the group gives it ends; whoever gets nothing is told what it waits for.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.asking import Unhealthy, child_settings, known_topics
from tidelog.cli.consume.formats import Show
from tidelog.cli.consume.ranges import Where
from tidelog.cli.consume.reading import QUIET_S, SILENT_S, Silence, Tally, Wanted, nobody_reads
from tidelog.cli.consume.share import Ends, behind, is_whole, others
from tidelog.cli.options import timeout_ms
from tidelog.cli.terminal import many
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.consumer import Consumer
    from tidelog.protocol.messages import DescribedGroup

_SHARE_S: Final = 60.0
"""For so long a bounded read waits for partitions that others have: a broker keeps those of a member that has died for 45 s,
unless it or the member says otherwise."""
_LOOK_S: Final = 3.0
"""How long it may take to look at the group."""


async def read_as_member(
    ctx: click.Context, client: "Client", wanted: Wanted, group: str, show: Show, flush: Callable[[], None]
) -> Tally:
    """Show records of the partitions that the group gives, until a signal, or so many; with `--exit` until it has consumed
    all of them.
    """
    member = _Member(client, wanted, group, timeout_ms(ctx, _SHARE_S) / 1000)
    try:
        [topic] = await known_topics(client, wanted.topic)
        member.names = [TopicPartition(topic.name, number) for number in range(len(topic.partitions))]
        reset = "earliest" if member.from_start else "latest"
        settings = child_settings(ctx, ConsumerConfig, {"auto.offset.reset": reset}, group=group)
        await member.run(client.consumer(wanted.topic, group=group, config=settings), show, flush)
    except asyncio.CancelledError:
        return Tally(member.records, interrupted=True)
    return Tally(member.records, interrupted=False, note=member.note)


class _Member:
    """One run of the command."""

    def __init__(self, client: "Client", wanted: Wanted, group: str, share_s: float) -> None:
        self.records = 0
        self.note = ""
        """What the number of records does not say."""
        self.names: list[TopicPartition] = []
        """All partitions of the topic."""
        self.from_start = wanted.range.begin.where is Where.START
        self._client = client
        self._wanted = wanted
        self._group = group
        self._share_s = share_s

    async def run(self, consumer: "Consumer", show: Show, flush: Callable[[], None]) -> None:
        """Read until the end."""
        # Beside the reading: joining may wait for a coordinator.
        telling = asyncio.create_task(self._tell_what_is_awaited(consumer))
        try:
            async with consumer:
                await self._read(consumer, show, flush)
        finally:
            telling.cancel()

    async def _read(self, consumer: "Consumer", show: Show, flush: Callable[[], None]) -> None:
        wanted, silence = self._wanted, Silence(self._client)
        now_s = asyncio.get_running_loop().time
        heard_s, share = now_s(), consumer.assignment()
        while not nobody_reads():
            left = None if wanted.most is None else wanted.most - self.records
            if left == 0:
                return
            batch = await anext(consumer.batches(max_records=left, timeout=QUIET_S), None)
            if batch is None:
                if consumer.assignment() != share:
                    heard_s, share = now_s(), consumer.assignment()
                if share:
                    silence.look(consumer, share, now_s())
                if wanted.ends and await self._is_done(consumer, now_s() - heard_s):
                    return
                continue
            heard_s = now_s()
            for record in batch:
                if wanted.keep is None or wanted.keep(record):
                    show(record)
                    self.records += 1
            flush()

    async def _is_done(self, consumer: "Consumer", silent_s: float) -> bool:
        """Whether it has shown all that its share holds now, and its share is all that it is to get.

        Raises Unhealthy when enough time has gone without.
        """
        positions = await self._positions(consumer)
        at_the_end = bool(positions) and all(at >= end for at, end in positions.values())
        if at_the_end and consumer.state == "stable" and set(positions) == consumer.assignment():
            group = await self._described()
            if group is not None and is_whole(group, positions.keys()):
                held = others(group, self.names, positions.keys())
                self.note = f", all of its share; {held}" if held else ""
                return True
        due = bool(consumer.assignment()) and not at_the_end
        if silent_s > (self._wanted.silent_s if due else self._share_s):
            raise await self._unfinished({name: at for name, (at, _) in positions.items()}, silent_s, due=due)
        return False

    async def _positions(self, consumer: "Consumer") -> dict[TopicPartition, tuple[int, int]]:
        """How far each partition of its share is read, and where it ends; empty: nobody says now."""
        if not consumer.assignment():
            return {}
        try:
            async with asyncio.timeout(_LOOK_S):
                found = await consumer.positions()
        except TimeoutError:
            return {}
        return {name: (place.position, place.high_watermark) for name, place in found.items()}

    async def _described(self) -> "DescribedGroup | None":
        """The group as its coordinator sees it; None: it does not answer."""
        try:
            [found] = await self._client.admin.describe_groups(self._group, with_lag=False, timeout=_LOOK_S)
        except TidelogError:
            return None
        return found

    async def _tell_what_is_awaited(self, consumer: "Consumer") -> None:
        """Say once, each time that it has nothing, what it waits for."""
        loop = asyncio.get_running_loop()
        since_s, told = loop.time(), False
        while True:
            await asyncio.sleep(QUIET_S)
            if consumer.assignment():
                since_s, told = loop.time(), False
            elif not told and loop.time() - since_s >= SILENT_S:
                told = True
                why = self._why_nothing(await self._described())
                if not consumer.assignment():
                    limit = f", for {self._share_s:g} s at most" if self._wanted.ends else ""
                    click.echo(f"no partition was given to this member yet: {why}; it waits{limit}", err=True)

    def _why_nothing(self, group: "DescribedGroup | None") -> str:
        if group is None:
            return f"the coordinator of group {self._group!r} does not answer"
        return f"group {self._group!r} is {group.state}, {others(group, self.names, ()) or 'nobody has any'}"

    async def _unfinished(
        self, positions: dict[TopicPartition, int], silent_s: float, *, due: bool
    ) -> Unhealthy:
        """That it has not come to the end, how far that is, and why."""
        group = await self._described()
        shown = f"{many(self.records, 'record')} of {self._wanted.topic}, and group {self._group!r} is"
        fact = f"{shown} {await self._behind(group, positions)}"
        if due:
            topic = self._wanted.topic
            return Unhealthy(
                f"{fact}: nothing has come for {silent_s:.0f} s; `tidelog topic describe {topic}` shows whether somebody "
                "leads it"
            )
        what = "more was to be given" if positions else "no partition was given"
        return Unhealthy(
            f"{fact}: {what} to this member in {silent_s:.0f} s: {self._why_nothing(group)}; `tidelog group describe "
            f"{self._group} --members` shows what becomes of that, and --timeout waits longer"
        )

    async def _behind(self, group: "DescribedGroup | None", positions: dict[TopicPartition, int]) -> str:
        admin = self._client.admin
        try:
            starts = await admin.list_offsets(self.names, "earliest", timeout=_LOOK_S)
            ends = await admin.list_offsets(self.names, "latest", timeout=_LOOK_S)
        except TidelogError:
            return "behind by nobody knows how much"
        found = {name: Ends(starts[name].offset, ends[name].offset) for name in self.names}
        return behind(group, found, positions, from_start=self.from_start)
