"""Everything that was said about a node that is to start, from all places, and what is missing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from tidelog.cli.node.settings import (
    PLACES,
    NamedAddress,
    Said,
    Voter,
    fields,
    of_environment,
    of_file,
    of_flags,
    parse_address,
    parse_listeners,
    parse_voters,
    settle,
)
from tidelog.cli.options import Address, layout
from tidelog.protocol.errors import InvalidConfig
from tidelog.storage.identity import Role


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

    def listeners(self, key: str, default: str = "") -> tuple[NamedAddress, ...]:
        """The addresses that were said, with their names."""
        text = self.text(key, default)
        return parse_listeners(text) or () if text else ()

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
    if ready_file is not None:
        home = os.path.dirname(os.path.abspath(ready_file))
        if not os.path.isdir(home):
            raise asked.misused(f"--ready-file {ready_file}: there is no such directory")
        if os.path.isdir(ready_file) or not os.access(home, os.W_OK):
            raise asked.misused(f"--ready-file {ready_file}: it cannot be written")
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
