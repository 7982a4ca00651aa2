"""Speed of ``semu.grid``: configurations decided per second, with bounds and exhaustive, and two small grids.

Decided is every legal configuration: simulated, or cut because it surely does not fit or surely is not among the best
ten. Exhaustive cuts what surely does not fit and simulates all else. Times are on the clock of this machine, with what
else runs on it, and on a processor: this process's own time, for several processes the sum of theirs over their number.
A million configurations on all axes are decided in a process of their own, whose memory counts.
References are measured in the same run: a warm ``semu.evaluate`` of one configuration, and the same configurations
evaluated one by one in the order of the axes.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row, print_rows

import semu
import semu_models
from semu.searcher.grid import GridResult
from semu.searcher.grid.space import job_at

TOP = 10


@dataclass(frozen=True)
class Taken:
    """Time on the clock and on a processor [s]."""

    clock_s: float
    processor_s: float


def taken(run: Callable[[], GridResult], processes: int = 1) -> tuple[GridResult, Taken]:
    """What a grid finds, and how long it takes."""
    begin, busy = time.perf_counter(), _busy_s()
    found = run()
    clock_s = time.perf_counter() - begin
    while multiprocessing.active_children():  # ended workers count when they have been waited for
        time.sleep(0.05)
    return found, Taken(clock_s, (_busy_s() - busy) / processes)


def _busy_s() -> float:
    """Processor time of this process and of those that it has ended [s]."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def rates(name: str, found: GridResult, lasted: Taken, goal: float, reference: str) -> Iterator[Row]:
    """Configurations decided per second."""
    for where, seconds in (("on the clock", lasted.clock_s), ("on a processor", lasted.processor_s)):
        rate = found.num_legal / seconds
        yield Row(f"{name}, {where}", rate, "decided/s", reference, f">= {goal:g}", rate >= goal)


def times(name: str, lasted: Taken, goal: float, reference: str) -> Iterator[Row]:
    """Seconds of a grid."""
    for where, seconds in (("on the clock", lasted.clock_s), ("on a processor", lasted.processor_s)):
        yield Row(f"{name}, {where}", seconds, "s", reference, f"<= {goal:g}", seconds <= goal)


def warm_evaluation_s(job: semu.TrainingJob) -> float:
    """Processor time of one evaluation of a configuration that has been evaluated before [s]."""
    semu.evaluate(job)
    best = float("inf")
    for _ in range(20):
        begin = time.process_time()
        semu.evaluate(job)
        best = min(best, time.process_time() - begin)
    return best


