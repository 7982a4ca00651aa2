"""``Block``: the same six stages per rank for every microbatch, six slots apart (2405.15362 §3).

A block says in which slot, counted from its microbatch's start, each rank runs each of F0 F1 I1 W1 I0 W0 on a V-shape.
It repeats without collisions if these differ modulo 6; the longer its stages' activations live, the more of them a rank
holds. The order of the repeated slots is the schedule: what is eager runs earlier than its slot, and the gaps of the
first and last microbatches close.
"""

from __future__ import annotations

from collections.abc import Iterator

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.records import dataclass
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.rule import Rule, one_value
from semu.schedule.schedule import StageColumns, columns_of
from semu.schedule.shape import PipelineShape, StageKey

SLOTS = 6
_PHASE = {phase.value: phase for phase in Phase}


@dataclass(frozen=True)
class Block(Rule):
    """A block whose stages go down and up the V at constant speed; weight gradients take the next free slots.

    Attributes:
        steps: slots from one rank to the next, down the V (F0, I1) and up the V (F1, I0).
        waits: idle slots at the turns: F0 to F1 on the last rank, F1 to I1 on the first, I1 to I0 on the last.
    """

    steps: tuple[Number, Number]
    waits: tuple[Number, Number, Number] = (0, 0, 0)

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return True

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``.

        Raises:
            ScheduleError: also stages that fall on one slot, a rank without two chunks.
        """
        down, up = (one_value(step, shape, "steps") for step in self.steps)
        waits = [one_value(wait, shape, "waits") for wait in self.waits]
        return columns_of(self._order(shape, rank, down, up, waits) for rank in range(shape.num_ranks))

    def _order(self, shape: PipelineShape, rank: int, down: int, up: int, waits: list[int]) -> Iterator[StageKey]:
        chunks, last = shape.chunks_of(rank), shape.num_ranks - 1
        at_f1 = (down + up) * last + 1 + waits[0]
        at_i1 = at_f1 + 1 + waits[1]
        at_i0 = at_i1 + (down + up) * last + 1 + waits[2]
        block = {"F0": down * rank, "F1": at_f1 - up * rank, "I1": at_i1 + down * rank, "I0": at_i0 - up * rank}
        free = sorted(set(range(SLOTS)) - {slot % SLOTS for slot in block.values()})
        if len(free) != 2 or len(chunks) != 2:
            got = f"{len(chunks)} chunks, slots {sorted(slot % SLOTS for slot in block.values())} on rank {rank}"
            expected = "two chunks on every rank, whose four stages differ modulo 6"
            raise ScheduleError("not a building block", where="block", expected=expected, got=got)
        choices = []
        for one, other in (free, free[::-1]):
            after = [block[word] + 1 + (slot - block[word] - 1) % SLOTS for word, slot in (("I1", one), ("I0", other))]
            choices.append((sum(after), after))
        block["W1"], block["W0"] = min(choices)[1]
        turns = sorted(
            (slot + SLOTS * microbatch, word, microbatch)
            for word, slot in block.items()
            for microbatch in range(shape.num_microbatches)
        )
        for _, word, microbatch in turns:
            yield StageKey(chunks[int(word[1])], _PHASE[word[0]], microbatch)
