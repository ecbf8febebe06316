"""The options of `broker start` and `controller start`, and their help: nothing is imported for it but click."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

import click

from tidelog.cli.options import Verb, output_option

Role: TypeAlias = Literal["broker", "controller"]
"""As `storage.identity` has it."""

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)

AFTERWARDS: Final = (
    "When it serves, one line on stdout says where (with -o json as an object: role, id, host, port, advertised, http, "
    "cluster_id, data, pid), and --ready-file holds that object. What happens is told on stderr. SIGTERM and Ctrl-C stop "
    "it in order (exit 0), a second one at once (143, 130); a disk that fails ends it with 70. Whatever keeps it from "
    "starting is one line, and exit 1, or 2 for what was typed."
)


class NodeVerb(Verb):
    """A verb that becomes a node: its help says how it ends, before the examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What is told when and where, and the examples."""
        formatter.write_paragraph()
        formatter.write_text(AFTERWARDS)
        super().format_epilog(ctx, formatter)


def node_options(role: Role) -> Callable[[Callback], Callback]:
    """The options that both kinds of nodes have; each is a text, checked with those of the other sources."""
    port = 9092 if role == "broker" else 9192
    made = "made and formatted at the first start."
    data = click.option("--data", metavar="DIR", help=f"Its data directory; {made}")
    if role == "broker":
        data = click.option(
            "--data",
            metavar="DIR",
            multiple=True,
            help=f"Its data directory; {made} Repeatable: one for each disk, and a disk that fails takes only what lies on "
            "it. The metadata log stays in the first one, and the broker ends with it.",
        )
    options = (
        click.option("--id", "node_id", metavar="N", help=f"Its number among {role}s."),
        click.option(
            "--listen",
            metavar="HOST:PORT[,NAME://...]" if role == "broker" else "HOST:PORT",
            help=f"Where it listens; port 0: a free one. [default: 127.0.0.1:{port}]",
        ),
        data,
        click.option("-c", "--config", metavar="FILE", help="Settings, as TOML."),
        click.option(
            "-X", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting, by Kafka's name; repeatable."
        ),
        click.option(
            "--http",
            metavar="HOST:PORT",
            help="Serve /metrics, /healthz and /readyz here. [default: nowhere]",
        ),
        click.option(
            "--ready-file", metavar="FILE", help="Written as JSON when it serves, removed when it ends."
        ),
        click.option(
            "--log-format",
            metavar="auto|pretty|json",
            help="How stderr looks. [default: pretty on a terminal]",
        ),
        click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
        output_option,
    )

    def add(callback: Callback) -> Callback:
        for option in reversed(options):
            callback = option(callback)
        return callback

    return add


_SETTINGS: Final[Mapping[str, str]] = {
    "node_id": "node.id",
    "listen": "listeners",
    "advertise": "advertised.listeners",
    "controllers": "controller.quorum.voters",
    "quorum": "controller.quorum.voters",
    "data": "log.dir",
    "rack": "broker.rack",
    "http": "http.listener",
    "ready_file": "ready.file",
    "log_format": "logging.format",
    "log_level": "logging.level",
}


def by_setting(flags: Mapping[str, str | tuple[str, ...] | None]) -> dict[str, str | None]:
    """What the flags say, by the names of their settings; of one that was repeated, all of it."""
    return {
        _SETTINGS[flag]: (",".join(value) or None) if isinstance(value, tuple) else value
        for flag, value in flags.items()
    }
