"""DIP Fig. 8b: VLM-S over 40 iterations whose sequences have a bounded number of images: two waves.

Every system runs the same batches. What is decided before training (recomputed layers, nnScaler*'s plan) is decided on
other batches of the same waves; DIP cuts and searches every batch anew. *DIP (no-opt)* is the partitioner under
Megatron-LM's schedule, as in Table 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import semu
from benchmarks.paper._images import BoundedImages, InTurn, mean_images, wave_bounds
from benchmarks.paper._jobs import PLANNING_SEED, baseline, batch_of, job_of
from benchmarks.paper._pictures import COLORS, NAMES, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper._steps import Cut, best, cut_of
from benchmarks.paper.choices import Choices
from semu.baselines import Baseline
from semu.baselines.nn_scaler import nnscaler
from semu.job import Recompute
from semu.workload.vlm import VlmBatch

SETUP = "vlm-s"
BASELINES = ("megatron", "nnscaler", "optimus")
SYSTEMS = (*BASELINES, "no-opt", "dip")
TOP, LATE = 6, range(15, 21)
"""Iterations that the text speaks of, counted from 1."""
QUICK = (6, 18)
PLANNED = 16
"""Microbatches of every iteration of a wave that nnScaler* plans on."""
MEGATRON, OTHERS, NNSCALER_LATE, PEAK_IMAGES = 52.9, 10.4, 50.5, 22.0


@dataclass(frozen=True)
class Systems:
    """What was decided before training.

    Attributes:
        job: of the setup. choices: of it. baselines: by name. cut: of *no-opt*.
    """

    job: semu.TrainingJob
    choices: Choices
    baselines: Mapping[str, Baseline]
    cut: Cut

    @classmethod
    def planned(cls, choices: Choices) -> Systems:
        """Made for the waves, on batches that no iteration has."""
        job = job_of(SETUP, choices)
        wave = [bounded(job, choices, PLANNING_SEED, number) for number in range(len(wave_bounds()) // 2)]
        fullest = sorted(wave, key=lambda batch: -batch.lower)[:4]
        every = InTurn(tuple(wave), PLANNED)
        found = {name: baseline(name, job, choices, workload=fullest) for name in BASELINES if name != "nnscaler"}
        found["nnscaler"] = nnscaler(job, every, num_microbatches=every.each * len(wave))
        return cls(job, choices, found, cut_of(job, choices, fullest))

    def iteration(self, number: int) -> Iteration:
        """All systems on one batch. ``number``: from 0."""
        batch = bounded(self.job, self.choices, self.choices.first_seed.value, number)
        times, fits = {}, {}
        for name in BASELINES:
            estimate = semu.evaluate(replace(self.baselines[name].job, batch=batch))
            times[name], fits[name] = estimate.iteration_time_s, estimate.fits
        step = replace(self.cut, job=replace(self.cut.job, batch=batch)).partitioned()
        times["no-opt"], fits["no-opt"] = step.time_s, step.fits
        step = best(replace(self.job, batch=batch), self.choices)
        times["dip"], fits["dip"] = step.time_s, step.fits
        return Iteration(number + 1, mean_images(batch, self.job.num_microbatches), times, fits)


def bounded(job: semu.TrainingJob, choices: Choices, first_seed: int, number: int) -> BoundedImages:
    """The batch of an iteration of the waves. ``number``: from 0."""
    source = batch_of(job, choices, first_seed + number)
    assert isinstance(source, VlmBatch)
    return BoundedImages(source, *wave_bounds()[number])


@dataclass(frozen=True)
class Iteration:
    """One iteration.

    Attributes:
        number: from 1. images: of a sequence, on average. times: system -> iteration time [s]. fits: in memory.
    """

    number: int
    images: float
    times: Mapping[str, float]
    fits: Mapping[str, bool]

    def slower(self, name: str) -> float:
        """By how much a system takes longer than DIP [%]."""
        return 100 * (self.times[name] / self.times["dip"] - 1)


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See ``_scripts.Script``."""
    if quick:
        choices = choices.changed(rollouts=20)
    numbers = [number - 1 for number in QUICK] if quick else list(range(len(wave_bounds())))
    systems = Systems.planned(choices)
    found = [systems.iteration(number) for number in numbers]
    moved = {} if quick else dict(_moved(choices))
    return PaperResult(
        "fig08b",
        "40 iterations of VLM-S, two waves of image counts",
        "DIP Fig. 8b",
        tuple(rows_of(found, moved)),
        (_draw(found, out / "fig08b.png"),),
        _text(found, systems),
    )


def _moved(choices: Choices) -> Iterator[tuple[str, Iteration]]:
    """Iteration 6 under other choices."""
    for name, value in (("merge", 2), ("recompute", "full")):
        other = Systems.planned(choices.changed(**{name: value}))
        yield f"{name} {value}", other.iteration(TOP - 1)


