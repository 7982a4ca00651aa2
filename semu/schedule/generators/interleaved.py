"""Interleaved 1F1B: a rank's v virtual stages lie p virtual stages apart in the model (Megatron-LM: 2104.04473 §2.2).

    rank 0 |F0F1F2F3f0f1f2f3            b0--  b1--  b2--  b3--B0--B1--B2--B3--|
    rank 1 |  F0F1F2F3f0f1f2f3      b0--  b1--  b2--  b3--B0--B1--B2--B3--    |
    rank 2 |    F0F1F2F3f0f1f2  b0--f3b1--  b2--  b3--B0--B1--B2--B3--        |
    rank 3 |      F0F1F2F3f0b0--f1b1--f2b2--f3b3--B0--B1--B2--B3--            |

Equal virtual stages of forward time f and backward time b: makespan (m v + p - 1)(f + b), bubble ratio
(p - 1) / (m v + p - 1), so that the bubble is v times smaller than 1F1B's. Rank r runs min(m v, 2 (p - r - 1) +
(v - 1) p) forwards before it alternates, and holds the activations of one virtual stage more than that at most: on the
first rank those of L (1 + (p - 1) / (p v)) of the model's L layers (2205.05198 §4.2.3).
"""

from __future__ import annotations

from semu.errors import ScheduleError
from semu.parallel.pipeline import nearest_multiple
from semu.schedule.schedule import PipelineShape, Schedule, StageKey


def interleaved(shape: PipelineShape) -> Schedule:
    """The interleaved 1F1B schedule; with one virtual stage per rank, plain 1F1B.

    Args:
        shape: ranks, chunks and microbatches; ``chunk_slot`` says to which virtual stage of its rank a chunk belongs.
    Raises:
        ScheduleError: several virtual stages and a number of microbatches that the ranks do not divide.
    """
    p, m = shape.num_ranks, shape.num_microbatches
    if shape.num_slots > 1 and m % p:
        raise ScheduleError(
            "interleaved 1F1B runs its microbatches in groups of as many as there are ranks",
            where="interleaved",
            expected=f"a multiple of {p} microbatches",
            got=m,
            nearest=nearest_multiple(m, p),
        )
    return Schedule.build("interleaved", (_order(shape, rank) for rank in range(p)))


def _order(shape: PipelineShape, rank: int) -> list[StageKey]:
    p, m, v = shape.num_ranks, shape.num_microbatches, shape.num_slots
    total = m * v
    warm_up = min(2 * (p - rank - 1) + (v - 1) * p if v > 1 else p - rank - 1, total)
    order: list[StageKey] = []
    for step in range(total + warm_up):
        if step < total:
            slot, microbatch = _turn(step, p, v)
            order += shape.forward(rank, microbatch, slot)
        if step >= warm_up:
            slot, microbatch = _turn(step - warm_up, p, v)
            order += shape.backward(rank, microbatch, v - 1 - slot)
    return order


def _turn(step: int, p: int, v: int) -> tuple[int, int]:
    """Slot and microbatch of a rank's step-th forward: p microbatches through one slot, the same through the next."""
    if v == 1:
        return 0, step
    group, within = divmod(step, p * v)
    return within // p, group * p + within % p
