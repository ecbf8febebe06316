"""The tree keeps its promises, and every check is proven able to fail on a tree that breaks one."""

import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture import (
    COMPONENTS,
    check_asyncio,
    check_bare_imports,
    check_cycles,
    check_docstrings,
    check_io,
    check_layers,
    check_links,
    check_names,
    check_proportion,
)

ROOT = Path(__file__).resolve().parents[1]

Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [
    check_layers,
    check_bare_imports,
    check_cycles,
    check_io,
    check_asyncio,
    check_docstrings,
    check_names,
    check_proportion,
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that keeps every promise: each component's folder and link, and a package root."""
    (tmp_path / "src/tidelog").mkdir(parents=True)
    (tmp_path / "src/tidelog/__init__.py").write_text('"""The root."""\n')
    for name in COMPONENTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""The {name}."""\n')
        (tmp_path / "src/tidelog" / name).symlink_to(f"../../{name}")
    return tmp_path


def plant(tree: Path, path: str, source: str) -> None:
    """Write a module with a docstring and this source."""
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(f'"""Planted."""\n{source}\n')


@pytest.mark.parametrize("check", CHECKS)
def test_this_repository_keeps_its_promise(check: Check) -> None:
    assert check(ROOT) == []


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="a source distribution carries no links")
def test_this_repository_links_every_component() -> None:
    assert check_links(ROOT) == []


@pytest.mark.parametrize("check", [*CHECKS, check_links])
def test_a_tree_without_faults_passes(check: Check, tree: Path) -> None:
    plant(tree, "storage/log.py", "from tidelog.protocol import types\nfrom tidelog import __version__")
    plant(tree, "protocol/types.py", "from random import Random\nimport os.path\np = os.path.join('a', 'b')")
    assert check(tree) == []


def test_pyproject_names_every_component() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    targets = tool["hatch"]["build"]["targets"]
    assert tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"].keys() == COMPONENTS
    assert tool["coverage"]["paths"].keys() == COMPONENTS | {"tidelog"}
    packages = {"src/tidelog": "tidelog", "src/pyspark_tidelog": "pyspark_tidelog"}
    assert targets["wheel"]["sources"] == packages | {name: f"tidelog/{name}" for name in COMPONENTS}
    assert set(targets["wheel"]["only-include"]) == COMPONENTS | packages.keys()
    assert set(targets["sdist"]["only-include"]) >= COMPONENTS | packages.keys()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/x.py", "from tidelog.storage.log import Log"),
        ("storage/x.py", "import tidelog.broker"),
        ("storage/x.py", "from tidelog import controller"),
        ("replication/x.py", "from tidelog.client import Client"),
        ("client/x.py", "from tidelog.storage import log"),
        ("spark/x.py", "import tidelog.testing.processes"),
        ("controller/x.py", "import tidelog"),
        ("broker/x.py", "from tidelog import connect"),
        ("testing/x.py", "from tidelog.cli.main import main"),
        ("storage/x.py", "def later():\n    from tidelog.broker import partition"),
        ("storage/x.py", "if TYPE_CHECKING:\n    from tidelog.broker import partition"),
        ("broker/x.py", "from tidelog.controller.quorum import Quorum"),
        ("broker/x.py", "from tidelog.controller import quorum"),
        ("broker/x.py", "import tidelog.controller"),
    ],
)
def test_an_arrow_that_turns_is_found(tree: Path, path: str, source: str) -> None:
    plant(tree, path, source)
    assert [line.split(":")[0] for line in check_layers(tree)] == [path]


@pytest.mark.parametrize("name", ["facts", "image", "observer", "snapshots"])
def test_a_broker_sees_what_the_controller_committed(tree: Path, name: str) -> None:
    plant(
        tree, "broker/x.py", f"from tidelog.controller.{name} import X\nfrom tidelog.controller import {name}"
    )
    assert check_layers(tree) == []


@pytest.mark.parametrize("source", ["import storage", "from storage.log import Log", "from .log import Log"])
@pytest.mark.parametrize("path", ["broker/x.py", "tests/broker/x.py", "scripts/x.py"])
def test_a_bare_import_is_found(tree: Path, path: str, source: str) -> None:
    plant(tree, path, source)
    assert len(check_bare_imports(tree)) == 1


def test_a_cycle_is_named_in_the_order_of_its_imports(tree: Path) -> None:
    plant(tree, "storage/a.py", "from tidelog.storage.b import x")
    plant(tree, "storage/b.py", "from tidelog.storage import c")
    plant(tree, "storage/c.py", "def later():\n    import tidelog.storage.a")
    [line] = check_cycles(tree)
    names = line.removeprefix("import cycle: ").split(" -> ")
    steps = {(earlier[-1], later[-1]) for earlier, later in pairwise(names)}
    assert steps == {("a", "b"), ("b", "c"), ("c", "a")}


def test_a_package_may_export_what_its_modules_define(tree: Path) -> None:
    plant(tree, "storage/__init__.py", "from tidelog.storage.a import x")
    plant(tree, "storage/a.py", "from tidelog.storage.b import x")
    plant(tree, "storage/b.py", "x = 1")
    assert check_cycles(tree) == []


WORLDLY = [
    "import socket",
    "import threading",
    "import concurrent.futures",
    "from concurrent.futures import ThreadPoolExecutor",
    "import subprocess, signal",
    "import tempfile",
    "import shutil",
    "import mmap",
    "import uvloop",
    "import urllib.request",
    "data = open('x').read()",
    "import os\nos.replace('a', 'b')",
    "import os as o\no.fsync(1)",
    "from os import pread",
    "import os\nkey = os.environ['KEY']",
    "import os.path\nos.path.exists('a')",
    "from os import path\npath.getsize('a')",
    "from pathlib import Path",
    "import pathlib\npathlib.Path('a').write_text('b')",
    "import io\nio.open('a')",
    "import time\nnow = time.time()",
    "from time import monotonic",
    "import time\ndef later():\n    time.sleep(1)",
    "import random\nrandom.random()",
    "from random import randint",
    "from random import Random\nr = Random()",
    "from datetime import datetime\nnow = datetime.now(None)",
    "import datetime\nnow = datetime.datetime.now()",
    "import uuid\nuuid.uuid4()",
    "import sys\nprint('x', file=sys.stderr)",
    "import asyncio\nasync def f():\n    await asyncio.to_thread(g)",
    "def f(loop):\n    loop.run_in_executor(None, g)",
]


@pytest.mark.parametrize("source", WORLDLY)
def test_a_machine_that_touches_the_world_is_found(tree: Path, source: str) -> None:
    plant(tree, "replication/fetch.py", source)
    assert check_io(tree)


@pytest.mark.parametrize("source", WORLDLY)
@pytest.mark.parametrize("path", ["storage/io.py", "protocol/io/server.py", "client/io/sync.py", "cli/x.py"])
def test_io_and_the_edges_may_touch_the_world(tree: Path, path: str, source: str) -> None:
    plant(tree, path, source)
    assert check_io(tree) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nname = os.path.basename('a/b')",
        "from os import PathLike, fspath",
        "from pathlib import PurePosixPath",
        "import random\nr = random.Random(7)",
        "from datetime import datetime, UTC\nt = datetime.fromtimestamp(0, UTC)",
        "def f(directory):\n    return directory.open('x')",
        "from io import BytesIO",
    ],
)
def test_what_is_pure_may_be_used_everywhere(tree: Path, source: str) -> None:
    plant(tree, "replication/fetch.py", source)
    assert check_io(tree) == []


@pytest.mark.parametrize("source", ["import asyncio", "from asyncio import Future", "import asyncio.events"])
def test_a_machine_that_imports_asyncio_is_found(tree: Path, source: str) -> None:
    plant(tree, "broker/leadership.py", source)
    assert len(check_asyncio(tree)) == 1


@pytest.mark.parametrize(
    "path", ["broker/broker.py", "broker/io.py", "client/io/producer.py", "testing/x.py"]
)
def test_nodes_io_and_edges_may_import_asyncio(tree: Path, path: str) -> None:
    plant(tree, path, "import asyncio")
    assert check_asyncio(tree) == []


@pytest.mark.parametrize("path", ["storage/x.py", "storage/__init__.py", "src/tidelog/__main__.py"])
def test_a_module_without_a_docstring_is_found(tree: Path, path: str) -> None:
    (tree / path).write_text("x = 1\n")
    assert check_docstrings(tree) == [f"{path}:1: a module introduces itself in a docstring"]


@pytest.mark.parametrize(
    "path", ["storage/utils.py", "broker/base/x.py", "client/file_helpers.py", "tests/common.py"]
)
def test_an_empty_name_is_found(tree: Path, path: str) -> None:
    plant(tree, path, "x = 1")
    assert len(check_names(tree)) == 1


def test_a_module_of_six_hundred_lines_passes_and_one_more_does_not(tree: Path) -> None:
    plant(tree, "storage/x.py", "x = 1\n" * 598)
    assert check_proportion(tree) == []
    plant(tree, "storage/x.py", "x = 1\n" * 599)
    assert check_proportion(tree) == ["storage/x.py: 601 lines, more than 600"]


@pytest.mark.parametrize("head", ["def f():", "async def f():", "class C:\n  def f(self):"])
def test_a_function_that_outgrows_a_screen_is_found(tree: Path, head: str) -> None:
    plant(tree, "tests/x.py", head + "\n    x = 1" * 70)
    assert check_proportion(tree) == ["tests/x.py::f: 71 lines, more than 70"]


def test_an_allowance_holds_as_long_as_it_is_needed(tree: Path) -> None:
    plant(tree, "storage/x.py", "x = 1\n" * 600)
    assert check_proportion(tree, {"storage/x.py": "a table"}) == []
    plant(tree, "storage/x.py", "x = 1")
    assert check_proportion(tree, {"storage/x.py": "a table"}) == ["storage/x.py: needs no allowance"]


def test_a_link_that_is_missing_wrong_or_left_over_is_found(tree: Path) -> None:
    links = tree / "src/tidelog"
    (links / "broker").unlink()
    (links / "client").unlink()
    (links / "client").symlink_to("../../cli")
    (links / "gone").symlink_to("../../gone")
    assert [line.split(":")[0] for line in check_links(tree)] == [
        "src/tidelog/broker",
        "src/tidelog/client",
        "src/tidelog/gone",
    ]


def test_a_component_that_nobody_announced_is_found(tree: Path) -> None:
    plant(tree, "gossip/__init__.py", "")
    (tree / "spark/__init__.py").unlink()
    lines = [line.split(":")[0] for line in check_links(tree)]
    assert lines == ["gossip/", "spark/", "src/tidelog/gossip", "src/tidelog/spark"]
