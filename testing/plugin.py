"""pytest's door to tidelog: the fixtures `tidelog_cluster` and `tidelog_client`, and the marker `tidelog`.

    @pytest.mark.tidelog(brokers=3, controllers=1, processes=True)
    async def test_orders_survive(tidelog_cluster, tidelog_client): ...

The marker takes what `tidelog.testing.Cluster` takes. Every pytest of whoever has tidelog installed loads this module,
so it imports nothing: the fixtures need pytest-asyncio, in either of its modes, and come with it (`fixtures`).
"""

import pytest

_MARKER = (
    "tidelog(brokers=3, controllers=1, processes=False, ...): the cluster that tidelog_cluster is, in the words of "
    "tidelog.testing.Cluster"
)


def pytest_configure(config: pytest.Config) -> None:
    """Tell the marker, and bring the fixtures if somebody can run them."""
    config.addinivalue_line("markers", _MARKER)
    manager = config.pluginmanager
    if any(getattr(plugin, "__name__", "") == "pytest_asyncio.plugin" for plugin in manager.get_plugins()):
        from tidelog.testing import fixtures  # noqa: PLC0415 -- only beside pytest-asyncio
    else:
        from tidelog.testing import no_fixtures as fixtures  # type: ignore[no-redef]  # noqa: PLC0415 -- as above
    manager.register(fixtures, "tidelog-fixtures")
