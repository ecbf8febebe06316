"""Tables of Spark's catalogue: `CREATE TABLE orders USING tidelog OPTIONS (...)`.

Spark 4.3 asks a Python data source for a table's schema with the table's options, and reads the table without them
(`PythonDataSourceV2.getTable` drops its properties). What it does keep is the schema as it was told, so there the options
travel: as metadata of the first column, in tables only. docs/adr/0114 has the details.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

_KEY: Final = "tidelog.options"
_OPTION: Final = "option."


def options_of_table(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Those of a table that is being made; None: it is a load."""
    names = {name.lower(): value for name, value in given.items()}
    if str(names.get("provider", "")).lower() != "tidelog":
        return None
    return {name.removeprefix(_OPTION): value for name, value in names.items() if name.startswith(_OPTION)}


def for_table(schema: StructType, options: Mapping[str, Any]) -> StructType:
    """The schema of a table, with its options in it."""
    if not options:
        return schema
    first, *rest = schema.fields
    metadata = {**(first.metadata or {}), _KEY: json.dumps(options, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def with_table(given: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    """The options of a query, over those of the table that it reads or writes."""
    for each in schema.fields:
        text = (each.metadata or {}).get(_KEY)
        if text is not None:
            return {**json.loads(text), **{name.lower(): value for name, value in given.items()}}
    return dict(given)


def is_table(schema: StructType) -> bool:
    """Whether these are a table's columns."""
    return any(_KEY in (each.metadata or {}) for each in schema.fields)
