"""DIP Fig. 14 and Table 6: VLM-XL and T2V-XL on 3072 to 16,384 H100, simulated there as here: MFU.

Every data-parallel replica has its own data, and under DIP its own schedule, as replicas do not wait for one another
before gradients are reduced. ``semu.search`` finds one order for all replicas, at the slowest costs of each stage; so
here every replica is a search problem of its own. The iteration ends when the slowest replica has, and as long after it
as in the full simulation of the one order. A replica whose heuristic schedule is faster than the slowest one's searched
schedule cannot be the slowest, and is not searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import semu
from benchmarks.paper._jobs import baseline, job_of, planning_batches, search_options
from benchmarks.paper._pictures import COLORS, NAMES, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.errors import ConfigError
from semu.searcher.bounds import lower_bounds
from semu.searcher.fit import fitted
from semu.searcher.job_search import job_problem
from semu.searcher.orders.budgeted import search_problem
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.plain_jobs import plain_job
from semu.searcher.problem.build import JobProblem, build_problem

SETUPS = ("vlm-xl-8k", "vlm-xl-16k", "t2v-xl-3k", "t2v-xl-6k")
GPUS = {"vlm-xl-8k": 8192, "vlm-xl-16k": 16384, "t2v-xl-3k": 3072, "t2v-xl-6k": 6144}
"""DIP Table 6."""
MFU = {"vlm-xl": 0.36, "t2v-xl": 0.39}
GAIN = 82.8
BASELINES = ("megatron", "nnscaler", "optimus")
SYSTEMS = (*BASELINES, "dip")
PARAMETERS = {"vlm-xl": 22.0 + 175.0, "t2v-xl": 72.0 + 30.0}
"""Of the models' names in Table 6 [10^9]."""


@dataclass(frozen=True)
class System:
    """A system's iteration.

    Attributes:
        time_s: [s]. mfu: model FLOP utilisation. fits: in memory.
    """

    time_s: float
    mfu: float
    fits: bool


@dataclass(frozen=True)
class Large:
    """A setup.

    Attributes:
        name: of it. gpus, parameters: how many, of all replicas. replicas: simulated.
        systems: by name; those that cannot run it are left out.
        one_order: DIP with one order for all replicas. counted_s, pipeline_s: its pipeline as the search counts it
            (every stage as on the replica where it is slowest), and as simulated [s].
        searched: replicas that were searched. spread: the longest lower bound of a replica over the mean one.
    """

    name: str
    gpus: int
    parameters: int
    replicas: int
    systems: Mapping[str, System]
    one_order: System
    counted_s: float
    pipeline_s: float
    searched: int
    spread: float

    @property
    def model(self) -> str:
        """Without its size."""
        return self.name.rpartition("-")[0]

    @property
    def rivals(self) -> list[str]:
        """Baselines that ran within memory."""
        return [name for name in BASELINES if name in self.systems and self.systems[name].fits]

    def gain(self, name: str) -> float:
        """By how much DIP is faster than a baseline [%]."""
        return 100 * (self.systems[name].time_s / self.systems["dip"].time_s - 1)


def measured(name: str, choices: Choices, replicas: int) -> Large:
    """A setup under all systems, so many replicas of it."""
    whole = job_of(name, choices)
    job = fewer(whole, replicas)
    workload = planning_batches(job, choices)[:1]  # of as many sequences as eight batches of one replica, and more
    systems = {}
    for system in BASELINES:
        try:
            found = baseline(system, job, choices, workload=workload)
        except ConfigError:  # Optimus has no decoders
            continue
        estimate = semu.evaluate(found.job)
        systems[system] = System(estimate.iteration_time_s, estimate.mfu, estimate.fits)
    budget = Budget(rollouts=choices.rollouts.value, workers=choices.workers.value)
    seed = choices.search_seed.value
    _, built = job_problem(plain_job(job)[0], **search_options(job, choices))
    fitting, solution = fitted(built, search_levels(built.problem, budget, seed=seed).solution)
    report = fitting.simulated(fitting.plan_of(solution)).report()
    pipeline_s = report.timeline.makespan_s
    slowest_s, searched, spread = slowest_replica(built, budget, seed)
    time_s = slowest_s + report.iteration_time_s - pipeline_s
    systems["dip"] = System(time_s, report.mfu * report.iteration_time_s / time_s, report.fits)
    return Large(
        name,
        whole.parallel.num_gpus,
        report.parameters,
        replicas,
        systems,
        System(report.iteration_time_s, report.mfu, report.fits),
        solution.makespan_s,
        pipeline_s,
        searched,
        spread,
    )


def fewer(job: semu.TrainingJob, replicas: int) -> semu.TrainingJob:
    """The same job with fewer data-parallel replicas, on fewer nodes."""
    parallel = replace(job.parallel, dp=replicas)
    nodes = parallel.num_gpus // job.cluster.gpus_per_node
    training = replace(job.training, global_batch=job.num_microbatches * replicas)
    return replace(job, parallel=parallel, training=training, cluster=replace(job.cluster, nodes=nodes))