def rows_of(found: Sequence[Iteration], moved: Mapping[str, Iteration]) -> list[PaperRow]:
    """Theirs beside ours. ``moved``: choice -> iteration 6 under it."""
    top = next(one for one in found if one.number == TOP)
    late = [one for one in found if one.number in LATE]
    rows = []
    for name in BASELINES:
        note = "" if top.fits[name] else "does not fit in memory there; "
        rows.append(
            PaperRow(
                f"iteration 6: {NAMES[name]} slower than DIP by",
                MEGATRON if name == "megatron" else OTHERS,
                top.slower(name),
                "%",
                margin=0.2,
                sensitivity={words: one.slower(name) for words, one in moved.items()},
                note=f"{note}{top.images:.1f} images a sequence; margin: one batch of a random draw",
            )
        )
    ends = [one.slower("nnscaler") for one in late]
    rows += [
        PaperRow(
            "iterations 15 to 20: nnScaler* slower than DIP by, on average",
            NNSCALER_LATE,
            sum(ends) / len(ends),
            "%",
            margin=0.2,
            note=f"from {min(ends):.0f} to {max(ends):.0f} %: its plan gives a part of the ranks to the encoder, which "
            "has hardly any work then",
        ),
        PaperRow(
            "most images of a sequence, mean of an iteration",
            PEAK_IMAGES,
            max(one.images for one in found),
            "images",
            margin=0.1,
            note="sequences as the samples make them, those outside the bounds left out",
        ),
        PaperRow(
            "iterations in which DIP is the fastest",
            100.0,
            100 * sum(min(one.times, key=lambda name: one.times[name]) == "dip" for one in found) / len(found),
            "%",
            margin=0.0,
            note="DIP: consistently superior",
        ),
        PaperRow(
            "mean of all iterations: Megatron-LM slower than DIP by",
            None,
            100 * (sum(one.times["megatron"] for one in found) / sum(one.times["dip"] for one in found) - 1),
            "%",
        ),
        PaperRow(
            "mean of all iterations: DIP (no-opt) slower than DIP by",
            None,
            100 * (sum(one.times["no-opt"] for one in found) / sum(one.times["dip"] for one in found) - 1),
            "%",
            note="what the searcher gives over the partitioner alone",
        ),
    ]
    return rows


def _text(found: Sequence[Iteration], systems: Systems) -> str:
    too_large = {name: [one.number for one in found if not one.fits[name]] for name in SYSTEMS}
    said = [f"{NAMES[name]} in iterations {_spans(own)}" for name, own in too_large.items() if own]
    recomputed = {
        name: found.changes.get("training.recompute_layers", "all" if _is_full(found) else 0)
        for name, found in systems.baselines.items()
        if name != "nnscaler"
    }
    told = ", ".join(f"{NAMES[name]} {count}" for name, count in recomputed.items())
    return (
        "Sequences come from the usual data; where the bounds' middle is below 16 images, documents without images are "
        "mixed in, so that it is the mean. Both bounds fall by equal steps. "
        f"Layers of each chunk that are recomputed, so that the top of a wave fits: {told}, DIP (no-opt) "
        f"{systems.cut.again}. "
        + (f"Beyond the device's memory: {'; '.join(said)}." if said else "Everything fits in memory.")
    )


def _is_full(found: Baseline) -> bool:
    return found.job.training.recompute is Recompute.FULL


def _spans(numbers: Sequence[int]) -> str:
    """1 to 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(own[0]) if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in runs)


def _draw(found: Sequence[Iteration], path: Path) -> Path:
    figure, (axes,) = new_figure(9.5, 4.6)
    numbers = [one.number for one in found]
    other = axes.twinx()
    other.plot(numbers, [one.images for one in found], color="#D55E00", linestyle="--", linewidth=1.3, label="images")
    other.set_ylabel("images of a sequence (dashed)", color="#D55E00")
    other.tick_params(axis="y", colors="#D55E00")
    other.set_ylim(0, 1.9 * max(1.0, max(one.images for one in found)))
    other.spines[["top", "left"]].set_visible(False)
    for name in SYSTEMS:
        times = [one.times[name] for one in found]
        width = 2.2 if name == "dip" else 1.4
        axes.plot(
            numbers, times, marker="o", markersize=3, linewidth=width, color=COLORS[name], label=NAMES[name], zorder=3
        )
        absent = [(one.number, one.times[name]) for one in found if not one.fits[name]]
        if absent:
            label = "does not fit in memory" if name == next(n for n in SYSTEMS if _misses(found, n)) else None
            x, y = zip(*absent, strict=True)
            axes.plot(x, y, "x", color="#B00020", markersize=6, linewidth=0, zorder=4, label=label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("iteration time [s]")
    axes.set_ylim(bottom=0)
    axes.set_zorder(other.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_title("VLM-S: two waves of images", fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper center")
    axes.set_ylim(0, 1.25 * max(max(one.times.values()) for one in found))
    return save(figure, path)


def _misses(found: Sequence[Iteration], name: str) -> bool:
    return not all(one.fits[name] for one in found)
