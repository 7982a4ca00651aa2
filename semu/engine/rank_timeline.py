"""``RankTimeline``: stages, operators, transfers and memory of one simulated rank.

Stages and outer operators (transfers, reductions, optimizer) are there at once; the operators inside stages are
expanded lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.memory import MemoryCurve, PeakMemory
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import Port, Provenance
from semu.records import dataclass


@dataclass(frozen=True, slots=True)
class StageSlice:
    """One stage on the time axis.

    Attributes:
        rank: pipeline rank.
        label: text form, ``2F0`` = chunk 2, forward, microbatch 0.
        module: name of the modality module.
        chunk, microbatch: numbers in the label.
        phase: FORWARD, BACKWARD, or of a split one INPUT_GRADIENT or WEIGHT_GRADIENT.
        start_s, end_s: within the iteration [s].
    """

    rank: int
    label: str
    module: str
    chunk: int
    microbatch: int
    phase: Phase
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class OuterSlice:
    """An operator outside stages: a P2P transfer, a gradient reduction, a parameter gather, the optimizer step.

    Attributes:
        name: for people, e.g. ``send 3F0 -> rank 1``.
        kind: operator kind.
        stream: ``"compute"`` or the communicator's name (``"pp"``, ``"dp"``).
        start_s, end_s: [s].
        net_bytes: wire bytes per rank, 0 for compute.
        group_ranks: ranks of the communicator, 1 for compute.
        provenance: of the coefficients behind its latency.
        port: what a transfer or collective runs on, None for compute.
    """

    name: str
    kind: OpKind
    stream: str
    start_s: float
    end_s: float
    net_bytes: int
    group_ranks: int
    provenance: Provenance = Provenance.DEFAULT
    port: Port | None = None


@dataclass(frozen=True)
class OperatorTable:
    """What the operators of a stage are; one table serves all microbatches of a chunk and phase.

    Attributes (all of length ``num_ops``):
        paths: dotted module paths. kinds: operator kinds. phases: FORWARD, RECOMPUTE, INPUT_GRADIENT, ...
        streams: ``"compute"`` or the communicator's name (``"tp"``).
        group_ranks: ranks of the communicator, 1 for compute.
        blocks: path of the chunk's block that the operator belongs to, a prefix of the operator's path.
    """

    paths: tuple[str, ...]
    kinds: tuple[OpKind, ...]
    phases: tuple[Phase, ...]
    streams: tuple[str, ...]
    group_ranks: tuple[int, ...]
    blocks: tuple[str, ...]

    @cached_property
    def block_starts(self) -> NDArray[np.int64]:
        """int64[num_runs], the first operator of each run of consecutive operators of one block."""
        changes = [i for i, block in enumerate(self.blocks) if i == 0 or block != self.blocks[i - 1]]
        return np.array(changes, dtype=np.int64)

    @cached_property
    def stream_codes(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The distinct streams, and the position of each operator's stream among them: int64[num_ops]."""
        names = tuple(dict.fromkeys(self.streams))
        return names, np.array([names.index(stream) for stream in self.streams], dtype=np.int64)


@dataclass(frozen=True)
class StageOperators:
    """The operators of one stage at their absolute times.

    Attributes:
        table: what they are. start_s, end_s: float64[num_ops] [s]. flop: float64[num_ops].
        mem_bytes, net_bytes: int64[num_ops].
    """

    table: OperatorTable
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    flop: NDArray[np.float64]
    mem_bytes: NDArray[np.int64]
    net_bytes: NDArray[np.int64]


@dataclass(frozen=True)
class RankTimeline:
    """One simulated pipeline rank.

    Attributes:
        rank: pipeline rank. gpu: global number of its first GPU. replica: data-parallel replica.
        stages: in order of start. outer: operators outside stages, in order of start.
        find_peak: explains the highest point of the memory curve.
        expand: stage number (position in ``stages``) -> its operators.
        build_memory: makes the memory curve. build_highest: edges of parts of time [s] -> the curve's points that have
            most in each part, without the whole curve; None: it is made.
        is_bare: neither operators nor memory are known, and asking for them is refused.
        weight: how much the rank counts in a mean over GPUs, 1 where all ranks have as many.
    """

    rank: int
    gpu: int
    replica: int
    stages: tuple[StageSlice, ...]
    outer: tuple[OuterSlice, ...]
    find_peak: Callable[[MemoryCurve], PeakMemory]
    expand: Callable[[int], StageOperators]
    build_memory: Callable[[], MemoryCurve]
    weight: float = 1.0
    build_highest: Callable[[NDArray[np.float64]], MemoryCurve] | None = None
    is_bare: bool = False

    @cached_property
    def memory(self) -> MemoryCurve:
        """Allocated bytes over the iteration (built on first use)."""
        return self.build_memory()

    @cached_property
    def peak(self) -> PeakMemory:
        """The highest point of the memory curve, with the operator there and what makes it up."""
        return self.find_peak(self.highest_memory(np.array([0.0, np.inf])))

    def highest_memory(self, edges: NDArray[np.float64]) -> MemoryCurve:
        """The points of the memory curve that have most between every two edges: one for each part.

        Args:
            edges: float64[num_parts + 1] [s], increasing, from the beginning of the curve on.
        """
        if self.build_highest is not None:
            return self.build_highest(edges)
        return self.memory.highest_of(edges)

    @cached_property
    def carried(self) -> dict[int, StageSlice]:
        """Position in ``outer`` of every transfer -> the stage whose results it carries (its name has the label)."""
        stages = {stage.label: stage for stage in self.stages}
        found = {}
        for number, piece in enumerate(self.outer):
            stage = next((stages[word] for word in piece.name.split() if word in stages), None)
            if stage is not None and piece.kind is OpKind.P2P:
                found[number] = stage
        return found

    def busy_s(self, stream: str = "compute") -> float:
        """Time during which a stream of this rank works [s]; the operators of all stages are expanded.

        On the compute stream: kernels of all stages and the optimizer step.
        """
        total = sum(piece.end_s - piece.start_s for piece in self.outer if piece.stream == stream)
        for _, operators in self.stage_operators():
            mine = np.array([name == stream for name in operators.table.streams])
            total += float((operators.end_s - operators.start_s)[mine].sum())
        return total

    def stage_operators(self) -> Iterator[tuple[StageSlice, StageOperators]]:
        """Every stage with its operators, in order of start."""
        for number, stage in enumerate(self.stages):
            yield stage, self.expand(number)
