"""CUDA graphs take launches off the hosts: counted by hand where hosts are all that matters."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.jobs import gpt
from simulation.models.test_experts import moe

import semu
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn import Model

LAUNCH_S = 2.0**-10
"""So long that the device always waits for its host."""
LAYERS, COUNT = 4, 3


def job_of(model: Model, **training: Any) -> TrainingJob:
    cluster = semu.Cluster("h100", nodes=1, gpus_per_node=1, override={"host.launch_s": LAUNCH_S})
    options = {"micro_batch": 1, "global_batch": COUNT, "seq_len": 64, "launch": True} | training
    return semu.TrainingJob(model, cluster, semu.Parallel(), semu.Training(**options))


def launches(job: TrainingJob) -> float:
    """Launches of a microbatch: the pipeline lasts as long as its host issues, and the last kernel runs."""
    return round(semu.simulate(job).makespan_s / LAUNCH_S) / COUNT


def test_layers_of_a_dense_model() -> None:
    """A layer's kernels become one launch forward and one backward; what is outside of layers stays."""
    plain = launches(job_of(gpt(LAYERS)))
    layer = launches(job_of(gpt(LAYERS), cuda_graphs="layer"))
    fewer = launches(job_of(gpt(LAYERS + 1))) - plain
    assert layer == plain - LAYERS * (fewer - 2)
    assert launches(job_of(gpt(LAYERS), cuda_graphs=["attn", "mlp"])) == layer, "parts side by side are one graph"
    for word in ("attn", "mlp"):
        assert layer < launches(job_of(gpt(LAYERS), cuda_graphs=word)) < plain
    assert launches(job_of(gpt(LAYERS), cuda_graphs="iteration")) < 1


def test_attention_of_a_mixture() -> None:
    """The parts of a mixture's layer add up: what one graph takes off, it takes off beside the others, too."""
    plain = launches(job_of(moe(LAYERS, shared=True)))
    router = launches(job_of(moe(LAYERS, shared=True), cuda_graphs="moe_router"))
    permuted = launches(job_of(moe(LAYERS, shared=True), cuda_graphs=["moe_router", "moe_preprocess"]))
    every = launches(job_of(moe(LAYERS, shared=True), cuda_graphs=["attn", "moe_router", "moe_preprocess"]))
    assert plain > router > permuted > every
    padded = {"moe_capacity_factor": 1.5, "moe_pad_to_capacity": True}
    whole = launches(job_of(moe(LAYERS), cuda_graphs="layer", **padded))
    step = launches(job_of(moe(LAYERS + 1), cuda_graphs="layer", **padded)) - whole
    assert step == 2


@pytest.mark.parametrize(
    ("model", "graphs", "training", "match"),
    [
        (moe, "layer", {}, "any number of tokens"),
        (moe, ["attn", "moe"], {}, "any number of tokens"),
        (gpt, "moe_router", {}, "no experts"),
        (gpt, ["layer", "attn"], {}, "holds all others"),
        (moe, ["moe_preprocess"], {}, "without the router"),
        (gpt, "atn", {}, "atn"),
        (gpt, [], {}, "not parts"),
    ],
)
def test_graphs_that_there_are_not(model: Any, graphs: Any, training: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        job_of(model(), cuda_graphs=graphs, **training)
