"""``Contracted``: a pipeline whose virtual stages hold several chunks each, as one with a chunk per virtual stage.

Where one module ends and the next begins within a virtual stage, its rank holds a chunk of each. A schedule that is
drawn for one chunk per rank and slot is drawn for the virtual stages, and then written out: forwards of a virtual
stage's chunks in the order of the data, backwards in reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from semu.graph.operator import Phase
from semu.records import dataclass
from semu.schedule.shape import PipelineShape, StageKey


@dataclass(frozen=True)
class Contracted:
    """A pipeline by its virtual stages.

    Attributes:
        shape: a chain with one chunk per virtual stage, every microbatch in one piece.
        chunks: of every virtual stage, in the order of the data.
        whole: the pipeline.
    """

    shape: PipelineShape
    chunks: tuple[tuple[int, ...], ...]
    whole: PipelineShape

    @classmethod
    def of(cls, shape: PipelineShape) -> Contracted:
        """Neighbours on one rank, in one slot, of one copy of the model become one.

        An order of the chain is also one of modules side by side: chunks read only earlier ones. Where that is not so,
        nothing is contracted.
        """
        if any(source > chunk for chunk, sources in enumerate(shape.sources) for source in sources):
            return cls(shape, tuple((chunk,) for chunk in range(shape.num_chunks)), shape)
        place = [*zip(shape.chunk_flow, shape.chunk_slot, shape.chunk_rank, strict=True)]
        groups = tuple(tuple(group) for _, group in groupby(range(shape.num_chunks), key=place.__getitem__))
        firsts = [group[0] for group in groups]
        flows = [shape.chunk_flow[first] for first in firsts]
        chain = PipelineShape(
            shape.num_ranks,
            shape.num_microbatches,
            tuple(shape.chunk_rank[first] for first in firsts),
            tuple((n - 1,) if n and flows[n - 1] == flow else () for n, flow in enumerate(flows)),
            tuple(all(shape.has_backward[chunk] for chunk in group) for group in groups),
            tuple(shape.chunk_slot[first] for first in firsts),
            chunk_flow=tuple(flows),
            microbatch_flow=shape.microbatch_flow,
        )
        return cls(chain, groups, shape)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was to be contracted."""
        return self.whole.num_chunks == self.shape.num_chunks and not self.whole.is_cut

    def write_out(self, order: Iterable[StageKey]) -> Iterator[StageKey]:
        """The order of a rank of the chain as an order of the pipeline's."""
        for stage in order:
            chunks = self.chunks[stage.chunk]
            for chunk in chunks if stage.phase is Phase.FORWARD else reversed(chunks):
                for part in self.whole.parts(chunk, stage.microbatch):
                    yield StageKey(chunk, stage.phase, part)
