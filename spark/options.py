"""The options of a load and of a save, checked once: Kafka's names and ours, any spelling of upper and lower case.

What it keeps true: an option that nobody reads is refused with the nearest name that somebody does; what contradicts
itself is refused with both names; nothing is connected before all of them are right.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from tidelog.client.config import addresses, client_config
from tidelog.protocol.compression import CODECS
from tidelog.protocol.errors import InvalidConfig, Unsupported
from tidelog.protocol.types import TopicPartition
from tidelog.spark.portal import Address

EARLIEST: Final = -2
LATEST: Final = -1
_MOST: Final = 2**63 - 1
"""The last offset, and the last time in ms, that can be asked for."""

Kind: TypeAlias = Literal["batch", "stream"]

_CLUSTER: Final = ("bootstrap.servers", "kafka.bootstrap.servers", "rack")
_READ: Final = (
    *_CLUSTER,
    "subscribe",
    "subscribePattern",
    "assign",
    "partitions",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "isolationLevel",
    "keyEquals",
    "lastRecords",
)
_ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_ONLY_STREAM: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitGroup",
)
_ONLY_WRITE: Final = ("topic", "compression")
_WRITE: Final = (*_CLUSTER, *_ONLY_WRITE)

_DELAYS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


@dataclass(frozen=True, slots=True)
class Where:
    """Where to begin or to end, in every partition or in each."""

    offset: int | None = None
    """EARLIEST or LATEST in all of them."""
    timestamp_ms: int | None = None
    """At the first record of that time or later in all of them."""
    offsets: Mapping[TopicPartition, int] | None = None
    times_ms: Mapping[TopicPartition, int] | None = None
    option: str = ""
    """Which option has said so."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a load was told."""

    address: Address
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    partitions: frozenset[int] | None = None
    start: Where = Where(EARLIEST)
    end: Where = Where(LATEST)
    when_too_late: Literal["error", "latest"] = "error"
    """What to do where no record is as late as the time at which to begin."""
    last_records: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    read_committed: bool = True
    key_equals: str | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None
    commit_group: str = ""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a save was told."""

    address: Address
    topic: str = ""
    """For all rows, whatever they name; empty: each names its own."""
    codec: int = 0


class _Given:
    """Options by their names in lower case, each read at most once."""

    def __init__(self, given: Mapping[str, Any], known: Iterable[str], elsewhere: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in given.items() if value is not None}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name in names or (name.startswith("kafka.") and name != "kafka.group.id"):
                continue
            if name in elsewhere:
                raise InvalidConfig(f"{elsewhere[name]}")
            raise InvalidConfig(f"option {name}: there is no such option; {_near(name, names)}")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise InvalidConfig(f"{name}={text!r}: it must be true or false")
        return text == "true"

    def number(self, name: str) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name)
        if not re.fullmatch(r"\d+", text) or int(text) < 1:
            raise InvalidConfig(f"{name}={text!r}: it must be a whole number of at least 1")
        return int(text)

    def time_ms(self, name: str) -> int:
        text = self.text(name)
        if not re.fullmatch(r"\d{1,19}", text) or int(text) > _MOST:
            raise InvalidConfig(f"{name}={text!r}: it must be a time in ms since 1970, such as 1700000000000")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name, default).lower()
        if text not in choices:
            raise InvalidConfig(f"{name}={text!r}: it must be one of {', '.join(choices)}")
        return text

    def one_of(self, *names: str) -> str:
        """The only one of these that is given."""
        given = [name for name in names if self.has(name)]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise InvalidConfig(f"give one of {', '.join(names)}; given: {said}")
        return given[0]

    def address(self) -> Address:
        bootstrap = self.text(self.one_of("bootstrap.servers", "kafka.bootstrap.servers"))
        config = sorted(
            (name.removeprefix("kafka."), value)
            for name, value in self._values.items()
            if name.startswith("kafka.") and name != "kafka.bootstrap.servers"
        )
        addresses(bootstrap)
        rack = self.text("rack")
        try:
            client_config(bootstrap, {"rack": rack} if rack else {}, dict(config))
        except (InvalidConfig, Unsupported) as error:
            raise type(error)(f"option kafka.{error}") from None
        return Address(bootstrap, rack, tuple(config))


def read_options(given: Mapping[str, Any], kind: Kind | None = None, *, table: bool = False) -> ReadOptions:
    """What a load was told; `kind` None: it is not known yet what it is for. Raises InvalidConfig.

    A table has options for writing as well, which a load passes over.
    """
    if table:
        given = {name: value for name, value in given.items() if name.lower() not in _ONLY_WRITE}
    only = {"batch": _ONLY_BATCH, "stream": _ONLY_STREAM, None: _ONLY_BATCH + _ONLY_STREAM}[kind]
    other = () if kind is None else _ONLY_STREAM if kind == "batch" else _ONLY_BATCH
    elsewhere = {name.lower(): f"option {name}: it is for {_OTHER[kind]} only" for name in other}
    elsewhere |= {name.lower(): f"option {name}: it is for writing only" for name in _ONLY_WRITE} | _NOT_HERE
    options = _Given(given, (*_READ, *only), elsewhere)
    which = options.one_of("subscribe", "subscribePattern", "assign")
    start, end = _start(options, kind), _end(options)
    last = options.number("lastRecords")
    if last is not None and start.option:
        raise InvalidConfig(f"give one of lastRecords, {start.option}; given: both")
    return ReadOptions(
        address=options.address(),
        subscribe=_names(options.text("subscribe")) if which == "subscribe" else (),
        pattern=_pattern(options.text("subscribePattern")) if which == "subscribePattern" else "",
        assign=_assigned(options.text("assign")) if which == "assign" else {},
        partitions=_numbers(options.text("partitions")) if options.has("partitions") else None,
        start=start,
        end=end,
        when_too_late="latest"
        if options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "latest"
        else "error",
        last_records=last,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        include_headers=options.flag("includeHeaders", default=False),
        read_committed=options.choice(
            "isolationLevel", ("read_committed", "read_uncommitted"), "read_committed"
        )
        == "read_committed",
        key_equals=options.text("keyEquals") if options.has("keyEquals") else None,
        max_offsets=options.number("maxOffsetsPerTrigger"),
        min_offsets=options.number("minOffsetsPerTrigger"),
        max_delay_ms=_delay_ms(options.text("maxTriggerDelay", "15m")),
        max_bytes=options.number("maxBytesPerTrigger"),
        commit_group=options.text("commitGroup"),
    )


def check_early(given: Mapping[str, Any], *, table: bool = False) -> None:
    """Refuse what no query can use, before it is known whether there will be a batch, a stream or rows to write.

    The rest may come with the query of a table, and a view without topics to read may be for writing. Raises InvalidConfig.
    """
    names = {name.lower() for name in given}
    if not table and names & {"subscribe", "subscribepattern", "assign"}:
        read_options(given)
    else:
        _Given(given, (*_READ, *_ONLY_BATCH, *_ONLY_STREAM, *_ONLY_WRITE), _NOT_HERE)


_NO_GROUP: Final = "nothing is read in a group; commitGroup names one that is told how far a stream has come"
_NOT_HERE: Final = {
    "path": "option path: topics have no path; subscribe names them",
    "kafka.group.id": f"option kafka.group.id: {_NO_GROUP}",
    "groupidprefix": f"option groupIdPrefix: {_NO_GROUP}",
}
"""What users of other sources, and of Kafka's, have the habit to give."""

