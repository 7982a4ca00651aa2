"""How the token loss and the accumulation of weight gradients are made: bytes by hand, and the slow reference."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

SEQ, HIDDEN, VOCAB = 512, 64, 65536


def small_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(1, HIDDEN, heads=4, vocab=VOCAB, positions=SEQ)), name="llm")


def small_llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(1, HIDDEN, 128, heads=4, kv_heads=2, vocab=VOCAB)), name="llm")


def run(model: Model, tp: int = 1, **training: Any) -> semu.Report:
    options = Training(1, 1, SEQ, **training)
    return semu.simulate(TrainingJob(model, Cluster("h100", 1, tp), Parallel(tp=tp), options))


def memory_traffic(report: semu.Report, part: str) -> int:
    """Bytes that operators whose path holds a word move."""
    rank, total = report.timeline.ranks[0], 0
    for number in range(len(rank.stages)):
        stage = rank.expand(number)
        moved = zip(stage.table.paths, stage.mem_bytes, strict=True)
        total += sum(int(size) for path, size in moved if part in path.split(".")[-1])
    return total


@pytest.mark.parametrize("make", [small_gpt, small_llama])
@pytest.mark.parametrize("tp", [1, 2])
def test_copies_of_the_logits_at_the_peak(make: Any, tp: int) -> None:
    """Logits of n elements. Unfused: 12 n in the backward of the log-softmax (it, its gradient, its input's); one copy:
    4 n and the gradient's 2 n, or with the logits 6 n; compiled: 4 n more than that; fused: 2 n, in place."""
    n = SEQ * VOCAB // tp
    unfused, compiled, in_place, fused = (
        run(make(), tp, cross_entropy=word).peak_memory_bytes[0]
        for word in ("unfused", "compiled", "in_place", "fused")
    )
    assert run(make(), tp).peak_memory_bytes[0] == in_place
    few = 3 * 4 * SEQ * HIDDEN + 64  # what else lives at one of the peaks and not at the other
    assert unfused - in_place == pytest.approx((12 - 6) * n, abs=few)
    assert compiled - in_place == pytest.approx(4 * n, abs=few)
    assert in_place - fused == pytest.approx((6 - 2) * n, abs=few)


@pytest.mark.parametrize("make", [small_gpt, small_llama])
def test_bytes_that_the_loss_moves(make: Any) -> None:
    n, mean = SEQ * VOCAB, 3 * 4 * SEQ
    unfused = run(make(), cross_entropy="unfused")
    words = ("float", "log_softmax", "mean", "nll_bw", "log_softmax_bw", "float_bw")
    found = {word: memory_traffic(unfused, word) for word in words}
    assert found["mean"] == mean
    assert found["nll_bw"] == 4 * n
    assert found["log_softmax_bw"] == 12 * n
    assert found["float_bw"] == 6 * n
    assert found["float"] == 6 * n + found["float_bw"]
    assert found["log_softmax"] == 8 * n + found["log_softmax_bw"]
    assert memory_traffic(run(make(), cross_entropy="fused"), "loss_and_gradient") == 3 * 2 * n


@pytest.mark.parametrize("make", [small_gpt, small_llama])
def test_accumulation_in_a_kernel_of_its_own(make: Any) -> None:
    """A product writes 2 bytes an element instead of reading and writing 4; a kernel reads 2, reads and writes 4. The
    embedding's backward clears a table of 2 bytes an element and writes its rows, instead of reading and writing 4 of
    those rows; the same kernel adds the table."""
    fused, apart = run(make()), run(make(), gradient_accumulation_fusion=False)
    before, after = (memory_traffic(report, "weight_bw") for report in (fused, apart))
    added = memory_traffic(apart, "accumulate_weight_grad")
    table, rows = VOCAB * HIDDEN, SEQ * HIDDEN
    layer = 4 * HIDDEN**2 + 8 * HIDDEN**2 if make is small_gpt else (1 + 1 + 1) * HIDDEN**2 + 3 * 128 * HIDDEN
    assert before - after == (8 - 2) * (table + layer) + 8 * rows - 2 * (table + rows)
    assert added == (2 + 8) * (table + layer + table)
    assert apart.iteration_time_s > fused.iteration_time_s
    assert apart.model_flop == fused.model_flop
    assert apart.static_memory_bytes == fused.static_memory_bytes


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("word", ["unfused", "compiled", "fused"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.sampled(6)
def test_as_the_reference(precision: str, word: str, tp: int) -> None:
    options: dict[str, Any] = {"cross_entropy": word, "gradient_accumulation_fusion": False, "precision": precision}
    for recompute in ("none", "full"):
        assert_tails_equal(job_of(gpt(), text_items(3), Parallel(pp=2, tp=tp), recompute=recompute, **options))
    if precision == "bf16":
        assert_tails_equal(job_of(vlm(), vlm_items(3), Parallel(pp=2, tp=tp), **options))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"cross_entropy": "fuzed"}, "training.cross_entropy"),
        ({"gradient_accumulation_fusion": 1}, "training.gradient_accumulation_fusion"),
    ],
)
def test_bad_input(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(small_gpt(), **options)
    assert caught.value.where == where
