"""``stage_costs``: what stages cost for many shapes, every distinct segment once, and none that the cache knows.

Segments are grouped by the symbols that they depend on, and shapes are compared by those symbols alone: a chunk that
sees only images has as many shapes as the batch has counts of images, whatever text stands beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.segments import Segment, StageSegments, WholeStage, cost_stage, split_stage
from semu.compile.stage import StageCosts, StageProgram
from semu.costs.ranked import RankedCosts, ranked_stage_costs
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import CostModel
from semu.costs.segment_keys import keys_under
from semu.costs.shape_costs import ShapeCosts, distinct_rows
from semu.distinct import sorted_distinct
from semu.records import dataclass

_NUM_SCALARS = 4
"""Words of a result before the exposed times: latency, peak, net, operator at the peak."""


@dataclass(frozen=True)
class _Group:
    """Segments that depend on the same symbols.

    Attributes:
        symbols: the symbols. shapes: int64[num_distinct, num_symbols], their values.
        place: int64[num_shapes], which of the distinct shapes each shape is. segments: the segments by key.
    """

    symbols: tuple[str, ...]
    shapes: NDArray[np.int64]
    place: NDArray[np.int64]
    segments: dict[bytes, Segment | WholeStage]


def stage_costs(programs: Sequence[StageProgram], by_shape: ShapeCosts, cache: ResultCache | None) -> list[StageCosts]:
    """Cost stages for many shapes.

    Args:
        programs: the stages; the same program may come several times.
        by_shape: the shapes, and the cost model of the programs' library.
        cache: where results are looked up and kept; None: nowhere. It is not asked under custom latency rules: they
            may depend on anything.
    """
    if isinstance(by_shape, RankedCosts):
        return ranked_stage_costs(programs, by_shape)
    distinct = dict.fromkeys(programs)
    if by_shape.model.rules:
        costs = {program: cost_stage(program, by_shape.latency, by_shape.size) for program in distinct}
    else:
        costs = _by_segments({program: split_stage(program) for program in distinct}, by_shape, cache)
    return [costs[program] for program in programs]


def _by_segments(
    plans: dict[StageProgram, StageSegments], by_shape: ShapeCosts, cache: ResultCache | None
) -> dict[StageProgram, StageCosts]:
    keys = keys_under(by_shape.model)
    groups: dict[tuple[str, ...], _Group] = {}
    group_of: dict[bytes, _Group] = {}
    keys_of: dict[StageProgram, list[bytes]] = {}
    for program, plan in plans.items():
        keys_of[program] = [keys.key(segment) for segment in plan.distinct]
        for key, segment in zip(keys_of[program], plan.distinct, strict=True):
            if key not in group_of:
                symbols = keys.symbols(segment)
                if symbols not in groups:
                    groups[symbols] = _Group(symbols, *distinct_rows(by_shape.symbols, symbols), {})
                group_of[key] = groups[symbols]
                group_of[key].segments[key] = segment
    costs: dict[bytes, StageCosts] = {}
    for group, words in zip(groups.values(), _words(list(groups.values()), by_shape.model, cache), strict=True):
        for key, segment in group.segments.items():
            costs[key] = _unpack(words[key][group.place], segment.num_streams)
    return {
        program: plan.compose(
            [costs[key] for key in keys_of[program]], by_shape.sizes_of_rows(plan.unread.tolist()).sum(axis=0)
        )
        for program, plan in plans.items()
    }


def _words(
    groups: Sequence[_Group], model: CostModel, cache: ResultCache | None
) -> list[dict[bytes, NDArray[np.int64]]]:
    """Per group and key, the results for the group's distinct shapes: int64[num_distinct, width]."""
    if cache is None:
        return [_compute(group, list(group.segments), group.shapes, model) for group in groups]
    queries = [(key, group.shapes) for group in groups for key in group.segments]
    answers = {key: answer for (key, _), answer in zip(queries, cache.lookup(queries), strict=True)}
    results: list[dict[bytes, NDArray[np.int64]]] = []
    fresh: list[tuple[bytes, NDArray[np.int64], NDArray[np.int64]]] = []
    for group in groups:
        words = {key: answers[key][1] for key in group.segments}
        late = [key for key in group.segments if not answers[key][0].all()]
        if late:
            new = ~np.logical_and.reduce([answers[key][0] for key in late])
            computed = _compute(group, late, group.shapes[new], model)
            for key in late:
                found, known = answers[key]
                whole = np.empty((len(found), computed[key].shape[1]), dtype=np.int64)
                whole[new] = computed[key]
                fresh.append((key, group.shapes[~found], whole[~found]))
                words[key] = whole
                if found.any():
                    whole[found] = known
        results.append(words)
    cache.store(fresh)
    return results


def _compute(
    group: _Group, keys: Sequence[bytes], shapes: NDArray[np.int64], model: CostModel
) -> dict[bytes, NDArray[np.int64]]:
    """Run segments of a group for some of its shapes."""
    segments = [group.segments[key] for key in keys]
    rows = sorted_distinct(np.concatenate([segment.rows for segment in segments]))
    size_rows = sorted_distinct(np.concatenate([segment.size_rows for segment in segments]))
    symbols = {name: np.ascontiguousarray(shapes[:, number]) for number, name in enumerate(group.symbols)}
    columns = model.library.evaluate(symbols, rows, size_rows)
    latency = model.latencies(columns, rows)
    row_place, size_place = _places(rows, len(model.library.operators)), _places(size_rows, len(model.library.sizes))
    return {
        key: _pack(segment.run(latency, columns.size_bytes, row_place, size_place))
        for key, segment in zip(keys, segments, strict=True)
    }


def _places(rows: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Where each of ``count`` rows stands among ``rows``, -1: nowhere."""
    result = np.full(count, -1, dtype=np.int32)
    result[rows] = np.arange(len(rows), dtype=np.int32)
    return result


def _pack(costs: StageCosts) -> NDArray[np.int64]:
    """Costs as rows of words, floats as their bits: int64[num_shapes, width]."""
    words = np.empty((len(costs.latency), _NUM_SCALARS + costs.exposed.shape[1]), dtype=np.int64)
    floats = words.view(np.float64)
    floats[:, 0] = costs.latency
    words[:, 1], words[:, 2], words[:, 3] = costs.peak, costs.net, costs.peak_op
    floats[:, _NUM_SCALARS:] = costs.exposed
    return words


def _unpack(words: NDArray[np.int64], num_streams: int) -> StageCosts:
    floats = words.view(np.float64)
    return StageCosts(
        latency=floats[:, 0],
        exposed=floats[:, _NUM_SCALARS : _NUM_SCALARS + num_streams],
        peak=words[:, 1],
        net=words[:, 2],
        peak_op=words[:, 3].astype(np.int32),
    )
