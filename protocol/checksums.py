"""CRC-32C, by the C extension of the package `crc32c` alone.

The package itself asks, when it is imported, for its own version and for the machine's kind: a fifth of what a broker
needs to start. So its extension is loaded without it; where that cannot be found, the package has it.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final, Protocol

from tidelog.protocol.types import Buffer


class Checksum(Protocol):
    """What the extension offers."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The checksum of the data behind data whose checksum is `value`."""
        ...


def _of_the_extension() -> Checksum:
    package = find_spec("crc32c")
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec("crc32c._crc32c", places)
    if found is None or found.loader is None:
        from crc32c import crc32c as of_the_package  # noqa: PLC0415 -- only where it is needed

        return of_the_package
    extension = module_from_spec(found)
    found.loader.exec_module(extension)
    checksum: Checksum = extension.crc32c
    return checksum


crc32c: Final = _of_the_extension()
"""CRC-32C of data."""
