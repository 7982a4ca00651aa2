"""Cases in which paper and pencil give the answer: bubbles, activations in flight, frozen modules, static memory."""

from __future__ import annotations

import numpy as np
import pytest
from simulation.jobs import WIDTH, Distance, chain, gpt, job_of, overlap, text_items, vlm, vlm_items

from semu.costs.roofline import LatencyRules, RuleInput
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import Linear
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.simulation import simulate

FREE_LINKS = {
    "nvlink_bytes_per_s": 1e30,
    "link.nvlink.p2p.t0_s": 0.0,
    "link.nvlink.p2p.hop_s": 0.0,
    "link.nvlink.p2p.c_s": 0.0,
}
FORWARD_S, BACKWARD_S = 2**-10, 2**-9

MATMUL_S = {Phase.FORWARD: FORWARD_S, Phase.INPUT_GRADIENT: 0.0, Phase.WEIGHT_GRADIENT: BACKWARD_S}


def matmul_rule(row: RuleInput) -> float:
    return MATMUL_S[row.operator.phase]


EQUAL_STAGES: LatencyRules = {OpKind.MATMUL: matmul_rule, OpKind.CROSS_ENTROPY: lambda row: 0.0}


def equal_stages(p: int, m: int, schedule: str) -> TrainingJob:
    """p blocks with one matrix product each, one per rank."""
    blocks = [Linear(WIDTH, WIDTH) for _ in range(p - 1)]
    return job_of(chain(*blocks, Distance()), text_items(1) * m, Parallel(pp=p), schedule=schedule, override=FREE_LINKS)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (2, 4), (4, 8), (6, 3)])
def test_bubble_of_equal_stages(p: int, m: int, schedule: str) -> None:
    """Makespan (m + p - 1)(f + b), bubble ratio (p - 1) / (m + p - 1): 1811.06965 §2.3, 2104.04473 §2.2.1."""
    report = simulate(equal_stages(p, m, schedule), latency_rules=EQUAL_STAGES)
    assert report.makespan_s == (m + p - 1) * (FORWARD_S + BACKWARD_S)
    assert report.bubble_ratio == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
    for rank in report.timeline.ranks:
        starts = [stage.start_s for stage in rank.stages if stage.phase is Phase.FORWARD]
        assert starts[0] == rank.rank * FORWARD_S
    assert report.breakdown_s["compute"] == pytest.approx(m * (FORWARD_S + BACKWARD_S), rel=1e-12)
    assert report.breakdown_s["bubble"] == pytest.approx((p - 1) * (FORWARD_S + BACKWARD_S), rel=1e-12)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 2), (3, 3)])
def test_activations_in_flight(p: int, m: int) -> None:
    """A rank keeps the inputs of min(m, p - r) microbatches under 1F1B, of all m under GPipe."""
    tokens = text_items(1)[0].tokens("text")
    for schedule in ("1f1b", "gpipe"):
        report = simulate(equal_stages(p, m, schedule), latency_rules=EQUAL_STAGES)
        for rank, static in zip(report.timeline.ranks, report.static_memory_bytes, strict=True):
            number = next(i for i, stage in enumerate(rank.stages) if stage.phase is Phase.BACKWARD)
            curve = rank.memory
            # during the last forward stage before the first backward stage
            level = int(curve.total[(curve.times_s < rank.stages[number - 1].end_s).sum() - 1]) - static
            in_flight = min(m, p - rank.rank) if schedule == "1f1b" else m
            # a block keeps its input, and makes one output; the last block keeps that too, for the loss
            tensors = 2 * in_flight if rank.rank == p - 1 else in_flight + 1
            assert level == tensors * tokens * WIDTH * 2


def test_a_sender_waits_for_its_transfer_or_does_not() -> None:
    """With sends of latency c the critical path of m = 1 grows by 2 (p - 1) c; waiting also delays later stages."""
    p, slow = 3, {**FREE_LINKS, "link.nvlink.p2p.t0_s": 2**-11}
    for m, extra in [(1, 2 * (p - 1)), (4, None)]:
        times = {}
        for pipeline in (False, True):
            job = job_of(
                chain(*[Linear(WIDTH, WIDTH)] * (p - 1), Distance()),
                text_items(1) * m,
                Parallel(pp=p),
                override=slow,
                overlap=overlap(pipeline=pipeline),
                schedule="gpipe",
            )
            times[pipeline] = simulate(job, latency_rules=EQUAL_STAGES).makespan_s
        if extra is not None:
            assert times[False] == times[True] == p * (FORWARD_S + BACKWARD_S) + extra * 2**-11
        else:
            # GPipe's slowest rank sends after each of its first m - 1 stages of both phases
            assert times[False] - times[True] == 2 * (m - 1) * 2**-11


# -- frozen modules ----------------------------------------------------------------------------------------------------
def stage_seconds(report: Report, module: str, phase: Phase) -> float:
    return sum(
        stage.end_s - stage.start_s
        for rank in report.timeline.ranks
        for stage in rank.stages
        if stage.module == module and stage.phase is phase
    )