def slowest_replica(built: JobProblem, budget: Budget, seed: int) -> tuple[float, int, float]:
    """Every replica under a schedule of its own: the longest makespan [s], how many had to be searched, and the longest
    lower bound over the mean one."""
    checkpoint = built.checkpoint
    problems = [build_problem(checkpoint, replica=number).problem for number in range(checkpoint.job.parallel.dp)]
    bounds = [lower_bounds(problem, effort=0.0).value_s for problem in problems]
    order = sorted(range(len(problems)), key=lambda number: -bounds[number])
    slowest, searched = 0.0, 0
    for number in order:
        heuristic = search_problem(problems[number], Budget(rollouts=0)).solution.makespan_s
        if heuristic <= slowest:
            continue
        searched += 1
        slowest = max(slowest, search_levels(problems[number], budget, seed=seed).solution.makespan_s)
    return slowest, searched, max(bounds) * len(bounds) / sum(bounds)


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See ``_scripts.Script``."""
    names: Sequence[str] = SETUPS
    replicas = choices.large_replicas.value
    if quick:
        names, replicas = SETUPS[2:3], 2
        choices = choices.changed(rollouts=10, microbatches=8, recompute="full")
    found = [measured(name, choices, replicas) for name in names]
    moved = {}
    if not quick:
        moved["resolution 512 x 512"] = measured("t2v-xl-3k", choices.changed(resolution=(512, 512)), replicas)
    return PaperResult(
        "fig14",
        "VLM-XL and T2V-XL on thousands of H100",
        "DIP Fig. 14",
        tuple(rows_of(found, moved)),
        (_draw(found, out / "fig14.png"),),
        _text(found),
    )


def rows_of(found: Sequence[Large], moved: Mapping[str, Large]) -> list[PaperRow]:
    """Theirs beside ours. ``moved``: choice -> a setup under it."""
    rows = [
        PaperRow(f"{one.name}: GPUs (Table 6)", float(GPUS[one.name]), float(one.gpus), "", margin=0.0) for one in found
    ]
    rows += [
        PaperRow(
            f"{one.name}: parameters (names in Table 6)",
            PARAMETERS[one.model],
            one.parameters / 1e9,
            "10^9",
            note="the sum of the two models' names",
        )
        for one in found[::2]
    ]
    for one in found:
        dip = one.systems["dip"]
        rows.append(
            PaperRow(
                f"{one.name}: MFU of DIP",
                MFU[one.model],
                dip.mfu,
                "",
                margin=0.1,
                sensitivity={
                    "one order for all replicas": one.one_order.mfu,
                    **{words: other.systems["dip"].mfu for words, other in moved.items() if other.name == one.name},
                },
                note=f"iteration {dip.time_s:.2f} s; the slowest of {one.replicas} replicas has {one.spread:.3f} times "
                "the mean work. DIP prints one MFU for both sizes of a model",
            )
        )
    gains = {(one.name, name): one.gain(name) for one in found for name in one.rivals}
    best = max(gains, key=lambda pair: gains[pair])
    rows.append(
        PaperRow(
            "DIP faster than a baseline by at most",
            GAIN,
            gains[best],
            "%",
            margin=0.2,
            note=f"{NAMES[best[1]]} on {best[0]}; baselines that fit in memory; least gain {min(gains.values()):.1f} %",
        )
    )
    for small, large in zip(found[::2], found[1::2], strict=False):
        gains_of = [max(one.gain(name) for name in one.rivals) for one in (small, large)]
        rows.append(
            PaperRow(
                f"{small.model}: the gain is larger with more pipeline ranks (1: yes)",
                1.0,
                float(gains_of[1] > gains_of[0]),
                "",
                margin=0.0,
                note=f"{gains_of[0]:.1f} % on {small.name}, {gains_of[1]:.1f} % on {large.name}, over the slowest one",
            )
        )
    return rows


def _text(found: Sequence[Large]) -> str:
    lines = [
        "Every replica under a schedule of its own, but for the column *one order*, which is what `semu.search` does. "
        "*Counted*: that order's pipeline as the search sees it, every stage as on the replica where it is slowest; "
        "*simulated*: as it then runs.",
        "",
        "| setup | system | iteration [s] | MFU | DIP faster by [%] |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found:
        for name, system in one.systems.items():
            note = "" if system.fits else " (does not fit in memory)"
            gain = "" if name == "dip" else f"{one.gain(name):.1f}"
            lines.append(f"| {one.name} | {NAMES[name]}{note} | {system.time_s:.2f} | {system.mfu:.3f} | {gain} |")
    lines += [
        "",
        "| setup | one order: iteration [s] | counted [s] | simulated [s] | replicas | searched | slowest over mean |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.name} | {one.one_order.time_s:.2f} | {one.counted_s:.2f} | {one.pipeline_s:.2f} | {one.replicas} | "
        f"{one.searched} | {one.spread:.3f} |"
        for one in found
    ]
    return "\n".join(lines)


def _draw(found: Sequence[Large], path: Path) -> Path:
    figure, (axes,) = new_figure(9.0, 4.4)
    width = 0.8 / len(SYSTEMS)
    top = max(max(MFU.values()), *(one.systems["dip"].mfu for one in found))
    for k, one in enumerate(found):
        for number, (name, system) in enumerate(one.systems.items()):
            place = k + (number - (len(one.systems) - 1) / 2) * width
            hatch = None if system.fits else "///"
            axes.bar(place, system.mfu, width, color=COLORS[name], hatch=hatch, edgecolor="white", linewidth=0)
            words = f"{system.mfu:.2f}" + ("" if system.fits else "*")
            offset = {"xytext": (0, 3), "textcoords": "offset points"}
            axes.annotate(words, (place, system.mfu), ha="center", size=8.5, **offset)
    for name in SYSTEMS:
        axes.bar(0, 0, color=COLORS[name], label=NAMES[name])
    for k, one in enumerate(found):
        label = "DIP as printed" if k == 0 else None
        axes.plot([k - 0.45, k + 0.45], [MFU[one.model]] * 2, color="#D1495B", linewidth=1.6, label=label)
    axes.set_xticks(range(len(found)), [f"{one.name.upper()}\n{one.gpus} H100" for one in found])
    axes.set_ylabel("MFU (*: does not fit in memory)")
    axes.set_ylim(0, 1.35 * top)
    axes.set_title("VLM-XL and T2V-XL, simulated", fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=5, loc="upper center")
    return save(figure, path)
