"""The Ray engine on a cluster of several nodes, of which one is killed: nothing is lost, nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from semu.errors import ConfigError, ExecutorError
from semu.searcher.engines.cluster import RayEngine
from semu.searcher.engines.engine import SerialEngine

ray = pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def slow_square(pause_s: float, task: int) -> int:
    time.sleep(pause_s)
    return task * task


def refuse(task: int) -> int:
    if task == 2:
        raise ConfigError("not two", where="task", got=task)
    return task


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without CPUs, so that every task runs on a node that can be killed."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield found
    ray.shutdown()
    found.shutdown()


def test_a_node_that_is_killed_in_the_middle_changes_nothing(cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    cluster.wait_for_nodes(timeout=180)
    engine = RayEngine(address=cluster.address)
    assert engine.workers == 3
    work = partial(slow_square, 0.05)
    found = []
    for number, result in engine.run(work, range(60)):
        found.append((number, result))
        if len(found) == 10:
            cluster.remove_node(nodes[0], allow_graceful=False)
    assert sorted(found) == list(SerialEngine().run(partial(slow_square, 0.0), range(60)))
    assert len(found) == 60


def test_a_cluster_that_loses_all_nodes_is_an_error_and_what_was_done_stands(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes(timeout=180)
    engine = RayEngine(address=cluster.address, patience_s=3.0)
    found = []
    with pytest.raises(ExecutorError) as caught:
        for number, _ in engine.run(partial(slow_square, 0.05), range(200)):
            found.append(number)
            if len(found) == 5:
                cluster.remove_node(node, allow_graceful=False)
    assert caught.value.exit_code == 6
    assert len(found) == len(set(found)) >= 5


def test_what_a_task_raises_comes_out_and_workers_can_be_limited(cluster: Any) -> None:
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes(timeout=180)
    engine = RayEngine(address=cluster.address, workers=1)
    assert engine.workers == 1
    with pytest.raises(ConfigError, match="not two"):
        list(engine.run(refuse, range(4)))
    assert sorted(engine.run(partial(slow_square, 0.0), range(5))) == [(n, n * n) for n in range(5)]
