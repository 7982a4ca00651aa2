"""Shards that are fp8 weights under ZeRO-3: bytes of gathers and of memory counted by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import semu
from semu.errors import ConfigError
from semu.hardware.software import Software
from semu_models.text.llama import Llama, LlamaConfig

DP, LAYERS, HIDDEN, FFN, VOCAB = 4, 3, 256, 688, 512
LINEAR = LAYERS * HIDDEN * (HIDDEN + 2 * 64 + HIDDEN + 3 * FFN)
"""Elements of all linears but the head: queries, keys and values of 2 of 8 heads, output, three of the gated MLP."""


def job_of(weights: str, software: Software = Software.MEGATRON, **training: object) -> semu.TrainingJob:
    config = LlamaConfig(layers=LAYERS, hidden=HIDDEN, ffn=FFN, heads=8, kv_heads=2, vocab=VOCAB)
    return semu.TrainingJob(
        semu.Model.from_module(Llama(config), name="llm"),
        semu.Cluster("h100", 1, DP),
        semu.Parallel(dp=DP, zero=3),
        semu.Training(  # type: ignore[arg-type]
            global_batch=2 * DP, seq_len=128, precision="fp8", fp8_weights=weights, software=software, **training
        ),
    )


def test_gathers_and_shards_of_one_byte() -> None:
    """Both passes of both microbatches gather all weights: one byte an element less on the wire and in the shards."""
    rate = 1e9
    plain = {"net": 1.0, "t0_s": 0.0, "hop_s": 0.0, "c_s": 0.0, "few_ranks": 0.0}
    cast, primary = (
        semu.simulate(
            replace(
                job,
                cluster=replace(job.cluster, override={"nvlink_bytes_per_s": rate, "link.nvlink.all_gather": plain}),
            )
        )
        for job in (job_of(weights, overlap=semu.Overlap(param_gather=False)) for weights in ("microbatch", "primary"))
    )
    before, after = (report.breakdown_s["exposed_communication"]["fsdp"] for report in (cast, primary))
    assert before - after == pytest.approx(2 * 2 * LINEAR * (DP - 1) / DP / rate, rel=1e-3)
    held, kept = cast.memory[0], primary.memory[0]
    narrower = LINEAR // DP + LINEAR // LAYERS  # the shards, and the layer that is gathered at the peak
    assert held.parameters - kept.parameters == pytest.approx(narrower, rel=1e-3)
    assert (held.gradients, held.optimizer) == (kept.gradients, kept.optimizer)


def test_a_transposition_in_place_of_two_copies() -> None:
    """Read 1, write 1 byte an element and microbatch where a cast reads 2 and writes 2; nothing where fp8 products
    take either layout."""
    rate = 1e9
    slow = {"efficiency.cast.mem": 1.0, "efficiency.cast.t0_s": 0.0, "mem_bytes_per_s": rate}

    def _seconds(weights: str, layouts: int) -> float:
        job = job_of(weights, Software.KERNELS)
        job = replace(job, cluster=replace(job.cluster, override={**slow, "fp8_layouts": layouts}))
        return semu.simulate(job).breakdown_s["compute"]

    casts, turns = _seconds("microbatch", 1), _seconds("primary", 1)
    assert casts - turns == pytest.approx(2 * 2 * LINEAR / rate, rel=0.02)
    casts, turns = _seconds("microbatch", 2), _seconds("primary", 2)
    assert casts - turns == pytest.approx(2 * 3 * LINEAR / rate, rel=0.02)


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ("iteration", {}),
        ("primary", {"software": Software.TORCH}),
        ("primary", {"fp8_recipe": "mxfp8"}),
    ],
)
def test_refused(weights: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ZeRO-3"):
        job_of(weights, **options)  # type: ignore[arg-type]
