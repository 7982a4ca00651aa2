"""``prepare``: everything about a job that no schedule changes: tracing, cutting, costing, its stages and transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from semu import memo
from semu.compile.layout import Layout, build_layout
from semu.compile.module_sharding import check_spread, spreads
from semu.compile.recipe.applied import plan_layout
from semu.compile.recipe.recipe_job import planned_job, refuse_split
from semu.compile.recipe.recipe_problem import check_problem, described, plan_of_file
from semu.compile.recipe.sub_microbatches import SubMicrobatches, cut_batch
from semu.compile.template import TemplateLibrary
from semu.costs.evaluation import (
    BatchShapes,
    CostedJob,
    cost_model_of,
    distinct_shapes,
    evaluate,
)
from semu.costs.exchanges import fastest_exchanges
from semu.costs.layer_times import template_times
from semu.costs.phases import check_split
from semu.costs.ranked import RankedCosts
from semu.costs.ranks import Ranked
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import CostModel, LatencyRules
from semu.costs.shape_costs import ShapeCosts
from semu.errors import ConfigError
from semu.graph.rounding import with_rounded
from semu.job import TrainingJob
from semu.nn.streams import derived_in
from semu.nn.trace.sharding import ContextKind
from semu.nn.window import Window, windows_in
from semu.schedule.stage_plan import StagePlan, first_difference
from semu.schedule.units import Merged, units_of
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.checks.context_parallel import check_lengths
from semu.simulation.checks.modality_inputs import check_modality_inputs
from semu.simulation.checks.unmodelled import check_streams, refuse_unmodelled
from semu.simulation.data_parallel.gathers_before_forwards import parameter_gathers
from semu.simulation.pipeline import consolidated_units, distinct_replicas
from semu.simulation.schedules.named import splits_backward

_RESULTS = memo.Table[ResultCache]("results of all simulations that bring no cache", 1)


def check_job(job: object) -> None:
    """A job is a ``TrainingJob``.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(job, TrainingJob):
        raise ConfigError(
            "not a training job",
            where="job",
            expected="a semu.TrainingJob; semu.load_run makes one of a name or a file",
            got=repr(job)[:80],
        )


def prepare(
    job: TrainingJob,
    *,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
    plan: StagePlan | None = None,
) -> JobCheckpoint:
    """Everything about a job that does not depend on its schedule.

    Args: as ``simulate``.
    Raises:
        ScheduleError: a plan for another problem.
        ConfigError: sizes or options that do not fit together, or that this version does not model.
    """
    check_job(job)
    say = progress if progress is not None else lambda _: None
    results = cache if cache is not None else _RESULTS.get((), ResultCache)
    plan = plan if plan is not None else plan_of_file(job)
    if plan is not None:
        check_problem(job, plan)
        job = planned_job(job, plan)
    refuse_unmodelled(job)
    parallel, training = job.parallel, job.training
    say("reading the batch")
    count = job.num_microbatches * parallel.replicas
    microbatches = job.batch.microbatches(count, training.micro_batch, training.seq_len)
    check_lengths(job, microbatches)

    sizes = parallel.replicas, parallel.token_divisor, parallel.sequence_parts

    def _shapes_with(
        windows: Mapping[str, Sequence[Window]], derived: Sequence[str] = (), ranked: Ranked | None = None
    ) -> BatchShapes:
        return distinct_shapes(microbatches, *sizes, spreads(job), windows, ranked, derived)

    plain = _shapes_with({})
    check_streams(job, plain)
    cutting = SubMicrobatches.whole(job.num_microbatches)
    if plan is not None:
        cutting = cut_batch(job.model, plan, microbatches, parallel.replicas)
    read = cutting.read
    check_modality_inputs(job, read or microbatches, distinct_shapes(read, *sizes) if read else plain)

    def _shapes_of(library: TemplateLibrary, chosen: Sequence[ContextKind] = ()) -> BatchShapes:
        windows, derived = windows_in(library.symbols), derived_in(library.symbols)
        ranked = Ranked.of(job, library.symbols, chosen)
        return _shapes_with(windows, derived, ranked) if windows or derived or ranked is not None else plain

    def all_shapes_of(library: TemplateLibrary, chosen: Sequence[ContextKind] = ()) -> BatchShapes:
        """With those of sub-microbatches."""
        if not cutting.modules:
            return _shapes_of(library, chosen)
        ranked, derived = Ranked.of(job, library.symbols, chosen), derived_in(library.symbols)
        windows = windows_in(library.symbols)
        return distinct_shapes(cutting.microbatches, *sizes, (), windows, ranked, derived).with_idle()

    def weigh(library: TemplateLibrary) -> list[float]:
        """What ``parallel.partition`` balances, by template."""
        shapes = _shapes_of(library, [ContextKind.NEEDED] * count)
        columns = with_rounded(shapes.columns, library.symbols)
        costs = ShapeCosts(cost_model_of(library, job.profile, latency_rules), columns)
        if shapes.ranks:
            costs = RankedCosts.of(costs, shapes.columns, shapes.ranks, shapes.shown, parallel)
        serial = not job.overlaps_tensor_parallel
        return template_times(library, shapes, costs, serial=serial, cache=results).weights(parallel.partition)

    say("tracing the model")
    layout = build_layout(job, weigh, lambda streams: check_spread(job, streams, plain.columns))
    if plan is not None:
        if plan.problem is not None:
            first_difference(plan.problem, described(job, layout, microbatches))
        layout = plan_layout(layout, plan, cutting)
    say("costing the stages")
    model = cost_model_of(layout.library, job.profile, latency_rules)
    shapes = _exchanging(layout, model, all_shapes_of, len(cutting.microbatches) or count)
    evaluation = evaluate(layout, shapes, model, results, remember=cache is None)
    merged: Merged | None = frozenset() if splits_backward(job) else None
    if merged is not None:
        refuse_split(layout, job.training.schedule)
        check_split(layout)
    shape = layout.pipeline_shape(job.num_microbatches)
    if plan is not None and plan.orders is not None:
        plan.orders.validate(shape)
    units = units_of(shape, merged)
    costed = CostedJob(layout, evaluation)
    gathers = parameter_gathers(costed)
    replicas = distinct_replicas(costed, units.pairs)
    nodes = consolidated_units(costed, units, replicas, gathers)
    return JobCheckpoint(layout, evaluation, units, replicas, nodes, gathers)


def _exchanging(
    layout: Layout, model: CostModel, shapes_of: Callable[..., BatchShapes], microbatches: int
) -> BatchShapes:
    """The shapes of a batch, under ``cp_kind = "auto"`` each microbatch with the exchange of keys that is fastest.

    Args:
        layout, model: as ``fastest_exchanges``. shapes_of: library, exchange of every microbatch -> shapes.
        microbatches: how many, of all replicas, with sub-microbatches.
    """
    parallel, library = layout.job.parallel, layout.library
    if parallel.context_kind is not ContextKind.AUTO or parallel.cp == 1:
        return shapes_of(library)
    return shapes_of(library, fastest_exchanges(layout, model, partial(shapes_of, library), microbatches))
