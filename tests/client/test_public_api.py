"""`import tidelog`: every name that users are promised, and nothing loaded before it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from tidelog.protocol.errors import BY_CODE

SOURCE = Path(tidelog.__file__).parents[1]


@pytest.mark.parametrize("name", [*tidelog._HOMES, "TidelogError"])
def test_a_promised_name_is_there_and_listed(name: str) -> None:
    assert getattr(tidelog, name) is not None
    assert name in dir(tidelog)


PROMISED = {
    "Producer": "send enqueue send_many flush partitions_for partition_for close transaction send_offsets",
    "Consumer": (
        "subscribe unsubscribe assign assignment pause resume paused seek seek_to_beginning seek_to_end position positions "
        "committed commit getone getmany batches beginning_offsets end_offsets offsets_for_times state close"
    ),
    "Admin": (
        "create_topics delete_topics list_topics describe_topics add_partitions describe_configs alter_configs "
        "describe_cluster describe_quorum describe_log_dirs list_groups describe_groups reset_group_offsets delete_groups "
        "delete_group_offsets list_offsets delete_records elect_leaders reassign list_reassignments drain_broker "
        "undrain_broker unregister_broker"
    ),
}
"""Names that other programs rely on."""


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in PROMISED for name in PROMISED[kind].split()]
)
def test_what_users_were_promised_can_be_called_and_blocks_in_sync(kind: str, name: str) -> None:
    assert hasattr(getattr(tidelog, kind), name)
    assert hasattr(getattr(tidelog.sync, kind), name)


def test_every_error_has_its_name() -> None:
    for error in BY_CODE.values():
        assert getattr(tidelog, error.__name__) is error


@pytest.mark.parametrize("name", ["Admin", "Client", "Consumer", "Delivery", "Producer", "connect"])
def test_what_blocks_has_its_names_without_an_import_of_its_own(name: str) -> None:
    assert getattr(tidelog.sync, name).__doc__
    assert "sync" in dir(tidelog)


@pytest.mark.parametrize("name", ["Nothing", "Mapping", "BY_CODE", "_secret"])
def test_any_other_name_is_none(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(tidelog, name)


def test_importing_it_loads_none_of_its_modules() -> None:
    program = (
        "import sys; before = set(sys.modules); import tidelog; "
        "print(*(set(sys.modules) - before) & {'asyncio', 'typing', 'msgspec', 'logging'}, "
        "*(name for name in sys.modules if name.startswith('tidelog.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
