"""The root of the `tidelog` command: `tidelog NOUN VERB`.

Nouns are imported when they are used, never to show help: the table below knows their help lines.
Whatever ends a command ends here, in one line on stderr and one of these exit codes:

    0  done                        2  used wrongly (click's UsageError)
    1  refused or failed           130, 143, 129  interrupted: Ctrl-C, SIGTERM, SIGHUP

A noun may return or `ctx.exit` another code (3: unhealthy, or a time-out). Anything else that is raised is a
bug of ours and keeps its traceback.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem, get_completion_class

from tidelog import __version__
from tidelog.cli.options import ENDED_BY, Verb, connection_options, output_option, refuse_settings

FAILED: Final = 1
INTERRUPTED: Final = 130
_PLAIN: Final = {"a valid integer range": "a whole number", "a valid float range": "a number"}
"""What click calls its types, and what they are."""
COMPLETE: Final = "_TIDELOG_COMPLETE"
"""The variable by which a shell asks for words."""


class Noun(NamedTuple):
    """Where a noun's commands live, and what `tidelog --help` says of it."""

    module: str
    attribute: str
    help: str


NOUNS: Final[Mapping[str, Noun]] = {
    "broker": Noun("tidelog.cli.broker", "broker", "Run brokers, and look at them."),
    "cluster": Noun("tidelog.cli.cluster", "cluster", "Look at a cluster as a whole."),
    "config": Noun("tidelog.cli.config", "config", "Look at settings, and change them."),
    "consume": Noun("tidelog.cli.consume", "consume", "Read records of a topic."),
    "controller": Noun("tidelog.cli.controller", "controller", "Run controllers."),
    "down": Noun("tidelog.cli.local.down", "down", "Stop the local cluster that `up` has started."),
    "group": Noun("tidelog.cli.group", "group", "Look at groups, set where they go on, forget them."),
    "log": Noun("tidelog.cli.log", "log", "Look into a log on disk; needs no broker."),
    "partition": Noun("tidelog.cli.partition", "partition", "Look at partitions, move them, elect leaders."),
    "produce": Noun("tidelog.cli.produce", "produce", "Write lines to a topic."),
    "topic": Noun("tidelog.cli.topic", "topic", "Create topics, look at them, change them."),
    "perf": Noun("tidelog.cli.perf", "perf", "Measure what a cluster does."),
    "up": Noun("tidelog.cli.local.up", "up", "Run a local cluster of real processes."),
}


class LazyGroup(click.Group):
    """A group whose nouns are modules that nobody imports until one of them is used."""

    def __init__(self, *args: Any, nouns: Mapping[str, Noun], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nouns = nouns

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all nouns and commands, sorted."""
        return sorted({*self.nouns, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; this is where a noun is imported."""
        noun = self.nouns.get(cmd_name)
        if noun is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = getattr(import_module(noun.module), noun.attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(f"`{cmd_name}` is not installed here: {error}") from error
        assert isinstance(command, click.Command), f"{noun.module}.{noun.attribute} is no command"
        return command

    def help_lines(self) -> list[tuple[str, str]]:
        """Name and help line of every noun and command, in the order of their names."""
        lines = {name: noun.help for name, noun in self.nouns.items()}
        lines |= {name: command.get_short_help_str(limit=80) for name, command in self.commands.items()}
        return sorted(lines.items())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of nouns without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self.help_lines())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem[Any]"]:
        """Complete a noun's name without importing it."""
        # The annotation is quoted because CompletionItem became generic only after click 8.2.
        names = [
            CompletionItem(name, help=text) for name, text in self.help_lines() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, nouns=NOUNS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidelog", message="%(prog)s %(version)s")
@connection_options
@output_option
@click.pass_context
def tidelog(ctx: click.Context) -> None:
    """A replicated commit log for Python, small enough to read."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    refuse_settings(ctx, ("completion", "controller", "down", "log", "up"))


@tidelog.command(
    cls=Verb,
    examples=(
        'eval "$(tidelog completion bash)"                     # in ~/.bashrc',
        'eval "$(tidelog completion zsh)"                      # in ~/.zshrc, behind compinit',
        "tidelog completion fish > ~/.config/fish/completions/tidelog.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes tidelog's words in a shell.

    Nouns, verbs and options are completed; names of topics and groups as well, if the cluster answers at once.
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(tidelog, {}, "tidelog", COMPLETE).source())


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command line and say how it ended, as an exit code."""
    try:
        result = command.main(args, prog_name="tidelog", standalone_mode=False)
    except click.UsageError as error:
        return _misused(error)
    except click.ClickException as error:
        return _failed(error.format_message(), error.exit_code)
    except click.Abort as error:
        return _aborted(error)
    except SystemExit:
        # Beside the end of a completion, this is how click ends where nobody reads its help any more: no failure.
        if COMPLETE in os.environ:
            raise
        _drop_stdout()
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        # Imported here because a help page must not pay for it.
        from tidelog.protocol.errors import TidelogError  # noqa: PLC0415

        if not isinstance(error, TidelogError):
            raise
        return _failed(str(error))
    else:
        return result if isinstance(result, int) else 0
    return 0


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The console script: run the command line of this process and exit."""
    if sys.stdout is None:
        # Closed by who started it (`>&-`): nobody reads what is said, and no socket may take its number.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- as long as the process
    code = run(tidelog, args)
    _let_go_of_stdout(code)
    sys.exit(code)


def _let_go_of_stdout(code: int) -> None:
    """Write what is left, unless there is nobody to read it: Python would wait for them, or complain, at its end."""
    try:
        if code < ENDED_BY:
            sys.stdout.flush()
            return
    except OSError:
        pass
    _drop_stdout()


def _drop_stdout() -> None:
    from tidelog.cli.terminal import drop_stdout  # noqa: PLC0415 -- help must not pay for it

    drop_stdout()


def _misused(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
    return _failed(_in_plain_words(error) + _nearest(error) + where, error.exit_code)


def _in_plain_words(error: click.UsageError) -> str:
    """What click says, without the names of its types and its own guesses."""
    if isinstance(error, click.NoSuchOption):
        return f"No such option '{error.option_name}'"
    said = error.format_message().rstrip(".?")
    for kind, plain in _PLAIN.items():
        said = said.removesuffix(kind) + plain * said.endswith(kind)
    return said


def _nearest(error: click.UsageError) -> str:
    """What was probably meant, where a noun, a verb, an option or its place was missed."""
    ctx = error.ctx
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        from difflib import get_close_matches  # noqa: PLC0415 -- as below

        options = get_close_matches(error.option_name, error.possibilities, n=1, cutoff=0)
        return f"; the nearest is {options[0]}"
    if ctx is None or not isinstance(ctx.command, click.Group):
        return ""
    if isinstance(error, click.NoSuchOption):
        everywhere = any(error.option_name in option.opts for option in ctx.find_root().command.params)
        noun = ctx.info_name
        return f" here: say it in front of `{noun}`, or behind the verb" if everywhere else ""
    missed = re.match(r"No such command '(.*)'", error.format_message())
    if missed is None:
        return ""
    # Imported here because whoever makes no mistake must not pay for it.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(missed[1], ctx.command.list_commands(ctx), n=1, cutoff=0.5)
    return f"; the nearest is {near[0]}" if near else ""


def _aborted(error: click.Abort) -> int:
    # click turns both Ctrl-C and a refused question into Abort; only the first carries an interrupt.
    if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
        return INTERRUPTED
    return _failed("nothing was done")


def _failed(message: str, code: int = FAILED) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code
