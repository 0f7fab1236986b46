"""A Ray cluster on this machine, for all tests that want one: it takes a while to start."""

from pathlib import Path

import pytest


class TwoWorkers:
    def __init__(self):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}
        self._nodes = [
            self._cluster.add_node(**small, include_dashboard=False, no_monitor=True),
            self._cluster.add_node(**small),
        ]
        self.address = self._cluster.address

    def busy(self):
        """The processes that work on batches just now."""
        nodes = {info.process.pid for node in self._nodes for info in node.all_processes["raylet"]}
        return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _works_for(process, nodes)]

    def shut_down(self):
        self._cluster.shutdown()


def _works_for(process, nodes):
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return parent in nodes and (process / "cmdline").read_bytes().startswith(b"ray::MapWorker")
    except OSError:  # it has ended meanwhile
        return False


@pytest.fixture(scope="session")
def two_workers():
    pytest.importorskip("ray")
    cluster = TwoWorkers()
    yield cluster
    cluster.shut_down()
