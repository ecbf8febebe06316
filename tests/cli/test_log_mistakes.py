"""What a newcomer types wrong, each answered in one line that says what to type instead; and who reads along."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Tidelog
from tests.cli.real_directory import RealNode, contents
from tidelog.cli.read_only import ReadOnlyDirectory, ReadOnlyFile
from tidelog.protocol.records import encode

NAME = "00000000000000000000.log"


def refused(tidelog: Tidelog, *words: str | Path) -> str:
    """The line that a wrong command line is answered with."""
    ran = tidelog("log", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    return ran.err


def test_a_missing_file_is_named_and_what_is_there_instead(orders: Path, tidelog: Tidelog) -> None:
    err = refused(tidelog, "dump", orders / f"{7:020}.log")
    assert f"{7:020}.log does not exist: `tidelog log segments {orders}` shows what does" in err
    assert "nowhere.log does not exist: check the path" in refused(tidelog, "dump", "/no/such/nowhere.log")


def test_a_directory_is_not_dumped(orders: Path, tidelog: Tidelog) -> None:
    assert f"is a directory: `tidelog log segments {orders}` lists it" in refused(tidelog, "dump", orders)


@pytest.mark.parametrize("verb", ["segments", "checkpoints"])
def test_a_file_is_not_listed(first: Path, tidelog: Tidelog, verb: str) -> None:
    assert f"is a file: `tidelog log dump {first}` shows it" in refused(tidelog, verb, first)


@pytest.mark.parametrize("verb", ["segments", "checkpoints"])
def test_a_directory_of_something_else_is_said_to_be_that(
    tmp_path: Path, tidelog: Tidelog, verb: str
) -> None:
    (tmp_path / "photo.jpg").touch()
    assert "it holds photo.jpg, and no meta.properties" in refused(tidelog, verb, tmp_path)
    assert "does not exist" in refused(tidelog, verb, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["server.log", "notes.txt", "0.log", "12345678901234567890.idx", f"{0:020}.log.old"]
)
def test_an_unknown_kind_of_file_is_refused_before_anything_is_printed(
    first: Path, tidelog: Tidelog, name: str
) -> None:
    other = first.parent.parent.parent / name
    other.touch()
    assert f"{name} is no file that tidelog knows by its name: dump reads *.log" in refused(
        tidelog, "dump", first, other
    )


@pytest.mark.parametrize(
    "words", [["dump"], ["segments"], ["checkpoints"], ["nonsense"], ["dump", "--no-such", "x"]]
)
def test_an_incomplete_command_line_is_a_wrong_one(tidelog: Tidelog, words: list[str]) -> None:
    assert "--help`)" in refused(tidelog, *words)


@pytest.mark.parametrize("verb", ["segments", "checkpoints"])
def test_a_layout_that_a_verb_does_not_have_is_refused(data: Path, tidelog: Tidelog, verb: str) -> None:
    assert "has no kafka layout: use -o text or -o json" in refused(tidelog, verb, data, "-o", "kafka")
    assert "'yaml' is not one of" in refused(tidelog, verb, data, "-o", "yaml")


@pytest.mark.parametrize("verb", ["dump", "segments", "checkpoints"])
def test_help_has_examples_that_can_be_typed(tidelog: Tidelog, verb: str) -> None:
    ran = tidelog("log", verb, "--help")
    assert ran.code == 0
    assert f"\nExamples:\n  tidelog log {verb} " in ran.out
    assert max(map(len, ran.lines)) <= 80


def test_one_unreadable_file_does_not_hide_the_others(first: Path, tidelog: Tidelog) -> None:
    pipe = first.parent / f"{99:020}.log"
    os.mkfifo(pipe)
    ran = tidelog("log", "dump", pipe, first)
    assert (ran.code, ran.err) == (1, f"error: {pipe}: not a regular file\n")
    assert "10 batches, 20 records" in ran.out


def test_nothing_can_be_changed_by_looking(orders: Path) -> None:
    """The disk that these commands see has no way to change anything: it is not a matter of their care."""
    before = contents(orders)
    directory = ReadOnlyDirectory(str(orders))
    file = directory.open(NAME)
    for change in (
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        file.flush,
        directory.flush,
        lambda: directory.remove(NAME),
        lambda: directory.rename(NAME, "other"),
        lambda: directory.remove_directory("x"),
        lambda: directory.open("new", create=True),
        lambda: directory.directory("new", create=True),
        lambda: directory.lock(".lock", b"1"),
    ):
        with pytest.raises(OSError, match="not to be changed"):
            change()
    file.close()
    assert contents(orders) == before


def test_files_are_opened_for_reading_only(first: Path) -> None:
    with ReadOnlyFile(str(first)) as file, pytest.raises(OSError, match="Bad file descriptor"):
        os.write(file._fd, b"x")


def test_a_directory_without_write_permission_is_as_good_as_any(data: Path, tidelog: Tidelog) -> None:
    places = [data, data / "orders-0", *(data / "orders-0").iterdir()]
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places}
    for place in places:
        place.chmod(modes[place] & ~0o222)
    try:
        assert [tidelog("log", verb, data).code for verb in ("segments", "checkpoints")] == [0, 0]
        assert tidelog("log", "dump", "--verify", *(data / "orders-0").iterdir()).code == 0
    finally:
        for place, mode in modes.items():
            place.chmod(mode)


# ── who reads along ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A segment that prints more than any pipe holds."""
    batch = encode([b"a value of some length"] * 200)
    (tmp_path / NAME).write_bytes(bytes(batch) * 400)
    return tmp_path / NAME


