"""``advise``: why an iteration is slow, and which of a few changes makes it faster, as simulated.

The reasons come from the report: a pipeline rank that is busy longer than the others, few microbatches, waiting for a
group, recomputation with memory to spare. Each has one or two changes that people try first.
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
from semu.simulation.estimate import evaluate
from semu.simulation.memory.changes_that_fit import Settings, changed
from semu.units import GIB, format_time

UNEVEN = 1.25
"""A rank that is busy so many times as long as the median rank is worth a word."""
SHARE = 0.08
"""Of the iteration: a wait that is worth a word."""
GAIN = 0.01
"""Of the iteration: the least that a change must gain."""
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
                found = evaluate(changed(job, settings))
                if not found.fits:  # nor does the next, which keeps more
                    break
                gains[label] = 1 - found.iteration_time_s / report.iteration_time_s
    best = sorted(gains.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
    advice = [f"--set {label.replace(' ', ' --set ')}: {gain:.0%} less time" for label, gain in best if gain >= GAIN]
    return replace(report, reasons=tuple(text for text, _ in reasons), advice=tuple(advice))


def _reasons(job: TrainingJob, report: Report) -> Iterator[tuple[str, list[Settings]]]:
    """What is slow, and what people change then; each change of a reason leaves more memory free than the next."""
    parallel, training = job.parallel, job.training
    ranks = report.timeline.ranks
    busy = [sum(stage.end_s - stage.start_s for stage in rank.stages) for rank in ranks]
    usual, most = median(busy), max(busy)
    if parallel.pp > 1 and most > UNEVEN * usual > 0:
        rank = busy.index(most)
        what = ", ".join(dict.fromkeys(stage.module for stage in ranks[rank].stages))
        text = f"rank {rank} ({what}) is busy {format_time(most)}, {most / usual:.1f} x as long as the median rank"
        yield text, [{"parallel.partition": "latency"}] if parallel.partition == "parameters" else []
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
    spare = report.room.usable_bytes - max(report.held_memory_bytes)
    is_costly = training.recompute is not Recompute.NONE and report.hfu > 1.1 * report.mfu
    if is_costly and spare > 0.15 * report.capacity_bytes:
        text = (
            f"recomputation takes {1 - report.mfu / report.hfu:.0%} of the FLOP while {spare / GIB:.0f} GiB stay free"
        )
        less = ["selective", "none"] if training.recompute is Recompute.FULL else ["none"]
        yield text, [{"training.recompute": word} for word in less]