_OTHER: Final[Mapping[Kind | None, str]] = {"batch": "streams", "stream": "batch reads", None: ""}


def includes_headers(given: Mapping[str, Any]) -> bool:
    """Whether a load has the column `headers` when no schema is given."""
    texts = {name.lower(): str(value).strip().lower() for name, value in given.items()}
    return texts.get("includeheaders") == "true"


def write_options(given: Mapping[str, Any], *, table: bool = False, overwrite: bool = False) -> WriteOptions:
    """What a save was told; a table is written to the topic that it reads. Raises InvalidConfig."""
    if overwrite:
        raise InvalidConfig('mode "overwrite": records are never overwritten; use mode("append")')
    if not table and any(name.lower() == "path" for name in given):
        raise InvalidConfig("option path: records go to a topic, which the option topic names")
    # Spark hands its own to the sink of a stream.
    ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
    topic = ""
    if table:
        reading = {name.lower() for name in (*_READ, *_ONLY_BATCH)} - {name.lower() for name in _WRITE}
        # By what it reads it may mean several topics; then each row names its own.
        text = {name.lower(): str(value) for name, value in ours.items()}.get("subscribe", "")
        read = _names(text) if text.strip() else ()
        topic = read[0] if len(read) == 1 else ""
        ours = {name: value for name, value in ours.items() if name.lower() not in reading}
    options = _Given(ours, _WRITE, {})
    codec = options.choice("compression", tuple(CODECS), "none")
    return WriteOptions(options.address(), options.text("topic", topic), CODECS[codec])


