"""The searcher's instances: batches of VLM-S, T2V-S and VLM-L (DIP Table 3) as search problems.

    python benchmarks/_search_instances.py          # writes benchmarks/instances/*.json.gz anew

A file holds 32 microbatches of a seed; the first m of them are an instance of m. Chunks and sub-microbatch sizes are
those of all 32, as before training (DIP §4). Costs are what the shipped device profiles say when the files are made.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np

from semu.errors import MemoryLimitError
from semu.searcher import NO_LIMIT, SearchProblem
from semu.searcher.orders.budgeted import search_problem
from semu.searcher.orders.loop import Budget

FOLDER = Path(__file__).parent / "instances"
SETUPS = {"vlm-s": range(5), "t2v-s": range(5), "vlm-l": range(1)}
MICROBATCHES = 32
CANDIDATES = 6
"""Ways to run a stage pair; fewer than the search's own ten keep the files small."""


def load(name: str, seed: int, num_microbatches: int = MICROBATCHES, *, is_tight: bool = False) -> SearchProblem:
    """An instance.

    Args:
        name: of a setup. seed: of its batch. num_microbatches: the first so many. is_tight: with memory that binds
            (``tight``); else without any limit.
    """
    text = gzip.decompress((FOLDER / f"{name}-{seed}.json.gz").read_bytes()).decode()
    problem = first_microbatches(SearchProblem.from_json(text), num_microbatches)
    return tight(problem) if is_tight else replace(problem, limit_bytes=np.full_like(problem.limit_bytes, NO_LIMIT))


def first_microbatches(problem: SearchProblem, count: int) -> SearchProblem:
    """The part of a problem that its first microbatches are: no edge leads from one to another."""
    kept = np.flatnonzero(problem.microbatch < count)
    number = np.full(problem.num_pairs, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    before, after = problem.edges
    inside = problem.microbatch[after // 2] < count
    before, after = before[inside], after[inside]
    stage = 2 * number[after // 2] + after % 2
    counts = np.bincount(stage, minlength=2 * len(kept))
    by_pair = ("rank", "has_backward", "module", "microbatch", "part", "slot", "chunk", "num_candidates")
    costs = ("forward_s", "backward_s", "held_bytes", "forward_peak_bytes", "backward_peak_bytes")
    arrays = {name: getattr(problem, name)[kept] for name in (*by_pair, *costs)}
    for name in ("group", "segment"):
        arrays[name] = np.unique(getattr(problem, name)[kept], return_inverse=True)[1].reshape(-1)
    return SearchProblem.of(
        **arrays,
        pred_ptr=np.concatenate(([0], np.cumsum(counts))),
        pred=2 * number[before // 2] + before % 2,
        transfer_s=problem.transfer_s[inside],
        static_bytes=problem.static_bytes,
        limit_bytes=problem.limit_bytes,
        module_names=problem.module_names,
    )


def tight(problem: SearchProblem) -> SearchProblem:
    """The same with memory that binds: half of what the heuristic's schedule holds at most without a limit, or the
    first tenth more with which the heuristic finds a schedule."""
    free = replace(problem, limit_bytes=np.full_like(problem.limit_bytes, NO_LIMIT))
    peak = search_problem(free, Budget(rollouts=0)).default.peak_bytes
    for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        limit = problem.static_bytes + (share * (peak - problem.static_bytes)).astype(np.int64)
        found = replace(problem, limit_bytes=limit)
        try:
            search_problem(found, Budget(rollouts=0))
        except MemoryLimitError:
            continue
        return found
    return found


def make(name: str, seed: int) -> SearchProblem:
    """An instance from the simulator."""
    from semu.runfile import Overrides, resolve_run
    from semu.searcher.job_search import job_problem
    from semu.searcher.plain_jobs import plain_job

    run = resolve_run(name, Overrides([f"training.global_batch={MICROBATCHES}"], None, None, None, seed))
    return job_problem(plain_job(run.job())[0], candidates=CANDIDATES)[1].problem


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, seeds in SETUPS.items():
        for seed in seeds:
            path = FOLDER / f"{name}-{seed}.json.gz"
            path.write_bytes(gzip.compress(make(name, seed).to_json().encode(), 9, mtime=0))
            print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
