"""What a node asks of its machine before it makes anything: an interpreter with asserts, descriptors, an address.

Each function raises one line that says what to do, or says nothing.
"""

import errno
import ipaddress
import os
import resource
import socket
import sys
from typing import Final, NamedTuple

import click

from tidelog.cli.options import Address

_MACOS_MOST: Final = 10_240
"""What macOS allows a process where it says that there is no limit (OPEN_MAX)."""


def refuse_without_asserts() -> None:
    """`python -O` takes away what keeps a broken invariant from reaching the disk."""
    if sys.flags.optimize:
        raise click.ClickException(
            "python -O (or PYTHONOPTIMIZE) leaves out the checks that keep logs whole: start it without"
        )


def raise_descriptors(needed: int, why: str) -> None:
    """As many open files as the system allows, which must be enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MACOS_MOST):
        if wanted == resource.RLIM_INFINITY or wanted <= soft:
            continue
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
        except (ValueError, OSError):
            continue
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if resource.RLIM_INFINITY != allowed < needed:
        raise click.ClickException(
            f"{allowed} files may be open at once, {needed} are needed ({why}): raise the limit (ulimit -Hn {needed}), or "
            "lower -X max.connections or -X open.segments"
        )


class Standing(NamedTuple):
    """What an address is on this machine."""

    everywhere: bool
    """All addresses of the machine: none that others could be told."""
    loopback: bool
    """Only processes of this machine reach it."""


def look_at(listen: Address) -> Standing:
    """What the address is. Refused when it is taken, or not of this machine."""
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise click.ClickException(
            f"cannot listen on {listen}: the host is not known ({error.strerror}): use a name or an address of this "
            "machine"
        ) from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                trial.bind(address)
            except OSError as error:
                raise click.ClickException(unavailable(listen, error)) from error
    hosts = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return Standing(any(host.is_unspecified for host in hosts), all(host.is_loopback for host in hosts))


def unavailable(listen: Address | str, error: OSError) -> str:
    """Why nobody can listen there, and what to do about it."""
    fact = f"cannot listen on {listen}: "
    if error.errno == errno.EADDRINUSE:
        return f"{fact}another process does already: stop it, or choose another port (0 takes a free one)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{fact}this is not an address of this machine: use one of its own, and --advertise for what others see"
    if isinstance(error, PermissionError):
        return f"{fact}user {os.geteuid()} may not use this port: choose one from 1024 on"
    return f"{fact}{error.strerror}"
