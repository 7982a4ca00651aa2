"""``own_batches``: batches of a job's own kind, one after another; ``assigned_batches``: of a file, assigned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from semu.job import TrainingJob
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.reordering import assigned_iterations
from semu.workload.batch import AbstractBatch
from semu.workload.recorded import FileBatch
from semu.workload.stream import windows


def assigned_batches(assigner: Assigner, source: SampleSource, window: int = 1) -> Iterator[Assignment]:
    """The samples of a file, iteration after iteration, assigned.

    Args:
        assigner, source, window: as ``assigned_iterations``.
    Raises:
        ConfigError: samples that cannot be assigned.
    """
    for _, found in assigned_iterations(assigner, source, window):
        yield found


def own_batches(job: TrainingJob) -> Iterator[AbstractBatch]:
    """Batches of a job's own kind: with its seed, the next one, and so on; of a metadata file, its samples in order; of
    text, which draws nothing, always the same.

    Raises:
        ConfigError: a file with too few samples for an iteration.
    """
    batch, training = job.batch, job.training
    if isinstance(batch, FileBatch):
        count = job.num_microbatches * job.parallel.replicas
        yield from windows(batch, count, training.micro_batch, training.seq_len)
        return
    while True:
        yield batch
        seed = getattr(batch, "seed", None)
        if isinstance(seed, int):
            batch = replace(batch, seed=seed + 1)  # type: ignore[call-arg]
