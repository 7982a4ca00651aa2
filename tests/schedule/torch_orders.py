"""The orders of torch.distributed.pipelining's schedules, made without processes: only the parts that list actions."""

from __future__ import annotations

import csv
import io
from types import ModuleType
from typing import Any

NAMES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def torch_order(torch: ModuleType, name: str, p: int, m: int, v: int) -> dict[int, list[Any]]:
    """Rank -> torch's own actions."""
    kind = getattr(torch, NAMES[name])
    made = kind.__new__(kind)
    made.pp_group_size, made._n_microbatches, made._num_stages, made.num_stages = p, m, p * v, p * v
    made.n_local_stages, made._stages = v, [None] * v
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    if name in ("gpipe", "1f1b"):
        return dict(made._get_pipeline_order())
    made.pipeline_order = {rank: made._calculate_single_rank_operations(rank) for rank in range(p)}
    if name == "interleaved-zb":
        made.pipeline_order = made._add_bubbles_to_actions(p * v)
    return dict(made.pipeline_order)


def as_csv(order: dict[int, list[Any]]) -> str:
    """As torch dumps it."""
    buffer = io.StringIO()
    csv.writer(buffer).writerows(order[rank] for rank in order)
    return buffer.getvalue()
