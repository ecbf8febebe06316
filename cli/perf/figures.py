"""What `tidelog perf` has measured, and how it is shown: to people, to programs, and as Kafka's own tools do.

What it keeps true: stdout has results, and for programs and in Kafka's layout also a line per interval; for people these are
talk and go to stderr. What was measured before an interrupt or a failure is shown like all else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import click

from tidelog.cli.objects import put
from tidelog.cli.perf.histogram import Histogram
from tidelog.cli.terminal import Table, Writer, many, size

ACKNOWLEDGED: Final = "acknowledged"
CONSUMED: Final = "consumed"

RATE_S: Final = 1.0
"""What took less is too short for a rate: it is how fast things begin."""
_MIB: Final = 1024 * 1024
_SHARES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class Span:
    """What happened in a stretch of time."""

    seconds: float
    records: int
    size: int
    """Bytes of keys and values."""
    latency: Histogram

    @property
    def records_per_s(self) -> float:
        """How many in a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """How many bytes of them."""
        return self.size / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Measured:
    """Everything after the warm-up."""

    verb: str
    topic: str
    records: int = 0
    size: int = 0
    seconds: float = 0.0
    failed: int = 0
    latencies: dict[str, Histogram] = field(default_factory=dict)
    """From the sending of a record until that."""
    first_ms: float | None = None
    """Until the first record was there; who only writes has none."""
    began_ms: int = 0
    """By the wall clock, since 1970."""
    why: str = ""
    """What ended it before its time."""
    interrupted: bool = False

    @property
    def all(self) -> Span:
        """The whole of it."""
        return Span(self.seconds, self.records, self.size, Histogram())


class Meter:
    """Counts what happens, and cuts it into intervals. Pure: it is told the time, in seconds."""

    def __init__(self, now_s: float) -> None:
        self.began_s = self._cut_s = now_s
        self.records = self.size = 0
        self._records = self._size = 0
        """At the last cut."""
        self._latency = Histogram()

    def latency(self, ms: float) -> None:
        """One more duration in this interval."""
        self._latency.add(ms)

    def cut(self, now_s: float) -> Span:
        """What has happened since the last time."""
        span = Span(now_s - self._cut_s, self.records - self._records, self.size - self._size, self._latency)
        self._cut_s, self._records, self._size, self._latency = now_s, self.records, self.size, Histogram()
        return span


