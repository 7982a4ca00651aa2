"""``template_times``: forward and backward of every template of a library, for cuts and for tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from semu.compile.join import build_stages
from semu.compile.stage import StageProgram
from semu.compile.template import TemplateLibrary, stream_names
from semu.costs.evaluation import BatchShapes
from semu.costs.result_cache import ResultCache
from semu.costs.segment_costs import stage_costs
from semu.costs.shape_costs import ShapeCosts
from semu.graph.operator import Phase
from semu.records import dataclass


@dataclass(frozen=True)
class TemplateTimes:
    """What layers take alone, on the mean microbatch of a batch.

    Attributes:
        forward, backward: float64[num_templates] [s], recomputation in the backward; 0 where nothing needs a gradient.
        backward_stages: template -> its backward, where there is one.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    backward_stages: dict[int, StageProgram]

    def weights(self, partition: str) -> list[float]:
        """What one of ``TIMED_PARTITIONS`` balances, by template [s]."""
        weights: list[float] = (self.forward if partition == "forward" else self.forward + self.backward).tolist()
        return weights


def template_times(
    library: TemplateLibrary,
    shapes: BatchShapes,
    costs: ShapeCosts,
    *,
    serial: bool,
    cache: ResultCache | None = None,
    numbers: Iterable[int] | None = None,
) -> TemplateTimes:
    """Times of templates, each as a stage of its own.

    The backward is what autograd made: no weight gradient of what is frozen, no input gradient where nothing trainable
    lies upstream, and then no recomputation either. Cornstarch's eqs. 3.1 to 3.3 say the same but for the first
    trainable layer, which eq. 3.3 charges an input gradient that nobody computes.

    Args:
        library: of the templates. shapes: of the batch; each counts as often as it occurs. costs: of ``shapes``.
        serial: communication does not overlap. cache: as ``stage_costs``.
        numbers: templates that are wanted, others are 0; None: all.
    """
    uses = _uses(shapes)
    streams, count = stream_names(library), len(library.templates)
    wanted = range(count) if numbers is None else numbers
    halves = {number: build_stages(library, [number], streams, serial=serial) for number in wanted}
    backward_stages = {number: stages[1] for number, stages in halves.items() if stages[1] is not None}
    programs = [*(first for first, _ in halves.values()), *backward_stages.values()]
    made = dict(zip(programs, stage_costs(programs, costs, cache), strict=True))
    forward, backward = np.zeros((2, count))
    for number, (first, _) in halves.items():
        forward[number] = uses @ made[first].latency
    for number, second in backward_stages.items():
        backward[number] = uses @ made[second].latency
    return TemplateTimes(forward, backward, backward_stages)


def recompute_times(
    library: TemplateLibrary, shapes: BatchShapes, costs: ShapeCosts, times: TemplateTimes
) -> NDArray[np.float64]:
    """What runs again in every backward of ``template_times``, operator after operator: float64[num_templates] [s]."""
    found = np.zeros(len(library.templates))
    again = np.array([operator.phase is Phase.RECOMPUTE for operator in library.operators], dtype=np.bool_)
    if again.any():
        uses = _uses(shapes)
        seconds = uses @ costs.latencies_of(np.arange(len(uses)))
        for number, stage in times.backward_stages.items():
            found[number] = seconds[stage.rows[again[stage.rows]]].sum()
    return found


def _uses(shapes: BatchShapes) -> NDArray[np.float64]:
    """Share of the batch's microbatches that have each shape."""
    uses: NDArray[np.float64] = np.bincount(shapes.index.ravel()) / shapes.index.size
    return uses
