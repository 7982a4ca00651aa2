"""Coefficients of operators and their provenance, and operators outside stages, against scalar formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import semu
from semu.compile.template import Template, TemplateLibrary, compile_template
from semu.costs.roofline import CostModel
from semu.errors import ConfigError
from semu.graph.dim import Poly
from semu.graph.graph import Graph
from semu.graph.operator import Phase
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.cluster import Cluster
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.network import CommGroup
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu_models.text.gpt import GPT, GPTConfig

COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")
STEP_S = 2.0**-40
OPERATORS = [
    (OpKind.MATMUL, DType.BF16, True),
    (OpKind.MATMUL, DType.FP32, True),
    (OpKind.MATMUL, DType.TF32, True),
    (OpKind.NORM, DType.FP32, True),
    (OpKind.CAST, DType.FP32, False),
]
"""Kind, precision, and whether there is any FLOP."""


def template() -> Template:
    """One operator of each of ``OPERATORS``, one after another."""
    graph = Graph()
    tokens = Poly.symbol("text.tokens")
    x = graph.add_input((8 * tokens,), DType.BF16, name="x")
    y = graph.add_tensor((8 * tokens,), DType.BF16)
    for kind, dtype, has_flop in OPERATORS:
        flop = 1000 * tokens if has_flop else 0
        graph.add_operator(kind, COMPUTE, flop=flop, mem_bytes=8 * tokens, inputs=[x], outputs=[y], dtype=dtype)
    dy = graph.add_input((8 * tokens,), DType.BF16, name="dy")
    dx = graph.add_tensor((8 * tokens,), DType.BF16)
    graph.add_operator(
        OpKind.MATMUL, COMPUTE, flop=tokens, mem_bytes=tokens, inputs=[dy], outputs=[dx], phase=Phase.INPUT_GRADIENT
    )
    return compile_template(
        graph, len(OPERATORS), inputs=[x], outputs=[y], output_gradients=[dy], input_gradients=[dx], groups={}
    )


def profile_of(provenance: Provenance, variants: dict[tuple[OpKind, DType | int], Efficiency]) -> DeviceProfile:
    """An H100 all of whose compute coefficients come from one place, with these variants and no others."""
    profile = Cluster("h100", 1, 1).profile
    efficiencies = {kind: replace(own, provenance=provenance) for kind, own in profile.efficiencies.items()}
    peaks = {**profile.flop_per_s, DType.TF32: profile.flop_per_s[DType.FP32]}
    return replace(profile, efficiencies=efficiencies, variants=variants, flop_per_s=peaks)


def provenances(profile: DeviceProfile) -> dict[tuple[OpKind, DType, bool], Provenance]:
    library = TemplateLibrary([template()])
    found = CostModel(library, profile).coefficients
    return {
        (operator.kind, operator.dtype, operator.flop != 0): coefficients.provenance
        for operator, coefficients in zip(library.operators, found, strict=True)
    }


@pytest.mark.parametrize(
    ("provenance", "seen"),
    [
        (Provenance.MEASURED, Provenance.TRANSFERRED),
        (Provenance.FITTED, Provenance.TRANSFERRED),
        (Provenance.TRANSFERRED, Provenance.TRANSFERRED),
        (Provenance.SPEC, Provenance.SPEC),
        (Provenance.DEFAULT, Provenance.DEFAULT),
    ],
)
def test_fp32_arithmetic_has_the_coefficients_of_another_precision(provenance: Provenance, seen: Provenance) -> None:
    """What was measured in bf16 is transferred to fp32 and tf32 products; what has no FLOP has no precision."""
    assert provenances(profile_of(provenance, {})) == {
        (OpKind.MATMUL, DType.BF16, True): provenance,
        (OpKind.MATMUL, DType.FP32, True): seen,
        (OpKind.MATMUL, DType.TF32, True): seen,
        (OpKind.NORM, DType.FP32, True): seen,
        (OpKind.CAST, DType.FP32, False): provenance,
    }


def test_fp32_arithmetic_that_was_measured_says_so() -> None:
    own = Efficiency(flop=0.5, provenance=Provenance.MEASURED)
    found = provenances(profile_of(Provenance.FITTED, {(OpKind.MATMUL, DType.FP32): own}))
    assert found[OpKind.MATMUL, DType.FP32, True] is Provenance.MEASURED
    assert found[OpKind.MATMUL, DType.TF32, True] is Provenance.TRANSFERRED
    assert found[OpKind.NORM, DType.FP32, True] is Provenance.TRANSFERRED
    assert found[OpKind.MATMUL, DType.BF16, True] is Provenance.FITTED


MEMORY_BOUND = [OpKind.OPTIMIZER, OpKind.CAST, OpKind.ADD, OpKind.COPY]
SIZES = [0, 1, 4096, 10**7, 3 * 10**10]


@pytest.mark.parametrize("kind", MEMORY_BOUND)
@pytest.mark.parametrize(("t0_s", "mem"), [(0.0, 1.0), (3.7e-6, 0.8), (1e-3, 0.31)])
def test_a_kernel_outside_stages_takes_its_fixed_time_and_that_of_its_bytes(
    kind: OpKind, t0_s: float, mem: float
) -> None:
    profile = Cluster("h100", 1, 1).profile
    own = replace(profile.efficiencies[kind], t0_s=t0_s, mem=mem)
    profile = replace(profile, efficiencies={**profile.efficiencies, kind: own})
    found = CostModel(TemplateLibrary([template()]), profile).outer_latency(
        kind, "step", mem_bytes=np.array(SIZES, dtype=np.int64)
    )
    bandwidth = profile.mem_bytes_per_s.value
    expected = [0.0 if size == 0 else t0_s + size / (mem * bandwidth) for size in SIZES]
    assert found.tolist() == pytest.approx(expected, abs=STEP_S / 2, rel=1e-12)


def test_the_optimizer_step_pays_its_fixed_time_once() -> None:
    """The iteration of one GPU is longer by t0 where nothing but the optimizer's t0 changes."""

    def iteration_s(t0_s: float) -> float:
        model = Model.from_module(GPT(GPTConfig(2, hidden=64, heads=4, vocab=256, positions=64)), name="llm")
        cluster = Cluster("h100", 1, 1, override={"efficiency.optimizer.t0_s": t0_s})
        job = TrainingJob(model, cluster, Parallel(), Training(1, 2, 64, software="kernels"))
        return semu.simulate(job).iteration_time_s

    added = 2.0**-10
    assert iteration_s(added) - iteration_s(0.0) == added


def test_a_transfer_of_an_unnamed_communicator_is_within_a_node() -> None:
    """On a stream that no group belongs to: as one between two ranks of a node; a collective must say of how many."""
    link = Stream(Device(DeviceKind.LINK, port=Port.NVLINK, direction=Direction.OUT), "pp")
    profile = Cluster("h100", 1, 8).profile

    def model_of(kind: OpKind) -> CostModel:
        graph = Graph()
        tokens = Poly.symbol("text.tokens")
        x = graph.add_input((8 * tokens,), DType.BF16, name="x")
        y = graph.add_tensor((8 * tokens,), DType.BF16)
        graph.add_operator(kind, link, net_bytes=16 * tokens, inputs=[x], outputs=[y])
        traced = compile_template(graph, 1, inputs=[x], outputs=[y], output_gradients=[], input_gradients=[], groups={})
        return CostModel(TemplateLibrary([traced]), profile)

    assert model_of(OpKind.P2P).link_of(0) == CommGroup("pp", 2, 1)
    with pytest.raises(ConfigError, match="unknown communicator"):
        model_of(OpKind.ALL_REDUCE)
