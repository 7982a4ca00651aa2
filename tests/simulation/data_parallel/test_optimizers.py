"""Optimizers other than Adam: against the slow reference, memory by hand, Muon's products by hand, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items
from simulation.models.test_experts import moe

from semu.cli.command import main
from semu.errors import ConfigError
from semu.graph.operator import OpKind
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType, Provenance
from semu.job import TrainingJob
from semu.nn import Linear, Model
from semu.nn.rules.optimizer import newton_schulz
from semu.parallel.config import Parallel
from semu.simulation import simulate

SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"dp": 2},
    {"dp": 2, "zero": 1},
    {"dp": 4, "pp": 2, "zero": 1},
    {"tp": 2, "sequence_parallel": True},
    {"dp": 2, "tp": 2, "cp": 2, "zero": 1},
    {"dp": 2, "tp": 2, "pp": 2, "vpp": 2, "zero": 1},
)


def job(model: Model, sizes: dict[str, Any], **options: object) -> TrainingJob:
    parallel = Parallel(**sizes)
    items = vlm_items if len(model.modules) > 1 else text_items
    return job_of(model, items(parallel.dp * 4), parallel, **options)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", ["sgd", "lion", "muon"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: Parallel(**sizes).label())
def test_against_the_reference(sizes: dict[str, Any], optimizer: str) -> None:
    assert_tails_equal(job(gpt(4), sizes, optimizer=optimizer, gradient_clipping=True))
    options = overlap(gradients=True)
    assert_tails_equal(job(gpt(4), sizes, optimizer=optimizer, overlap=options, optimizer_state_dtype="bf16"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["blockwise", "duplicated", "distributed"])
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"tp": 4, "dp": 2, "zero": 1}, {"tp": 2, "pp": 2, "dp": 2, "zero": 1}])
def test_matrices_that_ranks_share(sizes: dict[str, Any], way: str) -> None:
    assert_tails_equal(job(gpt(4), sizes, optimizer="muon", muon_split=way, muon_steps=3, muon_dtype="bf16"))


@pytest.mark.parametrize(("optimizer", "hides"), [("adam", True), ("muon", False)])
def test_gathers_of_whole_parameters_are_part_of_the_step(optimizer: str, hides: bool) -> None:
    """Under Adam they run before the first forwards."""
    report = simulate(job(gpt(4), {"dp": 4, "zero": 1}, optimizer=optimizer, overlap=overlap(parameters=True)))
    outer = report.timeline.ranks[0].outer
    (step,) = (piece for piece in outer if piece.kind is OpKind.OPTIMIZER)
    gathers = [piece for piece in outer if piece.kind is OpKind.ALL_GATHER]
    assert gathers and all((piece.end_s <= step.start_s) is hides for piece in gathers)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "sizes", [{"dp": 4, "ep": 2, "zero": 1}, {"dp": 2, "ep": 2}, {"dp": 2, "tp": 2, "zero": 1}, {"dp": 2, "zero": 1}]
)
def test_experts(sizes: dict[str, Any]) -> None:
    """Every expert's matrices are their own; a bias of experts is none."""
    assert_tails_equal(job(moe(shared=True, dense=1), sizes, optimizer="muon"))


@pytest.mark.parametrize("zero", [0, 1])
def test_several_modalities(zero: int) -> None:
    assert_tails_equal(job(vlm(frozen=("vit",)), {"dp": 2, "pp": 2, "zero": zero}, optimizer="muon"))


