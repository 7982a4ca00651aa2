"""What a kind's errors do to the iteration: the critical path against simulations with that kind slowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items

import semu
from semu.costs.roofline import RuleInput
from semu.engine.critical_paths import critical_path
from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline, StageSlice
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind, Port, Provenance
from semu.hardware.number import Number
from semu.hardware.software import Software, SoftwareFactors
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.present.uncertainty import FACTOR_SPREADS, MAPE_TO_SIGMA, SPREADS, UncertainKind, Uncertainty

STEP = 1e-3
JOBS = {
    "language, one rank": lambda: job_of(gpt(), text_items(4)),
    "language, dp2-tp2-pp2": lambda: job_of(gpt(4), text_items(8), Parallel(dp=2, tp=2, pp=2, zero=1)),
    "language, reductions hidden": lambda: job_of(
        gpt(4), text_items(8), Parallel(dp=2, pp=2, zero=1), overlap=overlap(gradients=True, parameters=True)
    ),
    "vision and language, tp2-pp2": lambda: job_of(vlm(), vlm_items(6), Parallel(tp=2, pp=2), recompute="full"),
    "vision and language, dp2-pp3": lambda: job_of(vlm(), vlm_items(6), Parallel(dp=2, pp=3)),
}


def uncertainty(job: TrainingJob) -> Uncertainty:
    found = semu.simulate(job).uncertainty
    assert found is not None
    return found


def by_kind(found: Uncertainty) -> Mapping[str, float]:
    """Seconds by operator kind; software factors and kinds of runs count the same seconds again and are left out."""
    result: dict[str, float] = {}
    for item in found.kinds:
        if not item.kind.startswith(("software.", "structure.")):
            kind = item.kind.rpartition(".")[2]
            result[kind] = result.get(kind, 0.0) + item.time_s
    return result


def slope(job: TrainingJob, kind: OpKind) -> float:
    """How much longer the iteration lasts per relative slow-down of a kind [s], by simulating it slower."""

    def slower(seen: RuleInput) -> object:
        return seen.default_s * (1 + STEP)

    changed = semu.simulate(job, latency_rules={kind: slower})  # type: ignore[dict-item]
    return (changed.iteration_time_s - semu.simulate(job).iteration_time_s) / STEP


@pytest.mark.parametrize("name", JOBS)
def test_times_are_the_slopes_of_the_iteration(name: str) -> None:
    job = JOBS[name]()
    total = semu.simulate(job).iteration_time_s
    seconds = by_kind(uncertainty(job))
    for kind in (OpKind.MATMUL, OpKind.ATTENTION_FORWARD, OpKind.NORM, OpKind.ADD, OpKind.OPTIMIZER, OpKind.ALL_GATHER):
        # A chunk's stages are taken to be alike, and hidden collectives to be exposed in proportion.
        assert seconds.get(kind.value, 0.0) == pytest.approx(slope(job, kind), abs=0.015 * total), kind


def test_on_one_rank_without_communication_they_are_exact() -> None:
    job = JOBS["language, one rank"]()
    for kind in (OpKind.MATMUL, OpKind.ATTENTION_BACKWARD, OpKind.CROSS_ENTROPY, OpKind.OPTIMIZER):
        assert by_kind(uncertainty(job))[kind.value] == pytest.approx(slope(job, kind), rel=1e-4)


@pytest.mark.parametrize("name", JOBS)
def test_times_of_all_kinds_add_up_to_the_iteration(name: str) -> None:
    report = semu.simulate(JOBS[name]())
    assert report.uncertainty is not None
    added = [i.time_s for i in report.uncertainty.kinds if i.kind in ("software.interference", "software.transfer_s")]
    seconds = sum(by_kind(report.uncertainty).values()) + sum(added)
    assert seconds == pytest.approx(report.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("launch_us", [3.0, 20.0, 200.0])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_launches_have_their_time_and_kernels_the_rest(launch_us: float, recompute: str) -> None:
    """On one rank launches add the difference to the same job without them; kernels take what they take there."""
    options = {"recompute": recompute, "override": {"host": {"launch_s": launch_us * 1e-6}}}
    plain, report = (
        semu.simulate(job_of(gpt(), text_items(4), launch=launch, **options))  # type: ignore[arg-type]
        for launch in (False, True)
    )
    added = report.iteration_time_s - plain.iteration_time_s
    assert plain.uncertainty is not None and report.uncertainty is not None
    times = by_kind(report.uncertainty)
    assert added > 0
    assert times.pop("launch_s") == pytest.approx(added, rel=1e-9)
    assert sum(times.values()) == pytest.approx(sum(by_kind(plain.uncertainty).values()), rel=1e-9)
    assert sum(times.values()) == pytest.approx(plain.iteration_time_s, rel=1e-9)
    spreads = {item.kind: item.spread for item in report.uncertainty.kinds}
    assert spreads["host.launch_s"] == pytest.approx(SPREADS[Provenance.SPEC])  # overridden


def test_time_outside_the_model_is_exact() -> None:
    job = job_of(gpt(), text_items(4), overhead_s=0.5)
    plain = uncertainty(job_of(gpt(), text_items(4)))
    assert uncertainty(job).sigma_s == pytest.approx(plain.sigma_s, rel=1e-9)
    assert uncertainty(job).iteration_time_s == plain.iteration_time_s + 0.5


def test_spreads_come_from_errors_else_from_provenance() -> None:
    job = job_of(gpt(), text_items(2))
    profile = job.cluster.profile
    matmul = replace(profile.efficiencies[OpKind.MATMUL], relative_error=0.08)
    norm = replace(profile.efficiencies[OpKind.NORM], provenance=Provenance.DEFAULT, relative_error=None)
    changed = replace(profile, efficiencies={**profile.efficiencies, OpKind.MATMUL: matmul, OpKind.NORM: norm})
    found = uncertainty(replace(job, cluster=semu.Cluster(changed, 1, 1)))
    spreads = {item.kind: item.spread for item in found.kinds}
    assert spreads["matmul"] == pytest.approx(0.08 * MAPE_TO_SIGMA)
    assert spreads["norm"] == pytest.approx(SPREADS[Provenance.DEFAULT])
    overridden = job_of(gpt(), text_items(2), override={"efficiency.matmul.flop": 0.5})
    assert {i.kind: i.spread for i in uncertainty(overridden).kinds}["matmul"] == pytest.approx(
        SPREADS[Provenance.SPEC]
    )


def test_a_precision_without_measurements_is_as_uncertain_as_another_device() -> None:
    """Rates of products in fp32 are those of bf16 carried over; kernels without products move bytes as they do."""
    found = {}
    for precision in ("bf16", "fp32"):
        job = job_of(gpt(), text_items(2), precision=precision, software="kernels")
        kinds = uncertainty(replace(job, cluster=semu.Cluster("h100", 1, 1))).kinds
        found[precision] = {item.kind: item.spread for item in kinds}
    own = replace(job, cluster=semu.Cluster("h100", 1, 1)).profile.efficiencies
    for kind in (OpKind.MATMUL, OpKind.NORM, OpKind.ADD):
        assert found["bf16"][kind.value] == pytest.approx((own[kind].relative_error or 0) * MAPE_TO_SIGMA)
    assert found["fp32"]["matmul"] == pytest.approx(SPREADS[Provenance.TRANSFERRED])
    assert found["fp32"]["matmul"] > found["bf16"]["matmul"]
    assert all(found["fp32"][kind] == pytest.approx(found["bf16"][kind]) for kind in ("norm", "add"))


def test_software_factors_have_spreads_of_their_own() -> None:
    plain = job_of(gpt(), text_items(2), software="kernels")
    assert not [item for item in uncertainty(plain).kinds if item.kind.startswith("software.")]
    found = under_factors({"matmul": Number(1.1, Provenance.TRANSFERRED, "another device")})
    assert found["software.matmul"].spread == pytest.approx(FACTOR_SPREADS[Provenance.TRANSFERRED])
    assert found["software.matmul"].time_s == pytest.approx(found["matmul"].time_s)
    assert found["software.attention"].spread == pytest.approx(FACTOR_SPREADS[Provenance.DEFAULT])
    fused = found["attention_forward"].time_s + found["attention_backward"].time_s
    assert found["software.attention"].time_s == pytest.approx(fused)


def test_it_is_found_only_when_asked_for() -> None:
    report = semu.simulate(job_of(gpt(), text_items(2)))
    assert "uncertainty" not in vars(report)
    low, high = report.iteration_time_interval_s or (0.0, 0.0)
    assert low < report.iteration_time_s < high
    assert sum(report.coverage.values()) == pytest.approx(1.0)
    assert not hasattr(semu.evaluate(job_of(gpt(), text_items(2))), "uncertainty")


# -- a path by hand ----------------------------------------------------------------------------------------------------
def stage(rank: int, start: float, end: float, phase: Phase = Phase.FORWARD, microbatch: int = 0) -> StageSlice:
    letter = "F" if phase is Phase.FORWARD else "B"
    return StageSlice(rank, f"{rank}{letter}{microbatch}", "llm", rank, microbatch, phase, start, end)


def outer(name: str, kind: OpKind, stream: str, start: float, end: float, port: Port | None) -> OuterSlice:
    return OuterSlice(name, kind, stream, start, end, 1, 2, port=port)


def timeline(*ranks: tuple[list[StageSlice], list[OuterSlice]]) -> IterationTimeline:
    made = [
        RankTimeline(number, number, 0, tuple(stages), tuple(others), None, None, None)  # type: ignore[arg-type]
        for number, (stages, others) in enumerate(ranks)
    ]
    return IterationTimeline(tuple(made), 100.0, 90.0)


def test_a_path_through_two_ranks() -> None:
    send, back = (
        outer("send 0F0 -> rank 1", OpKind.P2P, "pp", 2.0, 3.0, Port.NVLINK),
        outer("send 1B0 -> rank 0", OpKind.P2P, "pp", 10.0, 11.0, Port.NVLINK),
    )
    send = replace(send, name="send 0F0 to rank 1")
    back = replace(back, name="send 1B0 to rank 0")
    step = outer("step", OpKind.OPTIMIZER, "compute", 16.0, 17.0, None)
    early = outer("step", OpKind.OPTIMIZER, "compute", 10.0, 11.5, None)
    found = critical_path(
        timeline(
            (
                [stage(0, 0.0, 2.0), stage(0, 2.0, 4.0, microbatch=1), stage(0, 11.0, 16.0, Phase.BACKWARD)],
                [send, step],
            ),
            ([stage(1, 3.0, 6.0), stage(1, 6.0, 10.0, Phase.BACKWARD)], [back, early]),
        )
    )
    assert dict(found.stages) == {
        (0, Phase.FORWARD): 2.0,
        (1, Phase.FORWARD): 3.0,
        (0, Phase.BACKWARD): 5.0,
        (1, Phase.BACKWARD): 4.0,
    }
    assert [(piece.name, time) for piece, time in found.outer] == [
        ("step", 1.0),
        ("send 1B0 to rank 0", 1.0),
        ("send 0F0 to rank 1", 1.0),
    ]
    assert found.gap_s == 0.0


def test_what_begins_inside_a_stage_and_what_nothing_explains() -> None:
    reduction = outer("reduce", OpKind.ALL_REDUCE, "dp", 3.0, 9.0, Port.NIC)
    found = critical_path(timeline(([stage(0, 1.0, 4.0)], [reduction])))
    assert dict(found.stages) == {(0, Phase.FORWARD): 2.0}  # up to the gradient
    assert [time for _, time in found.outer] == [6.0]
    assert found.gap_s == 1.0
    waits = critical_path(timeline(([stage(0, 0.0, 4.0), stage(0, 5.0, 6.0, microbatch=1)], [])))
    assert (dict(waits.stages), waits.gap_s) == ({(0, Phase.FORWARD): 5.0}, 1.0)
    assert critical_path(timeline(([], []))).gap_s == 0.0


def under_factors(numbers: Mapping[str, Number], device: str = "a100-80g") -> dict[str, UncertainKind]:
    """What contributes to a job under Megatron-LM with some factors, by kind."""
    job = job_of(gpt(), text_items(2), software="megatron")
    profile = replace(semu.Cluster(device, 1, 1).profile, software={Software.MEGATRON: SoftwareFactors.of(numbers)})
    return {item.kind: item for item in uncertainty(replace(job, cluster=semu.Cluster(profile, 1, 1))).kinds}


@pytest.mark.parametrize(("kernel", "worst"), [("fa2", Provenance.FITTED), ("fa1", Provenance.SPEC)])
def test_a_kernel_of_attention_is_no_surer_than_its_own_factor(kernel: str, worst: Provenance) -> None:
    """FlashAttention's factor is from its successor's paper, FlashAttention-2's is fitted, as is the framework's."""
    fitted = SoftwareFactors.of({"attention": Number(1.1, Provenance.FITTED, "runs", 0.04)})
    profile = replace(semu.Cluster("h100", 1, 1).profile, software={Software.MEGATRON: fitted})
    job = job_of(gpt(), text_items(2), software="megatron", attention_kernel=kernel)
    kinds = uncertainty(replace(job, cluster=semu.Cluster(profile, 1, 1))).kinds
    assert {i.kind: i.spread for i in kinds}["software.attention"] == pytest.approx(FACTOR_SPREADS[worst])


def test_runs_left_out_of_a_fit_judge_kernels_and_factors_together() -> None:
    """Products and memory-bound kernels of the device's own share one error; attention keeps its own and its factor's,
    as do kernels whose coefficients are another device's."""
    fitted = Number(1.1, Provenance.FITTED, "runs", 0.04)
    found = under_factors({"matmul": fitted, "memory_bound": fitted, "attention": fitted})
    judged = found["software.runs"]
    assert judged.spread == pytest.approx(0.04 * MAPE_TO_SIGMA)
    held = [item for item in found.values() if item.spread == 0]
    assert {"matmul", "norm", "activation"} <= {item.kind for item in held}
    assert judged.time_s == pytest.approx(sum(item.time_s for item in held))
    assert found["attention_forward"].spread > 0 and found["software.attention"].spread > 0
    elsewhere = under_factors({"matmul": fitted}, "h800")  # whose coefficients are H100's
    assert elsewhere["matmul"].spread > 0 and "software.runs" not in elsewhere
    alone = under_factors({})
    assert "software.runs" not in alone and alone["matmul"].spread > 0
    assert sum(item.sigma_s**2 for item in found.values()) < sum(item.sigma_s**2 for item in alone.values())
