"""Controllers that do not answer, in words."""

from collections.abc import Iterable, Mapping

from tidelog.cli.options import Address
from tidelog.protocol.types import BrokerId


def tried(controllers: Iterable[tuple[int, str, int]], failures: Mapping[BrokerId, str]) -> str:
    """Each controller with its address and why it could not be followed."""
    words = []
    for number, host, port in controllers:
        address = str(Address(host, port))
        why = failures.get(BrokerId(number), "not tried yet")
        words.append(f"c{number} " + (why if address in why else f"{address}: {why}"))
    return "; ".join(words)
