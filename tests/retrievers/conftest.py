import pytest


@pytest.fixture(autouse=True)
def its_own_cache(own_cache):
    """No test reads or fills the cache of whoever runs it."""
