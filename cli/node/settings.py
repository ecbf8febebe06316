"""What a node is told when it starts: a file, the environment and flags, made into one value per setting (DECISIONS 22).

    flags and -X   over   TIDELOG_<KEY>   over   the file of -c

What it keeps true:

* Nothing is ignored: a name that this kind of node does not obey is refused, with the place where it was said.
* A source says a setting once. Two spellings of one name in one source are refused, whatever they say.
* Values are what `protocol.settings` accepts for them; where a node stands (`PLACES`) is checked alike.

Functions over texts: whoever calls reads the file and the environment.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.cli.options import BOOTSTRAP_VARIABLE, Address
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.hosts import is_host
from tidelog.protocol.settings import SETTINGS, Kind, canonical_key, one_of, whole
from tidelog.storage.identity import Role

PREFIX: Final = "TIDELOG_"
_LISTENER_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*")


def fields(role: Role) -> Mapping[str, tuple[str, ...]]:
    """The settings that a node of this role obeys from its start on. Only one of the roles is imported, as a rule."""
    if role == "broker":
        from tidelog.broker.config import FIELDS as BROKER  # noqa: PLC0415

        return BROKER
    from tidelog.controller.config import FIELDS as CONTROLLER  # noqa: PLC0415

    return CONTROLLER


class Voter(NamedTuple):
    """A controller, and where it is."""

    id: int
    host: str
    port: int


def parse_address(text: str) -> Address | None:
    """`HOST:PORT`, with brackets around an IPv6 host; None: it is none."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not (colon and is_host(host) and port.isdecimal() and int(port) < 1 << 16) or (
        ":" in host and not bracketed
    ):
        return None
    return Address(host, int(port))


