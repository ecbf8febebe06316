"""What programs read: an object per line, and bytes in it as text.

What it keeps true: bytes that are UTF-8 are text; others are base64, and `<name>_encoding` beside them says so.
docs/JSON.md lists every type and every key; keys are added, never renamed or given another meaning.
"""

from base64 import b64encode

from tidelog.cli.terminal import Writer


def put(writer: Writer, kind: str, /, **fields: object) -> None:
    """One object, with its type."""
    import msgspec  # noqa: PLC0415 -- a help page must not pay for it

    writer.line(msgspec.json.encode({"type": kind, **fields}).decode())


def as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """The bytes under that name: text where they are UTF-8, else base64, which `<name>_encoding` then says."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        assert data is not None
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}
