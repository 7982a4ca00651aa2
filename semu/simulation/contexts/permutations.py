"""``write_permutations``: what a data loader needs to hand every context rank its tokens, as one .npz file.

Per microbatch i, every array under ``i/NAME``; tokens are numbered through all sequences of the microbatch:

    permutation     int64[tokens], tokens of rank 0 in their order, then of rank 1, ...
    inverse         int64[tokens], where in the permutation each token is
    counts          int64[cp], tokens of every rank
    cu_seqlens      int32[sequences + 1], bounds of the sequences
    position_ids    int64[tokens], place in its document, token by token
    tile_ptr        int64[rows + 1], int32 tile_key, bool tile_full: non-empty tiles of every row of 128 queries, rank
                    by rank in the permutation's order, over tiles of 128 keys in order (FlexAttention's BlockMask)
    row_rank        int32[rows], the rank of a row

where text lies on groups of ranks (``cp_balance = "hybrid"``) also

    group_ptr       int64[runs + 1], bounds of runs of tokens that lie on one group, in order
    group_ranks     int32[runs], ranks of the group; group_first: int32[runs], the first of them

and ``cp``, ``policy``, ``mask``, ``microbatches`` once.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from semu.files import write_file
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.masks.balance import Cut
from semu.masks.spans import IntArray, Spans
from semu.masks.tile_lists import TileLists
from semu.workload.batch import Microbatch
from semu.workload.masked import ContextPlan


def write_permutations(
    job: TrainingJob, path: str | os.PathLike[str], items: Sequence[Microbatch | Spans] | None = None
) -> Path:
    """Write the permutations of a job's batch, or of other microbatches.

    Args:
        job: its policy and mask are used. path: of the file.
        items: microbatches, or what stands where in them; None: those of the iteration.
    Returns:
        The file.
    Raises:
        ConfigError: a batch that the policy cannot deal, a file that cannot be written.
    """
    plan = context_plan(job)
    if items is None:
        count = job.num_microbatches * job.parallel.replicas
        items = job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)
    arrays: dict[str, object] = {
        "cp": np.int64(plan.cp),
        "policy": np.array(plan.balance.value),
        "mask": np.array(plan.mask),
        "microbatches": np.int64(len(items)),
    }
    for number, item in enumerate(items):
        arrays |= {f"{number}/{name}": value for name, value in permutation_of(item.spans(), plan).items()}

    def _write(temporary: Path) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        temporary.write_bytes(buffer.getvalue())

    return write_file(Path(path), _write)


def permutation_of(spans: Spans, plan: ContextPlan) -> dict[str, object]:
    """The arrays of one microbatch, by name."""
    cut = plan.cut(spans)
    permutation = cut.permutation
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    tiles = TileLists.of(plan.seen(spans, plan.label), cut)
    return {
        **(groups_of(cut) if len(cut.width) else {}),
        "permutation": permutation,
        "inverse": inverse,
        "counts": cut.tokens,
        "cu_seqlens": spans.starts.astype(np.int32),
        "position_ids": positions(spans),
        "tile_ptr": tiles.ptr,
        "tile_key": tiles.key,
        "tile_full": tiles.is_full,
        "row_rank": tiles.rank,
    }


def groups_of(cut: Cut) -> dict[str, object]:
    """Which groups of ranks share which tokens, by name."""
    first = cut.rank - cut.rank % cut.width
    begins = np.ones(len(first), np.bool_)
    begins[1:] = (np.diff(first) != 0) | (np.diff(cut.width) != 0)
    bounds = np.append(cut.bounds[:-1][begins], cut.bounds[-1])
    return {"group_ptr": bounds, "group_ranks": cut.width[begins], "group_first": first[begins]}


def positions(spans: Spans) -> IntArray:
    """Place of every token in its document: int64[num_tokens]."""
    starts = spans.document_starts
    return np.arange(spans.num_tokens) - np.repeat(starts[:-1], np.diff(starts))
