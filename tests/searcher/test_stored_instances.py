"""The benchmark's instances: files that load, microbatches that are cut off, memory that binds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from semu.searcher.orders.budgeted import search_problem
from semu.searcher.orders.loop import Budget

FILE = Path(__file__).parents[2] / "benchmarks" / "_search_instances.py"


@pytest.fixture(scope="module")
def stored() -> ModuleType:
    spec = importlib.util.spec_from_file_location("search_instances", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_is_an_instance(stored: ModuleType) -> None:
    names = [f"{name}-{seed}.json.gz" for name, seeds in stored.SETUPS.items() for seed in seeds]
    assert sorted(path.name for path in stored.FOLDER.iterdir() if path.is_file()) == sorted(names)
    for name, seeds in stored.SETUPS.items():
        problem = stored.load(name, seeds[-1])
        assert len(np.unique(problem.microbatch)) == 32
        assert problem.num_ranks == (8 if name == "vlm-l" else 4)


@pytest.mark.parametrize("name", ["vlm-s", "t2v-s"])
def test_fewer_microbatches_are_a_part(stored: ModuleType, name: str) -> None:
    whole = stored.load(name, 1)
    for count in (1, 2, 6):
        part = stored.load(name, 1, count)
        kept = whole.microbatch < count
        assert part.num_pairs == kept.sum()
        assert np.array_equal(part.forward_s, whole.forward_s[kept])
        assert sorted(np.unique(part.group)) == list(range(2 * count))
        _, after = whole.edges
        assert len(part.pred) == kept[after // 2].sum()
        costs = part.transfer_s.sum(), whole.transfer_s[kept[after // 2]].sum()
        assert costs[0] == costs[1]
        free = search_problem(part, Budget(rollouts=0)).solution
        assert free.makespan_s <= search_problem(whole, Budget(rollouts=0)).solution.makespan_s


@pytest.mark.parametrize("name", ["vlm-s", "t2v-s"])
def test_memory_binds(stored: ModuleType, name: str) -> None:
    free, tight = stored.load(name, 0, 8), stored.load(name, 0, 8, is_tight=True)
    before = search_problem(free, Budget(rollouts=0)).solution
    after = search_problem(tight, Budget(rollouts=0)).solution
    assert np.all(after.peak_bytes <= tight.limit_bytes)
    assert np.any(before.peak_bytes > tight.limit_bytes)
    assert after.makespan_s > before.makespan_s
