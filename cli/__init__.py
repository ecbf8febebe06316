"""The `tidelog` command: thin commands over client, broker, controller and storage."""

from tidelog.cli.main import main

__all__ = ["main"]
