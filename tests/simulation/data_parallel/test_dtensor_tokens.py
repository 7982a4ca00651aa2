"""Sequence parallelism under PyTorch's FSDP: DTensor's kernels around gathers and scatters of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.job import TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.simulation import simulate


def job(kind: str, tp: int = 2, **options: Any) -> TrainingJob:
    model, items = {"text": (gpt, text_items), "vlm": (vlm, vlm_items)}[kind]
    zero, hides = options.pop("zero", 3), options.pop("hides", False)
    parallel = Parallel(dp=2, tp=tp, zero=zero, **options.pop("sizes", {}))
    options = {"software": "torch", "overlap": Overlap(tensor_parallel=hides), **options}
    return job_of(model(), items(4), parallel, gpus_per_node=tp, **options)


def moved(run: TrainingJob, ending: str) -> dict[tuple[str, str], int]:
    """Bytes by phase and path of operators whose name ends so, on rank 0."""
    rank = simulate(run).timeline.ranks[0]
    found: dict[tuple[str, str], int] = {}
    for number in range(len(rank.stages)):
        inner = rank.expand(number)
        for phase, path, size in zip(inner.table.phases, inner.table.paths, inner.mem_bytes.tolist(), strict=True):
            if path.endswith(ending):
                found[phase.name, path] = size
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("kind", ["text", "vlm"])
def test_as_the_reference(kind: str, hides: bool, precision: str) -> None:
    run = job(kind, hides=hides, precision=precision)
    assert_equal(simulate(run), expand(run))


@pytest.mark.parametrize("tp", [2, 4])
def test_gathered_tokens_and_those_to_be_scattered_are_copied(tp: int) -> None:
    """Every gather moves tp - 1 parts over the wire and is read and written whole; every scatter likewise before it."""
    run = job("text", tp, recompute="none")
    rank = simulate(run).timeline.ranks[0]
    copies = wires = 0
    for number in range(len(rank.stages)):
        inner = rank.expand(number)
        columns = inner.table.paths, inner.table.streams, inner.mem_bytes.tolist(), inner.net_bytes.tolist()
        for path, stream, size, wire in zip(*columns, strict=True):
            if path.endswith((".all_gather.copy", ".reduce_scatter.copy")):
                copies += size
            elif stream == "tp" and path.endswith((".all_gather", ".reduce_scatter")):
                wires += wire
    assert copies and copies * (tp - 1) == 2 * tp * wires


def test_asynchronous_ones_are_summed_and_not_copied() -> None:
    """A sum reads what all ranks sent, as large as what is to be scattered, and writes a part."""
    beside, behind = (moved(job("text", hides=hides), "_scatter.copy") for hides in (False, True))
    sums = moved(job("text", hides=True), "_scatter.sum")
    assert beside and not behind and not moved(job("text", hides=True), "_gather.copy")
    assert {(phase, path.removesuffix(".copy")): size // 2 + size // 4 for (phase, path), size in beside.items()} == {
        (phase, path.removesuffix(".sum")): size for (phase, path), size in sums.items()
    }


@pytest.mark.parametrize("change", [{"zero": 1}, {"software": "megatron"}, {"sizes": {"sequence_parallel": False}}])
def test_nobody_else_copies(change: dict[str, Any]) -> None:
    assert not moved(job("text", **change), ".copy")


def test_what_is_reduced_once_is_added_up_before() -> None:
    """In a pipeline PyTorch's FSDP reduces gradients once: every microbatch's are added to fp32 ones, unless sharded
    anew every time."""
    for keeps in (False, True):
        run = job("text", sizes={"pp": 2, "reshard_after_forward": not keeps})
        assert bool(moved(run, "mlp.up.accumulate_weight_grad")) is keeps
        assert_equal(simulate(run), expand(run))
