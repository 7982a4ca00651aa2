"""``with_pass_times``: a job whose passes take measured times, the same on every rank.

This separates the quality of a schedule from the accuracy of predicted latencies: a profile gives the times of a
forward, an input gradient and a weight gradient of a microbatch on a rank (the mean over the ranks, where it gives one
number), and the pipeline, its transfers and the optimizer are simulated as always.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from semu.checks import check_number
from semu.compile.layout import Layout
from semu.compile.stage import StageCosts
from semu.costs.evaluation import CostedJob, Evaluation
from semu.costs.phases import check_split, split_costs
from semu.costs.shape_costs import ShapeCosts
from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, NOTHING, WEIGHT
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.pipeline import consolidated_units
from semu.units import TIME_GRID_PER_S


@dataclass(frozen=True)
class PassTimes:
    """What the passes of a microbatch take on a pipeline rank [s].

    Attributes:
        forward_s, input_s, weight_s: T_F, T_B and T_W of 2401.10241 §2.3.
    """

    forward_s: float
    input_s: float
    weight_s: float

    def __post_init__(self) -> None:
        for item in fields(self):
            check_number(getattr(self, item.name), item.name, "a time", is_above=True)

    @property
    def by_code(self) -> dict[int, float]:
        """By the code of a stage (``semu.schedule.units``)."""
        whole = self.input_s + self.weight_s
        return {FORWARD: self.forward_s, BACKWARD: whole, INPUT: self.input_s, WEIGHT: self.weight_s, NOTHING: 0.0}


def with_pass_times(checkpoint: JobCheckpoint, times: PassTimes) -> JobCheckpoint:
    """The same job with given times of its passes; the chunks of a rank that a microbatch runs through share them out
    equally.

    Memory stays what it is. Operators inside stages keep their own times, so jobs in which something outside a stage
    waits for one of them are refused.

    Raises:
        ConfigError: data or context parallelism, launches, a frozen chunk, or a backward that cannot be split.
    """
    _check(checkpoint.layout)
    timed = CostedJob(checkpoint.layout, _timed(checkpoint, times))
    nodes = consolidated_units(timed, checkpoint.units, checkpoint.replicas, checkpoint.gathers)
    return replace(checkpoint, evaluation=timed.evaluation, nodes=nodes)


def _check(layout: Layout) -> None:
    parallel = layout.job.parallel
    for where, fits, got in (
        ("parallel.dp", parallel.gradient_ranks == 1, parallel.gradient_ranks),
        ("training.launch", not layout.job.launches, "true"),
        ("training", all(chunk.backward is not None for chunk in layout.chunks), "a chunk without backward"),
    ):
        if not fits:
            raise ConfigError(
                "given times of passes go with nothing that waits for operators inside them",
                where=where,
                expected="one replica without launches, every chunk with a backward",
                got=got,
            )
    check_split(layout)


def _timed(costed: CostedJob, times: PassTimes) -> Evaluation:
    layout, evaluation, given = costed.layout, costed.evaluation, times.by_code

    def _timed(costs: StageCosts, chunk: int, code: int) -> StageCosts:
        placed = layout.kinds[chunk].chunk
        share = given[code] / sum(other.chunk.flow == placed.flow for other in layout.chunks_of(placed.rank))
        lasts = round(share * TIME_GRID_PER_S) / TIME_GRID_PER_S
        return replace(costs, latency=np.full_like(costs.latency, lasts), exposed=np.zeros_like(costs.exposed))

    by_shape = ShapeCosts(evaluation.by_shape.model, evaluation.by_shape.symbols)
    parts = {key: _timed(costs, *key) for key, costs in split_costs(costed).items()}
    chunks = [
        replace(
            costs,
            forward=_timed(costs.forward, number, FORWARD),
            backward=None if costs.backward is None else _timed(costs.backward, number, BACKWARD),
        )
        for number, costs in enumerate(evaluation.chunks)
    ]
    return Evaluation(evaluation.shapes, by_shape, tuple(chunks), parts)
