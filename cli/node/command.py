"""The options of `broker start` and `controller start`, and the way from them to a running node."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from tidelog.cli.node.settings import (
    PLACES,
    Said,
    Voter,
    fields,
    of_environment,
    of_file,
    of_flags,
    parse_address,
    parse_voters,
    settle,
)
from tidelog.cli.options import Address, Verb, layout, output_option
from tidelog.protocol.errors import InvalidConfig
from tidelog.storage.identity import Role

Callback = TypeVar("Callback", bound=Callable[..., Any] | click.Command)

DESCRIPTORS_BESIDE: Final = 100
"""Files and sockets beside those that settings count: the program's own, checkpoints, connections to other nodes."""

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
    options = (
        click.option("--id", "node_id", metavar="N", help=f"Its number among {role}s."),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Where it listens; port 0: a free one. [default: 127.0.0.1:{port}]",
        ),
        click.option(
            "--data", metavar="DIR", help="Its data directory; made and formatted at the first start."
        ),
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


@dataclass(frozen=True, slots=True)
class Asked:
    """All that was said about a node, checked and without contradictions."""

    ctx: click.Context
    role: Role
    said: Mapping[str, Said]

    def text(self, key: str, default: str | None = None) -> str | None:
        """What was said, or the default."""
        found = self.said.get(key)
        return default if found is None else found.value

    def needed(self, key: str, what: str) -> str:
        """What must be said."""
        value = self.text(key)
        if value is None:
            flag = PLACES[key].flags[self.role]
            variable = "TIDELOG_" + key.upper().replace(".", "_")
            raise click.UsageError(f"{flag} is missing: {what} (or {key} in a file, or {variable})", self.ctx)
        return value

    def address(self, key: str, default: str | None = None) -> Address | None:
        """The address that was said."""
        text = self.text(key, default)
        return parse_address(text) if text is not None else None

    def voters(self, text: str) -> tuple[Voter, ...]:
        """The controllers that were said."""
        voters = parse_voters(text)
        assert voters is not None, text
        return voters

    @property
    def settings(self) -> dict[str, str]:
        """What belongs into the config."""
        obeyed = fields(self.role)
        return {key: said.value for key, said in self.said.items() if key in obeyed}

    @property
    def json(self) -> bool:
        """Whether stdout is told in JSON."""
        return layout(self.ctx, "text", "json") == "json"

    def misused(self, message: str) -> click.UsageError:
        """What was typed cannot be."""
        return click.UsageError(message, self.ctx)


def gather(
    ctx: click.Context, role: Role, config: str | None, pairs: Sequence[str], flags: Mapping[str, str | None]
) -> Asked:
    """Everything that was said, by the file, the environment and the command line; or a UsageError."""
    try:
        file = of_file(_read(config, ctx), config) if config is not None else ()
        said = settle(role, of_flags(role, flags, pairs), of_environment(os.environ), file)
    except InvalidConfig as error:
        raise click.UsageError(str(error), ctx) from error
    asked = Asked(ctx, role, said)
    ready_file = asked.text("ready.file")
    if ready_file is not None and not os.path.isdir(os.path.dirname(os.path.abspath(ready_file))):
        raise asked.misused(f"--ready-file {ready_file}: there is no such directory")
    return asked


def _read(path: str, ctx: click.Context) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except IsADirectoryError as error:
        raise click.UsageError(f"-c {path} is a directory: it must name a file in TOML", ctx) from error
    except OSError as error:
        raise click.UsageError(f"-c {path} cannot be read: {error.strerror}", ctx) from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"-c {path} is not TOML: byte {error.start} is not UTF-8", ctx) from error
