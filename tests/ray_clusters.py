"""A real Ray cluster of two nodes on this machine."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a head and another node with 2 CPUs each, enough for one task per node; stop them at the end.

    One cluster at a time: two on one machine wait for each other's workers.
    """
    pytest.importorskip("ray", reason="needs ducats[ray]")
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 80_000_000}
    with FileLock(Path(tempfile.gettempdir()) / "ducats-tests-ray.lock"):
        cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        try:
            cluster.add_node(**size)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
