"""Where the chunks of a model lie: one-to-one, circular, V-shape (a wave, with more slots), bidirectional, both.

        one-to-one  circular      V-shape       bidirectional     V + bidirectional
rank 0  0           0  4          0  7          0   3'            0  7  3' 4'
rank 1  1           1  5          1  6          1   2'            1  6  2' 5'
rank 2  2           2  6          2  5          2   1'            2  5  1' 6'
rank 3  3           3  7          3  4          3   0'            3  4  0' 7'

FlexPipe (§2) compares the first two with a third, in which a rank holds chunks from both ends; the V is that of
2405.15362 §3 and, repeated, the wave of Hanayo (2308.15762); under the last, the model is there twice, and microbatches
enter it from both ends (Chimera, 2107.06925 §3); FlexPipe (§7.1) explores a V in either direction too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from semu.errors import ScheduleError
from semu.records import dataclass
from semu.schedule.shape import PipelineShape


class Placement(Enum):
    """How chunks are dealt to ranks."""

    ONE_TO_ONE = "one-to-one"
    CIRCULAR = "circular"
    V_SHAPE = "v-shape"
    BIDIRECTIONAL = "bidirectional"
    V_BIDIRECTIONAL = "v-bidirectional"

    @property
    def fewest_slots(self) -> int:
        """Chunks per rank at least, of both copies where the model is there twice."""
        return {Placement.BIDIRECTIONAL: 2, Placement.V_BIDIRECTIONAL: 4}.get(self, 1)

    @property
    def copies(self) -> int:
        """How often the model is there."""
        return 2 if self in (Placement.BIDIRECTIONAL, Placement.V_BIDIRECTIONAL) else 1

    def shape(self, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> PipelineShape:
        """A chain of equal chunks, all with a backward.

        Args:
            num_ranks, num_microbatches: of the pipeline. num_slots: chunks per rank, of both copies where the model is
                there twice: 2 bidirectional, at least 4 under V + bidirectional.
        Raises:
            ScheduleError: an odd number of ranks in both directions.
        """
        p, m, v = num_ranks, num_microbatches, num_slots
        if self in (Placement.ONE_TO_ONE, Placement.CIRCULAR):
            return PipelineShape.chain(p, m, v)
        if self is Placement.V_SHAPE:
            chain = PipelineShape.chain(p, m, v)
            turned = tuple(c % p if c // p % 2 == 0 else p - 1 - c % p for c in range(p * v))
            return PipelineShape(p, m, turned, chain.sources, chain.has_backward, chain.chunk_slot)
        if p % 2:
            raise ScheduleError(
                "two copies of the model interlock on an even number of ranks only",
                where=f"placement {self.value}",
                expected="even ranks",
                got=p,
                nearest=p + 1,
            )
        if self is Placement.V_BIDIRECTIONAL:
            one = Placement.V_SHAPE.shape(p, m, max(v // 2, 2))
            n, slots = one.num_chunks, one.num_slots
            return PipelineShape(
                p,
                m,
                (*one.chunk_rank, *(p - 1 - rank for rank in one.chunk_rank)),
                (*one.sources, *(tuple(source + n for source in own) for own in one.sources)),
                (True,) * (2 * n),
                chunk_slot=(*one.chunk_slot, *(slot + slots for slot in one.chunk_slot)),
                chunk_flow=(0,) * n + (1,) * n,
                microbatch_flow=both_ends(p, m),
            )
        return PipelineShape(
            p,
            m,
            (*range(p), *reversed(range(p))),
            tuple((c - 1,) if c % p else () for c in range(2 * p)),
            (True,) * (2 * p),
            chunk_slot=(0,) * p + (1,) * p,
            chunk_flow=(0,) * p + (1,) * p,
            microbatch_flow=both_ends(p, m),
        )


def both_ends(num_ranks: int, num_microbatches: int) -> tuple[int, ...]:
    """The end at which each microbatch enters: of every p, the first half at rank 0, the others at rank p - 1."""
    p, m, flows = num_ranks, num_microbatches, list[int]()
    for first in range(0, m, p):
        size = min(p, m - first)
        flows += [0] * -(-size // 2) + [1] * (size // 2)
    return tuple(flows)


@dataclass(frozen=True)
class FlowModule:
    """A modality module of a stage flow.

    Attributes:
        name: of the module. ranks: the rank of each of its chunks, in order. reads: modules whose results it needs.
        trains: whether it has backwards.
        sub_microbatches: into how many it cuts a microbatch: one number, or one for each, 0 where a microbatch has
            nothing for it.
    """

    name: str
    ranks: tuple[int, ...]
    reads: tuple[str, ...] = ()
    trains: bool = True
    sub_microbatches: int | tuple[int, ...] = 1


def stage_flow(num_ranks: int, num_microbatches: int, modules: Sequence[FlowModule]) -> PipelineShape:
    """A pipeline of modules: encoders side by side into a backbone, a decoder after it, or any other order.

    A chunk's slot is the number of earlier chunks on its rank. A module that does not train still has backwards where
    one that it reads trains.

    Args:
        num_ranks, num_microbatches: of the pipeline.
        modules: each after the modules that it reads; chunks are numbered in this order.
    Raises:
        ScheduleError: a module that reads an unknown or a later one, has no chunks, or a rank that does not exist.
    """
    last: dict[str, int] = {}
    back: dict[str, bool] = {}
    ranks: list[int] = []
    sources: list[tuple[int, ...]] = []
    slots: list[int] = []
    for module in modules:
        unknown = [name for name in module.reads if name not in last]
        if unknown or module.name in last or not module.ranks:
            raise ScheduleError(
                "a module needs chunks, a name of its own, and reads modules before it",
                where=f"module {module.name}",
                expected=f"reads among {', '.join(last) or 'none'}",
                got=unknown or module.name,
            )
        if not all(0 <= rank < num_ranks for rank in module.ranks):
            expected = f"0 <= rank < {num_ranks}"
            raise ScheduleError("no such rank", where=f"module {module.name}", expected=expected, got=module.ranks)
        for number, rank in enumerate(module.ranks):
            sources.append((len(ranks) - 1,) if number else tuple(last[name] for name in module.reads))
            slots.append(ranks.count(rank))
            ranks.append(rank)
        last[module.name] = len(ranks) - 1
        back[module.name] = module.trains or any(back[name] for name in module.reads)
    cuts = [(cut,) * num_microbatches if isinstance(cut, int) else cut for cut in (m.sub_microbatches for m in modules)]
    return PipelineShape(
        num_ranks,
        num_microbatches,
        tuple(ranks),
        tuple(sources),
        tuple(back[module.name] for module in modules for _ in module.ranks),
        tuple(slots),
        tuple(module.name for module in modules for _ in module.ranks),
        tuple(_most(module) for module in modules for _ in module.ranks),
        part_counts=tuple(cut for cut, module in zip(cuts, modules, strict=True) for _ in module.ranks),
    )


def _most(module: FlowModule) -> int:
    cut = module.sub_microbatches
    return cut if isinstance(cut, int) else max(1, *cut, 0)