class NamedAddress(NamedTuple):
    """A listener's address; the name is empty where none is said."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}" if self.name else str(self.address)


def parse_listeners(text: str) -> tuple[NamedAddress, ...] | None:
    """`HOST:PORT,name://HOST:PORT`, as Kafka has it: each name once, and only the first may have none. None: it is not that."""
    listeners: list[NamedAddress] = []
    for word in text.split(","):
        name, slashes, where = word.strip().rpartition("://")
        address = parse_address(where)
        unnamed = not (slashes or listeners)
        if address is None or not (unnamed or _LISTENER_NAME.fullmatch(name.lower())):
            return None
        listeners.append(NamedAddress(name.lower(), address))
    return tuple(listeners) if len({listener.name for listener in listeners}) == len(listeners) else None


def parse_voters(text: str) -> tuple[Voter, ...] | None:
    """`1@HOST:PORT,2@HOST:PORT`, each id once; None: it is not that."""
    voters = []
    for word in text.split(","):
        number, at, where = word.strip().partition("@")
        address = parse_address(where)
        if not (at and number.isdecimal() and int(number) < 1 << 31 and address):
            return None
        voters.append(Voter(int(number), *address))
    return tuple(voters) if len({voter.id for voter in voters}) == len(voters) else None


def _canonical_address(text: str) -> str | None:
    address = parse_address(text)
    return str(address) if address else None


def _canonical_listeners(text: str) -> str | None:
    listeners = parse_listeners(text)
    return ",".join(str(listener) for listener in listeners) if listeners else None


def _canonical_paths(text: str) -> str | None:
    paths = [path.strip() for path in text.split(",")]
    return ",".join(paths) if all(paths) and len({*paths}) == len(paths) else None


def _canonical_voters(text: str) -> str | None:
    voters = parse_voters(text)
    return ",".join(f"{v.id}@{Address(v.host, v.port)}" for v in voters) if voters else None


ADDRESS: Final = Kind("HOST:PORT, as 127.0.0.1:9092; port 0 takes a free one", _canonical_address)
LISTENERS: Final = Kind(
    "HOST:PORT, as 127.0.0.1:9092, port 0 takes a free one; more of them behind commas as NAME://HOST:PORT, each name once",
    _canonical_listeners,
)
VOTERS: Final = Kind("ID@HOST:PORT,..., each id once, as 1@127.0.0.1:9192", _canonical_voters)
PATHS: Final = Kind("a directory, or several different ones with commas between them", _canonical_paths)
TEXT: Final = Kind("some text", lambda text: text or None)
RACK: Final = Kind("some text", lambda text: text)


class Place(NamedTuple):
    """Something about the process itself: where it stands, who it is, how it talks."""

    flags: Mapping[Role, str]
    kind: Kind
    for_brokers: Kind | None = None
    """What a broker may be told instead."""

    def kind_for(self, role: Role) -> Kind:
        """What a node of this role may be told."""
        return self.for_brokers if role == "broker" and self.for_brokers is not None else self.kind


def _both(flag: str) -> Mapping[Role, str]:
    return {"broker": flag, "controller": flag}


PLACES: Final[Mapping[str, Place]] = {
    "node.id": Place(_both("--id"), whole(0, 2**31 - 1)),
    "listeners": Place(_both("--listen"), ADDRESS, for_brokers=LISTENERS),
    "advertised.listeners": Place({"broker": "--advertise"}, LISTENERS),
    "controller.quorum.voters": Place({"broker": "--controllers", "controller": "--quorum"}, VOTERS),
    "log.dir": Place(_both("--data"), TEXT, for_brokers=PATHS),
    "log.dirs": Place({"broker": "--data"}, PATHS),
    "broker.rack": Place({"broker": "--rack"}, RACK),
    "http.listener": Place(_both("--http"), ADDRESS),
    "ready.file": Place(_both("--ready-file"), TEXT),
    "logging.format": Place(_both("--log-format"), one_of("auto", "pretty", "json")),
    "logging.level": Place(_both("--log-level"), one_of("debug", "info", "warning", "error")),
}


ALSO_CALLED: Final[Mapping[str, str]] = {"log.dirs": "log.dir"}
"""Kafka has two names for some things; here they are one."""


@dataclass(frozen=True, slots=True)
class Said:
    """A value, and where it was said."""

    value: str
    where: str


class Entry(NamedTuple):
    """One line of a source: the name as it is written there, the value, and where that is."""

    written: str
    value: str
    where: str


def settle(role: Role, *sources: Iterable[Entry]) -> dict[str, Said]:
    """One value for each setting that is said; of several sources the first wins. InvalidConfig says what cannot be."""
    settled: dict[str, Said] = {}
    for source in sources:
        found: dict[str, Entry] = {}
        for entry in source:
            key = canonical_key(entry.written)
            value = _checked(role, key, entry)
            key = ALSO_CALLED.get(key, key)
            if key in found:
                raise InvalidConfig(_twice(key, found[key], entry))
            found[key] = entry
            settled.setdefault(key, Said(value, entry.where))
    return settled


def _twice(key: str, first: Entry, second: Entry) -> str:
    if first.where == second.where:
        return f"{first.where}: {first.written} and {second.written} are both {key}: say it once"
    return f"{first.where} and {second.where} both say {key}: say it once"


def _checked(role: Role, key: str, entry: Entry) -> str:
    place = PLACES.get(key)
    if place is not None and role in place.flags:
        kind = place.kind_for(role)
    elif key in fields(role):
        kind = SETTINGS[key].kind
    else:
        raise InvalidConfig(f"{entry.where}: {entry.written}: {_why_not(role, key)}")
    value = kind.canonical(entry.value.strip())
    if value is None:
        raise InvalidConfig(f"{entry.where}: {key}={entry.value}: it must be {kind.accepted}")
    return value


def _why_not(role: Role, key: str) -> str:
    """Why a node of this role does not take it, and what to do instead."""
    other: Role = "controller" if role == "broker" else "broker"
    if key in fields(other) or (key in PLACES and other in PLACES[key].flags):
        return f"this is for a {other}, and a {role} would not obey it"
    setting = SETTINGS.get(key)
    if setting is not None and setting.dynamic:
        return (
            f"a {role} does not take it at its start: set it while the cluster runs, with "
            f"`tidelog config set {setting.of}`"
        )
    if setting is not None:
        return f"a {role} does not take it at its start: leave it out"
    import difflib  # noqa: PLC0415 -- most nodes are told what they know

    known = [*fields(role), *(name for name, place in PLACES.items() if role in place.flags)]
    near = difflib.get_close_matches(key.lower(), known, n=1) or difflib.get_close_matches(
        key.lower(), SETTINGS, n=1
    )
    return f"there is no such setting; the nearest is {(near or difflib.get_close_matches(key, known, n=1, cutoff=0))[0]}"


# ── the sources ───────────────────────────────────────────────────────────────────────────────────────


def of_file(text: str, name: str) -> Iterator[Entry]:
    """What a file in TOML says: tables within tables are names with dots."""
    import tomllib  # noqa: PLC0415 -- most nodes are told on the command line

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{name} is not TOML: {error}") from error
    yield from _flattened(table, "", name)


def _flattened(table: Mapping[str, Any], above: str, name: str) -> Iterator[Entry]:
    for key, value in table.items():
        written = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flattened(value, f"{written}.", name)
            continue
        texts = [_text(each) for each in (value if isinstance(value, list) else [value])]
        if None in texts:
            raise InvalidConfig(
                f"{name}: {written}: it must be a text, a number, true or false, or a list of them"
            )
        yield Entry(written, ",".join(filter(None, texts)), name)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def of_environment(environment: Mapping[str, str]) -> Iterator[Entry]:
    """What variables say: TIDELOG_BROKER_RACK is broker.rack. The command line's own are not settings."""
    for variable, value in sorted(environment.items()):
        if variable.startswith(PREFIX) and variable != BOOTSTRAP_VARIABLE:
            yield Entry(variable.removeprefix(PREFIX).lower(), value, variable)


def of_flags(role: Role, flags: Mapping[str, str | None], pairs: Sequence[str]) -> Iterator[Entry]:
    """What the command line says: its own flags, by the names of their settings, and `-X key=value`."""
    for key, value in flags.items():
        if value is not None:
            yield Entry(key, value, PLACES[key].flags[role])
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.strip()):
            raise InvalidConfig(f"-X {pair}: it must be key=value, as -X segment.bytes=1048576")
        yield Entry(key.strip(), value, f"-X {key.strip()}")
