"""What the original METEOR says, and ours with small data and with its own."""

import json
from pathlib import Path

import pytest

from capscore import meteor
from meteor import miniature


@pytest.fixture(scope="session")
def golden():
    return json.loads((Path(__file__).parents[1] / "golden" / "meteor.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meteor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSCORE_CACHE", str(folder / "cache"))
        return meteor.load(miniature.write(folder / "data"))


@pytest.fixture(scope="session")
def whole():
    if reason := meteor.available():
        pytest.skip(reason)
    return meteor.load()
