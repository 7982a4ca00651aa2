"""``simulate_long_run``: strategies of a job through the same failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from semu.checks import check_number
from semu.errors import SemuError
from semu.job import TrainingJob
from semu.resilience.events import NodeEvents, to_us
from semu.resilience.failures.drawn import DrawnFailures, draw_events
from semu.resilience.failures.files import read_events
from semu.resilience.job_figures import NODE_GB_PER_S, RESTART_S, JobFigures
from semu.resilience.machine import Machine
from semu.resilience.options import RECONFIGURE_S, FailureKind, Resilience
from semu.resilience.report import GoodputReport, Help, StrategyResult
from semu.resilience.strategies.registry import chosen_strategies
from semu.resilience.strategies.strategy import Situation, Strategy
from semu.resilience.templates.making import pipeline_templates
from semu.resilience.templates.template_set import PipelineSet, TemplateSet
from semu.resilience.templates.together import iteration_s
from semu.simulation import simulate
from semu.simulation.estimate import evaluate

LLAMA3_PER_GPU_S = 419 / (54 * 86400.0 * 16384)
"""Interruptions per second and GPU of Llama 3 405B's training: 419 unexpected ones in 54 days on 16,384 H100
(2407.21783 §3.3.4)."""

MOST_TOGETHER = 64
"""Compositions of Oobleck's pipelines that a long run has the engine simulate together."""
_CURVE_FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
_CURVE_SEEDS = 4
"""Runs of each point of a curve, at most."""


def simulate_long_run(
    job: TrainingJob,
    options: Resilience,
    *,
    tokens: float | None = None,
    against_mtbf: bool = False,
    progress: Callable[[str], None] | None = None,
) -> GoodputReport:
    """Run a job for days under failures, with every strategy that is asked for.

    Args:
        job: what is trained; its iteration and its state are simulated. options: what is asked.
        tokens: until how many the days and dollars are counted; None: none are.
        against_mtbf: whether every strategy is also run where failures are up to 16 times as rare and as frequent.
        progress: called with what is done.
    Raises:
        ConfigError: as ``semu.simulate``; an unknown strategy, a trace that cannot be read.
    """
    tell = progress or (lambda _text: None)
    tokens = None if tokens is None else check_number(tokens, "tokens", "a number of tokens", is_above=True)
    kinds = chosen_strategies(options.strategies)
    tell("simulating an iteration")
    report = simulate(job)
    figures = JobFigures.of(job, report)
    mtbf_s, said = _mtbf(options, figures)
    if options.failures.trace is not None:
        mtbf_s = _mtbf_of_trace(options, figures)
    situation = situation_of(job, figures, options, mtbf_s, tell)
    results = []
    for kind in kinds:
        tell(f"running {kind.name}")
        results.append(run_strategy(kind(situation), log_events=True))
    found = GoodputReport(
        figures.title,
        options.days,
        1 if options.failures.trace is not None else options.seeds,
        said,
        mtbf_s,
        tuple(results),
        assumed=_assumed(options, [one.name for one in results if one.outcomes], not report.fits),
        tokens=tokens,
        gpu_hour_usd=options.price.gpu_hour_usd,
    )
    tell("looking for what would help")
    found = replace(found, helps=tuple(_helps(found, situation)))
    if not against_mtbf or options.failures.trace is not None:
        return found
    return replace(found, against_mtbf=_against_mtbf(found, situation, kinds, tell))


