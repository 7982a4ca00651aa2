"""GPipe: all forwards, then all backwards (Huang et al., 1811.06965 §2.3).

Equal stages of forward time f and backward time b: makespan (m + p - 1)(f + b), bubble ratio (p - 1) / (m + p - 1);
every rank holds the activations of all m microbatches.
"""

from __future__ import annotations

from semu.schedule.schedule import PipelineShape, Schedule


def gpipe(shape: PipelineShape) -> Schedule:
    """The GPipe schedule; backwards run in reverse order of the forwards.

    Args:
        shape: ranks, chunks and microbatches.
    """
    microbatches = range(shape.num_microbatches)
    return Schedule.build(
        "gpipe",
        (
            [stage for i in microbatches for stage in shape.forward(rank, i)]
            + [stage for i in reversed(microbatches) for stage in shape.backward(rank, i)]
            for rank in range(shape.num_ranks)
        ),
    )
