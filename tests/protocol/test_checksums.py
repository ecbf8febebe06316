"""CRC-32C as RFC 3720 (B.4) has it, and without what its package does when it is imported."""

import subprocess
import sys

import crc32c as package
import pytest

from tidelog.protocol import checksums
from tidelog.protocol.checksums import crc32c


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_known_checksums(data: bytes, checksum: int) -> None:
    assert crc32c(data) == crc32c(memoryview(bytearray(data))) == checksum


def test_a_checksum_is_continued() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_it_is_the_checksum_of_the_package() -> None:
    assert crc32c(b"tidelog" * 1000) == package.crc32c(b"tidelog" * 1000)


def test_without_an_extension_of_its_own_the_package_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "find_spec", lambda _name: None)
    assert checksums._of_the_extension() is package.crc32c


@pytest.mark.slow
def test_a_node_is_imported_without_what_the_package_looks_up() -> None:
    look = "import sys, tidelog.broker.broker; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
