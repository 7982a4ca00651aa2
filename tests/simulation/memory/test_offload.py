"""Offload over PCIe: against the slow reference, and against bytes and times by hand."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import (
    attention_encoder,
    carry_along,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind, Port
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig


@pytest.mark.sampled(12)
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize(("tp", "tensor"), [(1, False), (2, False), (2, True)], ids=["tp1", "tp2", "tp2_overlap"])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("share", [None, 0.5])
def test_text_as_the_reference(share: float | None, pp: int, tp: int, tensor: bool, recompute: str) -> None:
    job = job_of(
        gpt(),
        text_items(3),
        Parallel(pp=pp, tp=tp),
        overlap=overlap(tensor=tensor),
        recompute=recompute,
        attention="unfused" if recompute == "selective" else "fused",
        offload=["activations", "optimizer"],
        offload_fraction=share,
    )
    assert_tails_equal(job)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_other_models_as_the_reference(pp: int) -> None:
    options: dict[str, Any] = {"offload": "activations"}
    for job in (
        job_of(vlm(frozen=("vit",)), vlm_items(3, empty=(1,)), Parallel(pp=pp), **options),
        job_of(t2v(), t2v_items(3), Parallel(pp=pp), schedule="gpipe", **options),
        job_of(carry_along(), text_items(3), Parallel(pp=pp), **options),
        job_of(attention_encoder(), text_items(3), Parallel(pp=min(pp, 2)), **options),
    ):
        assert_tails_equal(job)


@pytest.mark.parametrize("parallel", [Parallel(dp=2, zero=1), Parallel(dp=2, zero=0), Parallel(pp=2, vpp=2)])
def test_layers_by_name_and_state_as_the_reference(parallel: Parallel) -> None:
    job = job_of(
        gpt(4),
        text_items(4),
        parallel,
        offload=["activations", "optimizer"],
        offload_layers=["llm.layers.1", "llm.layers.2"],
    )
    assert_tails_equal(job)


# -- by hand -------------------------------------------------------------------------------------------------------
SEQ, HIDDEN, LAYERS = 1024, 512, 4


def big_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(LAYERS, HIDDEN, heads=8, vocab=512, positions=SEQ)), name="llm")


def big_llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(LAYERS, HIDDEN, 1408, heads=8, kv_heads=4, vocab=512)), name="llm")


def run(model: Model, recompute: str = "none", pp: int = 1, **training: Any) -> semu.Report:
    options = Training(1, 4, SEQ, recompute=recompute, **training)
    return semu.simulate(TrainingJob(model, Cluster("h100", 1, pp), Parallel(pp=pp), options))


@pytest.mark.parametrize("make", [big_gpt, big_llama])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.0])
def test_full_recomputation_keeps_one_input_per_layer_and_offload_takes_it_away(make: Any, share: float) -> None:
    """2 bytes x tokens x hidden of every offloaded layer are on the host, and not on the device between the passes."""
    each = 2 * SEQ * HIDDEN
    plain = run(make(), "full")
    moved = run(make(), "full", offload="activations", offload_fraction=share)
    layers = int(LAYERS * share)
    assert moved.host_memory_bytes == (layers * each,)
    assert plain.ranks[0].activation_bytes == LAYERS * each
    assert moved.ranks[0].activation_bytes == (LAYERS - layers) * each
    assert moved.static_memory_bytes == plain.static_memory_bytes
    assert (moved.model_flop, moved.hardware_flop) == (plain.model_flop, plain.hardware_flop)
    if share == 1.0:  # the highest point is in the last layer's backward: all inputs but its own are away
        assert plain.peak_memory_bytes[0] - moved.peak_memory_bytes[0] == (LAYERS - 2) * each
        assert moved.iteration_time_s >= plain.iteration_time_s
    if share == 0.0:
        assert moved.iteration_time_s == plain.iteration_time_s


@pytest.mark.parametrize("make", [big_gpt, big_llama])
def test_without_recomputation_all_that_layers_save_goes_to_the_host(make: Any) -> None:
    plain = run(make(), pp=2)
    moved = run(make(), pp=2, offload="activations")
    assert moved.host_memory_bytes == tuple(row.activation_bytes for row in plain.ranks)
    assert max(moved.peak_memory_bytes) < max(plain.peak_memory_bytes)
    assert [row.activation_bytes for row in moved.ranks] == [0, 0]


@pytest.mark.parametrize("make", [big_gpt, big_llama])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_optimizer_state_by_hand(make: Any, state: str) -> None:
    """4 bytes of master weights and two moments a parameter lie on the host; they cross the link twice."""
    model = make()
    plain = run(model, optimizer_state_dtype=state)
    moved = run(model, optimizer_state_dtype=state, offload="optimizer")
    each = 4 + 2 * (4 if state == "fp32" else 2)
    size = each * model.num_parameters()
    assert moved.host_memory_bytes == (size,)
    assert moved.static_memory_bytes == plain.static_memory_bytes  # fewer parameters than one bucket has
    link = Cluster("h100", 1, 1).profile
    crossing = size / (link.pcie_bytes_per_s.value * link.links[Port.PCIE].of(OpKind.P2P).net)
    assert moved.iteration_time_s - plain.iteration_time_s >= 2 * crossing
    assert moved.iteration_time_s - plain.iteration_time_s <= 2 * crossing + 2e-3


def test_state_beyond_a_bucket_leaves_the_device() -> None:
    model = Model.from_module(GPT(GPTConfig(4, hidden=2048, heads=16, vocab=512, positions=256)), name="llm")
    plain, moved = run(model), run(model, offload="optimizer")
    away = 12 * (model.num_parameters() - 40_000_000)
    assert plain.static_memory_bytes[0] - moved.static_memory_bytes[0] == away
    assert moved.to_json()["host_memory_bytes"] == [12 * model.num_parameters()]
    assert "host_memory_bytes" not in plain.to_json()


@pytest.mark.parametrize(
    ("options", "where", "nearest"),
    [
        ({"offload": "gradients"}, "training.offload", "optimizer"),
        ({"offload": "parameters"}, "training.offload", "weights"),
        ({"offload": "activation"}, "training.offload", "activations"),
        ({"offload": 3}, "training.offload", None),
        ({"offload_fraction": 0.5}, "training.offload_fraction", None),
        ({"offload": "activations", "offload_fraction": 1.5}, "training.offload_fraction", 1),
        ({"offload": "activations", "offload_fraction": 1, "offload_layers": ["a"]}, "training.offload_fraction", None),
        ({"offload": "activations", "offload_layers": ["llm.layer.1"]}, "training.offload_layers", None),
    ],
)
def test_bad_input(options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        run(big_gpt(), **options)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)
    assert caught.value.got is not None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("pp", "vpp", "schedule"), [(1, 1, "1f1b"), (2, 1, "gpipe"), (2, 2, "interleaved")])
@pytest.mark.parametrize("software", ["megatron", "torch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("zero", [2, 3])
def test_sharded_parameters_and_gradients_as_the_reference(
    zero: int, gradients: bool, recompute: str, software: str, pp: int, vpp: int, schedule: str
) -> None:
    """Gathers and reductions wait for kernels, not for copies to and from the host."""
    job = job_of(
        gpt(4),
        text_items(4),
        Parallel(dp=2, pp=pp, vpp=vpp, zero=zero),
        overlap=overlap(gradients=gradients),
        schedule=schedule,
        recompute=recompute,
        software=software,
        offload="activations",
        offload_fraction=0.5,
    )
    assert_tails_equal(job)


@pytest.mark.parametrize("make", [big_gpt, big_llama])
def test_gathers_do_not_wait_for_the_host_link(make: Any) -> None:
    """Behind a link so slow that the first layer's copies outlast the stage, every gather of the forward ends first."""
    model = make()
    link = Cluster("h100", 1, 2, override={"pcie_bytes_per_s": 1e6})
    options = Training(1, 2, SEQ, offload="activations")
    report = semu.simulate(TrainingJob(model, link, Parallel(dp=2, zero=3), options))
    operators = report.timeline.ranks[0].expand(0)
    ends = list(zip(operators.table.kinds, operators.table.streams, operators.end_s.tolist(), strict=True))
    gathers = [end for kind, _, end in ends if kind is OpKind.ALL_GATHER]
    copies = [end for _, stream, end in ends if stream == "offload"]
    assert len(gathers) > LAYERS and max(gathers) < min(copies)
