"""Optimus, coarse: encoders run in the bubbles before and behind the backbone's pipeline (Feng et al. 2025; DIP §7.1).

    rank 0 |F0F1F2F3f0f1f2f3      b0  b1  b2  b3B0B1B2B3|
    rank 1 |  F0F1F2F3f0f1f2    b0f3b1  b2  b3B0B1B2B3  |
    rank 2 |    F0F1F2F3f0f1  b0f2b1f3b2  b3B0B1B2B3    |
    rank 3 |      F0F1F2F3f0b0f1b1f2b2f3b3B0B1B2B3      |

Every rank holds chunks of the encoders and of the backbone. It runs the encoders' forwards of all microbatches, then
the backbone's pipeline, 1F1B or with several virtual stages interleaved 1F1B, then the encoders' backwards: forwards
stand in the bubble before a late rank's first backbone stage, backwards in the bubble behind its last one. Encoders are
the modules that read no other module and that another one reads. The price is memory: a rank holds the encoders'
activations of all microbatches. What Optimus does inside stages (encoder kernels beside tensor-parallel communication)
is another matter and not part of it.

Equal stages, v >= 2 virtual stages of which the first is the encoder's (capitals in the figure): makespan
(max(m, p) + m (v - 1) + p - 1)(f + b); a pipeline of one virtual stage has no encoder.
"""

from __future__ import annotations

from dataclasses import replace

from semu.parallel.pipeline import nearest_multiple
from semu.records import dataclass
from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.generators.interleaved import MEGATRONS
from semu.schedule.placement import Placement
from semu.schedule.rules.around import Around, encoder_chunks
from semu.schedule.shape import PipelineShape


@dataclass(frozen=True)
class _WithEncoder(ScheduleFamily):
    """A family whose own pipelines begin with an encoder where they have several virtual stages."""

    def shape(self, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> PipelineShape:
        """The first virtual stage of every rank is the encoder's.

        Raises:
            ScheduleError: the size does not fit.
        """
        plain = super().shape(num_ranks, num_microbatches, num_slots)
        if num_slots == 1:
            return plain
        return replace(plain, chunk_module=tuple("backbone" if slot else "encoder" for slot in plain.chunk_slot))

    def check_shape(self, shape: PipelineShape) -> None:
        """Of a pipeline's virtual stages those count that hold some of the backbone; see ``__call__``."""
        first = encoder_chunks(shape)
        slots = {slot for chunk, slot in enumerate(shape.chunk_slot) if chunk not in first}
        self.check(shape.num_ranks, shape.num_microbatches, len(slots) + 1)


def _groups_of_p(p: int, m: int, v: int) -> Misfit | None:
    if v <= 2 or m % p == 0:
        return None
    rule = "a backbone of several virtual stages runs its microbatches in groups of as many as there are ranks"
    return Misfit(rule, f"a multiple of {p} microbatches", m, nearest_multiple(m, p))


def _makespan(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    return ((m + p - 1) if v == 1 else max(m, p) + m * (v - 1) + p - 1) * (f + i + w)


def _held(p: int, m: int, v: int) -> list[int]:
    if v <= 2:
        return [(m if v == 2 else 0) + min(m, p - rank) for rank in range(p)]
    return [m + min(m * (v - 1), 2 * (p - rank - 1) + (v - 2) * p + 1) for rank in range(p)]


optimus = _WithEncoder(
    "optimus",
    Around(MEGATRONS),
    "Feng et al., USENIX ATC 2025, as DIP §7.1 has it",
    Placement.CIRCULAR,
    doc=__doc__,
    rules=(_groups_of_p,),
    makespan=_makespan,
    activations=_held,
    needs_encoder=True,
    compared=0,
)
