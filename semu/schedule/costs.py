"""``StudyCosts``: what the stages of a pipeline take, as plain numbers, so that schedules can be studied without a
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.schedule.shape import PipelineShape
from semu.units import TIME_GRID_PER_S

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StudyCosts:
    """Times and memory of stages by number (see ``PipelineGraph``).

    Attributes:
        latency_s: float64[num_stages] [s].
        delta_bytes: int64[num_stages] [bytes], what a stage leaves in its rank's memory.
        internal_bytes: int64[num_stages] [bytes], a stage's peak above its beginning, at least max(delta, 0).
        transfer_s: float64[num_stages] [s], how long a stage's result is on its way to another rank.
    """

    latency_s: F64
    delta_bytes: I64
    internal_bytes: I64
    transfer_s: F64

    def of_stages(self, stages: Sequence[int]) -> StudyCosts:
        """The costs of some stages, in the order given."""
        return StudyCosts(*(getattr(self, item.name)[list(stages)] for item in fields(self)))

    @classmethod
    def of(
        cls,
        shape: PipelineShape,
        *,
        forward_s: ArrayLike = 1.0,
        input_s: ArrayLike = 1.0,
        weight_s: ArrayLike = 1.0,
        backward_s: ArrayLike | None = None,
        held_bytes: ArrayLike = 1,
        kept_bytes: ArrayLike | None = None,
        internal_bytes: Sequence[ArrayLike] = (0, 0, 0, 0),
        transfer_s: ArrayLike = 0.0,
        transfer_back_s: ArrayLike | None = None,
    ) -> StudyCosts:
        """Each argument is one number, or one per chunk, or one per chunk and (sub-)microbatch, chunk after chunk.

        Args:
            shape: the pipeline.
            forward_s, input_s, weight_s: of a forward, an input gradient, a weight gradient [s].
            backward_s: of a whole backward [s]; by default the sum of its parts.
            held_bytes: what a forward leaves until its backward has ended [bytes].
            kept_bytes: of that, what an input gradient leaves until its weight gradient has ended [bytes]; by default
                all.
            internal_bytes: of F, B, I, W, the peak above what is there when the stage begins [bytes].
            transfer_s, transfer_back_s: a forward's result, a gradient on its way to another rank [s]; by default a
                gradient takes as long.
        Raises:
            ConfigError: a negative number, one that is not finite, or an array of another length.
        """
        arrays = graph_of(shape)

        def _column(name: str, values: ArrayLike) -> F64:
            found = np.asarray(values, dtype=np.float64)
            if not np.all(np.isfinite(found)) or np.any(found < 0):
                raise ConfigError("not a time or size", where=name, expected="finite numbers >= 0", got=values)
            if found.ndim == 0:
                return np.full(arrays.num_pairs, found)
            if found.shape == (shape.num_chunks,):
                return found[arrays.chunk]
            if found.shape == (arrays.num_pairs,):
                return found
            raise ConfigError(
                "neither one number nor one per chunk or stage",
                where=name,
                expected=f"1, {shape.num_chunks} or {arrays.num_pairs} numbers",
                got=f"shape {found.shape}",
            )

        whole_s = _column("input_s", input_s) + _column("weight_s", weight_s)
        latency = np.zeros((arrays.num_pairs, 4))
        latency[:, FORWARD] = _column("forward_s", forward_s)
        latency[:, INPUT], latency[:, WEIGHT] = _column("input_s", input_s), _column("weight_s", weight_s)
        latency[:, BACKWARD] = whole_s if backward_s is None else _column("backward_s", backward_s)
        held = _whole(_column("held_bytes", held_bytes))
        held[~arrays.has_backward] = 0
        kept = held if kept_bytes is None else np.minimum(_whole(_column("kept_bytes", kept_bytes)), held)
        delta = np.stack((held, -held, kept - held, -kept), axis=1)
        inner = np.stack([_whole(_column("internal_bytes", values)) for values in internal_bytes], axis=1)
        sent = np.zeros((arrays.num_pairs, 4))
        sent[:, FORWARD] = _column("transfer_s", transfer_s)
        back = sent[:, FORWARD] if transfer_back_s is None else _column("transfer_back_s", transfer_back_s)
        sent[:, BACKWARD] = sent[:, INPUT] = back
        on_grid = [np.rint(values * TIME_GRID_PER_S).reshape(-1) / TIME_GRID_PER_S for values in (latency, sent)]
        internal = np.maximum(np.maximum(inner, delta), 0).reshape(-1)
        return cls(on_grid[0], delta.reshape(-1), internal, on_grid[1])


def idle_share(busy_s: float, num_ranks: int, makespan_s: float) -> float:
    """The bubble ratio, 1 - (sum of stage times) / (P x makespan) (DESIGN §2); 0 for an empty pipeline."""
    return 1.0 - busy_s / (num_ranks * makespan_s) if makespan_s > 0 else 0.0


def _whole(values: F64) -> I64:
    return np.rint(values).astype(np.int64)
