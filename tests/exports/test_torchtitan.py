"""Runs as configurations of torchtitan."""

from __future__ import annotations

import random
from typing import Any

import pytest

import semu
from semu.errors import ConfigError
from semu.exports import export
from semu.imports.torchtitan import read_torchtitan
from semu.runfile import Overrides, resolve_run
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables

LAYERS = {"llama3-8b": 32, "llama3-70b": 80, "qwen3-8b": 36, "qwen3-32b": 64, "qwen3-30b-a3b": 48}
SIZES = [(1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 2, 1), (2, 4, 1), (1, 1, 2), (2, 1, 4), (1, 4, 1)]


def tables_that_it_can_say(draw: random.Random) -> dict[str, Any]:
    """A random run in which torchtitan can say everything."""
    tp, pp, cp = draw.choice(SIZES)
    dp, micro = draw.choice([1, 2, 4, 8]), draw.choice([1, 2])
    gpus, is_sharded = tp * pp * cp * dp, dp * cp > 1
    is_sparse = draw.random() < 0.2 and tp <= 4
    model = "qwen3-30b-a3b" if is_sparse else draw.choice([name for name in LAYERS if name != "qwen3-30b-a3b"])
    parallel: dict[str, Any] = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "sequence_parallel": tp > 1}
    parallel |= {"zero": 3 if is_sharded else 0, "reshard_after_forward": draw.random() < 0.5 or not is_sharded}
    if cp > 1:
        parallel["cp_kind"] = draw.choice(["ring", "all_gather"])
    if dp > 2 and draw.random() < 0.4:
        parallel["zero_group"] = dp // 2
    if model == "qwen3-30b-a3b" and dp * cp * tp > 1:
        parallel |= {"ep": 2, "etp": 1}
    schedule = draw.choice(["1f1b", "gpipe", "interleaved"]) if pp > 1 else "1f1b"
    if pp > 1:
        parallel["vpp"] = 2 if schedule == "interleaved" else 1
        stages = pp * parallel["vpp"]
        each, more = divmod(LAYERS[model] + 2, stages)
        counts = [each + (stage < more) for stage in range(stages)]
        counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
        parallel["layout"] = {"layers": counts}
    training: dict[str, Any] = {
        "micro_batch": micro,
        "global_batch": micro * dp * pp * 4,
        "seq_len": draw.choice([2048, 4096]),
        "software": "torch",
        "precision": draw.choice(["bf16", "fp8"]),
        "grad_dtype": "fp32",
        "schedule": schedule,
        "gradient_clipping": draw.random() < 0.5,
    }
    if training["precision"] == "fp8" and draw.random() < 0.5:
        training["fp8_recipe"] = "mxfp8"
    if draw.random() < 0.5:
        training["eager_modules"] = True
    if tp == 1 or "eager_modules" in training:
        training["cross_entropy"] = "unfused"
    again = draw.choice(
        [{"recompute": "none"}, {}, {"recompute_policy": "every_second_matmul"}, {"recompute_every": 2}]
    )
    training |= {"recompute": "full", **again}
    overlap = {"tensor_parallel": draw.random() < 0.5} if tp > 1 else {}
    node = min(gpus, 8)
    cluster = {"device": "h100", "nodes": gpus // node, "gpus_per_node": node}
    return {
        "model": {"name": model}, "cluster": cluster, "parallel": parallel, "training": training, "overlap": overlap,
    }  # fmt: skip


@pytest.mark.sampled(50)
@pytest.mark.parametrize("case", range(200))
def test_round_trips(case: int) -> None:
    """Export, then import: nothing is unsaid, and the same time and memory to the last bit."""
    run = resolve_tables(tables_that_it_can_say(random.Random(case)), Places(""))
    exported = export(run, "torchtitan")
    assert exported.unsaid == ()
    cluster = run.config["cluster"]
    asked = f"h100:{cluster['nodes']}x{cluster['gpus_per_node']}"
    back = resolve_tables(read_torchtitan(exported.text, "run.toml", asked).tables, Places("run.toml"))
    one, other = semu.simulate(run.job()), semu.simulate(back.job())
    assert (one.iteration_time_s, one.peak_memory_bytes) == (other.iteration_time_s, other.peak_memory_bytes)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("training.software=megatron", "training.software: megatron here, torch there"),
        ("parallel.zero=1", "parallel.zero: 1 here, 3 there"),
        ("training.grad_dtype=bf16", "training.grad_dtype: bf16 here, fp32 there"),
    ],
)
def test_what_cannot_be_said(setting: str, sentence: str) -> None:
    words = ["training.software=torch", "parallel.zero=3", "training.cross_entropy=unfused", setting]
    run = resolve_run("llama3-8b", Overrides(words, "h100:1x8", "dp8"))
    assert sentence in export(run, "torchtitan").unsaid


def test_models_that_are_no_flavor_are_refused() -> None:
    for name in ("vlm-s", "gpt2", "llama2-7b"):
        with pytest.raises(ConfigError, match="no flavor"):
            export(resolve_run(name, Overrides((), "h100:2x8", "tp4-pp2")), "torchtitan")


def test_a_model_by_its_sizes_is_its_flavor(tmp_path: object) -> None:
    sizes = {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256, "gated_mlp": True}
    tables = {
        "model": {"transformer": sizes},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {"zero": 3},
        "training": {"software": "torch", "cross_entropy": "unfused", "seq_len": 4096},
    }
    text = export(resolve_tables(tables, Places("")), "torchtitan").text
    assert 'flavor = "8B"' in text
