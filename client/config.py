"""What a client, a producer or a consumer may be told, by Kafka's names; checked once, before anything is connected.

    connect("h1:9092,h2:9092", rack="a", request_timeout_ms=5000)      snake_case, as keyword
    connect("h1:9092", config={"request.timeout.ms": "5000"})           Kafka's own, dotted

What it keeps true: both spellings mean the same field of one frozen dataclass; whatever is not known is refused with
the nearest name that is, what is known and not there yet as `Unsupported`. Nothing is accepted and ignored.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, Union

from tidelog.protocol.errors import InvalidConfig, Unsupported
from tidelog.protocol.hosts import is_host

DEFAULT_PORT: Final = 9092

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "tls": "connections are not encrypted yet",
    "ssl": "connections are not encrypted yet",
    "auth": "nobody proves who they are yet",
    "sasl": "nobody proves who they are yet",
    "security": "connections are neither encrypted nor authenticated yet",
    "transactional": "there are no transactions yet",
    "transaction": "there are no transactions yet",
}
"""Options that begin with these words are known and not there yet."""


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(bootstrap: str | Iterable[str]) -> tuple[Address, ...]:
    """`h1:9092,h2` or a list of such, each address once and in order; InvalidConfig says which is none."""
    given: object = bootstrap  # whatever the types say
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InvalidConfig(f"bootstrap: {bootstrap!r} is no HOST:PORT")
    pieces = bootstrap.split(",") if isinstance(bootstrap, str) else [str(piece) for piece in bootstrap]
    found = tuple(dict.fromkeys(_address(piece.strip()) for piece in pieces if piece.strip()))
    if not found:
        raise InvalidConfig("bootstrap: at least one HOST:PORT must be named")
    return found


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if text.startswith("["):  # [::1]:9092, and [::1] alone
        host, colon, port = (text, "", "") if text.endswith("]") else (host, colon, port)
        host = host.removeprefix("[").removesuffix("]")
    elif not colon or ":" in host:
        host, colon, port = text, "", ""
    number = int(port) if port.isdecimal() and len(port) < 6 else -1
    if not colon:
        number = DEFAULT_PORT
    if not is_host(host) or not 0 < number < 2**16 or any(c.isspace() or c == "/" for c in host):
        raise InvalidConfig(f"bootstrap: {text!r} is no HOST:PORT")
    return Address(host, number)


def option(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[Any] = (),
    also: Iterable[str] = (),
) -> Any:
    """A field of a config: its bounds or its choices, and Kafka's names for it beside its own with dots."""
    metadata = {
        "low": low,
        "high": high,
        "choices": tuple(choices),
        "also": tuple(name.replace(".", "_") for name in also),
    }
    return dataclasses.field(default=default, metadata=metadata)


_Config = typing.TypeVar("_Config")


def from_options(
    cls: type[_Config], options: Mapping[str, Any], config: Mapping[str, Any] | None = None, **fixed: Any
) -> _Config:
    """The config that these options make; `fixed` are fields that are no options.

    Raises InvalidConfig for what is unknown, given twice or out of bounds, Unsupported for what is not there yet.
    """
    names = _names(cls)
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for given, value in [*options.items(), *(config or {}).items()]:
        name = given.strip().replace(".", "_")
        field = names.get(name)
        if field is None and value is None and name.partition("_")[0] in _UNSUPPORTED:
            continue
        if field is None or field.name in fixed:
            raise _unknown(given, value, [known for known, one in names.items() if one.name not in fixed])
        if field.name in values:
            raise InvalidConfig(f"{given}: {field.name} is given twice")
        values[field.name] = _checked(given, value, hints[field.name], field.metadata)
    return cls(**values, **fixed)


def refuse_unsupported(**options: object) -> None:
    """Raise Unsupported for the first of these that is not None."""
    for name, value in options.items():
        if value is not None:
            raise _unknown(name, value, ())


def _names(cls: Any) -> dict[str, "dataclasses.Field[Any]"]:
    found = {}
    for field in dataclasses.fields(cls):
        for name in (field.name, *field.metadata.get("also", ())):
            found[name] = field
    return found


def _unknown(given: str, value: object, known: Iterable[str]) -> InvalidConfig | Unsupported:
    why = _UNSUPPORTED.get(given.replace(".", "_").partition("_")[0])
    if why is not None and value is not None:
        return Unsupported(f"{given}: {why}; leave it out")
    from difflib import get_close_matches  # noqa: PLC0415 -- whoever makes no mistake must not pay for it

    near = get_close_matches(given.replace(".", "_").lower(), list(known), n=1, cutoff=0.5)
    if not near:
        return InvalidConfig(f"{given}: there is no such option; there are {', '.join(sorted(known))}")
    dotted = near[0].replace("_", ".") if "." in given else near[0]
    return InvalidConfig(f"{given}: there is no such option; the nearest is {dotted}")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────


