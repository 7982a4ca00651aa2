"""``advise``: why an iteration is slow, and which of a few changes makes it faster, as simulated.

The reasons come from the report: a pipeline rank that is busy longer than the others, few microbatches, waiting for a
group, recomputation, kernels of small microbatches. Each has a few changes that people try first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from statistics import median

from semu.errors import ConfigError, ScheduleError
from semu.job import Recompute, TrainingJob
from semu.present.report import Report
from semu.present.summary import GROUPS
from semu.simulation.estimate import time_if_it_fits
from semu.simulation.memory.changes_that_fit import Settings, changed
from semu.units import GIB, format_time

UNEVEN = 1.25
"""A rank that is busy so many times as long as the median rank is worth a word."""
SHARE = 0.08
"""Of the iteration: a wait that is worth a word."""
GAIN = 0.01
"""Of the iteration: the least that a change must gain."""
WEAK = 0.35
"""Of the device's peak: kernels that reach less are worth a word."""
SHOWN = 3


def advise(job: TrainingJob, report: Report, progress: Callable[[str], None] | None = None) -> Report:
    """The report with ``reasons`` and ``advice``; as it is where it does not fit (``nearest_fit`` answers that).

    Args:
        job: what was simulated. progress: called with a line before each change that is simulated.
    """
    if not report.fits:
        return report
    reasons = list(_reasons(job, report))
    gains: dict[str, float] = {}
    for _, changes in reasons:
        for settings in changes:
            label = " ".join(f"{key}={value}" for key, value in settings.items())
            if progress is not None:
                progress(f"trying {label}")
            with suppress(ConfigError, ScheduleError):
                time_s = time_if_it_fits(changed(job, settings), report.iteration_time_s)
                if time_s is not None:
                    gains[label] = 1 - time_s / report.iteration_time_s
    best = sorted(gains.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
    advice = [f"--set {label.replace(' ', ' --set ')}: {gain:.0%} less time" for label, gain in best if gain >= GAIN]
    return replace(report, reasons=tuple(text for text, _ in reasons), advice=tuple(advice))


def _reasons(job: TrainingJob, report: Report) -> Iterator[tuple[str, list[Settings]]]:
    """What is slow, and what people change then; a change that is not legal is not looked at."""
    parallel, training = job.parallel, job.training
    ranks = report.timeline.ranks
    busy = [sum(stage.end_s - stage.start_s for stage in rank.stages) for rank in ranks]
    usual, most = median(busy), max(busy)
    if parallel.pp > 1 and most > UNEVEN * usual > 0:
        rank = busy.index(most)
        what = ", ".join(dict.fromkeys(stage.module for stage in ranks[rank].stages))
        text = f"rank {rank} ({what}) is busy {format_time(most)}, {most / usual:.1f} x as long as the median rank"
        yield text, [{"parallel.partition": "latency"}] if parallel.partition in ("parameters", "forward") else []
    elif parallel.pp > 1 and report.bubble_ratio > SHARE:
        text = (
            f"{parallel.pp} pipeline ranks idle {report.bubble_ratio:.0%} with {report.num_microbatches} microbatches"
        )
        interleaved = {"training.schedule": "interleaved", "parallel.vpp": 2}
        yield text, [interleaved] if parallel.vpp == 1 and training.schedule == "1f1b" else []
    waits = report.breakdown_s.get("exposed_communication")
    worst = max(waits.items(), key=lambda item: item[1], default=("", 0.0)) if isinstance(waits, Mapping) else ("", 0.0)
    share = worst[1] / report.iteration_time_s
    if share > SHARE:
        halves: list[Settings] = []
        if worst[0] == "tp" and parallel.tp > 1:
            batch = {"training.global_batch": training.global_batch}
            halves = [{"parallel.tp": parallel.tp // 2, "parallel.dp": parallel.dp * 2, **batch}]
        yield f"computing waits {share:.0%} of the time for {GROUPS.get(worst[0], worst[0])}", halves
    yield from _recomputation(job, report)
    busy_s = report.breakdown_s.get("compute")
    reached = report.hfu * report.iteration_time_s / busy_s if isinstance(busy_s, float) and busy_s else 1.0
    if reached < WEAK:
        size, length = training.micro_batch, training.seq_len
        text = f"kernels reach {reached:.0%} of the GPU's peak with microbatches of {size}"
        same: Settings = {"training.global_batch": training.global_batch}
        yield text + (f" x {length} tokens" if length else ""), [{"training.micro_batch": 4 * size, **same}]


def _recomputation(job: TrainingJob, report: Report) -> Iterator[tuple[str, list[Settings]]]:
    """That it takes time; where memory has no room for less of it, more ranks for every replica make some."""
    parallel, training = job.parallel, job.training
    if training.recompute is Recompute.NONE or report.hfu <= 1.1 * report.mfu:
        return
    words = ["selective", "none"] if training.recompute is Recompute.FULL else ["none"]
    less: list[Settings] = [{"training.recompute": word} for word in words]
    spare = report.room.usable_bytes - max(report.held_memory_bytes)
    text = f"recomputation takes {1 - report.mfu / report.hfu:.0%} of the FLOP while {spare / GIB:.0f} GiB stay free"
    if spare <= 0.15 * report.capacity_bytes and parallel.dp % 2 == 0:
        same = {"parallel.dp": parallel.dp // 2, "training.global_batch": training.global_batch}
        same |= {"parallel.etp": 1} if parallel.ep > 1 else {}
        for axis in ("tp", "pp"):
            wider = {f"parallel.{axis}": 2 * getattr(parallel, axis), **same}
            less += [{**wider, "training.recompute": word} for word in words]
    yield text, less
