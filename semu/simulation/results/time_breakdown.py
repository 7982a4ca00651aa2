"""Where the time goes and how much work was done: breakdown, FLOP, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.compile.stage import StageCosts, StageProgram
from semu.costs.evaluation import CostedJob
from semu.costs.phases import costs_of, stages_of_chunk
from semu.graph.dim import DimTable
from semu.graph.operator import Phase
from semu.graph.rounding import with_rounded
from semu.parallel.own_gpus import rank_weights
from semu.records import dataclass
from semu.schedule.costs import idle_share
from semu.simulation.context import PipelineRun, TimedJob
from semu.simulation.data_parallel.timed_operators import TimedOperators
from semu.simulation.iteration import Iteration


def breakdown(iteration: Iteration, iteration_time_s: float) -> dict[str, object]:
    """Attribute every second of every rank, as ``breakdown_s`` of ``simulate --json``.

    A gap before a stage counts as exposed pipeline communication as far as a transfer that ends exactly then lasted,
    else as bubble; so does the time after a rank's last stage in which no collective, gather or optimizer step runs.

    Returns:
        Means over all GPUs that sum to the iteration time [s]. compute: kernels of forward and backward stages.
        exposed_communication: by communicator (``tp``, ``pp``, ``dp``), compute waited for a transfer. bubble: compute
        waited for another rank's work, or for a slower replica. optimizer: the step with clipping and casts of weights.
        other: what nothing else explains (rounding; a test holds it at that). Where they are not 0, overhead:
        ``training.overhead_s``; interference: what kernels lose to the data-parallel collectives that they hide;
        launch: what stages last longer because the host issues their kernels late.
    """
    layout, run, tails = iteration.layout, iteration.run, iteration.tails
    weights = run.count / run.count.sum()
    num_ranks, of_rank = len(tails), rank_weights(layout.job.parallel)
    compute, exposed_inner, exposed_pp, waited, bubble = _stage_times(iteration, weights)
    exposed = dict.fromkeys(layout.streams[1:], 0.0)
    for number, name in enumerate(layout.streams[1:], start=1):
        exposed[name] += float(exposed_inner[number])
    exposed["pp"] = exposed.get("pp", 0.0) + exposed_pp
    exposed["dp"] = exposed.get("dp", 0.0) + waited
    optimizer = lost = 0.0
    launched = 0.0 if run.launched is None else float(weights @ (run.launched * stage_weights(iteration)).sum(axis=1))
    launch = launched / num_ranks
    overhead = iteration.overhead_s
    is_alone, apart = run.num_replicas == 1, layout.job.training.optimizer_post_validation
    for rank, (tail, weight) in enumerate(zip(tails, of_rank.tolist(), strict=True)):
        done: Seconds = run.rank_ends[rank] if is_alone else run.done[rank]
        idle = iteration_time_s - overhead - done
        if apart:  # an iteration begins with the rank's first stage
            idle = idle + run.first_start(rank)
        earliest = run.rank_ends[rank] if is_alone else float(run.done[rank].min())
        for operators in (tail.reductions, TimedOperators.of(tail.gathers)):
            for stream in operators.streams:
                exposed.setdefault(stream, 0.0)
            for number in [number for number, end in enumerate(operators.end_s) if end > earliest]:
                late = _visible(operators.start_s[number], operators.end_s[number], done)
                idle = idle - late
                exposed[operators.pieces[number].stream] += weight * _mean(weights, late) / num_ranks
        for piece in tail.steps:
            step = piece.end_s - piece.start_s
            idle = idle - step
            if piece is tail.interference:
                lost += weight * step / num_ranks
            elif piece.kind.is_communication:
                exposed[piece.stream] = exposed.get(piece.stream, 0.0) + weight * step / num_ranks
            else:
                optimizer += weight * step / num_ranks
        bubble += weight * _mean(weights, idle) / num_ranks
    rare = {"overhead": overhead, "interference": lost, "launch": launch}
    return {
        "compute": compute,
        "exposed_communication": {name: value for name, value in exposed.items() if value > 0},
        "bubble": bubble,
        "optimizer": optimizer,
        **{name: seconds for name, seconds in rare.items() if seconds},
        "other": iteration_time_s - (compute + sum(exposed.values()) + bubble + optimizer + overhead + lost + launch),
    }


Seconds: TypeAlias = float | NDArray[np.float64]
"""Of the only replica, or float64[num_replicas] [s]."""


def _mean(weights: NDArray[np.float64], seconds: Seconds) -> float:
    """Mean over all replicas [s]."""
    return seconds if isinstance(seconds, float) else float(weights @ seconds)


def _visible(start_s: float, end_s: float, done: Seconds) -> Seconds:
    """How much of a slice lies after each replica's own last stage [s]."""
    if isinstance(done, float):
        return max(end_s - max(start_s, done), 0.0)
    late: NDArray[np.float64] = np.maximum(end_s - np.maximum(start_s, done), 0.0)
    return late