_SPARKS_OWN: Final = ("checkpointlocation", "queryname", "path")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────


def _near(name: str, names: Mapping[str, str]) -> str:
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    if found:
        return f"the nearest is {names[found[0]]}"
    return f"there are {', '.join(sorted(names.values()))}"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidConfig(f"subscribe={text!r}: it must name topics, with commas between them")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"subscribePattern={text!r}: {error}") from error
    return text


def _numbers(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise InvalidConfig(f"partitions={text!r}: it must be numbers of partitions, such as 0,2")
    return frozenset(map(int, parts))


def _delay_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)?", text)
    if match is None:
        raise InvalidConfig(f"maxTriggerDelay={text!r}: it must be a time such as 90s or 15m")
    return int(match[1]) * _DELAYS[match[2] or "ms"]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={text!r}: it is no JSON: {error}") from error


def _assigned(text: str) -> Mapping[str, tuple[int, ...]]:
    found = _json("assign", text)
    if isinstance(found, dict) and found:
        lists = list(found.values())
        if all(
            isinstance(each, list) and each and all(type(n) is int and n >= 0 for n in each) for each in lists
        ):
            return {topic: tuple(dict.fromkeys(each)) for topic, each in found.items()}
    raise InvalidConfig(f'assign={text!r}: it must be such as {{"orders": [0, 1]}}')


_WORDS: Final = {
    "startingOffsets": ("earliest, latest, or ", EARLIEST),
    "endingOffsets": ("latest, or ", LATEST),
}
"""What may be given for all partitions, and the least number for one."""


def _each(name: str, text: str, low: int) -> Mapping[TopicPartition, int]:
    """`{"orders": {"0": 23, "1": -2}}`."""
    # Of a word that is none, what it is to be is said, and not what JSON misses in it.
    found: Any = _json(name, text) if text.startswith("{") else None
    each: dict[TopicPartition, int] = {}
    fitting = isinstance(found, dict) and all(isinstance(by, dict) for by in found.values())
    for topic, by in found.items() if fitting else ():
        for number, value in by.items():
            fitting &= number.isdecimal() and type(value) is int and low <= value <= _MOST
            if fitting:
                each[TopicPartition(topic, int(number))] = value
    if not fitting or not each:
        words, least = _WORDS.get(name, ("", low))
        raise InvalidConfig(
            f'{name}={text!r}: it must be {words}such as {{"orders": {{"0": 23, "1": {least}}}}}'
        )
    return each


def _where(options: _Given, name: str, kind: str, default: int) -> Where:
    """By Kafka's precedence: a time for all, a time for each, offsets."""
    at_time, by_time = f"{kind}Timestamp", f"{kind}OffsetsByTimestamp"
    if options.has(at_time):
        return Where(timestamp_ms=options.time_ms(at_time), option=at_time)
    if options.has(by_time):
        return Where(times_ms=_each(by_time, options.text(by_time), 0), option=by_time)
    text = options.text(name)
    if not text:
        return Where(default)
    if text.lower() in ("earliest", "latest"):
        return Where(EARLIEST if text.lower() == "earliest" else LATEST, option=name)
    return Where(offsets=_each(name, text, EARLIEST), option=name)


def _start(options: _Given, kind: Kind | None) -> Where:
    # As with Kafka: a batch begins at what there is, a stream with what comes.
    where = _where(options, "startingOffsets", "starting", LATEST if kind == "stream" else EARLIEST)
    if kind == "batch" and where.offset == LATEST:
        raise InvalidConfig("startingOffsets=latest: nothing would be read; it is for streams only")
    return where


def _end(options: _Given) -> Where:
    where = _where(options, "endingOffsets", "ending", LATEST)
    if where.offset == EARLIEST or (where.offsets is not None and EARLIEST in where.offsets.values()):
        raise InvalidConfig("endingOffsets: earliest (-2) would read nothing; give latest (-1) or an offset")
    return where
