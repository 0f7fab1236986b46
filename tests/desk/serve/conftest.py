import time

import pytest

from support.web import ask, running


@pytest.fixture
def serve(small_model, tmp_path):
    """Start a server of a folder that has been captioned: its process and its address."""

    def start(folder, *arguments, **environment):
        cache = {"TELLAPART_CACHE": str(tmp_path / "cache")}
        return running("serve", folder, "--model", small_model, *arguments, **cache | environment)

    return start


def captioned(address, **headers):
    """Wait until the job is done."""
    while (job := ask(address, "/api/jobs/1", **headers)[1])["state"] not in ("done", "failed"):
        time.sleep(0.05)
    assert job["state"] == "done", job
    return job


@pytest.fixture(name="captioned")
def _captioned():
    return captioned