def _stage_times(
    timed: TimedJob, weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], float, float, float]:
    """Mean of all GPUs: compute, exposed time per stream, exposed P2P, waiting for parameters, bubble [s]."""
    run, problem = timed.run, timed.run.problem
    num_ranks, by_gpus = problem.shape.num_ranks, stage_weights(timed)
    if run.num_replicas == 1:
        key = problem, run.shape.tobytes(), timed.job.parallel.rank_widths
        busy, alone = _STAGE_TIMES.get(timed.evaluation.by_shape, key, lambda: _template_times(timed, weights))
        exposed = alone.copy()
    else:
        busy, exposed = _template_times(timed, weights)
    for (replica, node), touched in run.inside.items():
        weight = float(weights[replica] * by_gpus[node])
        busy += weight * touched.held_s
        exposed += weight * touched.exposed
    wait = float(weights @ run.waited(np.arange(problem.num_stages), by_gpus))
    explained, bubble = _pipeline_gaps(run, by_gpus, apart=timed.job.training.optimizer_post_validation)
    return (
        (busy - float(exposed[1:].sum())) / num_ranks,
        exposed / num_ranks,
        float(weights @ explained) / num_ranks,
        wait / num_ranks,
        float(weights @ bubble) / num_ranks,
    )


_STAGE_TIMES = memo.ScopedTable["tuple[float, NDArray[np.float64]]"](
    "times of all stages of costed chunks together, by lowered schedule and shapes", 256, is_large=True
)


