"""Which of a broker's other data directories have failed while it went on: a small file in its first one.

    version=1
    failed=<32 hex>            the id of each, sorted
    crc=1a2b3c4d

It is there from the failure on until the next life has taken note of it in the directory itself (`DataDirectories`).
A file that cannot be read may name any of them.
"""

from typing import Final

from tidelog.protocol.errors import UnsupportedFormat
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.seal import PROPERTIES

FAILED_DIRECTORIES: Final = "failed-directories"
VERSION: Final = 1
_KEY: Final = "failed="


def write_failures(directory: Directory, failed: frozenset[bytes]) -> None:
    """Say durably which have failed, by their ids."""
    if failed:
        write_whole(directory, FAILED_DIRECTORIES, _encode(failed))
    elif directory.exists(FAILED_DIRECTORIES):
        directory.remove(FAILED_DIRECTORIES)
        directory.flush()


def read_failures(directory: Directory) -> frozenset[bytes] | None:
    """Which have failed; None: nobody knows."""
    try:
        content = read_whole(directory, FAILED_DIRECTORIES)
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None
    body = PROPERTIES.unseal(content)
    if body is None:
        return None
    version, *lines = body.decode("latin-1").splitlines()
    number = version.removeprefix("version=")
    if number.isdecimal() and int(number) > VERSION:
        raise UnsupportedFormat(
            f"{directory.path}/{FAILED_DIRECTORIES} is of version {number}, this tidelog reads {VERSION}"
        )
    try:
        failed = frozenset(bytes.fromhex(line.removeprefix(_KEY)) for line in lines)
    except ValueError:
        return None
    return failed if _encode(failed) == content else None


def _encode(failed: frozenset[bytes]) -> bytes:
    lines = [f"version={VERSION}", *(f"{_KEY}{each.hex()}" for each in sorted(failed))]
    return PROPERTIES.seal("".join(f"{line}\n" for line in lines).encode("ascii"))
