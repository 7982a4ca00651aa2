"""Speed of one evaluation of a dense configuration in a warm process, and of ``semu validate``.

Every evaluation is of another configuration than the one before: a grid of micro batch, recomputation, ZeRO, virtual
stages, data, tensor and pipeline parallelism of one model. Warm means that all of them have been evaluated before in
this process, so that nothing is traced or compiled; ``same job`` is one configuration again and again. ``each for the
first time`` is what a sweep over new configurations pays, all but the first of the model. References are measured in
the same run: the first evaluation of each configuration, and ``semu.simulate``, which gives tables and a timeline too.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row, print_rows

import semu
import semu_models
from semu.nn.model import Model

GOALS_S = {"lm-7b": 0.3e-3, "llama3-8b": 0.3e-3, "gpt3-175b": 0.5e-3, "mixtral-8x7b, ep": 1e-3, "vlm-m": 2e-3}
FIRST_GOALS_S = {"lm-7b": 0.06, "llama3-8b": 0.06, "gpt3-175b": 0.06, "mixtral-8x7b, ep": 0.15, "vlm-m": 0.15}
VALIDATE_GOAL_S = 5.0


def grid(
    model: Model,
    device: str,
    seq_len: int | None,
    global_batch: int,
    tps: tuple[int, ...],
    pps: tuple[int, ...],
    dps: tuple[int, ...],
    ep: int = 1,
    batch: semu.workload.AbstractBatch | None = None,
) -> list[semu.TrainingJob]:
    """Configurations of one model that semu accepts, in a random order that is always the same."""
    jobs = []
    for tp, pp, dp, micro_batch, recompute, zero, vpp in product(
        tps, pps, dps, (1, 2), ("selective", "full", "none"), (0, 1), (1, 2)
    ):
        gpus = tp * pp * dp
        try:
            jobs.append(
                semu.TrainingJob(
                    model,
                    semu.Cluster(device, max(1, gpus // 8), min(8, gpus)),
                    semu.Parallel(dp=dp, tp=tp, pp=pp, zero=zero, vpp=vpp, ep=ep),
                    semu.Training(
                        micro_batch=micro_batch,
                        global_batch=global_batch,
                        seq_len=seq_len,
                        recompute=recompute,
                        schedule="interleaved" if vpp > 1 else "1f1b",
                    ),
                    batch,
                )
            )
        except semu.ConfigError:
            continue
    random.Random(1).shuffle(jobs)
    return jobs


def timed(run: Callable[[semu.TrainingJob], object], jobs: list[semu.TrainingJob]) -> list[float]:
    """Time of each job on a processor [s]: nothing here waits, and other processes do not count."""
    times_s = []
    for job in jobs:
        start = time.thread_time()
        run(job)
        times_s.append(time.thread_time() - start)
    return times_s


def measure_grid(name: str, jobs: list[semu.TrainingJob], rounds: int) -> Iterator[Row]:
    """Rows of one model: evaluations in turns with whole simulations, the fastest round of each job counts."""
    first_s = timed(semu.evaluate, jobs)
    for job in jobs[:3]:
        report, found = semu.simulate(job), semu.evaluate(job)
        assert found.iteration_time_s == report.iteration_time_s, "evaluate finds another time"
        assert found.peak_memory_bytes == report.peak_memory_bytes, "evaluate finds another memory"
    whole_s = timed(semu.simulate, jobs)
    warm_s = timed(semu.evaluate, jobs)
    for _ in range(rounds - 1):
        whole_s = [*map(min, whole_s, timed(semu.simulate, jobs))]
        warm_s = [*map(min, warm_s, timed(semu.evaluate, jobs))]
    again_s = min(timed(semu.evaluate, [jobs[0]] * 20))
    title, goal_s, most_s = f"{name}, {len(jobs)} configurations", GOALS_S[name], FIRST_GOALS_S[name]
    middle = median(warm_s)
    yield Row(f"{title}, median", middle * 1e3, "ms", "none", f"<= {goal_s * 1e3:g}", middle <= goal_s)
    first_goal = f"<= {most_s * 1e3:g}"
    yield Row(
        f"{name}, the model's first", first_s[0] * 1e3, "ms", "traced, costed, run", first_goal, first_s[0] <= most_s
    )
    if len(first_s) > 1:
        yield Row(f"{title}, each for the first time, median", median(first_s[1:]) * 1e3, "ms", "none", None, None)
    yield Row(f"{title}, fastest", min(warm_s) * 1e3, "ms", "none", None, None)
    yield Row(f"{title}, slowest", max(warm_s) * 1e3, "ms", "none", None, None)
    yield Row(f"{name}, same job", again_s * 1e3, "ms", "none", None, None)
    yield Row(f"{title}, median", median(whole_s) / middle, "x faster", "semu.simulate", None, None)
    yield Row(f"{title}, mean", sum(first_s) / sum(warm_s), "x faster", "the first evaluation of each", None, None)


def measure_validate(quick: bool) -> Iterator[Row]:
    """``semu validate`` over the runs file, in this process: on the clock, and of that on a processor."""
    name = "semu validate, runs file"
    folder = Path(os.environ.get("SEMU_DATA", _ROOT.parent / "shared" / "data"))
    path = folder / "runs" / "runs.json"
    if quick or not path.is_file():
        reason = "left out with --quick" if quick else f"no runs file at {path}; set SEMU_DATA"
        yield Row(name, None, "s", reason, None, None)
        return
    from semu.runfile import make_job
    from semu.validation import evaluate_row, read_rows

    rows = read_rows(path)
    start, busy = time.perf_counter(), time.process_time()
    for row in rows:
        evaluate_row(row, partial(make_job, shares_model=True))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    title, goal = f"semu validate, {len(rows)} rows", f"<= {VALIDATE_GOAL_S:g}"
    yield Row(title, seconds, "s", "none", goal, seconds <= VALIDATE_GOAL_S)
    yield Row(f"{title}, on a processor", busy, "s", "none", None, None)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from measure_validate(quick)
    count, rounds = (24, 2) if quick else (120, 5)
    small = ((1, 2, 4), (1, 2, 4), (2, 4, 8))
    yield from measure_grid("lm-7b", grid(semu_models.lm_7b(), "h800", 2048, 128, *small)[:count], rounds)
    yield from measure_grid("llama3-8b", grid(semu_models.llama3_8b(), "h100", 8192, 128, *small)[:count], rounds)
    mixtral = grid(semu_models.build("mixtral-8x7b"), "h100", 4096, 128, (1, 2), (1, 2, 4), (4, 8), ep=4)
    yield from measure_grid("mixtral-8x7b, ep", mixtral[:count], rounds)
    modal = grid(semu_models.vlm_m(), "h800", None, 128, (2, 4), (2, 4), (2, 4), batch=semu.workload.vlm_batch(seed=0))
    yield from measure_grid("vlm-m", modal[: count // 4], rounds)
    large = ((8,), (8, 16), (2, 4, 8))
    yield from measure_grid("gpt3-175b", grid(semu_models.gpt3_175b(), "a100-80g", 2048, 256, *large)[:count], rounds)


if __name__ == "__main__":
    print_rows(__doc__, measure)
