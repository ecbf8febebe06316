"""How `tidelog consume -g` reads: as a member of a group, which goes on where the group has come to.

What it keeps true: what was shown is committed when more is asked for and at the end, and nothing else is: who ends it
by Ctrl-C, or after `-n` records, finds the next record the next time.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tidelog.cli.asking import known_topics, settings_of
from tidelog.cli.consume.formats import Show
from tidelog.cli.consume.ranges import Where
from tidelog.cli.consume.reading import QUIET_S, Tally, Wanted, nobody_reads
from tidelog.client.options import ConsumerConfig

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.consumer import Consumer


async def read_as_member(
    ctx: click.Context, client: "Client", wanted: Wanted, group: str, show: Show, flush: Callable[[], None]
) -> Tally:
    """Show records of the partitions that the group gives, until Ctrl-C, or so many; with `--exit` until it has consumed
    all of them.
    """
    records = 0
    await known_topics(client, wanted.topic)
    reset = "earliest" if wanted.range.begin.where is Where.START else "latest"
    said = settings_of(ctx, ConsumerConfig, None)
    settings = {"auto.offset.reset": reset} | {key.replace("_", "."): value for key, value in said.items()}
    loop = asyncio.get_running_loop()
    try:
        async with client.consumer(wanted.topic, group=group, config=settings) as consumer:
            heard_s = loop.time()
            while not nobody_reads():
                left = None if wanted.most is None else wanted.most - records
                if left == 0:
                    break
                batch = await anext(consumer.batches(max_records=left, timeout=QUIET_S), None)
                if batch is None:
                    if wanted.ends and (await _is_done(consumer) or loop.time() - heard_s > wanted.silent_s):
                        break
                    continue
                heard_s = loop.time()
                for record in batch:
                    if wanted.keep is None or wanted.keep(record):
                        show(record)
                        records += 1
                flush()
    except asyncio.CancelledError:
        return Tally(records, interrupted=True)
    return Tally(records, interrupted=False)


async def _is_done(consumer: "Consumer") -> bool:
    """Whether it has shown all that its share holds now."""
    if consumer.state != "stable" or not consumer.assignment():
        return False
    return all(place.lag == 0 for place in (await consumer.positions()).values())
