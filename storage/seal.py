"""The last line of a small text file: a checksum of all before it, so that no changed byte goes unnoticed.

    crc 1a2b3c4d          CRC-32C of every byte before this line, eight lower-case hexadecimal digits

A grammar notices a cut, not a changed digit (docs/adr/0050). CRC-32C finds every change that lies within 32
consecutive bits, so every changed byte; a cut takes away the line itself. The line is compared as text: there is
one way to write it. Every version of every sealed file, also of those to come, ends with this line, so that
"written by a newer tidelog" is believed only when the bytes are those that it wrote.
"""

from typing import Final

from crc32c import crc32c

CHECKPOINT: Final = b"crc "
"""How the line begins in a checkpoint."""

PROPERTIES: Final = b"crc="
"""How the line begins in a file of `key=value` lines."""

DIGITS: Final = 8


def line(body: bytes, key: bytes) -> bytes:
    """The line that belongs behind that body."""
    return key + f"{crc32c(body):08x}\n".encode()


def seal(body: bytes, key: bytes) -> bytes:
    """The body and its line."""
    return body + line(body, key)


def unseal(content: bytes, key: bytes) -> bytes | None:
    """The body, or None when the last line is not the one that belongs to it."""
    end = len(content) - len(key) - DIGITS - 1
    body = content[: max(end, 0)]
    return body if end >= 0 and content[end:] == line(body, key) else None