def situation_of(
    job: TrainingJob,
    figures: JobFigures,
    options: Resilience,
    mtbf_s: float,
    progress: Callable[[str], None] | None = None,
) -> Situation:
    """What strategies know; iteration times and templates are found once for all that share it.

    Args:
        job: what is trained. figures: of it. options: what is asked. mtbf_s: as ``Situation`` has it [s]. progress:
            called with what is done.
    """
    tell = progress or (lambda _text: None)
    known: dict[tuple[object, ...], float | None] = {}

    def _iteration_of(other: TrainingJob) -> float | None:
        """The iteration time of a job, None where it does not fit or is not legal."""
        parallel, training = other.parallel, other.training
        sizes = (other.cluster.nodes, parallel.dp, parallel.pp, parallel.vpp, parallel.layout is None)
        key = (*sizes, training.global_batch, training.recompute)
        if key not in known:  # strategies change nothing else of the job
            tell(f"an iteration on {other.cluster.nodes} nodes, {parallel.label()}")
            try:
                found = evaluate(other)
                known[key] = found.iteration_time_s if found.fits else None
            except SemuError:
                known[key] = None
        return known[key]

    planned: list[TemplateSet | SemuError] = []

    def _templates() -> TemplateSet | SemuError:
        if not planned:
            try:
                planned.append(pipeline_templates(job, options.faults, progress=progress))
            except SemuError as error:
                planned.append(error)
        return planned[0]

    together: dict[tuple[tuple[int, int], ...], float] = {}
    ratios: list[tuple[int, float]] = []

    def _together_s(pipelines: PipelineSet) -> float:
        """Of the engine; beyond ``MOST_TOGETHER`` compositions the estimate, times what the engine says of that of the
        most similar number of nodes over its estimate."""
        sizes = (one.nodes for one in pipelines.pipelines)
        key = tuple(zip(sizes, pipelines.microbatches, strict=True))
        if key not in together:
            if len(ratios) < MOST_TOGETHER:
                templates = _templates()
                assert isinstance(templates, TemplateSet)
                tell(f"simulating {len(key)} pipelines on {pipelines.nodes} nodes")
                together[key] = iteration_s(templates, pipelines)
                ratios.append((pipelines.nodes, together[key] / pipelines.iteration_s))
            else:
                nearest = min(ratios, key=lambda one: abs(one[0] - pipelines.nodes))
                together[key] = pipelines.iteration_s * nearest[1]
        return together[key]

    return Situation(job, figures, options, mtbf_s, _iteration_of, _templates, _together_s)


def run_strategy(strategy: Strategy, log_events: bool = False) -> StrategyResult:
    """A strategy through the failures of all seeds.

    Args:
        strategy: with its situation. log_events: keep the log of the first seed.
    """
    situation = strategy.situation
    options, figures = situation.options, situation.figures
    result = StrategyResult(
        strategy.name,
        strategy.title,
        strategy.nodes,
        figures.nodes,
        figures.iteration_s,
        figures.nodes * figures.gpus_per_node,
        figures.tokens,
        (),
        refusal=strategy.refusal,
    )
    if result.refusal is not None:
        return result
    table, tiers, first = strategy.table(), strategy.tiers(), strategy.conduct(strategy.nodes)
    end_us = to_us(options.days * 86400.0)
    outcomes = []
    for seed in range(options.seed, options.seed + options.seeds):
        events = events_of(situation, strategy.nodes, seed).before(end_us)
        room = 4 * len(events.rows) + 8 if log_events and seed == options.seed else 0
        machine = Machine(strategy.nodes, figures.gpus_per_node, tiers, first, room)
        strategy.run(machine, table, events, end_us)
        outcomes.append(machine.outcome())
        if options.failures.trace is not None:
            break  # every seed would be the same
    return replace(result, outcomes=tuple(outcomes), settings=strategy.settings())


def events_of(situation: Situation, nodes: int, seed: int) -> NodeEvents:
    """The events of a seed for a cluster of so many nodes."""
    failures, figures = situation.options.failures, situation.figures
    if failures.trace is not None:
        return read_events(failures.trace, nodes)
    if not math.isfinite(situation.mtbf_s):
        return NodeEvents.of(())
    source = DrawnFailures(
        situation.mtbf_s * figures.nodes,
        1.0 if FailureKind(failures.kind) is FailureKind.POISSON else failures.shape,
        failures.rack_nodes,
        failures.rack_share,
        failures.repair_s,
        float(failures.notice_s),
    )
    return draw_events(source, nodes, situation.options.days * 86400.0, seed)


