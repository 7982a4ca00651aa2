"""Schedules that repeat a building block: the same six stages per rank for every microbatch, six slots apart
(2405.15362 §3).

A block says in which slot, counted from its microbatch's start, each rank runs each of F0 F1 I1 W1 I0 W0 on a V-shape.
It repeats without collisions if these differ modulo 6; the longer its stages' activations live, the more of them a rank
holds. The order of the repeated slots is the schedule: what is eager runs earlier than its slot, and the gaps of the
first and last microbatches close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semu.graph.operator import Phase
from semu.schedule.shape import PipelineShape, StageKey

SLOTS = 6
_PHASE = {phase.value: phase for phase in Phase}
Block = dict[str, int]
"""Word like ``F0`` -> slot."""


def wave_block(p: int, rank: int, steps: tuple[int, int], waits: tuple[int, int, int]) -> Block:
    """A block whose stages go down and up the V at constant speed; weight gradients take the next free slots.

    Args:
        p, rank: of how many, which.
        steps: slots from one rank to the next, down the V (F0, I1) and up the V (F1, I0).
        waits: idle slots at the turns: F0 to F1 on the last rank, F1 to I1 on the first, I1 to I0 on the last.
    """
    down, up = steps
    at_f1 = (down + up) * (p - 1) + 1 + waits[0]
    at_i1 = at_f1 + 1 + waits[1]
    at_i0 = at_i1 + (down + up) * (p - 1) + 1 + waits[2]
    block = {"F0": down * rank, "F1": at_f1 - up * rank, "I1": at_i1 + down * rank, "I0": at_i0 - up * rank}
    free = sorted(set(range(SLOTS)) - {slot % SLOTS for slot in block.values()})
    choices = []
    for one, other in (free, free[::-1]):
        after = [block[word] + 1 + (slot - block[word] - 1) % SLOTS for word, slot in (("I1", one), ("I0", other))]
        choices.append((sum(after), after))
    block["W1"], block["W0"] = min(choices)[1]
    return block


def repeat(shape: PipelineShape, block_of: Callable[[int], Block]) -> Iterator[list[StageKey]]:
    """The order of each rank: its block for every microbatch, by slot.

    Args:
        shape: two chunks per rank in a V. block_of: rank -> its block.
    """
    for rank in range(shape.num_ranks):
        chunks = shape.chunks_of(rank)
        turns = sorted(
            (slot + SLOTS * microbatch, word, microbatch)
            for word, slot in block_of(rank).items()
            for microbatch in range(shape.num_microbatches)
        )
        yield [StageKey(chunks[int(word[1])], _PHASE[word[0]], microbatch) for _, word, microbatch in turns]