@pytest.mark.parametrize(("optimizer", "moments"), [("adam", 2), ("sgd", 1), ("lion", 1)])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_by_hand(zero: int, optimizer: str, moments: int) -> None:
    """2 bytes of a parameter, 4 of its gradient, of its master weight and of each moment."""
    model, dp = gpt(), 4
    count = model.num_parameters()
    assert count % dp == 0
    shared = [2 * count // (dp if zero >= 3 else 1), 4 * count // (dp if zero >= 2 else 1)]
    shared.append(4 * (1 + moments) * count // (dp if zero else 1))
    assert simulate(job(model, {"dp": dp, "zero": zero}, optimizer=optimizer)).static_memory_bytes == (sum(shared),)


def in_matrices(model: Model) -> int:
    return sum(
        p.numel for name, p in model.modules[0].body.named_parameters() if "layers." in name and len(p.shape) == 2
    )


def test_muon_keeps_one_momentum_of_matrices() -> None:
    model = gpt()
    count, matrices = model.num_parameters(), in_matrices(model)
    assert 0 < matrices < count
    held = simulate(job(model, {}, optimizer="muon")).static_memory_bytes
    assert held == (count * (2 + 4 + 4) + 4 * matrices + 8 * (count - matrices),)


def heights(linear: Linear) -> tuple[int, ...]:
    """Of queries, keys and values, or of the whole."""
    return linear.parts if linear.parts is not None and len(linear.parts) == 3 else linear.weight.shape[:1]


@pytest.mark.parametrize("steps", [1, 5])
def test_products_by_hand(steps: int) -> None:
    """Under a rule that gives every product a time in proportion to its FLOP, and nothing else any."""
    model = gpt()
    rules = {kind: (lambda seen: 0.0 * seen.flop) for kind in OpKind if not kind.is_communication}
    rules[OpKind.MATMUL] = lambda seen: seen.flop * 2.0**-40 if seen.operator.path.startswith("muon.") else 0.0
    report = simulate(job(model, {}, optimizer="muon", muon_steps=steps), latency_rules=rules)
    expected = 0
    for _, block in model.modules[0].blocks()[1:-1]:
        for module in block.modules():
            for height in heights(module) if isinstance(module, Linear) else ():
                m, n = sorted((height, module.weight.shape[1]))
                expected += steps * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)
    assert report.iteration_time_s * 2**40 == expected > 0


@pytest.mark.parametrize(("device", "dtype"), [("h100", "tf32"), ("h100", "bf16"), ("mi300x", "bf16")])
def test_a_step_is_no_better_known_than_its_products(device: str, dtype: str) -> None:
    order = list(Provenance)
    own = replace(job(gpt(), {}, optimizer="muon", muon_dtype=dtype), cluster=Cluster(device, 1, 1))
    (step,) = (p for p in simulate(own).timeline.ranks[0].outer if p.kind is OpKind.OPTIMIZER)
    product = own.cluster.profile.efficiency(OpKind.MATMUL).provenance
    least = Provenance.TRANSFERRED if dtype == "tf32" else product
    assert order.index(step.provenance) >= max(order.index(least), order.index(product))


@pytest.mark.parametrize(("short", "long", "steps"), [(3, 5, 5), (64, 64, 1), (7, 1000, 2)])
def test_kernels_of_one_matrix(short: int, long: int, steps: int) -> None:
    graph = newton_schulz(short, long, steps, DType.BF16)
    graph.lint()
    products = [op for op in graph.operators if op.kind is OpKind.MATMUL]
    assert len(products) == 3 * steps
    assert all(op.flop == 2 * prod(op.key) for op in products)
    assert sum(op.flop for op in products) == steps * (4 * short**2 * long + 2 * short**3)


@pytest.mark.parametrize(
    ("sizes", "options", "where"),
    [
        ({"dp": 2, "zero": 2}, {}, "parallel.zero"),
        ({"dp": 2, "zero": 3}, {}, "parallel.zero"),
        ({"dp": 4, "zero": 1, "zero_group": 2}, {}, "parallel.zero"),
        ({}, {"offload": ["optimizer"]}, "training.optimizer"),
        ({}, {"muon_dtype": "fp8"}, "muon_dtype"),
        ({}, {"muon_steps": 0}, "muon_steps"),
    ],
)
def test_what_is_refused(sizes: dict[str, Any], options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        job(gpt(), sizes, optimizer="muon", **options)


@pytest.mark.slow
def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A Llama and a mixture of experts: Muon's products take time, its state less memory."""
    for name, settings in (("llama3-8b", ["parallel.tp=2"]), ("mixtral-8x7b", ["parallel.tp=8"])):
        found = []
        for optimizer in ("adam", "muon"):
            chosen = [*settings, f"training.optimizer={optimizer}", "parallel.zero=1"]
            command = ["simulate", name, "--cluster", "h100:1x8", *(f"--set={key}" for key in chosen), "--json"]
            assert main(command) in (0, 3)
            found.append(json.loads(capsys.readouterr().out))
        assert found[1]["iteration_time_s"] > found[0]["iteration_time_s"]
        assert found[1]["memory"][0]["optimizer"] < found[0]["memory"][0]["optimizer"]
