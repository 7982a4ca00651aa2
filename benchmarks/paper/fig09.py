"""DIP Fig. 9: images of a sub-microbatch, 4 to 32, on VLM-S: the best and the worst schedule that a search finds.

As DIP's footnote 1 has it, the worst schedule is what the same search finds with its goal inverted: sequences of
segment groups under the dual queue, without moves of single stages. DIP does not say whether memory strategies are
chosen per layer meanwhile (``choices.gap_memory``), so both are run: under one scheme for all stages nothing but the
order differs between best and worst; with strategies per layer, a bad order also holds more and must recompute more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import semu
from benchmarks.paper._jobs import job_of, search_options, seeds_of
from benchmarks.paper._pictures import new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.schedule.stage_plan import STRATEGIES
from semu.searcher.fit import fitted
from semu.searcher.job_search import job_problem
from semu.searcher.orders.budgeted import search_problem
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.strategy import Objective
from semu.searcher.plain_jobs import plain_job
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.search_problem import Solution

SIZES = (4, 6, 8, 12, 16, 24, 32)
SMALL = 12
"""DIP's small sizes are 4 to 12; 12 is its best."""
TINY = 8
"""Sizes below this use the GPU badly in DIP."""
BATCHES = 1
FEW = 16
"""Microbatches, for the sensitivity of the gaps."""
THEIRS_WIDE, THEIRS_NARROW, THEIRS_TINY = 15.4, 5.1, 12.1
MEMORY: Mapping[str, tuple[str, ...]] = {"leanest": ("full",), "per layer": STRATEGIES}
"""Strategies that layers may use: recomputed in full, or all."""


@dataclass(frozen=True)
class Size:
    """Means over batches of one sub-microbatch size.

    Attributes:
        images: of a sub-microbatch, 0: microbatches run whole. best_s, worst_s: iteration under the best and the worst
            schedule [s]. semu_s: with moves of stages and all levels of memory [s].
    """

    images: int
    best_s: float
    worst_s: float
    semu_s: float

    @property
    def gap(self) -> float:
        """By how much the worst takes longer [%]."""
        return 100 * (self.worst_s / self.best_s - 1)


def measured(images: int, memory: str, jobs: Sequence[semu.TrainingJob], choices: Choices) -> Size:
    """A size on some batches; ``memory``: of ``MEMORY``."""
    best, worst, own = np.mean([_times(images, memory, job, choices) for job in jobs], axis=0).tolist()
    return Size(images, best, worst, own)


def _times(images: int, memory: str, job: semu.TrainingJob, choices: Choices) -> tuple[float, float, float]:
    options = search_options(job, choices) | {"sub_batch": {"vit": images}}
    _, built = job_problem(plain_job(job)[0], strategies=MEMORY[memory], **options)
    budget = Budget(rollouts=choices.rollouts.value, workers=choices.workers.value)
    seed = choices.search_seed.value

    def extreme(objective: Objective) -> float:
        found = search_problem(built.problem, budget, strategy="mcts", objective=objective, seed=seed, refine=False)
        return simulated_s(built, found.solution)

    own = simulated_s(built, search_levels(built.problem, budget, seed=seed).solution)
    return extreme(Objective.MIN), extreme(Objective.MAX), own


