"""Modules without fused kernels: the bytes that they add by hand, and the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.runfile import make_job
from semu.validation import Row, parse_rows
from semu.validation.jobs import Settings, run_tables
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig
from tests.validation.rows_kit import run as runs_row

SEQ, HIDDEN, HEADS, FFN, LAYERS, MICROBATCHES = 1024, 512, 8, 1408, 3, 2


def llama() -> Model:
    config = LlamaConfig(LAYERS, HIDDEN, FFN, heads=HEADS, kv_heads=HEADS, vocab=512)
    return Model.from_module(Llama(config), name="llm")


def run(model: Model, **options: Any) -> semu.Report:
    training = Training(1, MICROBATCHES, SEQ, software="kernels", **options)
    return semu.simulate(TrainingJob(model, Cluster("h100", 1, 1), Parallel(), training))


def test_the_time_that_passes_over_memory_take() -> None:
    """Serial kernels: two norms a layer and one at the end, a gate, queries and keys rotated together or apart."""
    fused, eager = run(llama()), run(llama(), eager_modules=True)
    kind = Cluster("h100", 1, 1).profile.efficiencies[OpKind.ADD]
    rate = kind.mem * Cluster("h100", 1, 1).profile.mem_bytes_per_s.value
    wide = SEQ * HIDDEN
    passes = (2 * LAYERS + 1) * wide * (32 + 86) + LAYERS * (SEQ * FFN * (4 + 8) + 2 * wide * (16 + 16))
    took = eager.iteration_time_s - fused.iteration_time_s
    kernels = round((took - MICROBATCHES * passes / rate) / (MICROBATCHES * kind.t0_s))
    assert kernels in (2 * (4 * LAYERS + 1), 2 * (5 * LAYERS + 1))
    assert took == pytest.approx(MICROBATCHES * (passes / rate + kernels * kind.t0_s), rel=1e-6)
    assert eager.hardware_flop == fused.hardware_flop
    gates = LAYERS * SEQ * FFN * 2  # what the activation made, for the product with up
    assert eager.peak_memory_bytes == (fused.peak_memory_bytes[0] + gates,)


def test_flash_attn_s_norms_and_rotations_are_one_kernel_each() -> None:
    """What is left are copies around them: of queries 4 + 4, of keys with values 24 + 16 bytes an element, the halves
    of gate and up 8 more."""
    fused, flash = run(llama()), run(llama(), eager_modules=True, eager_kernels="flash-attn")
    kind = Cluster("h100", 1, 1).profile.efficiencies[OpKind.ADD]
    rate = kind.mem * Cluster("h100", 1, 1).profile.mem_bytes_per_s.value
    passes = LAYERS * (SEQ * FFN * (4 + 8 + 8) + SEQ * HIDDEN * (4 + 4 + 24 + 16))
    more = passes / rate + 6 * LAYERS * kind.t0_s
    assert flash.iteration_time_s - fused.iteration_time_s == pytest.approx(MICROBATCHES * more, rel=1e-6)
    plain = run(llama(), eager_kernels="flash-attn")
    assert plain.iteration_time_s == fused.iteration_time_s


def test_biases_and_norms_read_once_more() -> None:
    """GELU and a layer norm are one kernel each in PyTorch; biases' gradients are sums, and so are those of norms."""
    model = Model.from_module(GPT(GPTConfig(LAYERS, HIDDEN, heads=HEADS, vocab=512, positions=SEQ)), name="llm")
    profile = Cluster("h100", 1, 1).profile
    kind = profile.efficiencies[OpKind.ADD]
    wide = SEQ * HIDDEN
    biases, norms = LAYERS * (3 + 1 + 4 + 1) * wide * 2, (2 * LAYERS + 1) * 2 * wide * 2
    kernels = 4 * LAYERS + 2 * LAYERS + 1
    more = (biases + norms) / (kind.mem * profile.mem_bytes_per_s.value) + kernels * kind.t0_s
    took = run(model, eager_modules=True).iteration_time_s - run(model).iteration_time_s
    assert took == pytest.approx(MICROBATCHES * more, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"recompute": "full", "software": "torch"}, {"precision": "fp8"}], ids=str)
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.sampled(2)
def test_as_the_reference(options: dict[str, Any], pp: int) -> None:
    assert_tails_equal(job_of(gpt(), text_items(3), Parallel(pp=pp, tp=2), eager_modules=True, **options))
    assert_tails_equal(job_of(vlm(), vlm_items(3), Parallel(pp=pp), eager_modules=True, **options))
    job = job_of(gpt(), text_items(3), Parallel(pp=pp), eager_modules=True, **options)
    assert_tails_equal(replace(job, model=llama()))
    training = replace(job.training, eager_kernels="flash-attn")
    assert_tails_equal(replace(job, model=llama(), training=training))


@pytest.mark.parametrize(
    "options",
    [
        {"autocast": "fp32_norms", "optimizer_kernels": "foreach", "weight_average": True},
        {"autocast": "low_precision_norms", "recompute": "full", "launch": True, "weight_average": True},
        {"optimizer_kernels": "foreach", "optimizer": "sgd", "software_date": "2023-01"},
    ],
    ids=str,
)
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.sampled(4)
def test_pytorch_s_own_options_as_the_reference(options: dict[str, Any], zero: int) -> None:
    for model, items in ((gpt(), text_items(4)), (vlm(), vlm_items(4))):
        assert_tails_equal(job_of(model, items, Parallel(dp=2, zero=zero), software="torch", **options))
        assert_tails_equal(job_of(model, items, Parallel(pp=2, tp=2), software="torch", **options))


@pytest.mark.parametrize(("told", "expected"), [(False, True), (True, None), (None, None)])
def test_a_row_that_was_not_compiled(told: bool | None, expected: bool | None) -> None:
    (row,) = parse_rows([{**runs_row(), "torch_compile": told}])
    assert isinstance(row, Row)
    tables = run_tables(row, Settings(row.micro_batch or 1, 1, "none"), row.profile)
    assert tables["training"].get("eager_modules") is expected
    assert make_job(tables).training.eager_modules is bool(expected)


@pytest.mark.parametrize(
    ("kernel", "told", "expected"), [("fa2", False, "flash-attn"), ("sdpa", False, "plain"), ("fa2", True, "plain")]
)
def test_a_row_that_calls_flash_attn_has_its_norms(kernel: str, told: bool, expected: str) -> None:
    (row,) = parse_rows([{**runs_row(), "torch_compile": told, "attention_kernel": kernel}])
    assert isinstance(row, Row)
    training = make_job(run_tables(row, Settings(row.micro_batch or 1, 1, "none"), row.profile)).training
    assert training.eager_kernels.value == expected


def test_bad_input() -> None:
    with pytest.raises(ConfigError) as caught:
        Training(1, 1, SEQ, eager_modules="yes")  # type: ignore[arg-type]
    assert caught.value.where == "training.eager_modules"
    for options, where in (({"autocast": "norms"}, "autocast"), ({"optimizer_kernels": "fast"}, "optimizer_kernels")):
        with pytest.raises(ConfigError) as caught:
            Training(1, 1, SEQ, **options)  # type: ignore[arg-type]
        assert caught.value.where == f"training.{where}"
    with pytest.raises(ConfigError) as caught:
        Training(1, 1, SEQ, autocast="fp32_norms", precision="fp32")
    assert caught.value.where == "training.autocast" and "bf16" in str(caught.value.expected)
