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

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from semu.parallel.pipeline import nearest_multiple
from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.patterns import alternate, grouped_turn
from semu.schedule.shape import PipelineShape, StageKey


def encoder_chunks(shape: PipelineShape) -> frozenset[int]:
    """Chunks of modules that read no other module and that another one reads."""
    module = shape.chunk_module
    between = [
        (module[source], module[chunk])
        for chunk, sources in enumerate(shape.sources)
        for source in sources
        if module[source] != module[chunk]
    ]
    names = {source for source, _ in between} - {reader for _, reader in between}
    return frozenset(chunk for chunk, name in enumerate(module) if name in names)


def coarse_orders(shape: PipelineShape) -> Iterator[list[StageKey]]:
    """Per rank: encoder forwards, the backbone's 1F1B, encoder backwards.

    Args:
        shape: chunks with the modules that they are part of; without encoders the order is 1F1B's.
    """
    first = encoder_chunks(shape)
    before = sorted({shape.chunk_slot[chunk] for chunk in first})
    slots = _backbone_slots(shape, first)
    for rank in range(shape.num_ranks):
        order = [
            stage
            for slot, microbatch in _in_groups(shape, before)
            for stage in shape.forward(rank, microbatch, slot)
            if stage.chunk in first
        ]
        order += (stage for stage in _one_f_one_b(shape, rank, slots) if stage.chunk not in first)
        order += (
            stage
            for slot, microbatch in _in_groups(shape, before[::-1])
            for stage in shape.backward(rank, microbatch, slot)
            if stage.chunk in first
        )
        yield order


def _backbone_slots(shape: PipelineShape, encoders: Collection[int]) -> list[int]:
    return sorted({shape.chunk_slot[chunk] for chunk in range(shape.num_chunks) if chunk not in encoders})


def _in_groups(shape: PipelineShape, slots: list[int]) -> Iterator[tuple[int, int]]:
    """(slot, microbatch): as many microbatches as there are ranks through one slot, the same through the next."""
    p, m = shape.num_ranks, shape.num_microbatches
    for start in range(0, m, p):
        for slot in slots:
            for microbatch in range(start, min(start + p, m)):
                yield slot, microbatch


def _one_f_one_b(shape: PipelineShape, rank: int, slots: list[int]) -> list[StageKey]:
    """1F1B of some slots in turn, as ``semu.schedule.generators.interleaved`` of all."""
    p, v = shape.num_ranks, len(slots)
    warm_up = min(2 * (p - rank - 1) + (v - 1) * p if v > 1 else p - rank - 1, shape.num_microbatches * v)
    return alternate(shape, rank, warm_up, turn=grouped_turn(p if v > 1 else 1, max(v, 1)), slots=slots)


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
        slots = _backbone_slots(shape, encoder_chunks(shape))
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
    coarse_orders,
    "Feng et al., USENIX ATC 2025, as DIP §7.1 has it",
    Placement.CIRCULAR,
    rules=(_groups_of_p,),
    makespan=_makespan,
    activations=_held,
    needs_encoder=True,
    compared=0,
)
