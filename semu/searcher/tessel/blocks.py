"""``Blocks``: the stages of one microbatch in whole ticks, as Tessel's formulation sees them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from semu.records import dataclass
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, FORWARD
from semu.schedule.study import PipelineStudy

TICKS = 1000
"""Ticks of the work of the busiest rank for a microbatch."""


@dataclass(frozen=True)
class Block:
    """A stage of every microbatch.

    Attributes:
        stages: (chunk, code) of its members: of one chunk, or of all of a gang. ranks: where they run.
        ticks: how long. before: blocks of the same microbatch that it needs, with how long their results are on the
            way [ticks].
    """

    stages: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    ticks: int
    before: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a pipeline whose microbatches are alike.

    Attributes:
        blocks: each behind those that it needs. held: per rank, (forward block, backward block, bytes) of what is kept
            in between. num_ranks: of the pipeline. tick_s: length of a tick [s].
    """

    blocks: tuple[Block, ...]
    held: tuple[tuple[tuple[int, int, int], ...], ...]
    num_ranks: int
    tick_s: float

    @classmethod
    def of(cls, study: PipelineStudy) -> Blocks:
        """The blocks of a study, of its mean microbatch; backwards are whole."""
        shape, costs, graph = study.shape, study.costs, graph_of(study.shape)
        m = shape.num_microbatches
        gang = shape.chunk_gang or (-1,) * shape.num_chunks
        groups = [(c,) for c in range(shape.num_chunks) if gang[c] < 0] + list(shape.gangs)

        def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], chunk: int, code: int) -> float:
            rows = 4 * np.arange(graph.first[chunk], graph.first[chunk] + m) + code
            return float(values[rows].mean())

        latency = {
            (c, code): _mean(costs.latency_s, c, code) for c in range(shape.num_chunks) for code in (FORWARD, BACKWARD)
        }
        work = np.zeros(shape.num_ranks)
        for (chunk, _), seconds in latency.items():
            work[shape.chunk_rank[chunk]] += seconds
        tick_s = max(float(work.max()), 1e-12) / TICKS
        found: list[Block] = []
        number: dict[tuple[int, int], int] = {}

        def _add(group: tuple[int, ...], code: int) -> bool:
            needs: list[tuple[int, int]] = []
            for chunk in group:
                near = shape.sources[chunk] if code == FORWARD else graph.readers[chunk]
                needs += [(other, code) for other in near]
            needs += [(chunk, FORWARD) for chunk in group if code == BACKWARD]
            if any(need not in number for need in needs):
                return False
            before: dict[int, int] = {}
            for other, its in needs:
                crosses = not any(shape.chunk_rank[chunk] == shape.chunk_rank[other] for chunk in group)
                late = _mean(costs.transfer_s, other, its) / tick_s if crosses else 0.0
                before[number[other, its]] = max(round(late), before.get(number[other, its], 0))
            ticks = max(round(max(latency[chunk, code] for chunk in group) / tick_s), 1)
            for chunk in group:
                number[chunk, code] = len(found)
            ranks = tuple(shape.chunk_rank[chunk] for chunk in group)
            found.append(Block(tuple((chunk, code) for chunk in group), ranks, ticks, tuple(before.items())))
            return True

        left = [(group, FORWARD) for group in groups]
        left += [(group, BACKWARD) for group in groups if shape.has_backward[group[0]]]
        while left:
            left = [one for one in left if not _add(*one)]
        held: list[list[tuple[int, int, int]]] = [[] for _ in range(shape.num_ranks)]
        for chunk in range(shape.num_chunks):
            if shape.has_backward[chunk]:
                size = int(_mean(costs.delta_bytes.astype(np.float64), chunk, FORWARD))
                held[shape.chunk_rank[chunk]].append((number[chunk, FORWARD], number[chunk, BACKWARD], size))
        return cls(tuple(found), tuple(map(tuple, held)), shape.num_ranks, tick_s)

    @cached_property
    def least_period(self) -> int:
        """No repetend is shorter: the work of the busiest rank [ticks]."""
        work = [0] * self.num_ranks
        for block in self.blocks:
            for rank in block.ranks:
                work[rank] += block.ticks
        return max(work)
