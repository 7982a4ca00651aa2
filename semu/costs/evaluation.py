"""Stage costs of a whole batch: its distinct shapes, and what every chunk costs for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import repeat
from operator import is_

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.compile.stage import StageCosts, StageProgram
from semu.compile.template import TemplateLibrary
from semu.costs.ranked import RankedCosts
from semu.costs.ranks import Ranked
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import CostModel, LatencyRules
from semu.costs.segment_costs import stage_costs
from semu.costs.shape_costs import ShapeCosts, num_shapes
from semu.graph.rounding import with_rounded
from semu.hardware.capabilities import DeviceProfile
from semu.job import TrainingJob
from semu.nn.window import Window
from semu.records import dataclass
from semu.workload.batch import Microbatch, shape_columns
from semu.workload.derived import with_derived
from semu.workload.spread import Spread, spread_columns


@dataclass(frozen=True)
class BatchShapes:
    """The distinct shapes of a batch.

    Attributes:
        columns: symbol -> int64[num_shapes].
        index: int64[dp, num_microbatches], shape of every replica's microbatch; under a plan that cuts microbatches,
            of every column of its table (``SubMicrobatches``).
        idle: number of the shape in which there is nothing at all; -1: none counts as such.
        ranks: symbols that context ranks see differently -> int64[cp, num_shapes]; empty: there are none.
        shown: int64[num_shapes], the rank that ``columns`` are of, where there are any.
    """

    columns: Mapping[str, NDArray[np.int64]]
    index: NDArray[np.int64]
    idle: int = -1
    ranks: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    shown: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def with_idle(self) -> BatchShapes:
        """The same, where nothing runs on a shape without any symbol."""
        empty = np.flatnonzero((np.stack([*self.columns.values()]) == 0).all(axis=0))
        return replace(self, idle=int(empty[0]) if len(empty) else -1)


def distinct_shapes(
    microbatches: Sequence[Microbatch],
    dp: int,
    token_divisor: int,
    parts: int = 1,
    spreads: Sequence[Spread] = (),
    windows: Mapping[str, Sequence[Window]] | None = None,
    ranked: Ranked | None = None,
    derived: Sequence[str] = (),
) -> BatchShapes:
    """Find equal microbatches.

    Args:
        microbatches: dp x m of them; replica r runs items r, r + dp, r + 2 dp, ... (round robin).
        dp: replicas. token_divisor, parts: see ``Parallel.token_divisor``, ``Parallel.sequence_parts``.
        spreads: modality modules that spread their items over groups of ranks.
        windows: of attention, by stream and module.
        ranked: what context ranks do differently; None: nothing.
        derived: streams that sizes depend on too, see ``with_derived``.
    """
    if ranked is not None:
        items = with_derived(microbatches, derived)
        return _ranked_shapes(items, dp, (token_divisor, parts, spreads, windows), ranked)
    used = tuple([(name, tuple(own)) for name, own in (windows or {}).items()])
    if microbatches and not spreads and all(map(is_, microbatches, repeat(microbatches[0]))):
        only = with_derived(microbatches[:1], derived)
        lengths = tuple([(name, own.tobytes()) for name, own in only[0].lengths.items()])
        alone = _COLUMNS.get(
            (lengths, token_divisor, parts, used), lambda: shape_columns(only, token_divisor, parts, windows)
        )
        return BatchShapes(alone, np.zeros((dp, len(microbatches) // dp), dtype=np.int64))
    cutting = dp, token_divisor, parts, tuple(spreads)
    key = memo.Same(microbatches), cutting, used, tuple(derived)
    return _SHAPES.get(key, lambda: _find_shapes(with_derived(microbatches, derived), *cutting, windows))


def _find_shapes(
    microbatches: Sequence[Microbatch],
    dp: int,
    token_divisor: int,
    parts: int,
    spreads: Sequence[Spread],
    windows: Mapping[str, Sequence[Window]] | None,
) -> BatchShapes:
    columns = shape_columns(microbatches, token_divisor, parts, windows)
    for spread in spreads if columns else ():
        columns |= spread_columns(microbatches, spread, windows)
    names = list(columns)
    table = np.stack([columns[name] for name in names])
    distinct, inverse = np.unique(table, axis=1, return_inverse=True)
    return BatchShapes(
        columns=dict(zip(names, distinct, strict=True)),
        index=np.asarray(inverse).reshape(-1, dp).T.copy(),
    )


def _ranked_shapes(
    microbatches: Sequence[Microbatch],
    dp: int,
    others: tuple[int, int, Sequence[Spread], Mapping[str, Sequence[Window]] | None],
    ranked: Ranked,
) -> BatchShapes:
    """``distinct_shapes`` where context ranks see different numbers; columns are those of the rank with most tiles."""
    plain = distinct_shapes(microbatches, 1, *others)
    index = plain.index[0]
    columns = {name: column[index] for name, column in plain.columns.items()}
    ranks = ranked.columns(microbatches, columns)
    busy = [table for name, table in ranks.items() if ".tiles" in name] or [ranks["text.shard"]]
    shown = np.argmax(np.sum(busy, axis=0), axis=0)
    columns |= {name: table[shown, np.arange(len(index))] for name, table in ranks.items()}
    stacked = np.concatenate([*(column[None] for column in columns.values()), shown[None], *ranks.values()])
    _, first, inverse = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
    if ranked.plan.cp == 1:
        ranks = {}
    return BatchShapes(
        columns={name: column[first] for name, column in columns.items()},
        index=np.asarray(inverse).reshape(-1, dp).T.copy(),
        ranks={name: table[:, first] for name, table in ranks.items()},
        shown=shown[first],
    )


_SHAPES = memo.Table[BatchShapes]("distinct shapes of microbatches, by these and how they are cut", 32, is_large=True)
_COLUMNS = memo.Table[Mapping[str, NDArray[np.int64]]](
    "shape of equal microbatches, by the lengths in them and how they are cut", 256
)


@dataclass(frozen=True, eq=False)
class ChunkCosts:
    """A chunk's costs for every distinct shape.

    Attributes:
        forward, backward: stage costs; backward None where there is none.
        arriving, leaving: int64[num_tensors, num_shapes] [bytes], forward carry.
        gradient_leaving: the same for the gradients that the backward stage sends.
    """

    forward: StageCosts
    backward: StageCosts | None
    arriving: NDArray[np.int64]
    leaving: NDArray[np.int64]
    gradient_leaving: NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """Everything about operators and stages that does not depend on the schedule.

    Attributes:
        shapes: distinct shapes. by_shape: costs of single operators. chunks: costs per chunk, then of their further
            variants (``Layout.kinds``).
        parts: by chunk and code, what the parts of backward stages cost where that is given; None: it is computed when
            somebody asks.
    """

    shapes: BatchShapes
    by_shape: ShapeCosts
    chunks: tuple[ChunkCosts, ...]
    parts: Mapping[tuple[int, int], StageCosts] | None = None

    @property
    def num_shapes(self) -> int:
        """How many distinct shapes there are."""
        return num_shapes(self.shapes.columns)


@dataclass(frozen=True)
class CostedJob:
    """A job before its pipeline: compiled and costed.

    Attributes:
        layout: the model, cut into chunks and compiled. evaluation: costs of every stage for every distinct microbatch.
    """

    layout: Layout
    evaluation: Evaluation

    @property
    def job(self) -> TrainingJob:
        """What is trained, on what, how."""
        return self.layout.job

    @property
    def cost_model(self) -> CostModel:
        """How latencies come about."""
        return self.evaluation.by_shape.model


def evaluate(
    layout: Layout,
    shapes: BatchShapes,
    cost_model: CostModel,
    cache: ResultCache | None = None,
    *,
    remember: bool = False,
) -> Evaluation:
    """Cost every stage of the layout for every distinct shape.

    Args:
        layout, shapes: the job. cost_model: of the layout's library. cache: see ``stage_costs``.
        remember: keep the result for the next job with these chunks, coefficients and shapes.
    """
    shapes = replace(shapes, columns=with_rounded(shapes.columns, layout.library.symbols))
    if cost_model.rules or not remember or not layout.cut.is_shared:
        return _evaluate(layout, shapes, cost_model, cache)
    every = [*shapes.columns.items(), *shapes.ranks.items()]
    contents = tuple((name, column.tobytes()) for name, column in every)
    key = (layout.cut.identity, cost_model, contents)
    shared = (cost_model, shapes.idle, contents)
    one = _EVALUATIONS.get(key, lambda: _evaluate(layout, shapes, cost_model, cache, _SCOPES.get(shared, memo.Scope)))
    return Evaluation(shapes, one.by_shape, one.chunks)


_COST_MODELS = memo.Table[CostModel]("cost models by library and device", 64)
_EVALUATIONS = memo.Table[Evaluation]("costs by chunks, cost model and distinct shapes", 256, is_large=True)
_SCOPES = memo.Table[memo.Scope]("costs that no cut into chunks changes, by cost model and distinct shapes", 128)


def cost_model_of(library: TemplateLibrary, profile: DeviceProfile, rules: LatencyRules | None) -> CostModel:
    """The cost model of a library on a device; remembered where there are no custom rules."""
    if rules:
        return CostModel(library, profile, rules)
    return _COST_MODELS.get((library, profile), lambda: CostModel(library, profile))


def _evaluate(
    layout: Layout,
    shapes: BatchShapes,
    cost_model: CostModel,
    cache: ResultCache | None,
    scope: memo.Scope | None = None,
) -> Evaluation:
    """``scope``: shared with other chunks that are made of the same blocks; None: with nobody."""
    by_shape = ShapeCosts(cost_model, shapes.columns, shapes.idle, scope if scope is not None else memo.Scope())
    if shapes.ranks:
        by_shape = RankedCosts.of(by_shape, shapes.columns, shapes.ranks, shapes.shown, layout.job.parallel)
    every = (stage for chunk in layout.kinds for stage in (chunk.forward, chunk.backward) if stage is not None)
    programs = [*dict.fromkeys(every)]
    costs = _stage_costs(programs, by_shape, cache)
    if shapes.idle >= 0:
        costs = {key: stage.without(shapes.idle) for key, stage in costs.items()}
    rows = sorted({row for program in programs for row in (*program.arriving, *program.leaving)})
    place = {row: number for number, row in enumerate(rows)}
    sizes = by_shape.sizes_of_rows(rows)

    def _carried(wanted: Sequence[int]) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = sizes[[place[row] for row in wanted]]
        return chosen

    # chunks of the same stages have the same costs, as one object
    distinct: dict[tuple[StageProgram, StageProgram | None], ChunkCosts] = {}
    chunks = []
    for chunk in layout.kinds:
        forward, backward = chunk.forward, chunk.backward
        key = forward, backward
        if key not in distinct:
            distinct[key] = ChunkCosts(
                forward=costs[forward],
                backward=costs[backward] if backward is not None else None,
                arriving=_carried(forward.arriving),
                leaving=_carried(forward.leaving),
                gradient_leaving=_carried(backward.leaving if backward is not None else ()),
            )
        chunks.append(distinct[key])
    return Evaluation(shapes=shapes, by_shape=by_shape, chunks=tuple(chunks))


def _stage_costs(
    programs: Sequence[StageProgram], by_shape: ShapeCosts, cache: ResultCache | None
) -> dict[StageProgram, StageCosts]:
    """Costs of stages; those that other chunks of the same blocks have too come from the shared scope."""
    table = _STAGES.of(by_shape.scope)
    before = {program: table.peek(program) for program in programs}
    fresh = [program for program, costs in before.items() if costs is None]
    made = dict(zip(fresh, stage_costs(fresh, by_shape, cache), strict=True)) if fresh else {}
    return {
        program: costs if costs is not None else table.put(program, made[program]) for program, costs in before.items()
    }


_STAGES = memo.ScopedTable[StageCosts]("costs of stages for a batch's shapes, by stage", 512, is_large=True)
