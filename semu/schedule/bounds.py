"""``lower_bound``: a time before which no schedule of a pipeline ends."""

from __future__ import annotations

import numpy as np

from semu.schedule.graph import PipelineGraph
from semu.schedule.study import PipelineStudy


def lower_bound(study: PipelineStudy, *, split: bool) -> float:
    """See ``PipelineStudy.lower_bound_s``."""
    arrays, costs = study.arrays, study.costs
    latency, pred_ptr, pred, delay = costs.latency_s, arrays.pred_ptr, arrays.pred, study.delay_s
    backward, parts = (2, (0, 2, 3)) if split else (1, (0, 1))
    head, tail = np.zeros(arrays.num_stages), np.zeros(arrays.num_stages)
    order = _topological(arrays)
    known = [stage for stage in order if stage % 4 in parts]
    for stage in known:
        for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
            before = int(pred[e]) + (backward - 1 if pred[e] % 4 == 1 else 0)
            head[stage] = max(head[stage], head[before] + latency[before] + delay[e])
    for stage in reversed(known):
        for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
            before = int(pred[e]) + (backward - 1 if pred[e] % 4 == 1 else 0)
            tail[before] = max(tail[before], tail[stage] + latency[stage] + delay[e])
    stages = np.array(known, dtype=np.int64)
    best = float(np.max(head[stages] + latency[stages] + tail[stages], initial=0.0))
    for rank in range(study.shape.num_ranks):
        mine = stages[arrays.rank[stages // 4] == rank]
        if len(mine):
            best = max(best, float(head[mine].min() + latency[mine].sum() + tail[mine].min()))
    return best


def _topological(arrays: PipelineGraph) -> list[int]:
    """Stages that run, forwards along the flow, then backwards against it; an I before its W."""
    found: list[int] = []
    pairs = np.flatnonzero(arrays.exists)
    found += (4 * pairs).tolist()
    for pair in reversed(pairs[arrays.has_backward[pairs]].tolist()):
        found += [4 * pair + 1, 4 * pair + 2, 4 * pair + 3]
    return found
