"""``Loads``: what every context rank has of a job's batch: tiles, time in attention; and what evenness would save."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.costs.evaluation import CostedJob
from semu.costs.phases import stages_of_chunk
from semu.costs.ranked import RankedCosts, is_context
from semu.graph.dim import symbols_of
from semu.hardware.kinds import OpKind
from semu.masks.balance import Cut
from semu.masks.spans import Spans
from semu.masks.tiles import count
from semu.records import dataclass
from semu.workload.masked import ContextPlan, traffic_of

ATTENTION = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)


@dataclass(frozen=True, eq=False)
class Loads:
    """Sums over the microbatches of an iteration, the microbatches as they come.

    Attributes:
        attention_s: float64[cp, num_shapes], time in attention kernels over text, of all layers, both ways [s].
        tiles: int64[cp, num_shapes], tiles of all distinct kernels of a layer. uses: int64[num_shapes], microbatches.
        wire_bytes: float64[num_shapes], bytes that a rank sends to context ranks.
    """

    attention_s: NDArray[np.float64]
    tiles: NDArray[np.int64]
    uses: NDArray[np.int64]
    wire_bytes: NDArray[np.float64]

    @classmethod
    def of(cls, costed: CostedJob) -> Loads:
        """Of a costed job; where its context ranks do the same, as of one."""
        by_shape, shapes = costed.evaluation.by_shape, costed.evaluation.shapes
        library = costed.layout.library
        calls = np.zeros(len(library.operators), np.int64)
        for chunk in costed.layout.chunks:
            for _, program in stages_of_chunk(costed.layout, chunk.chunk.index, splits=False):
                calls += np.bincount(program.rows, minlength=len(calls))
        is_over_text = [
            op.kind in ATTENTION and any(name.startswith("text.") for name in symbols_of(op.flop))
            for op in library.operators
        ]
        rows = np.array(is_over_text) & (calls > 0)
        sent = np.array([is_context(group) for group in library.groups], np.bool_) & (calls > 0)
        latency = by_shape.on_ranks if isinstance(by_shape, RankedCosts) else by_shape.latency[None]
        attention = latency[:, :, rows] @ calls[rows]
        wire = calls[sent] @ by_shape.columns.net_bytes[sent]
        counted = [table for name, table in shapes.ranks.items() if ".tiles#" in name]
        tiles = np.sum(counted, axis=0) if counted else np.ones((1, costed.evaluation.num_shapes), np.int64)
        uses = np.bincount(shapes.index.ravel(), minlength=costed.evaluation.num_shapes)
        return cls(attention, np.asarray(tiles), uses, wire.astype(np.float64))

    @property
    def lost_s(self) -> float:
        """How long ranks wait in attention for the busiest, mean over ranks, all microbatches of all replicas [s]."""
        waits = self.attention_s.max(axis=0) - self.attention_s.mean(axis=0)
        return float(waits @ self.uses)


def keys_needed(plan: ContextPlan, spans: Spans, cut: Cut) -> int:
    """Tokens of other ranks in tiles that a rank computes, all ranks together."""
    tiles = count(plan.seen(spans, plan.label), spans.starts, cut, by_owner=True)
    return int(traffic_of(tiles, 1)["near_in"].sum())


def waited_s(costed: CostedJob) -> float:
    """How long stages wait for context ranks' transfers and for one another, all microbatches of all replicas [s]."""
    layout, evaluation = costed.layout, costed.evaluation
    uses = np.bincount(evaluation.shapes.index.ravel(), minlength=evaluation.num_shapes)
    streams = [n for n, name in enumerate(layout.streams) if name == "cp" or name.startswith("cp_")]
    stages = [stage for chunk in evaluation.chunks for stage in (chunk.forward, chunk.backward) if stage is not None]
    return float(sum((uses @ stage.exposed[:, streams]).sum() for stage in stages))


def imbalance(tiles: NDArray[np.int64], uses: NDArray[np.int64]) -> float:
    """Largest over mean of the ranks' tiles, microbatch by microbatch, weighted by their tiles.

    Args:
        tiles: int64[cp, num_shapes]. uses: int64[num_shapes].
    """
    mean = float(tiles.mean(axis=0) @ uses)
    return float(tiles.max(axis=0) @ uses) / mean if mean else 1.0
