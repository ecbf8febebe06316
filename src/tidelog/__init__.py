"""Tidelog: a replicated commit log for Python, small enough to read.

    async with tidelog.connect("127.0.0.1:9092") as client: ...

Everything that users need has its name here, and is loaded when it is first asked for: `import tidelog` costs next to
nothing, in a command line as in a worker that was spawned.
"""

from importlib import import_module as _import_module
from os import path as _path  # pathlib would cost more than all the rest

__version__ = "0.1.0"

# In a checkout the components live at the top level of the repository, so that its tree shows the
# architecture; an installed wheel carries them inside this package and skips this (docs/adr/0001).
_root = _path.dirname(_path.dirname(_path.dirname(_path.realpath(__file__))))
if _path.isfile(_path.join(_root, "pyproject.toml")) and _path.isfile(
    _path.join(_root, "broker", "__init__.py")
):
    __path__.append(_root)
del _root

_HOMES = {
    "Admin": "client.io.admin",
    "Client": "client.io.client",
    "Consumer": "client.io.consumer",
    "NewTopic": "client.admin",
    "OffsetAndTimestamp": "client.io.consumer",
    "PartitionPosition": "client.records",
    "Producer": "client.io.producer",
    "Record": "client.records",
    "RecordBatch": "client.records",
    "RecordMetadata": "client.records",
    "TopicPartition": "protocol.types",
    "connect": "client.io.client",
}
"""Where a name is defined; every other one is an error's."""

_COMPONENTS = ("sync", "testing")
"""Modules that need no import of their own: `tidelog.sync.connect`, `tidelog.testing.Cluster`."""

TYPE_CHECKING = False  # as type checkers know it; to import typing would cost more than all the rest

if TYPE_CHECKING:
    from tidelog import sync as sync
    from tidelog.client.admin import NewTopic as NewTopic
    from tidelog.client.io.admin import Admin as Admin
    from tidelog.client.io.client import Client as Client
    from tidelog.client.io.client import connect as connect
    from tidelog.client.io.consumer import Consumer as Consumer
    from tidelog.client.io.consumer import OffsetAndTimestamp as OffsetAndTimestamp
    from tidelog.client.io.producer import Producer as Producer
    from tidelog.client.records import PartitionPosition as PartitionPosition
    from tidelog.client.records import Record as Record
    from tidelog.client.records import RecordBatch as RecordBatch
    from tidelog.client.records import RecordMetadata as RecordMetadata
    from tidelog.protocol.errors import *  # noqa: F403 -- each error has its name here
    from tidelog.protocol.types import TopicPartition as TopicPartition
else:

    def __getattr__(name):
        """What was asked for, from where it is defined."""
        if name in _COMPONENTS:
            return _import_module(f"tidelog.{name}")
        if name.startswith("_"):
            raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
        home = _import_module(f"tidelog.{_HOMES.get(name, 'protocol.errors')}")
        found = vars(home).get(name)
        if found is None or (name not in _HOMES and not _is_error(found)):
            raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
        globals()[name] = found
        return found

    def _is_error(found):
        return isinstance(found, type) and issubclass(found, Exception)

    def __dir__():
        errors = vars(_import_module("tidelog.protocol.errors"))
        return sorted(
            {*globals(), *_HOMES, *_COMPONENTS, *(name for name, found in errors.items() if _is_error(found))}
        )
