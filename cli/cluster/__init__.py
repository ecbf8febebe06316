"""`tidelog cluster`: look at a cluster as a whole, by way of any of its nodes."""

from typing import Final

import click

from tidelog.cli.main import LazyGroup, Noun
from tidelog.cli.options import Verb, bootstrap, connection_options, layout, output_option, timeout_ms

VERBS: Final = {
    "health": Noun(
        "tidelog.cli.cluster.health", "health", "Say whether all is well, and if not, what to do."
    ),
    "info": Noun("tidelog.cli.cluster.info", "info", "Show brokers, controller, and how much there is."),
}


@click.group(cls=LazyGroup, nouns=VERBS)
def cluster() -> None:
    """Look at a cluster as a whole."""


@cluster.command(
    cls=Verb,
    examples=(
        "tidelog cluster quorum",
        "tidelog cluster quorum -b 127.0.0.1:9092,127.0.0.1:9093",
        "tidelog cluster quorum -o json | jq 'select(.type == \"voter\") | .lag'",
    ),
)
@connection_options
@output_option
@click.pass_context
def quorum(ctx: click.Context) -> None:
    """Show which controller leads, and how far all nodes have read the metadata log.

    Controllers that vote are `c1`, `c2`, ...; brokers, which only read, are `b1`, `b2`, ... Any broker may be asked,
    or any controller.
    """
    # Imported here because a help page must not pay for them.
    from tidelog.cli.cluster.quorum import LAYOUTS  # noqa: PLC0415
    from tidelog.cli.reach import describe_quorum  # noqa: PLC0415
    from tidelog.cli.terminal import Writer  # noqa: PLC0415

    asked = layout(ctx, "text", "json", "kafka")
    answer = describe_quorum(bootstrap(ctx), timeout_ms(ctx))
    writer = Writer()
    LAYOUTS[asked](writer, answer)
    writer.flush()
