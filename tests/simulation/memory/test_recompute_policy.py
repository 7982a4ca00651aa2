"""Recomputation that keeps every second product, or that leaves layers out: bytes and FLOP by hand, the reference."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import attention_encoder, gpt, job_of, overlap, text_items, vlm, vlm_items

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

SEQ, HIDDEN, HEADS, KV, FFN, LAYERS, MICROBATCHES = 512, 256, 8, 2, 704, 4, 2
POLICY = {"recompute": "full", "recompute_policy": "every_second_matmul"}


def big_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(LAYERS, HIDDEN, heads=HEADS, vocab=512, positions=SEQ)), name="llm")


def big_llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(LAYERS, HIDDEN, FFN, heads=HEADS, kv_heads=KV, vocab=512)), name="llm")


def run(model: Model, tp: int = 1, zero: int = 1, dp: int = 1, **training: Any) -> semu.Report:
    options = Training(1, MICROBATCHES * dp, SEQ, **training)
    parallel = Parallel(tp=tp, dp=dp, zero=zero)
    return semu.simulate(TrainingJob(model, Cluster("h100", 1, tp * dp), parallel, options))


@pytest.mark.parametrize("zero", [1, 3])
def test_llama_by_hand(zero: int) -> None:
    """Input, queries, values, attention's output with a statistic, gate and down stay; keys, output projection and up
    are computed again."""
    dp = 2 if zero == 3 else 1
    plain = run(big_llama(), zero=zero, dp=dp)
    kept = run(big_llama(), zero=zero, dp=dp, **POLICY)
    keys = KV * HIDDEN // HEADS
    wide = HIDDEN + HIDDEN + keys + HIDDEN + FFN + HIDDEN
    assert kept.ranks[0].activation_bytes == LAYERS * SEQ * (2 * wide + 4 * HEADS)
    again = 2 * SEQ * HIDDEN * (keys + HIDDEN + FFN)
    extra = (kept.hardware_flop - kept.model_flop) - (plain.hardware_flop - plain.model_flop)
    assert extra == LAYERS * MICROBATCHES * dp * again
    assert kept.model_flop == plain.model_flop
    full = run(big_llama(), zero=zero, dp=dp, recompute="full")
    assert plain.iteration_time_s < kept.iteration_time_s < full.iteration_time_s
    assert plain.peak_memory_bytes[0] > kept.peak_memory_bytes[0] > full.peak_memory_bytes[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_gpt_by_hand(tp: int) -> None:
    """Without a gate: queries, values, attention and the first of the two projections of the feed-forward network stay.

    With sequence parallelism a rank has its share of everything, and what the two reduce-scatters give stays too.
    """
    plain, kept = run(big_gpt(), tp), run(big_gpt(), tp, **POLICY)
    wide = HIDDEN + HIDDEN + HIDDEN + HIDDEN + 4 * HIDDEN + (2 * HIDDEN if tp > 1 else 0)
    assert kept.ranks[0].activation_bytes == LAYERS * SEQ * (2 * wide + 4 * HEADS) // tp
    again = 2 * SEQ * HIDDEN * (HIDDEN + HIDDEN + 4 * HIDDEN)
    extra = (kept.hardware_flop - kept.model_flop) - (plain.hardware_flop - plain.model_flop)
    assert extra == LAYERS * MICROBATCHES * again


@pytest.mark.parametrize("make", [big_gpt, big_llama])
def test_fp8_products_are_kept_alike(make: Any) -> None:
    """What stays is in bf16 either way; the fp8 copies of inputs are made again."""
    assert (
        run(make(), precision="fp8", **POLICY).ranks[0].activation_bytes
        == run(make(), **POLICY).ranks[0].activation_bytes
    )


@pytest.mark.parametrize("make", [big_gpt, big_llama])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_every_nth_layer_by_hand(make: Any, every: int) -> None:
    none, full = run(make()), run(make(), recompute="full")
    some = run(make(), recompute="full", recompute_every=every)
    count = LAYERS // every
    each = (none.ranks[0].activation_bytes - full.ranks[0].activation_bytes) // LAYERS
    assert some.ranks[0].activation_bytes == none.ranks[0].activation_bytes - count * each
    assert some.hardware_flop - none.hardware_flop == (full.hardware_flop - none.hardware_flop) / LAYERS * count


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("tp", "tensor"), [(1, False), (2, False), (2, True)], ids=["tp1", "tp2", "tp2_overlap"])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("options", [POLICY, {"recompute": "full", "recompute_every": 2}], ids=["policy", "every"])
def test_as_the_reference(options: dict[str, Any], pp: int, tp: int, tensor: bool) -> None:
    for offload in (None, "activations"):
        parallel, hide = Parallel(pp=pp, tp=tp), overlap(tensor=tensor)
        assert_tails_equal(job_of(gpt(), text_items(3), parallel, overlap=hide, offload=offload, **options))
        assert_tails_equal(job_of(gpt(), text_items(3), parallel, overlap=hide, precision="fp8", **options))
    assert_tails_equal(job_of(vlm(frozen=("vit",)), vlm_items(3), Parallel(pp=pp, tp=tp), **options))
    assert_tails_equal(job_of(attention_encoder(), text_items(3), Parallel(pp=pp), **options))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"recompute_policy": "every_second_matmul"}, "training.recompute_policy"),
        ({"recompute": "full", "recompute_policy": "every_matmul"}, "training.recompute_policy"),
        ({"recompute": "selective", "recompute_every": 2}, "training.recompute_every"),
        ({"recompute": "full", "recompute_layers": 1, "recompute_every": 2}, "training.recompute_every"),
        ({"recompute": "full", "recompute_every": 0}, "training.recompute_every"),
    ],
)
def test_bad_input(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(big_gpt(), **options)
    assert caught.value.where == where
    assert caught.value.nearest is not None
