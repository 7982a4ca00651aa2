"""Orders of ranks as turns (phase, virtual stage, microbatch); ``turn_columns`` writes them out as stages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.schedule.graph import fan_out
from semu.schedule.phases import FORWARD
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape

I64 = NDArray[np.int64]


class Turns(NamedTuple):
    """Turns of all ranks; int64[num_ranks, num_turns] each, or what broadcasts to it.

    Attributes:
        phase: codes. slot: virtual stage of the rank. microbatch: which.
    """

    phase: I64
    slot: I64
    microbatch: I64


def turn_columns(shape: PipelineShape, turns: Turns) -> StageColumns:
    """The stages that run in the turns of every rank, see ``turn_stages``."""
    return turn_stages(shape, turns)[1]


def turn_stages(shape: PipelineShape, turns: Turns) -> tuple[I64, StageColumns]:
    """The stages that run in the turns of every rank: all chunks of the virtual stage, forwards in the order of data
    flow, backwards against it, and of each chunk all parts of the microbatch.

    Returns:
        int64[num_stages], the turn of each stage, rank after rank; and the stages.
    """
    held = [shape.chunks_of(rank, slot) for rank in range(shape.num_ranks) for slot in range(shape.num_slots)]
    back = [[chunk for chunk in reversed(chunks) if shape.has_backward[chunk]] for chunks in held]
    rank = np.arange(shape.num_ranks)[:, None]
    row = np.where(turns.phase == FORWARD, 0, len(held)) + rank * shape.num_slots + turns.slot
    turn, place = fan_out(np.array([len(chunks) for chunks in (*held, *back)], dtype=np.int64), row.ravel())
    chunk = np.array([chunk for chunks in (*held, *back) for chunk in chunks], dtype=np.int64)[place]
    phase, part = (np.broadcast_to(of, row.shape).ravel()[turn] for of in (turns.phase, turns.microbatch))
    if not shape.is_plain:
        count = shape.part_table[chunk, part]
        stage, number = fan_out(count, np.arange(len(count)))
        within = number - (np.cumsum(count) - count)[stage]
        turn, chunk, phase = turn[stage], chunk[stage], phase[stage]
        part = part[stage] * np.array(shape.chunk_split, dtype=np.int64)[chunk] + within
    per_rank = np.bincount(turn // row.shape[1], minlength=shape.num_ranks) if row.size else np.zeros(len(row), int)
    return turn, StageColumns(np.concatenate(([0], np.cumsum(per_rank))), chunk, phase, part)
