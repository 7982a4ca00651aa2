"""``assignment.jsonl`` as data loaders read it: microbatches packed by ``cu_seqlens``, weighted losses."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, vlm_assigner

KINDS = {"vlm": (vlm_assigner, draw_vlm), "text": (text_assigner, draw_text)}


def written(kind: str, folder: Path) -> tuple[list[dict[str, Any]], Any]:
    """The lines, read by nothing but JSON, and the samples."""
    make, draw = KINDS[kind]
    assigner, samples = make(2, 8), draw(150, 3)
    assigner(samples, [f"s{number}" for number in range(150)]).save(folder)
    return [json.loads(line) for line in (folder / "assignment.jsonl").read_text().splitlines()], samples


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_finds_its_microbatches(kind: str, tmp_path: Path) -> None:
    """What a loader does with a line: samples one behind the other, a boundary before each and behind the last."""
    lines, samples = written(kind, tmp_path)
    lengths = {f"s{number}": length for number, length in enumerate(samples.lengths.tolist())}
    text = {f"s{number}": length for number, length in enumerate(samples.text_tokens.tolist())}
    by_replica = defaultdict(list)
    for line in lines:
        by_replica[line["replica"]].append(line["microbatch"])
        assert [last - first for first, last in pairwise(line["cu_seqlens"])] == [lengths[name] for name in line["ids"]]
        assert line["cu_seqlens"][0] == 0
        assert line["loss_tokens"] == sum(text[name] for name in line["ids"])
    assert dict(by_replica) == {0: list(range(8)), 1: list(range(8))}
    assert sorted(name for line in lines for name in line["ids"]) == sorted(lengths)
    # the mean over replicas of the weighted means is the mean over all tokens of the batch
    losses = {name: np.random.default_rng(int(name[1:])).random(text[name]) for name in text}
    means = [np.concatenate([losses[name] for name in line["ids"]]).mean() * line["loss_weight"] for line in lines]
    assert sum(means) / 2 == pytest.approx(np.concatenate(list(losses.values())).mean(), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_torchtitans_positions(kind: str, tmp_path: Path) -> None:
    """torchtitan 0.3.0 has a document begin where ``positions`` are 0 (``create_varlen_metadata_for_document``): of
    samples that count from 0, one after another, each begins where the line has it."""
    lines, samples = written(kind, tmp_path)
    for line in lines:
        each = [int(samples.lengths[int(name[1:])]) for name in line["ids"]]
        positions = np.concatenate([np.arange(length) for length in each])
        begins = np.flatnonzero(positions == 0)
        assert [*begins.tolist(), len(positions)] == line["cu_seqlens"]
        assert np.diff([*begins, len(positions)]).max() == max(each)


@pytest.mark.parametrize("kind", KINDS)
def test_megatron_cores_packed_sequences(kind: str, tmp_path: Path) -> None:
    """``PackedSeqParams``, which Megatron-LM's attention takes for packed sequences (``thd``), of every microbatch."""
    packed = pytest.importorskip("megatron.core.packed_seq_params", reason="megatron-core is in the extra imports")
    torch = pytest.importorskip("torch")
    lines, samples = written(kind, tmp_path)
    for line in lines:
        bounds = torch.tensor(line["cu_seqlens"], dtype=torch.int32)
        longest = int(bounds.diff().max())
        params = packed.PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest
        )
        assert params.cu_seqlens_q.tolist() == line["cu_seqlens"]
        assert bool((params.cu_seqlens_q.diff() > 0).all())
        assert params.max_seqlen_q <= int(samples.lengths.max())
        assert int(params.cu_seqlens_kv[-1]) == sum(int(samples.lengths[int(name[1:])]) for name in line["ids"])