def _template_times(timed: TimedJob, weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """All ranks' stages together, a mean over replicas weighted by GPUs, as if nothing outside bore on them: how long
    they last, and what of it is exposed time per stream [s]."""
    by_gpus = rank_weights(timed.job.parallel)
    layout, evaluation, run, problem = timed.layout, timed.evaluation, timed.run, timed.run.problem
    exposed = np.zeros(len(layout.streams))
    busy = 0.0
    is_alike = bool((run.shape == run.shape[:1, :1]).all())  # then only how many there are counts
    times: dict[tuple[StageCosts, bytes | int], tuple[float, NDArray[np.float64]]] = {}
    for number in range(len(evaluation.chunks)):
        for phase, _ in stages_of_chunk(layout, number, splits=problem.splits_backward):
            stage = costs_of(timed, number, phase)
            nodes = problem.stage_nodes[layout.kinds[number].chunk.index, phase]
            nodes = nodes[run.kind[nodes] == number]
            key = (stage, len(nodes) if is_alike else run.column[nodes].tobytes())
            if key not in times:
                shapes = run.shape[:, run.column[nodes]]
                latency = float(weights @ stage.latency[shapes].sum(axis=1))
                times[key] = latency, np.einsum("r,rns->s", weights, stage.exposed[shapes])
            weight = float(by_gpus[layout.kinds[number].chunk.rank])
            busy += weight * times[key][0]
            exposed += weight * times[key][1]
    return busy, exposed


_TOGETHER = 512
"""So many stages are looked at together: few enough for the cache."""


def _pipeline_gaps(
    run: PipelineRun, weights: NDArray[np.float64], *, apart: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per replica, gaps before stages: the part that transfers ending at the stages' starts explain, and the rest [s].

    Args:
        weights: float64[num_stages], how much each stage's gap counts.
        apart: every rank's iteration begins with its own first stage.
    Returns:
        float64[num_replicas], float64[num_replicas].
    """
    problem = run.problem
    n = problem.num_stages
    start, end = run.start.T, run.end.T
    follows = problem.following
    gap = start[:n].copy()
    gap[follows] -= end[follows - 1]
    if apart:
        for rank, nodes in enumerate(problem.rank_nodes):
            gap[nodes[:1]] -= run.first_start(rank)
    explained = np.zeros_like(gap)
    together = _TOGETHER if run.num_replicas > 1 else max(n, 1)
    for nodes, transfers in problem.awaited:
        for first in range(0, len(nodes), together):
            here, by = nodes[first : first + together], transfers[first : first + together]
            arrives = end[by]
            lasted = np.minimum(gap[here], arrives - start[by])
            lasted[arrives != start[here]] = 0.0
            explained[here] = np.maximum(explained[here], lasted)
    each = weights[:, np.newaxis]
    return (explained * each).sum(axis=0), ((gap - explained) * each).sum(axis=0)


def stage_weights(timed: TimedJob) -> NDArray[np.float64]:
    """How much every stage counts in a mean over GPUs: float64[num_stages]."""
    problem = timed.run.problem
    return rank_weights(timed.job.parallel)[problem.node_rank[: problem.num_stages]]


def bubble_ratio(timed: TimedJob, replica: int) -> float:
    """1 - (sum of stage times) / (P x makespan) of one replica (DESIGN §2), ranks weighted by their GPUs; 0 for an
    empty pipeline."""
    run, weights = timed.run, stage_weights(timed)
    busy = float((run.plain[replica, : len(weights)] * weights).sum())
    busy += sum(touched.held_s * float(weights[node]) for (n, node), touched in run.inside.items() if n == replica)
    if run.launched is not None:
        busy += float((run.launched[replica] * weights).sum())
    return idle_share(busy, run.problem.shape.num_ranks, float(run.makespan()[replica]))


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one iteration over all GPUs.

    Attributes:
        model_flop: forward plus the gradients that training needs, causal attention counted half.
        hardware_flop: with recomputation.
        model_flop_full_attention: ``model_flop`` with causal attention counted in full (2104.04473's convention).
        tokens: tokens of the backbone's stream, padding excluded.
    """

    model_flop: float
    hardware_flop: float
    model_flop_full_attention: float
    tokens: int


def count_work(costed: CostedJob) -> Work:
    """Sum the operators' FLOP over all stages, microbatches, replicas, tensor- and context-parallel ranks."""
    layout, shapes = costed.layout, costed.evaluation.shapes
    hardware = model = full = 0
    n = len(next(iter(shapes.ranks.values()))) if shapes.ranks else 1
    for columns, kinds in layout.recipe.kinds_by_columns:
        uses = np.bincount(shapes.index[:, columns].ravel(), minlength=costed.evaluation.num_shapes)
        if shapes.idle >= 0:
            uses[shapes.idle] = 0
        times = 1
        if len(uses) == 1:  # that of one microbatch is remembered for any number of them
            times, uses = int(uses[0]), np.ones(1, dtype=np.int64)
        for rank in range(n):
            flop = _flop_of_kinds(costed, kinds, rank, uses)
            hardware += times * flop[0]
            model += times * flop[1]
            full += times * flop[2]
    return Work(float(model) / n, float(hardware) / n, float(full) / n, _tokens(costed))


def _seen(costed: CostedJob, rank: int) -> Mapping[str, NDArray[np.int64]]:
    """What context rank ``rank`` sees, where they see different numbers: all ranks, not the worst."""
    shapes = costed.evaluation.shapes
    given = {**shapes.columns, **{name: table[rank] for name, table in shapes.ranks.items()}}
    return with_rounded(given, costed.layout.library.symbols, mean=True)


_WORK = memo.ScopedTable[tuple[int, int, int]](
    "FLOP of a batch's shapes through a cut, by kinds of stages, context rank and uses of each shape", 64
)
_FLOP = memo.ScopedTable[tuple[list[int], list[int], list[int]]](
    "FLOP of all operators for a batch's shapes, by context rank, modality module, group and uses of each shape", 64
)


def _flop_of_kinds(
    costed: CostedJob, kinds: tuple[int, ...], rank: int, uses: NDArray[np.int64]
) -> tuple[int, int, int]:
    """FLOP of ``Work`` as whole numbers: hardware's, the model's, the model's with attention in full.

    Args:
        kinds: of ``Layout.kinds``. rank: context rank.
        uses: int64[num_shapes], (sub-)microbatches of each shape that every kind runs.
    """
    key = costed.layout.cut.identity, kinds, rank, uses.tobytes()
    return _WORK.get(costed.evaluation.by_shape.scope, key, lambda: _flop(costed, kinds, rank, uses))


def _flop(costed: CostedJob, kinds: Sequence[int], rank: int, uses: NDArray[np.int64]) -> tuple[int, int, int]:
    layout = costed.layout
    library = layout.library
    hardware = model = full = 0
    again = _stages_by_module(layout, [kind for kind in kinds if _is_again(layout, kind)])
    for name, stages in _stages_by_module(layout, kinds).items():
        calls, repeats = (_calls_of(own, len(library.operators)) for own in (stages, again.get(name, ())))
        rows = np.flatnonzero(calls).tolist()
        parallel = layout.mesh.of_module(name).parallel
        peers = parallel.replica_gpus
        for group in range(parallel.replicas // layout.job.parallel.replicas):
            groups = parallel.replicas // layout.job.parallel.replicas
            work, extra, causal = _flop_of(costed, rank, name, group if groups > 1 else -1, uses)
            for row in rows:
                operator = library.operators[row]
                times = int(calls[row]) * peers // operator.copies
                hardware += times * work[row]
                if operator.phase is not Phase.RECOMPUTE:
                    times -= int(repeats[row]) * peers // operator.copies
                    model += times * (work[row] - extra[row])
                    full += times * (work[row] - extra[row] + causal[row])
    return hardware, model, full


def _flop_of(
    costed: CostedJob, rank: int, module: str, group: int, uses: NDArray[np.int64]
) -> tuple[list[int], list[int], list[int]]:
    """FLOP of every operator over all microbatches, what of it is recomputed, and what causality leaves out, as one
    group of ranks of a module sees them; -1: there is one group."""

    def _find() -> tuple[list[int], list[int], list[int]]:
        symbols = _seen(costed, rank)
        if group >= 0:
            symbols = _of_group(module, group, symbols)
        work, extra, causal = (_totals(table, symbols, uses) for table in costed.layout.library.flop_tables)
        return work, extra, causal

    return _FLOP.get(costed.evaluation.by_shape.scope, (rank, module, group, uses.tobytes()), _find)


def _calls_of(stages: Iterable[StageProgram], num_operators: int) -> NDArray[np.int64]:
    """int64[num_operators], how often stages run each operator."""
    calls = np.zeros(num_operators, dtype=np.int64)
    for stage, times in Counter(stages).items():
        calls += times * np.bincount(stage.rows, minlength=num_operators)
    return calls


def _is_again(layout: Layout, kind: int) -> bool:
    """Whether a stage does what another one does for the model: an encoder that is repeated for nobody, or a tower's
    copy of the loss, but the first."""
    chunk = layout.kinds[kind].chunk
    if chunk.repeats:
        return True
    gang = [own.chunk for own in layout.chunks if own.chunk.gang == chunk.gang]
    return layout.job.parallel.gathers_towers and chunk.gang >= 0 and chunk.rank != gang[0].rank


def _stages_by_module(layout: Layout, kinds: Sequence[int]) -> dict[str, list[StageProgram]]:
    """The stages of each modality module whose parallelism is not the job's, and under "" of all others."""
    result: dict[str, list[StageProgram]] = {}
    for chunk in [layout.kinds[kind] for kind in kinds]:
        is_own = layout.mesh_of(chunk.chunk.index) is not layout.mesh
        stages = result.setdefault(chunk.module if is_own else "", [])
        stages += [stage for stage in (chunk.forward, chunk.backward) if stage is not None]
    return result


def _of_group(module: str, group: int, columns: Mapping[str, NDArray[np.int64]]) -> Mapping[str, NDArray[np.int64]]:
    """The symbols as one of several groups of ranks of a module sees them."""
    mark = f"@{group}"
    own = {key.removesuffix(mark): column for key, column in columns.items() if key.endswith(mark)}
    return {**columns, **{key: column for key, column in own.items() if f".{module}." in key}}


def _totals(table: DimTable, symbols: Mapping[str, NDArray[np.int64]], uses: NDArray[np.int64]) -> list[int]:
    """Sum over all microbatches of some size of every operator; whole numbers of any length, so nothing is rounded."""
    one = np.ones_like(uses)
    sums = [int(np.prod([symbols[name] for name in monomial] or [one], axis=0) @ uses) for monomial in table.monomials]
    totals = [0] * len(table.coefficients)
    places = np.nonzero(table.coefficients)
    for row, column, value in zip(*(own.tolist() for own in (*places, table.coefficients[places])), strict=True):
        totals[row] += value * sums[column]
    return totals


def _tokens(costed: CostedJob) -> int:
    """Tokens of the last modality module's first data stream (the backbone's text, the decoder's video)."""
    fed = [module.inputs[0].stream for module in costed.job.model.modules if module.inputs]
    stream = fed[-1] if fed else ""
    shapes = costed.evaluation.shapes
    column = shapes.columns.get(f"{stream}.tokens")
    return int(column[shapes.index[:, : costed.job.num_microbatches]].sum()) if column is not None else 0
