"""The fixtures of `plugin` where nothing can run them: they say what is missing."""

from typing import NoReturn

import pytest

_MISSING = "the fixtures tidelog_cluster and tidelog_client are asynchronous: pip install pytest-asyncio"


@pytest.fixture
def tidelog_cluster() -> NoReturn:
    """Nothing, for want of pytest-asyncio."""
    pytest.fail(_MISSING, pytrace=False)


@pytest.fixture
def tidelog_client() -> NoReturn:
    """Nothing, for want of pytest-asyncio."""
    pytest.fail(_MISSING, pytrace=False)
