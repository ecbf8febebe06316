"""The end of a small text file: a checksum of all before it, so that no changed byte goes unnoticed.

    crc 1a2b3c4d            the last line of a checkpoint
    crc=1a2b3c4d            the last line of `key=value` lines
    ...,"crc":"1a2b3c4d"}   the last field of a JSON marker

CRC-32C of every byte before it, as eight lower-case hexadecimal digits. A grammar notices a cut, not a changed
digit (docs/adr/0050). CRC-32C finds every change that lies within 32 consecutive bits, so every changed byte; a
cut takes away the end itself. It is compared as text: there is one way to write it. Every version of every
sealed file, also of those to come, ends like this, so that "written by a newer tidelog" is believed only when
the bytes are those that it wrote.
"""

from typing import Final, NamedTuple

from tidelog.protocol.checksums import crc32c

DIGITS: Final = 8


class Seal(NamedTuple):
    """What stands before and behind the digits."""

    before: bytes
    behind: bytes

    def end(self, body: bytes) -> bytes:
        """What belongs behind that body."""
        return self.before + f"{crc32c(body):08x}".encode() + self.behind

    def seal(self, body: bytes) -> bytes:
        """The body and its end."""
        return body + self.end(body)

    def unseal(self, content: bytes) -> bytes | None:
        """The body, or None when the end is not the one that belongs to it."""
        length = len(content) - len(self.before) - DIGITS - len(self.behind)
        body = content[: max(length, 0)]
        return body if length >= 0 and content[length:] == self.end(body) else None


CHECKPOINT: Final = Seal(b"crc ", b"\n")
PROPERTIES: Final = Seal(b"crc=", b"\n")
JSON: Final = Seal(b',"crc":"', b'"}\n')
