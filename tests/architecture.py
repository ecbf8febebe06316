"""What the tree promises, as checks: each takes the root of a tree and returns the sentences it broke.

The rules are those of docs/ARCHITECTURE.md. An import counts wherever it stands, in a function or under
TYPE_CHECKING as well: an arrow that only a type checker sees is still an arrow that a reader follows.
Importing a module also runs the `__init__` of its package; that is not counted, so that a package may
re-export what its modules define.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, TypeGuard

INWARD: Final[Mapping[str, frozenset[str]]] = {
    "protocol": frozenset(),
    "storage": frozenset({"protocol"}),
    "replication": frozenset({"protocol", "storage"}),
    "controller": frozenset({"protocol", "storage", "replication"}),
    "broker": frozenset({"protocol", "storage", "replication", "controller"}),
    "client": frozenset({"protocol"}),
    "spark": frozenset({"protocol", "client"}),
    "testing": frozenset(
        {"protocol", "storage", "replication", "controller", "broker", "client", "spark"},
    ),
    "cli": frozenset(
        {"protocol", "storage", "replication", "controller", "broker", "client", "spark", "testing"},
    ),
}
"""What each component may import besides itself."""

COMPONENTS: Final = frozenset(INWARD)

BROKER_SEES_OF_CONTROLLER: Final = ("facts", "image", "observer", "snapshots")
"""A broker derives its roles from what the controller committed, and never calls the quorum's own modules."""

EDGES: Final = frozenset({"spark", "testing", "cli"})
"""Components that stand between tidelog and somebody else's program: the io rule does not bind them."""

NODES: Final = frozenset(
    {
        "broker/broker.py",
        "broker/coordinator_node.py",
        "broker/fetcher.py",
        "broker/fetchers.py",
        "broker/flusher.py",
        "broker/forgetting.py",
        "broker/log_maker.py",
        "broker/membership.py",
        "broker/proposer.py",
        "broker/scrubbing.py",
        "broker/strays.py",
        "broker/upkeep.py",
        "controller/archive.py",
        "controller/chores.py",
        "controller/controller.py",
        "controller/following.py",
        "controller/observer.py",
        "controller/peers.py",
        "controller/own_copy.py",
        "controller/turns.py",
        "replication/breathing.py",
        "replication/deadlines.py",
    }
)
"""The modules that carry decisions out: they may import asyncio. A new node is added here, on purpose."""

LINES_OF_A_MODULE: Final = 600
LINES_OF_A_FUNCTION: Final = 70

OVERSIZED: Final[Mapping[str, str]] = {}
"""Files that may outgrow the sense of proportion, each with its reason; a function is `path::name`."""