def _checked(name: str, value: Any, hint: Any, rules: Mapping[str, Any]) -> Any:
    """The value as its field has it, texts of numbers and flags included."""
    choices = rules.get("choices") or _literals(hint)
    if choices:
        return _chosen(name, value, choices)
    taken = _typed(value, hint)
    if taken is _WRONG:
        raise InvalidConfig(f"{name}={value!r}: it must be {_words(hint, rules)}")
    low, high = rules.get("low"), rules.get("high")
    if isinstance(taken, int | float) and not isinstance(taken, bool):
        too_low, too_high = low is not None and taken < low, high is not None and taken > high
        if too_low or too_high:
            raise InvalidConfig(f"{name}={value}: it must be {_words(hint, rules)}")
    return taken


_WRONG: Final = object()
_FLAGS: Final = {"true": True, "false": False}


def _kinds(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _literals(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def _chosen(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        same_kind = type(choice) is type(value) and choice == value
        if same_kind or (isinstance(value, str) and value.strip().lower() == str(choice).lower()):
            return choice
    raise InvalidConfig(f"{name}={value!r}: it must be one of {', '.join(map(str, choices))}")


def _typed(value: Any, hint: Any) -> Any:
    """The value as one of the field's types; `_WRONG` when it is none of them. What we do not know we leave alone."""
    kinds = _kinds(hint)
    if value is None:
        return None if type(None) in kinds else _WRONG
    known = [kind for kind in kinds if kind in (bool, int, float, str)]
    if len(known) < len([kind for kind in kinds if kind is not type(None)]):
        return value
    for kind in known:
        taken = _as(kind, value)
        if taken is not _WRONG:
            return taken
    return _WRONG


def _as(kind: type, value: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else _FLAGS.get(str(value).strip().lower(), _WRONG)
    if isinstance(value, bool):
        return _WRONG
    if kind is str:
        return value if isinstance(value, str) else _WRONG
    if isinstance(value, kind) or (kind is float and isinstance(value, int)):
        return value
    if isinstance(value, str):
        try:
            return kind(value.strip())
        except ValueError:
            return _WRONG
    return _WRONG


def _words(hint: Any, rules: Mapping[str, Any]) -> str:
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        type(None): "None",
    }
    text = " or ".join(words.get(kind, str(kind)) for kind in _kinds(hint))
    low, high = rules.get("low"), rules.get("high")
    if low is not None and high is not None:
        return f"{text} from {low} to {high}"
    return f"{text} of at least {low}" if low is not None else text


# ── the client's own ──────────────────────────────────────────────────────────────────────────────────

_I31: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One client's settings; its producers and consumers have further ones."""

    bootstrap: tuple[Address, ...]
    """Where to begin: brokers of the cluster, tried in this order."""
    client_id: str = option("tidelog")
    """What brokers call it in their logs."""
    rack: str = option("", also=("client.rack",))
    """Where it stands: consumers read from a replica that stands there, if there is one."""
    connect_timeout_ms: int = option(10_000, low=1, high=_I31, also=("socket.connection.setup.timeout.ms",))
    """How long a connection may take to be made, and `start` in all."""
    request_timeout_ms: int = option(30_000, low=1, high=_I31)
    """How long an answer may take."""
    metadata_max_age_ms: int = option(300_000, low=1, high=_I31)
    """After how long the cluster is looked at again, though nothing has failed."""
    retry_backoff_ms: int = option(50, low=1, high=_I31)
    """How long at most the first wait before another attempt is; each further one may be twice as long."""
    retry_backoff_max_ms: int = option(1000, low=1, high=_I31)
    """The longest of these waits."""

    def __post_init__(self) -> None:
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            raise InvalidConfig(
                f"retry.backoff.ms={self.retry_backoff_ms}: it must not be above "
                f"retry.backoff.max.ms={self.retry_backoff_max_ms}"
            )


def client_config(
    bootstrap: str | Iterable[str], options: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> ClientConfig:
    """What `connect` was told. `connect_timeout=` is taken too, in seconds as all time-outs of methods."""
    taken = dict(options)
    if "connect_timeout" in taken:
        seconds = taken.pop("connect_timeout")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
            raise InvalidConfig(f"connect_timeout={seconds!r}: it must be a number of seconds above 0")
        if "connect_timeout_ms" in taken:
            raise InvalidConfig("connect_timeout: connect_timeout_ms is given twice")
        taken["connect_timeout_ms"] = max(round(seconds * 1000), 1)
    return from_options(ClientConfig, taken, config, bootstrap=addresses(bootstrap))
