"""DIP Table 5: VLM-S under Megatron-LM, then DIP's parts added one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.paper._jobs import baseline, baseline_runs, job_of, on_batch, seeds_of
from benchmarks.paper._pictures import OURS, THEIRS, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper._steps import Step, best, cut_of, optimised
from benchmarks.paper.choices import Choices

SETUP = "vlm-s"
PRINTED = (
    ("vanilla Megatron-LM", 26.13),
    ("+ modality-aware partitioner (§4)", 22.27),
    ("+ stage interleaving (§5.2)", 18.81),
    ("+ segment reordering (§5.1)", 17.61),
    ("+ per-layer memory optimisation (§5.3)", 16.05),
)
BEYOND = "+ less lean starts, moves of single stages (semu)"
TEXT = """
Every step runs the same batches. Up to the fourth all recompute the same static number of layers per chunk; the fifth
chooses for every layer of every stage. The second is Megatron-LM's interleaved 1F1B over DIP's chunks and
sub-microbatches ("no-opt" in Fig. 8b). The sixth is not DIP's. Seconds hang on the global batch, which DIP does not
print in the table (64 microbatches are in its text); gains do less, so both are compared. Margin 25 %: about what the
open choices move them by. Reordering gains little here: the natural order is within 2 % of the lower
bound. Memory optimisation gains more than DIP's, as it removes all recomputation that it can.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    seeds = seeds_of(choices, 1 if quick else choices.searched_batches.value)
    times = steps(choices, seeds)
    moved: dict[str, list[float]] = {}
    if not quick:
        few = seeds[:2]
        told = {"images_mean": (2.0, None), "recompute": ("full",), "vpp": (2,), "microbatches": (16,)}
        for name, values in told.items():
            for value in values:
                moved[f"{name} {value}"] = steps(choices.changed(**{name: value}), few)
    theirs = [seconds for _, seconds in PRINTED]
    rows = [
        PaperRow(
            f"{name}: gain over Megatron-LM",
            100 * (theirs[0] / theirs[number] - 1),
            100 * (times[0] / times[number] - 1),
            "%",
            margin=0.25,
            sensitivity={word: 100 * (own[0] / own[number] - 1) for word, own in moved.items()},
        )
        for number, (name, _) in enumerate(PRINTED)
        if number
    ]
    rows += [
        PaperRow(
            f"{name}: gain over the step before",
            100 * (theirs[number - 1] / theirs[number] - 1),
            100 * (times[number - 1] / times[number] - 1),
            "%",
            margin=0.25,
            sensitivity={word: 100 * (own[number - 1] / own[number] - 1) for word, own in moved.items()},
        )
        for number, (name, _) in enumerate(PRINTED)
        if number > 1
    ]
    falls = [float(np.all(np.diff(own[: len(PRINTED)]) < 0)) for own in (times, *moved.values())]
    rows.append(
        PaperRow(
            "every step is faster than the one before (1: yes)",
            1.0,
            falls[0],
            "",
            sensitivity=dict(zip(moved, falls[1:], strict=True)),
        )
    )
    rows += [
        PaperRow(
            f"{name}: iteration",
            theirs[number],
            times[number],
            "s",
            margin=0.25,
            sensitivity={word: own[number] for word, own in moved.items()},
            note="The global batch is not printed." if not number else "",
        )
        for number, (name, _) in enumerate(PRINTED)
    ]
    rows.append(PaperRow(f"{BEYOND}: gain over Megatron-LM", None, 100 * (times[0] / times[-1] - 1), "%"))
    return PaperResult(
        name="table5",
        title="what each part of DIP gains on VLM-S",
        source="DIP Table 5",
        rows=tuple(rows),
        pictures=(draw(out / "table5.png", times),),
        text=f"{TEXT.strip()} Means of {len(seeds)} iterations; under other choices, of 2 of them.",
    )


def steps(choices: Choices, seeds: Sequence[int]) -> list[float]:
    """Mean iteration time of every step [s]; a step that finds no schedule within memory makes it infinite."""
    job = job_of(SETUP, choices)
    cut = cut_of(job, choices)
    found = baseline("megatron", job, choices)
    taken: list[Callable[[int], Step]] = [
        lambda seed: cut.on(seed).partitioned(),
        lambda seed: cut.on(seed).interleaved(),
        lambda seed: cut.on(seed).reordered(),
        lambda seed: optimised(on_batch(job, choices, seed), choices),
        lambda seed: best(on_batch(job, choices, seed), choices),
    ]
    first = float(np.mean([own.time_s for own in baseline_runs(found, choices, seeds)]))
    return [first, *(float(np.mean([step(seed).time_s for seed in seeds])) for step in taken)]


def draw(path: Path, times: Sequence[float]) -> Path:
    """Iteration time of every step over Megatron-LM's, theirs beside ours."""
    figure, (axes,) = new_figure(9.5, 3.6)
    names = [name for name, _ in PRINTED] + [BEYOND]
    theirs = [seconds for _, seconds in PRINTED]
    at = np.arange(len(names))
    shares = [own / theirs[0] for own in theirs]
    bars = axes.barh(at[: len(theirs)] - 0.19, shares, 0.36, color=THEIRS, label="DIP, measured")
    axes.bar_label(bars, [f"{own:.2f} s" for own in theirs], fontsize=8, padding=3)
    bars = axes.barh(at + 0.19, [own / times[0] for own in times], 0.36, color=OURS, label="semu")
    axes.bar_label(bars, [f"{own:.2f} s" for own in times], fontsize=8, padding=3)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15)
    axes.set_xlabel("iteration time over Megatron-LM's")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return save(figure, path)