def gpt3(gpus: int) -> semu.TrainingJob:
    """GPT-3 175B as in 2104.04473 Table 2: 1536 sequences of 2048 tokens."""
    cluster = semu.Cluster("a100-80g", gpus // 8, 8)
    training = semu.Training(micro_batch=1, global_batch=3 * gpus, seq_len=2048, recompute="full")
    return semu.TrainingJob(semu_models.gpt3_175b(), cluster, semu.Parallel(dp=gpus // 8, tp=8), training)


def exhaustive(gpus: int) -> tuple[GridResult, Taken]:
    """Everything that may fit, simulated by two workers."""
    job = gpt3(gpus)
    return taken(lambda: semu.grid(job, top=TOP, exhaustive=True, workers=2), processes=2)


def measure_large(quick: bool) -> Iterator[Row]:
    """All (tp, pp, dp, micro_batch, vpp, recompute)."""
    gpus = 64 if quick else 512
    job = gpt3(gpus)
    bounded, first = taken(lambda: semu.grid(job, top=TOP))
    name = f"GPT-3 175B on {gpus} A100, {bounded.num_legal:,} legal"
    said = f"{len(bounded.rows)} simulated, in a process that traces the model first"
    yield from rates(f"{name}: with bounds, one process", bounded, first, 15000, said)
    _, again = taken(lambda: semu.grid(job, top=TOP))
    yield from rates(f"{name}: with bounds, once more", bounded, again, 15000, "traced and compiled before")
    one_s = warm_evaluation_s(bounded.best_job)
    share = again.processor_s / bounded.num_legal / one_s
    yield Row(f"{name}: decision", share, "evaluations", f"a warm semu.evaluate, {one_s * 1e3:.2f} ms on a processor")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # workers know what it knows: nothing
        whole, lasted = fresh.submit(exhaustive, gpus).result()
    said = f"{len(whole.rows):,} simulated, {whole.cut_by_memory:,} cannot fit; two workers of a new process"
    yield from rates(f"{name}: exhaustive", whole, lasted, 2000, said)
    share = 2 * lasted.processor_s / len(whole.rows) / one_s
    yield Row(f"{name}: simulated for the first time", share, "evaluations", "a warm semu.evaluate of the best")
    same = whole.rows[:TOP] == bounded.rows[:TOP]
    yield Row(f"{name}: the best {TOP} of both", float(same), "same", "exhaustive", "1", same)


def measure_hundred() -> Iterator[Row]:
    """(tp, pp, dp, micro_batch), in a process in which they have been evaluated before."""
    job = gpt3(512)
    vary = {"tp": None, "pp": None, "micro_batch": (1, 2, 4, 8, 16)}
    for words, exhaustive in (("with bounds", False), ("exhaustive", True)):
        found, _ = taken(lambda exhaustive=exhaustive: semu.grid(job, vary=vary, exhaustive=exhaustive))  # type: ignore[misc]
        found, lasted = taken(lambda exhaustive=exhaustive: semu.grid(job, vary=vary, exhaustive=exhaustive))  # type: ignore[misc]
        said = f"{len(found.rows)} simulated, {found.cut_by_memory} cannot fit; peers 0.8 s and 10.5 s"
        yield from times(f"{found.num_legal} points, {words}, warm", lasted, 0.5, said)
    jobs = [job_at(job, row.point) for row in found.rows]
    begin = time.process_time()
    for own in jobs:
        semu.evaluate(own)
    one_by_one = time.process_time() - begin
    yield Row(
        "the same, one by one", one_by_one / lasted.processor_s, "x its time", "semu.evaluate in the table's order"
    )


def measure_vlm() -> Iterator[Row]:
    """DIP §7.4: all (dp, tp, pp), powers of two with tp <= 8."""
    training = semu.Training(micro_batch=1, global_batch=128, recompute="full")
    batch = semu.workload.vlm_batch(seed=0)
    cluster = semu.Cluster("h800", 8, 8)
    job = semu.TrainingJob(semu_models.vlm_m(), cluster, semu.Parallel(dp=8, tp=2, pp=4), training, batch)
    for words in ("first", "warm"):
        found, lasted = taken(lambda: semu.grid(job, vary=("tp", "pp"), exhaustive=True))
        said = f"{len(found.rows)} simulated, {found.cut_by_memory} cannot fit"
        yield from times(f"VLM-M on 64 H800, {found.num_legal} points, {words}", lasted, 2.0, said)


ALL_AXES: dict[str, tuple[int | str, ...] | None] = {
    **dict.fromkeys(("tp", "pp", "vpp", "ep", "micro_batch", "recompute", "zero")),
    "cp": (1, 2, 4),
    "schedule": ("1f1b", "gpipe", "interleaved"),
}
CLUSTERS = (32, 64, 128)
"""GPUs."""
LIMIT_S = 300.0
"""Simulating on one of them ends then: where little fits, there is much to simulate."""


def all_axes(gpus: int) -> tuple[int, int, bool, Taken, float]:
    """Mixtral 8x7B on H100: legal configurations, those that were simulated, whether that came to its end, how long it
    took, and the most memory that this process has held [MB]."""
    begin = time.monotonic()

    def _stop(said: str) -> None:
        if "simulated" in said and time.monotonic() - begin > LIMIT_S:
            raise KeyboardInterrupt

    training = semu.Training(micro_batch=1, global_batch=3 * gpus, seq_len=8192, recompute="full")
    cluster = semu.Cluster("h100", gpus // 8, 8)
    job = semu.TrainingJob(semu_models.mixtral_8x7b(), cluster, semu.Parallel(dp=gpus // 8, tp=8), training)
    found, lasted = taken(lambda: semu.grid(job, vary=ALL_AXES, framework="any", top=TOP, progress=_stop))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found.num_legal, found.evaluated, found.ended_by == "end", lasted, memory


def measure_million() -> Iterator[Row]:
    """All axes on several clusters, one after another."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        found = [fresh.submit(all_axes, gpus).result() for gpus in CLUSTERS]
    legal, simulated, ends, times_of, memories = zip(*found, strict=True)
    decided, evaluated, ended = sum(legal), sum(simulated), sum(ends)
    clock_s, processor_s = sum(own.clock_s for own in times_of), sum(own.processor_s for own in times_of)
    name = f"Mixtral 8x7B, all axes on {', '.join(map(str, CLUSTERS))} H100, {decided:,} legal"
    said = f"{evaluated} simulated, in a process that traces the model first; {ended} of {len(found)} came to their end"
    yield from times(f"{name}: with bounds, one process", Taken(clock_s, processor_s), 60.0, said)
    memory = memories[-1]
    yield Row(f"{name}: memory of the process", memory, "MB", "at most", "<= 1000", memory <= 1000)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from measure_vlm()
    yield from measure_hundred()
    yield from measure_large(quick)
    if not quick:
        yield from measure_million()


if __name__ == "__main__":
    print_rows(__doc__, measure)
