"""Published figures beside semu's own: DIP Table 1, the worked example of DIP §2.2, the spread of DIP Fig. 4d.

Nothing is tuned to meet them; a row without a goal shows a difference that the paper leaves open.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _rows import Row, print_rows

import semu
from benchmarks.paper._parts import OneMicrobatch, one_f_one_b_makespan
from semu.parallel.pipeline import partition
from semu.runfile import load_run
from semu.workload import t2v_batch

NUM_BATCHES = 100


def worked_example() -> Iterator[Row]:
    """64 ViT layers of 6.75 ms and 64 LM layers of 10.5 ms in 16 stages, 64 microbatches."""
    weights = [6.75] * 64 + [10.5] * 64
    cuts = partition(weights, 16)
    stages = [sum(weights[a:b]) for a, b in pairwise(cuts)]
    makespan = one_f_one_b_makespan(stages, 64)
    bubble = 100 * (1 - 64 * sum(weights) / (16 * makespan))
    balanced = one_f_one_b_makespan([sum(weights) / 16] * 16, 64)
    yield Row("DIP 2.2: longest stage", max(stages), "ms", "DIP: 73.5", "= 73.5", max(stages) == 73.5)
    yield Row("DIP 2.2: shortest stage", min(stages), "ms", "DIP: 63", ">= 63", min(stages) >= 63)
    yield Row("DIP 2.2: bubble", bubble, "%", "DIP: 22.8", "22.5 to 23.0", 22.5 <= bubble <= 23.0)
    yield Row("DIP 2.2: against balanced stages", 100 * (makespan / balanced - 1), "% longer", "closed form: 5.2")


def table_1() -> Iterator[Row]:
    """The unimodal and the dynamic multimodal run of DIP Table 1."""
    for name, seconds, mfu in (("lm-7b", 4.068, 0.400), ("vlm-7b", 6.789, 0.239)):
        report = semu.simulate(load_run(name))
        yield Row(f"DIP Table 1: {name}, model FLOP", report.model_flop / 1e15, "PFLOP", "DIP: 12.8")
        yield Row(f"DIP Table 1: {name}, iteration time", report.iteration_time_s, "s", f"DIP, measured: {seconds}")
        yield Row(f"DIP Table 1: {name}, MFU", report.mfu, "of bf16 peak", f"DIP, measured: {mfu}")


def flop_spread(num_batches: int) -> Iterator[Row]:
    """Model FLOP of the largest over the smallest of packed text-to-video batches (DIP Fig. 4d), seed 0."""
    job = load_run("t2v-s")
    training = replace(job.training, global_batch=1)
    for pixels in (256, 512):
        source = t2v_batch(seed=0, resolution=(pixels, pixels))
        work = []
        for item in source.microbatches(num_batches, 1):
            own = semu.evaluate(semu.TrainingJob(job.model, job.cluster, job.parallel, training, OneMicrobatch(item)))
            work.append(own.mfu * own.iteration_time_s)  # model FLOP over the peak of the same GPUs
        yield Row(
            f"DIP Fig. 4d: FLOP spread at {pixels} px", max(work) / min(work), "x", "DIP: 4.15, no resolution given"
        )


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from worked_example()
    yield from table_1()
    yield from flop_spread(10 if quick else NUM_BATCHES)


if __name__ == "__main__":
    print_rows(__doc__, measure)