def simulated_s(built: JobProblem, solution: Solution) -> float:
    """Iteration time of a schedule in its full simulation, candidates chosen so that it fits [s]."""
    fitting, found = fitted(built, solution)
    return fitting.simulated(fitting.plan_of(found)).estimate().iteration_time_s


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See ``_scripts.Script``."""
    if quick:
        choices = choices.changed(rollouts=20)
    jobs = [job_of("vlm-s", choices, seed=seed) for seed in seeds_of(choices, 1 if quick else BATCHES)]
    sizes = (4, 12, 32) if quick else SIZES
    found = {memory: [measured(images, memory, jobs, choices) for images in sizes] for memory in MEMORY}
    moved = {} if quick else {f"microbatches {FEW}": _few(sizes, choices)}
    return PaperResult(
        "fig09",
        "images of a sub-microbatch: the best and the worst schedule of VLM-S",
        "DIP Fig. 9",
        tuple(rows_of(found, moved, choices)),
        (_draw(found, out / "fig09.png"),),
        _text(found, len(jobs), choices),
    )


def _few(sizes: Sequence[int], choices: Choices) -> list[Size]:
    """The first batch with fewer microbatches, under the memory of ``choices.gap_memory``."""
    other = choices.changed(microbatches=FEW)
    return [measured(images, choices.gap_memory.value, [job_of("vlm-s", other)], other) for images in sizes]


def rows_of(
    found: Mapping[str, Sequence[Size]], moved: Mapping[str, Sequence[Size]], choices: Choices
) -> list[PaperRow]:
    """Theirs beside ours: gaps under the memory of ``choices.gap_memory``, sizes with strategies per layer.

    Args:
        found: memory -> sizes. moved: other choice -> sizes, for the gaps.
    """
    gap = choices.gap_memory.value
    (other,) = (memory for memory in found if memory != gap)
    rows = []
    for words, theirs, pick in (
        ("the widest", THEIRS_WIDE, lambda sizes: max(sizes, key=lambda size: size.gap)),
        (f"the narrowest of sizes up to {SMALL}", THEIRS_NARROW, _narrowest),
    ):
        chosen = pick(found[gap])
        note = (
            f"at {chosen.images} images, {gap} memory; the text names the ends of a fall, no sizes. The gap shrinks as "
            "the number of microbatches grows, which DIP does not print for this figure"
        )
        row = PaperRow(
            f"worst over best schedule, less one: {words}",
            theirs,
            chosen.gap,
            "%",
            margin=0.2,
            sensitivity={
                f"memory {other}": pick(found[other]).gap,
                **{words: pick(sizes).gap for words, sizes in moved.items()},
            },
            note=note,
        )
        rows.append(row)
    rows.append(
        PaperRow(
            "best schedule: sizes below 8 over 12, at most longer by",
            THEIRS_TINY,
            tiny_loss(found["per layer"]),
            "%",
            margin=0.2,
            sensitivity={"memory leanest": tiny_loss(found["leanest"])},
            note="memory per layer, DIP as a whole; an image is 2704 patches here: four fill matrix products already",
        )
    )
    best, twelve = _best(found["per layer"]), _of(found["per layer"], SMALL)
    rows.append(
        PaperRow(
            "the best size",
            12.0,
            float(best.images),
            "images",
            margin=0.34,
            sensitivity={"memory leanest": float(_best(found["leanest"]).images)},
            note=f"memory per layer; {best.best_s:.3f} s, and {twelve.best_s:.3f} s at 12; the next size of those "
            "tried counts as the same",
        )
    )
    return rows


def _of(sizes: Sequence[Size], images: int) -> Size:
    return next(size for size in sizes if size.images == images)


def _best(sizes: Sequence[Size]) -> Size:
    return min(sizes, key=lambda size: size.best_s)


def _narrowest(sizes: Sequence[Size]) -> Size:
    return min((size for size in sizes if size.images <= SMALL), key=lambda size: size.gap)


def tiny_loss(sizes: Sequence[Size]) -> float:
    """By how much the slowest size below 8 takes longer than 12 [%]."""
    slowest = max(size.best_s for size in sizes if size.images < TINY)
    return 100 * (slowest / _of(sizes, SMALL).best_s - 1)


def _text(found: Mapping[str, Sequence[Size]], batches: int, choices: Choices) -> str:
    lines = [
        f"Mean of {batches} batches of VLM-S; {choices.rollouts.value} rollouts each way by MCTS, sequences only, then "
        "the full simulation; *semu*: with moves of single stages and all levels of memory. *Leanest*: all layers are "
        "recomputed in full; *per layer*: DIP §5.3. The rows about the gap hold the scheme fixed, so that only orders "
        "differ; those about the size are of DIP as a whole; each names the other.",
        "",
        "| images | leanest: best [s] | worst [s] | gap [%] | per layer: best [s] | worst [s] | gap [%] | semu [s] |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for lean, own in zip(found["leanest"], found["per layer"], strict=True):
        cells = [f"{size.best_s:.3f} | {size.worst_s:.3f} | {size.gap:.1f}" for size in (lean, own)]
        lines.append(f"| {lean.images} | {cells[0]} | {cells[1]} | {own.semu_s:.3f} |")
    return "\n".join(lines)


def _draw(found: Mapping[str, Sequence[Size]], path: Path) -> Path:
    figure, panels = new_figure(11.0, 4.3, 2)
    titles = {"leanest": "one memory scheme (all recomputed): orders alone", "per layer": "memory strategies per layer"}
    for axes, (memory, sizes) in zip(panels, found.items(), strict=True):
        images = [size.images for size in sizes]
        best, worst = [size.best_s for size in sizes], [size.worst_s for size in sizes]
        axes.fill_between(images, best, worst, color="#0072B2", alpha=0.13, linewidth=0)
        axes.plot(images, worst, marker="v", color="#D55E00", label="worst schedule")
        axes.plot(images, best, marker="o", color="#0072B2", label="best schedule, sequences only as in DIP")
        if memory != "leanest":
            axes.plot(images, [s.semu_s for s in sizes], marker="s", markersize=4, color="#009E73", label="semu.search")
        for size in sizes:
            place = (size.images, size.worst_s)
            label = f"{size.gap:.1f}"
            axes.annotate(label, place, xytext=(0, 7), textcoords="offset points", ha="center", size=8.5)
        low, high = min(min(s.semu_s, s.best_s) for s in sizes), max(worst)
        axes.set_ylim(low - 0.2 * (high - low), high + 0.45 * (high - low))
        axes.set_xticks(images)
        axes.set_xlabel("images of a sub-microbatch (numbers: gap [%])")
        axes.set_title(titles[memory], fontsize=10)
        axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    panels[0].set_ylabel("iteration of VLM-S [s]")
    return save(figure, path)
