"""What stands in tests/golden/frames/: heads and batches of this format, each with what it means in words.

Bytes and words are committed together and never change. When a message grows, a second head of it is added;
the first must go on meaning what its words say, with defaults for what came later.
"""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.inspect import BoolType, BytesType, IntType, StrType, StructType, Type, UnionType, VarTupleType

from tests.protocol.strategies import MESSAGES, struct_of
from tidelog.protocol.batch import CONTROL, TRANSACTIONAL, stamp
from tidelog.protocol.compression import CODECS
from tidelog.protocol.messages import encode_head
from tidelog.protocol.records import decode, encode, thinned
from tidelog.protocol.types import Buffer

FRAMES = Path(__file__).parent.parent / "golden" / "frames"
HEADS = FRAMES / "heads.json"
BATCHES = FRAMES / "batches.json"
SCHEMA = FRAMES / "messages.txt"

CORRELATION = 0x1234567
NOW = 1_700_000_000_000
VALUES: list[bytes | None] = [
    b"a value that repeats itself " * 5,
    None,
    b"",
    b"a value that repeats itself " * 5,
]
KEYS: list[bytes | None] = [b"key-1", b"key-2", None, b""]
TIMES = [NOW, NOW + 1, NOW - 1, NOW]
HEADER_ROWS: list[list[tuple[str, bytes | None]]] = [[("größe", b"1"), ("größe", None)], [], [], [("x", b"")]]
PRODUCER = {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 2**31 - 2}


def golden_message(cls: type[Struct]) -> Any:
    """A message with something particular in every field, the same every time."""
    return _value(struct_of(cls), 1)


def _value(kind: Type, seed: int) -> Any:
    match kind:
        case IntType(ge=low, le=high):
            span = int(high or 0) - int(low or 0)
            return int(low or 0) + seed * 7919 % (span + 1)
        case BytesType(max_length=most):
            return bytes((seed * 31 + at) % 256 for at in range(most or 0))
        case StrType():
            return f"tëxt {seed}"
        case BoolType():
            return seed % 2 == 1
        case VarTupleType(item_type=item):
            return tuple(_value(item, seed * 3 + at) for at in range(2))
        case UnionType(types=kinds):
            return _value(kinds[0], seed)
        case StructType(cls=cls, fields=fields):
            return cls(*(_value(field.type, seed * 5 + at) for at, field in enumerate(fields)))
    raise AssertionError(f"no field may be a {kind}")


def message_words(value: Any) -> Any:
    """A message as JSON has it: fields by name, bytes in hex."""
    if isinstance(value, Struct):
        return {field: message_words(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, tuple):
        return [message_words(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def batch_words(batch: Buffer) -> Any:
    """A batch as JSON has it: its header, and its records as rows."""
    columns = decode(batch)
    rows = zip(
        columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers, strict=True
    )
    return {"header": columns.header._asdict(), "records": [_row(row) for row in rows]}


def _row(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_row(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def heads() -> dict[str, Any]:
    """Every message as a head, in full."""
    return {cls.__name__: _head(cls) for cls in MESSAGES}


def _head(cls: type[Struct]) -> dict[str, Any]:
    message = golden_message(cls)
    return {"hex": encode_head(CORRELATION, message).hex(), "words": message_words(message)}


def batches() -> dict[str, Any]:
    """A batch with every codec, and every column in every form."""
    full = {
        name: encode(VALUES, KEYS, TIMES, HEADER_ROWS, codec=codec, **PRODUCER)
        for name, codec in CODECS.items()
    }
    made = {
        **full,
        "values-only": encode([b"v"], now_ms=NOW),
        "marked": encode([b"v"], now_ms=NOW, attributes=TRANSACTIONAL | CONTROL),
        "thinned": thinned(decode(full["none"]), [1, 3]),
        "emptied": thinned(decode(full["none"]), []),
    }
    for batch in made.values():
        stamp(batch, 2**33, 9)
    return {name: {"hex": batch.hex(), "words": batch_words(batch)} for name, batch in made.items()}


def grown(there: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The committed ones, and those of the newly made that mean something that none of them means."""
    known = [(name.split("-v")[0], one["words"]) for name, one in there.items()]
    result = dict(there)
    for name, one in made.items():
        if (name, one["words"]) not in known:
            versions = [old for old, _ in known].count(name)
            result[f"{name}-v{versions + 1}" if versions else name] = one
    return result


def read(path: Path) -> dict[str, Any]:
    """What is committed."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, named: dict[str, Any]) -> None:
    """Commit these, one to a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in named.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