def _mtbf(options: Resilience, figures: JobFigures) -> tuple[float, str]:
    """Mean time between failures of the job's nodes together [s], and where it comes from."""
    failures, gpus = options.failures, figures.nodes * figures.gpus_per_node
    if failures.trace is not None:
        return math.inf, failures.trace
    if failures.mtbf is not None:
        return float(failures.mtbf), f"drawn, {failures.kind}"
    if failures.rate is not None:
        of = failures.gpus or gpus
        return of / gpus / failures.failures_per_s(), f"drawn, {failures.kind}, {failures.rate} on {of:,} GPUs"
    return 1.0 / (LLAMA3_PER_GPU_S * gpus), f"drawn, {failures.kind}, as often per GPU as in Llama 3's training"


def _mtbf_of_trace(options: Resilience, figures: JobFigures) -> float:
    """Mean time between the failures of a trace, within the run [s]."""
    end_s = options.days * 86400.0
    found = read_events(str(options.failures.trace), figures.nodes).before(to_us(end_s))
    if not found.num_failures:
        return math.inf
    return end_s / found.num_failures


def _assumed(options: Resilience, names: Sequence[str], is_too_large: bool) -> tuple[str, ...]:
    """What nobody said."""
    checkpoint, failures = options.checkpoint, options.failures
    said = []
    if failures.mtbf is failures.rate is failures.trace is None:
        said.append("failures as in Llama 3's training: 419 in 54 days on 16,384 GPUs (--mtbf, --failures, --trace)")
    if checkpoint.restart_s is None:
        said.append(f"a restart takes {RESTART_S:g} s beside loading (resilience.checkpoint.restart_s)")
    if options.reconfigure_s == RECONFIGURE_S and any(name.startswith(("oobleck", "bamboo")) for name in names):
        said.append(f"going on with other pipelines takes {RECONFIGURE_S:g} s beside copies (resilience.reconfigure_s)")
    if checkpoint.save_s is None and checkpoint.node_gb_per_s is None:
        said.append(f"a node writes and reads {NODE_GB_PER_S:g} GB/s of storage (resilience.checkpoint.node_gb_per_s)")
    if failures.trace is None and failures.repair_s == 0.0:
        said.append("another node takes the place of one that fails at once (resilience.failures.repair)")
    if is_too_large:
        said.append("the job does not fit in memory: its times are those of one that would")
    return tuple(said)


def _against_mtbf(
    report: GoodputReport, situation: Situation, kinds: Sequence[type[Strategy]], tell: Callable[[str], None]
) -> dict[str, tuple[tuple[float, float], ...]]:
    """Strategy -> (mean time between failures [s], goodput), from frequent to rare failures."""
    fewer = replace(situation, options=situation.options.changed(seeds=min(situation.options.seeds, _CURVE_SEEDS)))
    ran = {one.name for one in report.strategies if one.outcomes}
    curves: dict[str, tuple[tuple[float, float], ...]] = {}
    for kind in kinds:
        if kind.name in ran:
            tell(f"{kind.name} against the time between failures")
            points = [(situation.mtbf_s * factor) for factor in _CURVE_FACTORS]
            curves[kind.name] = tuple(
                (mtbf, run_strategy(kind(replace(fewer, mtbf_s=mtbf))).goodput) for mtbf in points
            )
    return curves


def _helps(report: GoodputReport, situation: Situation) -> list[Help]:
    """Changes of what the best strategy suffers from, halved or doubled, the most helpful first."""
    best = report.best
    if not best.outcomes or not math.isfinite(situation.mtbf_s):
        return []
    kind = chosen_strategies((best.name,))[0]
    options, figures = situation.options, situation.figures
    checkpoint = options.checkpoint
    save, load, restart = figures.save_s(checkpoint), figures.load_s(checkpoint), figures.restart_s(checkpoint)
    changes = {
        "restarts in half the time": {"checkpoint.restart_s": restart / 2, "checkpoint.load_s": load},
        "saves in half the time": {"checkpoint.save_s": save / 2},
        "loads in half the time": {"checkpoint.load_s": load / 2},
    }
    tried = [(text, replace(situation, options=options.changed(**change))) for text, change in changes.items()]
    if options.failures.trace is None:
        tried.append(("half as many failures", replace(situation, mtbf_s=2 * situation.mtbf_s)))
    found = [Help(text, run_strategy(kind(other)).goodput) for text, other in tried]
    return sorted((one for one in found if one.goodput > best.goodput + 5e-4), key=lambda one: -one.goodput)
