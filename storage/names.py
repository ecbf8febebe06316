"""Names of directories: partitions, and what is left of them.

orders-0                                  a partition
orders-0.<32 hex>-delete                  waiting to be removed
orders-0.<32 hex>-stray                   data that this node should not have (`strays`)
"""

import re
from typing import Final

from tidelog.protocol.types import TopicPartition

NAME_MAX: Final = 255
"""Bytes of a name in a directory: Linux' and macOS'."""
DELETED: Final = "-delete"
STRAY: Final = "-stray"
_PARTED: Final = re.compile(r"(.+)\.[0-9a-f]{32}")
_PARTITION: Final = re.compile(r"([A-Za-z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")


def partition_name(partition: TopicPartition) -> str:
    """The directory of a partition."""
    return f"{partition.topic}-{partition.partition}"


def parse_partition(name: str) -> TopicPartition | None:
    """The partition whose directory that is; parsed by its last dash, for topics have dashes too."""
    found = _PARTITION.fullmatch(name)
    if found is None or found[1] in (".", ".."):
        return None
    return TopicPartition(found[1], int(found[2]))


def parted_name(name: str, number: int, ending: str) -> str:
    """The name that a partition's directory gets when it is none any more; of a long one the end of the topic is missing."""
    topic, _, partition = name.rpartition("-")
    rest = f"-{partition}.{number:032x}{ending}"
    return topic[: NAME_MAX - len(rest)] + rest


def parted_stem(name: str) -> str:
    """A name of what is left of a partition's directory, without what tells it from others of the same one."""
    return name.rpartition(".")[0]


def parse_parted(name: str, ending: str) -> TopicPartition | None:
    """The partition whose directory that was, its topic perhaps shortened; None: it is not named so."""
    found = _PARTED.fullmatch(name.removesuffix(ending)) if name.endswith(ending) else None
    return parse_partition(found[1]) if found is not None else None
