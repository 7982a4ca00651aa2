"""FlexPipe Table 5: how long schedules are searched for."""

from __future__ import annotations

import time
from pathlib import Path

import semu
from benchmarks.paper._flexpipe import SIZES, gpt
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.tessel.baselines import search_tessel
from semu.simulation import prepare
from semu.simulation.schedules.exploring import explore_schedules
from semu.simulation.schedules.named import pipeline_study

PRINTED: dict[str, dict[int, float | None]] = {
    "Tessel": {2: 1.29, 4: 163.62, 8: None},
    "Tessel-fast": {2: 0.26, 4: 11.1, 8: 729.74, 16: None},
    "FlexPipe": {2: 4.73, 4: 8.28, 8: 71.28, 16: 107.34, 32: 534.78},
}
"""Seconds by GPUs; None: the search fails."""
TEXT = """
A search is of one pipeline over all GPUs for the 5B model with 1M words, 16 microbatches a rank at most. The paper
does not say what its seconds are of: FlexPipe's grow as for a grid of pp and micro batch; this is one point of it.
Ours are of two cores shared with others (a load of 10 to 15 when this was run), theirs of unnamed processors: nothing
is settled by a time that is shorter. Memory bounds neither of Tessel's searches here. Tessel is CP-SAT here and Z3
there, and its search for a repetend ends after `tessel_seconds` = 60 s: Tessel-fast's 60 s with 8 and 16 ranks are that
limit, and Tessel found no repetend with 8 ranks within it, when the cores were busiest. FlexPipe's 32 GPUs were not
run.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    rows = []
    for system, by_gpus in PRINTED.items():
        for gpus, theirs in by_gpus.items():
            if gpus > (4 if quick else 16):
                continue
            seconds, failure = searched_s(system, gpus, choices)
            note = " ".join(["Theirs fails."] * (theirs is None) + [f"Ours fails: {failure}."] * bool(failure))
            rows.append(PaperRow(f"{system}, {gpus} GPUs", theirs, seconds, "s", 0.5, note=note))
    return PaperResult("flexpipe_table5", "Search times", "FlexPipe Table 5", tuple(rows), text=TEXT.strip())


def searched_s(system: str, gpus: int, choices: Choices) -> tuple[float | None, str]:
    """Seconds of a search; None, and why: it finds nothing."""
    job = TrainingJob(
        gpt("5B", 1000_000),
        semu.Cluster("a800", -(-gpus // 8), min(gpus, 8)),
        semu.Parallel(dp=1, pp=gpus, vocabulary="pipeline", zero=0),
        semu.Training(global_batch=min(16 * gpus, 128), micro_batch=1, seq_len=SIZES["5B"][3]),
    )
    began = time.perf_counter()
    try:
        if system == "FlexPipe":
            explore_schedules(job, top=4)
        else:
            study = pipeline_study(prepare(job), splits=False)
            search_tessel(study, is_fast=system == "Tessel-fast", time_s=choices.tessel_seconds.value)
    except ConfigError as error:
        return None, " ".join(str(error).split())
    return time.perf_counter() - began, ""
