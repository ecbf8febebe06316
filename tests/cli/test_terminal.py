"""What people read: sizes, times, bytes as text, columns; and colours only where they are wanted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.terminal import Table, Writer, many, period, printable, quoted, size, time


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1 << 20, "1.0 MB"),
        ((1 << 20) - 1, "1.0 MB"),
        (1 << 30, "1.0 GB"),
    ],
)
def test_sizes_have_a_unit(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (-1, "-"),
        (0, "1970-01-01 00:00:00.000"),
        (1_700_000_000_123, "2023-11-14 22:13:20.123"),
        (2**62, f"{2**62} ms"),
    ],
)
def test_times_are_utc_and_none_is_a_dash(at: int, shown: str) -> None:
    assert time(at) == shown


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_time_can_be_shown(at: int) -> None:
    assert time(at)
    assert period(at, at)


def test_a_period_names_its_day_once() -> None:
    assert period(0, 3_600_000) == "1970-01-01 00:00:00-01:00:00"
    assert period(0, 86_400_000) == "1970-01-01 00:00:00-1970-01-02 00:00:00"
    assert period(0, 1000, on="1970-01-01") == "00:00:00-00:00:01"


def test_numbers_and_nouns_agree() -> None:
    assert (many(1, "batch", "batches"), many(2048, "batch", "batches")) == ("1 batch", "2,048 batches")


@given(st.binary(max_size=40))
def test_no_bytes_can_command_a_terminal(data: bytes) -> None:
    assert printable(data).isprintable()
    assert quoted(data).isprintable()


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_different_bytes_look_different_in_quotes(one: bytes, other: bytes) -> None:
    assert (quoted(one) == quoted(other)) == (one == other)


def test_nothing_is_told_from_empty() -> None:
    assert (quoted(None), quoted(b""), quoted(b"null")) == ("null", "''", "'null'")


def test_later_rows_do_not_wait_for_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    table = Table(writer, (">N", "TEXT"))
    for number in range(300):
        table.row(str(number), "x")
    writer.flush()
    assert len(capsys.readouterr().out.splitlines()) == 301
    table.row("1234567", "wider than what has been seen")
    table.end()
    writer.flush()
    assert capsys.readouterr().out == "1234567  wider than what has been seen\n"


WITHOUT_READER = """
import os
from tidelog.cli.terminal import ended_with_its_reader
def other():
    reads, writes = os.pipe()
    os.close(reads)
    os.write(writes, b"x")
with ended_with_its_reader():
    {}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "gone", "code", "said"),
    [
        ("print('x')", True, 128 + signal.SIGPIPE, ""),
        ("print('x', flush=True)", True, 128 + signal.SIGPIPE, ""),
        ("print('x' * 10_000_000)", True, 128 + signal.SIGPIPE, ""),
        ("print('x'); raise SystemExit(2)", True, 128 + signal.SIGPIPE, ""),
        ("raise SystemExit(2)", True, 2, ""),
        ("raise SystemExit(2)", False, 2, ""),
        ("other()", False, 1, "BrokenPipeError"),
        ("print('x'); raise RuntimeError('real')", True, 1, "RuntimeError: real"),
    ],
)
def test_a_program_ends_in_silence_with_who_reads_it_and_not_with_another_pipe(
    line: str, gone: bool, code: int, said: str
) -> None:
    words = [sys.executable, "-c", WITHOUT_READER.format(line)]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        words, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        if gone:
            program.stdout.close()
        err = program.stderr.read()
    assert program.returncode == code
    assert said in err if said else not err


PROGRAM = """
import os, pty, sys
def read(fd):
    return os.read(fd, 65536)
sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "tidelog", "log", "dump", sys.argv[1]], read)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_and_no_color_is_respected(
    tmp_path: Path, environment: dict[str, str], coloured: bool
) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.touch()
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env={"TERM": "xterm", **environment},
    )
    assert b": segment, 0 B" in ran.stdout
    assert (b"\x1b[" in ran.stdout) == coloured
