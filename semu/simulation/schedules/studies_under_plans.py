"""``planned_study``: a job under a plan of sub-microbatches in plain numbers, for rules that order stages by cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.schedule.study import PipelineStudy
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.schedules.costs_of_pairs import pair_costs


def planned_study(checkpoint: JobCheckpoint) -> PipelineStudy:
    """The stages of a planned job with whole backwards: of each the largest of all replicas, which run in one order."""
    costs, recipe = pair_costs(checkpoint), checkpoint.layout.recipe
    graph, pairs = costs.graph, costs.pairs
    kind = recipe.kind_of(costs.chunk, costs.number)
    variant = [recipe.numbers[chunk].index(its) for chunk, its in zip(costs.chunk.tolist(), kind.tolist(), strict=True)]
    own = np.arange(len(pairs)), np.array(variant, dtype=np.int64)

    def _of_pairs(values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.zeros(graph.num_pairs)
        found[pairs] = values[own]
        return found

    sent = np.zeros((2, graph.num_pairs))
    pred = graph.pair_edges.pred
    np.maximum.at(sent, (pred % 2, pairs[pred // 2]), costs.transfer_s)
    return PipelineStudy.of(
        costs.shape,
        forward_s=_of_pairs(costs.forward_s),
        input_s=0.0,
        weight_s=0.0,
        backward_s=_of_pairs(costs.backward_s),
        held_bytes=_of_pairs(costs.held_bytes),
        transfer_s=sent[0],
        transfer_back_s=sent[1],
    )


def activation_room(checkpoint: JobCheckpoint, study: PipelineStudy) -> NDArray[np.int64]:
    """What a job leaves for what forwards leave: int64[num_ranks] [bytes], by its simulation under its own order.

    Args:
        study: of the job.
    """
    estimate, schedule = checkpoint.estimate(), checkpoint.schedule()
    rest = np.array(estimate.peak_memory_bytes) - study.evaluate(schedule).peak_bytes
    have = estimate.capacity_bytes - estimate.other_memory_bytes - estimate.memory_margin_bytes
    room: NDArray[np.int64] = np.maximum(have - rest, 0)
    return room
