"""The machine that generators share: ``alternate`` (warm-up, one forward one backward, delayed weight gradients) and
``play`` (a rank's order as patterns like ``F0 I1 W1``, repeated)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from semu.graph.operator import Phase
from semu.schedule.shape import PipelineShape, StageKey

Turn = tuple[int, int]
"""Slot and microbatch."""

_PHASE = {phase.value: phase for phase in Phase}


def grouped_turn(size: int, num_slots: int) -> Callable[[int], Turn]:
    """A rank's n-th forward: ``size`` microbatches through one slot, the same through the next."""

    def _turn(step: int) -> Turn:
        group, within = divmod(step, size * num_slots)
        return within // size, group * size + within % size

    return _turn


def alternate(
    shape: PipelineShape,
    rank: int,
    warm_up: int,
    delay: int | None = None,
    turn: Callable[[int], Turn] | None = None,
    slots: Sequence[int] | None = None,
) -> list[StageKey]:
    """One forward, one backward in turn.

    Args:
        shape, rank: whose order.
        warm_up: forwards before the first backward's turn begins.
        delay: None: whole backwards; else split ones, a weight gradient in the turn of the input gradient that many
            later.
        turn: of the n-th forward; backwards take the slots in reverse. By default microbatches in order.
        slots: the rank's slots that run, which ``turn`` numbers from 0; None: all.
    """
    slots = range(shape.num_slots) if slots is None else slots
    total, order = shape.num_microbatches * len(slots), list[StageKey]()
    turn = turn or grouped_turn(1, shape.num_slots)
    whole = Phase.BACKWARD if delay is None else Phase.INPUT_GRADIENT
    behind = warm_up + (delay or 0)
    for step in range(total + behind):
        if step < total:
            slot, microbatch = turn(step)
            order += shape.forward(rank, microbatch, slots[slot])
        if 0 <= step - warm_up < total:
            slot, microbatch = turn(step - warm_up)
            order += shape.backward(rank, microbatch, slots[-1 - slot], whole)
        if delay is not None and 0 <= step - behind < total:
            slot, microbatch = turn(step - behind)
            order += shape.backward(rank, microbatch, slots[-1 - slot], Phase.WEIGHT_GRADIENT)
    return order


def play(shape: PipelineShape, rank: int, steps: Iterable[tuple[int, str]]) -> list[StageKey]:
    """Patterns one after another.

    Args:
        shape, rank: whose order; one chunk per slot.
        steps: how often, and words of phase and slot: ``F0 I1 W1``. Each phase of a slot takes the microbatches in
            order, B those of I and W together; ``W`` alone is the oldest weight gradient that is due, if any. Stages
            of more microbatches than the pipeline has are left out.
    """
    chunk = shape.chunks_of(rank)
    following: dict[str, int] = {}
    due: deque[tuple[int, int]] = deque()
    order: list[StageKey] = []
    for times, pattern in steps:
        words = [(word[0], int(word[1:]) if len(word) > 1 else -1) for word in pattern.split()]
        for _ in range(times):
            for letter, slot in words:
                if slot < 0:
                    if not due:
                        continue
                    slot, microbatch = due.popleft()
                else:
                    counter = f"{'I' if letter == 'B' else letter}{slot}"
                    microbatch = following.get(counter, 0)
                    following[counter] = microbatch + 1
                    if letter == "I":
                        due.append((slot, microbatch))
                if microbatch < shape.num_microbatches:
                    order.append(StageKey(chunk[slot], _PHASE[letter], microbatch))
    return order
