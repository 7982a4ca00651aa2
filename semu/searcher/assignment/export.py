"""An assignment as files: JSON, CSV, and JSONL for data loaders."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from semu.files import make_folder, write_file, write_text
from semu.searcher.assignment.assignment import Assignment


def microbatch_lines(found: Assignment) -> Iterator[dict[str, Any]]:
    """What a data loader needs of every microbatch, replica after replica.

    Yields:
        ``replica``, ``microbatch``; ``ids``: samples in the order in which they lie in the microbatch; ``cu_seqlens``:
        where each begins among its tokens, and the end of the last; ``loss_weight``: what its mean loss is multiplied
        by (``Assignment.loss_weights``); ``loss_tokens``: those that the mean is over. Where samples are deferred, also
        ``encode``: ids of the samples whose items the encoders run, of which the last ``deferred`` wait for the next
        microbatch.
    """
    lengths, weights, tokens = found.samples.lengths, found.loss_weights, found.loss_tokens
    defers = found.dealt.is_deferred.any()
    for replica in range(found.dp):
        for microbatch in range(found.num_microbatches):
            read = found.readers(replica, microbatch)
            line: dict[str, Any] = {
                "replica": replica,
                "microbatch": microbatch,
                "ids": [found.ids[number] for number in read.tolist()],
                "cu_seqlens": [0, *np.cumsum(lengths[read]).tolist()],
                "loss_weight": float(weights[replica, microbatch]),
                "loss_tokens": int(tokens[replica, microbatch]),
            }
            if defers:
                members = found.members(replica, microbatch)
                line["encode"] = [found.ids[number] for number in members.tolist()]
                line["deferred"] = int(found.dealt.is_deferred[members].sum())
            yield line


def to_jsonl(found: Assignment) -> str:
    """One line a microbatch (``microbatch_lines``): ``cu_seqlens`` as Megatron-Core's ``PackedSeqParams`` takes it, and
    torchtitan as ``positions`` that restart at 0 where it says."""
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in microbatch_lines(found))


def to_csv(found: Assignment) -> str:
    """One line a sample: id, replica, microbatch, the backbone's microbatch, tokens."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "replica", "microbatch", "backbone_microbatch", "tokens"))
    dealt = found.dealt
    columns = (dealt.replica, dealt.microbatch, dealt.reader, found.samples.lengths)
    writer.writerows(zip(found.ids, *(column.tolist() for column in columns), strict=True))
    return text.getvalue()


def to_json(found: Assignment) -> dict[str, Any]:
    """Figures, and the whole assignment."""
    return {**figures(found), "microbatches": list(microbatch_lines(found))}


def figures(found: Assignment) -> dict[str, Any]:
    """How good an assignment is, as plain numbers."""
    estimate = found.estimate
    return {
        "method": found.method,
        "samples": len(found.ids),
        "tokens": int(found.samples.lengths.sum()),
        "replicas": found.dp,
        "microbatches": found.num_microbatches,
        "iteration_time_s": found.iteration_s,
        "pipeline_s": estimate.makespan_s,
        "fitted_pipeline_s": float(found.fitted_s.max()),
        "bound_s": found.bound_s,
        "balance": dict(found.balance),
        "balance_bound": dict(found.balance_bound),
        "replica_balance": found.replica_balance,
        **({"speeds": (1.0 / found.problem.slowdown).tolist()} if len(found.problem.slowness) else {}),
        "deferred": int(found.dealt.is_deferred.sum()),
        "peak_memory_bytes": max(estimate.peak_memory_bytes),
        "fits": estimate.fits,
    }


def save_assignment(found: Assignment, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``assignment.json``, ``.csv``, ``.jsonl`` and ``.png``; the files.

    Raises:
        ConfigError: a folder or a file that cannot be written.
    """
    from semu.present.plots.assignment import draw_assignment
    from semu.searcher.assignment.picture import assignment_picture

    path = Path(folder)
    make_folder(path)
    texts = {
        "assignment.json": json.dumps(to_json(found), indent=1, allow_nan=False) + "\n",
        "assignment.csv": to_csv(found),
        "assignment.jsonl": to_jsonl(found),
    }
    for name, text in texts.items():
        write_text(path / name, text)
    picture = assignment_picture(found)
    drawn = write_file(path / "assignment.png", lambda file: draw_assignment(file, picture))
    return [*(path / name for name in texts), drawn]