class Show(Protocol):
    """How figures are shown."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """What has happened since the last one; `at_s`: so long after the beginning."""
        ...

    def all(self, measured: Measured) -> None:
        """The end."""
        ...


class Text:
    """For people."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """A line on stderr, which fits into 80 columns."""
        rate = f"{span.records_per_s:,.0f} records/s"
        line = f"{at_s:6.0f} s  {rate:>20}  {_rate(span):>11}"
        if span.latency.count:
            half, most = (_ms(span.latency.percentile_ms(share)) for share in (0.5, 0.99))
            line += f"   50 %: {half}  99 %: {most}"
        click.echo(line, err=True)

    def all(self, measured: Measured) -> None:
        """Two tables: how much, and how long."""
        writer, span = Writer(), measured.all
        first = measured.first_ms is not None
        table = Table(writer, (">RECORDS", ">SIZE", ">TIME", ">RECORDS/S", ">BYTES/S") + (">FIRST",) * first)
        cells = (
            f"{measured.records:,}",
            size(measured.size),
            f"{measured.seconds:.2f} s",
            f"{span.records_per_s:,.0f}",
            _rate(span),
        )
        table.row(*cells, *((_ms(measured.first_ms),) if measured.first_ms is not None else ()))
        table.end()
        if any(latency.count for latency in measured.latencies.values()):
            writer.line()
            table = Table(writer, ("UNTIL", ">MEAN", ">50 %", ">95 %", ">99 %", ">99.9 %", ">LONGEST"))
            for until, latency in measured.latencies.items():
                shares = (_percentile(latency, share) for share in _SHARES.values())
                table.row(until, _ms(latency.mean_ms), *shares, _ms(latency.longest_ms))
            table.end()
        writer.flush()
        if few := too_few(measured):
            click.echo(f"note: {few}: measure more records (-n)", err=True)
        if measured.failed:
            click.echo(f"{many(measured.failed, 'record')} not acknowledged", err=True)


class JsonLines:
    """For programs: a line per interval, then the whole, then a line per kind of latency."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """One of them."""
        self._put(
            "interval",
            verb=measured.verb,
            topic=measured.topic,
            at_s=round(at_s, 3),
            **_amounts(span),
            **_durations(span.latency),
        )

    def all(self, measured: Measured) -> None:
        """The whole."""
        of = {"verb": measured.verb, "topic": measured.topic}
        first = {} if measured.first_ms is None else {"first_record_ms": round(measured.first_ms, 3)}
        self._put(
            "perf",
            **of,
            **_amounts(measured.all),
            **first,
            failed=measured.failed,
            complete=not (measured.interrupted or measured.why),
        )
        for until, latency in measured.latencies.items():
            self._put("latency", **of, until=until, samples=latency.count, **_durations(latency))

    def _put(self, kind: str, **fields: object) -> None:
        writer = Writer()
        put(writer, kind, **fields)
        writer.flush()


class KafkaProducer:
    """As `kafka-producer-perf-test` prints it."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """A line per interval."""
        latency = span.latency
        _line(
            f"{_sent(span)}, {latency.mean_ms:.1f} ms avg latency, {latency.longest_ms:.1f} ms max latency."
        )

    def all(self, measured: Measured) -> None:
        """The last line."""
        latency = measured.latencies[ACKNOWLEDGED]
        at = [f"{latency.percentile_ms(share):.0f} ms" for share in _SHARES.values()]
        _line(
            f"{_sent(measured.all)}, {latency.mean_ms:.2f} ms avg latency, {latency.longest_ms:.2f} ms max latency, "
            f"{at[0]} 50th, {at[1]} 95th, {at[2]} 99th, {at[3]} 99.9th."
        )


class KafkaConsumer:
    """As `kafka-consumer-perf-test` prints it: a head, and a line of values."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """Nothing, as there."""

    def all(self, measured: Measured) -> None:
        """Both lines. Nothing is rebalanced here: all of the time is fetching."""
        span = measured.all
        began_ms, ended_ms = measured.began_ms, measured.began_ms + round(measured.seconds * 1000)
        mib, mib_per_s = span.size / _MIB, span.bytes_per_s / _MIB
        _line(
            "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
            "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
        )
        rates = f"{mib:.4f}, {mib_per_s:.4f}, {span.records}, {span.records_per_s:.4f}"
        fetching = f"0, {ended_ms - began_ms}, {mib_per_s:.4f}, {span.records_per_s:.4f}"
        _line(f"{_clock(began_ms)}, {_clock(ended_ms)}, {rates}, {fetching}")


class KafkaLatency:
    """As `kafka-e2e-latency` prints it."""

    def interval(self, measured: Measured, span: Span, at_s: float) -> None:
        """How many were measured, and what they took."""
        _line(f"{measured.records}\t{span.latency.mean_ms:.6f}")

    def all(self, measured: Measured) -> None:
        """From the sending until a consumer had it."""
        latency = measured.latencies[CONSUMED]
        half, most, nearly = (latency.percentile_ms(share) for share in (0.5, 0.99, 0.999))
        _line(f"Avg latency: {latency.mean_ms:.4f} ms")
        _line(f"Percentiles: 50th = {half:.0f}, 99th = {most:.0f}, 99.9th = {nearly:.0f}")


PRODUCER: Final[Mapping[str, Callable[[], Show]]] = {"text": Text, "json": JsonLines, "kafka": KafkaProducer}
CONSUMER: Final[Mapping[str, Callable[[], Show]]] = {"text": Text, "json": JsonLines, "kafka": KafkaConsumer}
LATENCY: Final[Mapping[str, Callable[[], Show]]] = {"text": Text, "json": JsonLines, "kafka": KafkaLatency}


def _amounts(span: Span) -> dict[str, object]:
    return {
        "seconds": round(span.seconds, 6),
        "records": span.records,
        "bytes": span.size,
        "records_per_second": round(span.records_per_s, 1),
        "bytes_per_second": round(span.bytes_per_s, 1),
    }


def _durations(latency: Histogram) -> dict[str, float | None]:
    """Null where nothing was measured: 0 would be a splendid figure."""
    found: dict[str, float | None] = {"mean_ms": latency.mean_ms}
    found |= {f"{name}_ms": latency.percentile_ms(share) for name, share in _SHARES.items()}
    found["longest_ms"] = latency.longest_ms
    return {name: round(ms, 3) if latency.count and ms is not None else None for name, ms in found.items()}


def _sent(span: Span) -> str:
    per_s = f"{span.records_per_s:.1f} records/sec ({span.bytes_per_s / _MIB:.2f} MB/sec)"
    return f"{span.records} records sent, {per_s}"


def _ms(ms: float) -> str:
    digits = 2 if ms < 10 else 1 if ms < 100 else 0
    return f"{ms:,.{digits}f} ms"


def _percentile(latency: Histogram, share: float) -> str:
    """`-` where there are too few to tell it."""
    return _ms(latency.percentile_ms(share)) if tells(latency.count, share) else "-"


def tells(samples: int, share: float) -> bool:
    """Whether so many samples have one above that share of them: else it is only the longest."""
    return round(samples * (1 - share), 6) >= 1


def too_few(measured: Measured) -> str:
    """What was measured too little to be a figure; empty: nothing."""
    told = []
    if measured.verb != "latency" and 0 < measured.seconds < RATE_S:
        told.append(f"{measured.seconds:.3f} s is too short for a rate")
    counts = [latency.count for latency in measured.latencies.values() if latency.count]
    if counts and not tells(min(counts), max(_SHARES.values())):
        told.append(f"{many(min(counts), 'record')} timed, too few for every percentile")
    return ", ".join(told)


def _rate(span: Span) -> str:
    return f"{size(round(span.bytes_per_s))}/s"


def _clock(timestamp_ms: int) -> str:
    """`2026-01-31 12:00:00:123`, in the zone of the machine, as Kafka's tool has it."""
    at = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return at.strftime("%Y-%m-%d %H:%M:%S:") + f"{at.microsecond // 1000:03d}"


def _line(text: str) -> None:
    writer = Writer()
    writer.line(text)
    writer.flush()