def started(path: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tidelog", "log", "dump", "--data", "-o", "kafka", str(path)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_in_silence(large: Path) -> None:
    with started(large) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"Dumping {large}\n".encode()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.slow
def test_ctrl_c_ends_it_with_130(large: Path) -> None:
    with started(large) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()  # it is at work, and waits for room in the pipe
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b"\n"  # which ends the line that a terminal has echoed ^C on


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_told(large: Path) -> None:
    with open("/dev/full", "wb") as full:
        words = [sys.executable, "-m", "tidelog", "log", "dump", str(large)]
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (ran.returncode, ran.stderr) == (1, b"error: cannot write to stdout: No space left on device\n")


@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    """200 MB of batches in less than 120 MB of everything, Python included."""
    batch = bytes(encode([b"x" * 1000] * 1000))
    with open(tmp_path / NAME, "wb") as file:
        file.writelines(batch for _ in range(200))
    # Not getrusage where there is another way: on Linux it begins with the memory of whoever has started this process.
    program = (
        "import sys; from tidelog.cli.main import run, tidelog;"
        f"code = run(tidelog, ['log', 'dump', '--data', '--verify', '-o', 'json', {str(tmp_path / NAME)!r}]);"
        "import os, resource; status = '/proc/self/status';"
        "peak = [line for line in open(status) if line.startswith('VmHWM')] if os.path.exists(status) else [];"
        "bytes_ = int(peak[0].split()[1]) << 10 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "print(bytes_ >> 20, file=sys.stderr)"
    )
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    assert int(ran.stderr) < 120


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """What `tidelog up` names: a directory with two nodes in it, beside their logs; its path has a blank."""
    whole = tmp_path / "my cluster"
    whole.mkdir()
    for name in ("broker-1", "broker-2"):
        RealNode(whole / name).fill(1).stop()
        (whole / f"{name}.log").touch()
    return whole


@pytest.mark.parametrize("verb", ["segments", "checkpoints", "dump"])
def test_the_directory_of_a_whole_cluster_is_refused_with_the_nodes_in_it(
    cluster: Path, tidelog: Tidelog, verb: str
) -> None:
    """`broker-1` could be a partition's name: its partitions would be told to be files that belong to nothing."""
    instead = "checkpoints" if verb == "checkpoints" else "segments"
    assert (
        f"{cluster} holds the nodes broker-1 and broker-2: name one of them, as in `tidelog log {instead} "
        f"'{cluster}/broker-1'`"
    ) in refused(tidelog, verb, cluster)


def test_nobody_is_told_to_move_a_directory_away(orders: Path, tidelog: Tidelog) -> None:
    (orders / "orders-1").mkdir()
    ran = tidelog("log", "segments", orders)
    assert f"cache: {orders}/orders-1: no file of a partition has this name; no broker reads it" in ran.out
    assert "move it" not in ran.out


def test_a_command_that_is_to_be_pasted_is_quoted(cluster: Path, tidelog: Tidelog) -> None:
    orders = cluster / "broker-1" / "orders-0"
    segment = orders / NAME
    assert f"`tidelog log segments '{orders}'`" in refused(tidelog, "dump", orders)
    assert f"`tidelog log segments '{orders}'`" in refused(tidelog, "dump", orders / f"{7:020}.log")
    assert f"`tidelog log dump '{segment}'`" in refused(tidelog, "segments", segment)
    segment.write_bytes(segment.read_bytes()[:-1])
    assert f"`tidelog log dump --verify '{segment}'`" in tidelog("log", "segments", orders).out