def flop_of(report: Report, prefix: str, *phases: Phase, kind: OpKind = OpKind.MATMUL) -> float:
    total = 0.0
    for rank in report.timeline.ranks:
        for _, operators in rank.stage_operators():
            table = operators.table
            for i, path in enumerate(table.paths):
                if path.startswith(prefix) and table.phases[i] in phases and table.kinds[i] is kind:
                    total += float(operators.flop[i])
    return total


GRADIENTS = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)


def frozen(*paths: str) -> Report:
    return simulate(job_of(vlm(frozen=paths), vlm_items(3), Parallel(pp=2)))


def test_a_frozen_encoder_in_front_costs_no_backward_time() -> None:
    """Cornstarch eqs. 3.1 to 3.3: nothing trains at or above it, so neither gradient is computed."""
    full, cold = frozen(), frozen("vit")
    assert stage_seconds(cold, "vit", Phase.BACKWARD) == 0.0 < stage_seconds(full, "vit", Phase.BACKWARD)
    phases = {stage.phase for rank in cold.timeline.ranks for stage in rank.stages if stage.module == "vit"}
    assert phases == {Phase.FORWARD}
    assert stage_seconds(cold, "vit", Phase.FORWARD) == stage_seconds(full, "vit", Phase.FORWARD)
    assert flop_of(cold, "vit", *GRADIENTS) == 0.0
    # what drops out of the model FLOP is just the encoder's backward pass, less the recomputed part of attention
    attention = OpKind.ATTENTION_BACKWARD
    backward = flop_of(full, "vit", *GRADIENTS) + flop_of(full, "vit", Phase.INPUT_GRADIENT, kind=attention) * 4 / 5
    assert full.model_flop - cold.model_flop == pytest.approx(backward, rel=1e-12)


def test_an_adapter_that_trains_behind_a_frozen_encoder_costs_its_own_gradients() -> None:
    """The encoder's last block trains alone: its products have weight gradients, no gradient goes further up."""
    *cold, adapter = [path for path, _ in vlm().modules[0].blocks()]
    report = frozen(*cold)
    forward = flop_of(report, adapter, Phase.FORWARD)
    assert flop_of(report, adapter, Phase.WEIGHT_GRADIENT) == flop_of(report, adapter, Phase.INPUT_GRADIENT) == forward
    assert flop_of(report, "vit", *GRADIENTS) == 2 * forward > 0


def test_a_frozen_backbone_behind_a_training_encoder_computes_input_gradients_only() -> None:
    """Backward = 1 x forward for its matrix products instead of 2 x."""
    full, cold = frozen(), frozen("llm")
    forward = flop_of(full, "llm.layers", Phase.FORWARD)
    assert flop_of(full, "llm.layers", *GRADIENTS) == 2 * forward
    assert flop_of(cold, "llm.layers", Phase.INPUT_GRADIENT) == forward
    assert flop_of(cold, "llm.layers", Phase.WEIGHT_GRADIENT) == 0.0
    assert flop_of(cold, "vit", *GRADIENTS) == flop_of(full, "vit", *GRADIENTS)


def test_frozen_parameters_have_no_gradients_and_no_optimizer_state() -> None:
    full = simulate(job_of(vlm(), vlm_items(1)))
    cold = simulate(job_of(vlm(frozen=["vit"]), vlm_items(1)))
    vit = vlm().modules[0].body.num_parameters()
    assert full.static_memory_bytes[0] - cold.static_memory_bytes[0] == vit * (4 + 12)


# -- static memory -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dp", [1, 2, 3])
def test_static_bytes_of_zero_0_and_zero_1(dp: int) -> None:
    """18 bytes per parameter, or 6 + 12 / dp under the distributed optimizer (1910.02054 §3.1, fp32 gradients)."""
    parameters = gpt().num_parameters()
    plain, sharded = (
        simulate(job_of(gpt(), text_items(dp), Parallel(dp=dp, zero=zero))).static_memory_bytes[0] for zero in (0, 1)
    )
    assert plain == 18 * parameters
    assert sharded == 6 * parameters + 12 * -(-parameters // dp)


# -- custom rules ------------------------------------------------------------------------------------------------------
def test_a_custom_rule_decides_where_it_answers() -> None:
    job = job_of(gpt(), text_items(2), Parallel(pp=2))
    seen: list[RuleInput] = []

    def rule(row: RuleInput) -> np.ndarray | None:
        seen.append(row)
        return row.flop / 1e12 if row.operator.phase is Phase.FORWARD else None

    report, plain = simulate(job, latency_rules={OpKind.MATMUL: rule}), simulate(job)
    assert {row.operator.kind for row in seen} == {OpKind.MATMUL}
    for rank, before in zip(report.timeline.ranks, plain.timeline.ranks, strict=True):
        for (_, operators), (_, old) in zip(rank.stage_operators(), before.stage_operators(), strict=True):
            table = operators.table
            for i, (kind, phase) in enumerate(zip(table.kinds, table.phases, strict=True)):
                latency = operators.end_s[i] - operators.start_s[i]
                if kind is OpKind.MATMUL and phase is Phase.FORWARD:
                    assert latency == round(operators.flop[i] / 1e12 * 2**40) / 2**40
                else:
                    assert latency == old.end_s[i] - old.start_s[i]