EMPTY_NAMES: Final = frozenset(
    {"base", "common", "core", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)
"""Names that say nothing about what a module holds."""

FORBIDDEN_MODULES: Final = frozenset(
    {
        *("_thread", "concurrent", "ctypes", "fcntl", "fileinput", "ftplib", "getpass", "glob", "http"),
        *("linecache", "mmap", "multiprocessing", "pty", "resource", "secrets", "select", "selectors"),
        *("shelve", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess"),
        *("syslog", "tempfile", "threading", "urllib", "uvloop"),
    }
)
"""Modules that reach the world; only `io` and the edges import them."""

ALLOWED_NAMES: Final[Mapping[str, frozenset[str]]] = {
    "io": frozenset({"BufferedIOBase", "BytesIO", "RawIOBase", "StringIO", "UnsupportedOperation"}),
    "os": frozenset({"PathLike", "SEEK_CUR", "SEEK_END", "SEEK_SET", "fsdecode", "fsencode", "fspath", "sep"})
    | {
        f"path.{name}"
        for name in ("basename", "commonpath", "dirname", "join", "normpath", "split", "splitext")
    },
    "pathlib": frozenset({"PurePath", "PurePosixPath", "PureWindowsPath"}),
    "random": frozenset({"Random"}),
    "time": frozenset(),
    "uuid": frozenset({"NAMESPACE_DNS", "NAMESPACE_URL", "UUID", "uuid3", "uuid5"}),
}
"""Modules that are half pure: these of their names are, and only `io` and the edges use the others."""

FORBIDDEN_NAMES: Final = frozenset(
    {
        *("open", "input", "codecs.open"),
        *("sys.stdin", "sys.stdout", "sys.stderr"),
        *(
            "datetime.datetime.now",
            "datetime.datetime.today",
            "datetime.datetime.utcnow",
            "datetime.date.today",
        ),
        *("asyncio.to_thread", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
    }
)
"""Single names that reach the world, in modules that are pure otherwise."""


@dataclass(frozen=True)
class Import:
    """One name that a module imports: `module` is absolute, `name` is None for `import module`."""

    module: str
    name: str | None
    alias: str
    line: int

    @property
    def target(self) -> str:
        """The dotted name that was asked for."""
        return self.module if self.name is None else f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Module:
    """A source file of the tree, parsed once."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, self.path)

    @property
    def name(self) -> str:
        """The name it is imported by: `tidelog.storage.log` for storage/log.py."""
        parts = self.path.removesuffix(".py").split("/")
        if parts[:2] == ["src", "tidelog"]:
            parts = parts[2:]
        if parts[-1] == "__init__":
            parts = parts[:-1]
        return ".".join(["tidelog", *parts])

    @property
    def component(self) -> str | None:
        """The component it belongs to; None for src/tidelog, tests and scripts."""
        first = self.path.split("/", maxsplit=1)[0]
        return first if first in COMPONENTS else None

    @property
    def is_io(self) -> bool:
        """Whether it may reach the world itself: it is called io, or lies in a folder called io, or is an edge."""
        parts = self.path.removesuffix(".py").split("/")
        return "io" in parts or self.component in EDGES

    @property
    def imports(self) -> tuple[Import, ...]:
        """Everything it imports, at any depth."""
        return _found_in(self.source).imports

    @property
    def functions(self) -> tuple[tuple[str, int], ...]:
        """Its functions, at any depth, and how many lines each has."""
        return _found_in(self.source).functions


@dataclass(frozen=True)
class _Found:
    """What several checks want to know of a source, without its tree, which is a hundred times as large."""

    imports: tuple[Import, ...]
    functions: tuple[tuple[str, int], ...]


@cache
def _found_in(source: str) -> _Found:
    nodes = list(ast.walk(ast.parse(source)))
    return _Found(
        tuple(found for node in nodes for found in _imports_of(node)),
        tuple(
            (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
    )


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for name in node.names:
            yield Import(name.name, None, name.asname or name.name, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        for name in node.names:
            module = "." * node.level + (node.module or "")
            yield Import(module, name.name, name.asname or name.name, node.lineno)


def modules(root: Path, *folders: str) -> list[Module]:
    """The source files below these folders (the product's, when none is named), by path."""
    found = []
    for folder in folders or (*COMPONENTS, "src/tidelog"):
        # src/tidelog holds links to the components, which are read where they are.
        pattern = "*.py" if folder == "src/tidelog" else "**/*.py"
        found += [
            Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
            for path in (root / folder).glob(pattern)
        ]
    return sorted(found, key=lambda module: module.path)


def check_layers(root: Path) -> list[str]:
    """A component imports only what stands before it, and of the controller a broker sees four modules."""
    return [
        f"{module.path}:{imported.line}: {module.component} may not import {imported.target}"
        for module in modules(root)
        if module.component
        for imported in module.imports
        if not _may_import(module.component, imported)
    ]


def _may_import(component: str, imported: Import) -> bool:
    target = imported.target.split(".")
    if target[0] != "tidelog":
        return True
    if target == ["tidelog", "__version__"]:
        return True
    other = target[1] if len(target) > 1 else ""
    if other == component:
        return True
    if component == "broker" and other == "controller":
        return len(target) > 2 and target[2] in BROKER_SEES_OF_CONTROLLER
    return other in INWARD[component]


def check_bare_imports(root: Path) -> list[str]:
    """Components are imported as tidelog.<component>: the bare folder is an accident of the checkout."""
    return [
        f"{module.path}:{imported.line}: import tidelog.{imported.target.lstrip('.')}, not {imported.target}"
        for module in modules(root, *COMPONENTS, "src/tidelog", "tests", "scripts")
        for imported in module.imports
        if imported.module.startswith(".") or imported.module.split(".")[0] in COMPONENTS
    ]


def check_cycles(root: Path) -> list[str]:
    """No module imports itself by way of others."""
    tree = modules(root)
    names = {module.name for module in tree}
    graph = {
        module.name: {
            near for imported in module.imports if (near := _nearest(imported, names)) != module.name
        }
        for module in tree
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib lists a cycle from the imported to the importer.
        return ["import cycle: " + " -> ".join(reversed(error.args[1]))]
    return []


def _nearest(imported: Import, names: set[str]) -> str:
    return imported.target if imported.target in names else imported.module


def check_io(root: Path) -> list[str]:
    """Only `io` and the edges touch sockets, files, clocks, threads, processes or the world's randomness."""
    return [
        f"{module.path}:{line}: {name} belongs into an io module"
        for module in modules(root, *COMPONENTS)
        if not module.is_io
        for line, name in sorted(set(_reaches(module)))
    ]


def _reaches(module: Module) -> Iterator[tuple[int, str]]:
    for imported in module.imports:
        if _is_forbidden(imported.target):
            yield imported.line, imported.target
    aliases = {imported.alias: imported.target for imported in module.imports}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = _resolve(node, aliases)
            if name and _is_forbidden(name):
                yield node.lineno, name
        if isinstance(node, ast.Attribute) and node.attr == "run_in_executor":
            yield node.lineno, "run_in_executor"
        if _is_bare_call(node, "random.Random", aliases):
            yield node.lineno, "random.Random() without a seed"


def _is_bare_call(node: ast.AST, name: str, aliases: Mapping[str, str]) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and not (node.args or node.keywords)
        and _resolve(node.func, aliases) == name
    )


def _resolve(node: ast.AST, aliases: Mapping[str, str]) -> str | None:
    """The dotted name behind `os.path.join`, whatever the module was imported as."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _resolve(node.value, aliases)
        return inner and f"{inner}.{node.attr}"
    return None


def _is_forbidden(name: str) -> bool:
    module, _, rest = name.partition(".")
    if name in FORBIDDEN_NAMES or module in FORBIDDEN_MODULES:
        return True
    if module not in ALLOWED_NAMES or not rest or rest == "path":
        return False
    allowed = ALLOWED_NAMES[module]
    return not any(rest == good or rest.startswith(good + ".") for good in allowed)


def check_asyncio(root: Path) -> list[str]:
    """Only nodes, `io` and the edges import asyncio."""
    return [
        f"{module.path}:{imported.line}: asyncio belongs into a node or an io module"
        for module in modules(root, *COMPONENTS)
        if not module.is_io and module.path not in NODES
        for imported in module.imports
        if imported.module.split(".")[0] == "asyncio"
    ]


def check_docstrings(root: Path) -> list[str]:
    """Every module says in its first line what it is."""
    return [
        f"{module.path}:1: a module introduces itself in a docstring"
        for module in modules(root)
        if not ast.get_docstring(module.tree)
    ]


def check_names(root: Path) -> list[str]:
    """A name says what is inside."""
    return [
        f"{module.path}: `{word}` says nothing about what is inside"
        for module in modules(root, *COMPONENTS, "tests")
        for part in module.path.removesuffix(".py").split("/")
        for word in part.split("_")
        if word in EMPTY_NAMES
    ]


def check_proportion(root: Path, oversized: Mapping[str, str] = OVERSIZED) -> list[str]:
    """A module fits in one sitting and a function on one screen; an allowance that is not needed goes."""
    sizes = dict(_oversized(root))
    broken = [f"{place}: {size}" for place, size in sizes.items() if place not in oversized]
    return broken + [f"{place}: needs no allowance" for place in oversized if place not in sizes]


def _oversized(root: Path) -> Iterator[tuple[str, str]]:
    for module in modules(root, *COMPONENTS, "src/tidelog", "tests", "scripts"):
        lines = len(module.source.splitlines())
        if lines > LINES_OF_A_MODULE:
            yield module.path, f"{lines} lines, more than {LINES_OF_A_MODULE}"
        for name, lines in module.functions:
            if lines > LINES_OF_A_FUNCTION:
                yield f"{module.path}::{name}", f"{lines} lines, more than {LINES_OF_A_FUNCTION}"


def check_links(root: Path) -> list[str]:
    """Every component is a folder with a link of its name in src/tidelog, and nothing else is."""
    folders = {path.parent.name for path in root.glob("*/__init__.py")} - {"tests"}
    links = {
        path.name: path.readlink().as_posix()
        for path in (root / "src/tidelog").iterdir()
        if path.is_symlink()
    }
    return [
        *(
            f"{name}/: a component that tests/architecture.py does not know"
            for name in sorted(folders - COMPONENTS)
        ),
        *(f"{name}/: this component has no folder" for name in sorted(COMPONENTS - folders)),
        *(f"src/tidelog/{name}: the link is missing" for name in sorted(folders - links.keys())),
        *(
            f"src/tidelog/{name}: links to {target}, which is not its component"
            for name, target in sorted(links.items())
            if name not in folders or target != f"../../{name}"
        ),
    ]
