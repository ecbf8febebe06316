"""What a test has counted is told at the end of the run, where CI's log keeps it, wherever the test ran."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest

Tell: TypeAlias = Callable[[Iterable[str]], None]

_TOLD = "told"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Lines that the run shows before its last one, wherever the test ran."""
    return lambda lines: record_property(_TOLD, "\n".join(lines))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have told."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            told = [value for name, value in getattr(report, "user_properties", ()) if name == _TOLD]
            if told and report.when == "call":
                terminalreporter.write_sep("-", report.nodeid.rpartition("::")[2])
                for value in told:
                    terminalreporter.write_line(value)
