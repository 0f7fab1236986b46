"""Shared by all tests of capscore, which pass where neither torch nor tellapart is installed."""

import pytest
from hypothesis import settings

# A first call may compile a kernel, and the machine may be busy: time says nothing of what is tested.
settings.register_profile("capscore", deadline=None)
settings.load_profile("capscore")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own: nothing is read from or left in that of whoever runs the tests."""
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
