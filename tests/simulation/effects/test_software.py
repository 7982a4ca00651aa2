"""Software: what a framework makes of a device's kernels, and what hidden collectives cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items, wide

from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType, OpKind, Provenance
from semu.hardware.profile import list_profiles, load_profile
from semu.hardware.software import FACTORS, Software
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.parallel.fsdp import Fsdp
from semu.present.report import Report
from semu.runfile import load_run
from semu.simulation import simulate
from semu.workload import Microbatch

FACTOR_KINDS = {
    "matmul": OpKind.MATMUL,
    "attention": OpKind.ATTENTION_BACKWARD,
    "memory_bound": OpKind.NORM,
}
Made = tuple[Callable[[], Model], Callable[..., list[Microbatch]]]
MODELS: dict[str, Made] = {"gpt": (gpt, text_items), "vlm": (vlm, vlm_items)}


def with_factors(**numbers: float) -> Cluster:
    """One H100 with these factors of Megatron-LM's and no others."""
    return Cluster("h100", 1, 8, {f"software.megatron.{key}": value for key, value in {**FACTORS, **numbers}.items()})


@pytest.mark.parametrize("name", FACTOR_KINDS)
def test_a_factor_divides_both_rates_of_its_kinds_and_no_other(name: str) -> None:
    profile = with_factors(**{name: 1.5}).profile
    run = profile.under(Software.MEGATRON)
    for kind, own in profile.efficiencies.items():
        slowed = run.efficiencies[kind]
        mine = {
            "matmul": kind in (OpKind.MATMUL, OpKind.GROUPED_MATMUL),
            "attention": kind.value.startswith("attention_"),
            "memory_bound": kind
            not in (
                OpKind.MATMUL,
                OpKind.GROUPED_MATMUL,
                OpKind.ATTENTION_FORWARD,
                OpKind.ATTENTION_BACKWARD,
                OpKind.OPTIMIZER,
                OpKind.CUSTOM,
                OpKind.PERMUTE,
            ),
        }[name]
        factor = 1.5 if mine else 1.0
        assert (slowed.flop, slowed.mem) == (own.flop / factor, own.mem / factor)
        assert (slowed.t0_s, slowed.p, slowed.s0_tokens) == (own.t0_s, own.p, own.s0_tokens)
    assert run.efficiency(FACTOR_KINDS[name]).provenance is Provenance.SPEC
    assert run.under(Software.MEGATRON) is run
    assert profile.under(Software.KERNELS) is profile


def test_variants_are_slowed_too() -> None:
    profile = with_factors(matmul=2.0, attention=4.0).profile
    run = profile.under(Software.MEGATRON)
    fast, slow = (p.efficiency(OpKind.MATMUL, dtype=DType.FP8) for p in (profile, run))
    assert slow.flop == fast.flop / 2
    fast, slow = (p.efficiency(OpKind.ATTENTION_FORWARD, head_dim=64) for p in (profile, run))
    assert slow.flop == fast.flop / 4


@pytest.mark.parametrize("name", MODELS)
def test_a_job_without_factors_is_the_bare_kernels(name: str) -> None:
    model, items = MODELS[name]

    def run(cluster: Cluster, software: str) -> float:
        job = job_of(model(), items(4), Parallel(dp=2, pp=2), software=software)
        return simulate(TrainingJob(job.model, cluster, job.parallel, job.training, job.batch)).iteration_time_s

    four = Cluster("a100-80g", 1, 4)  # without factors of its own for Transformer Engine's attention
    neutral = Cluster("a100-80g", 1, 4, with_factors().override)
    assert run(neutral, "megatron") == run(four, "kernels")
    assert min(run(four, "torch"), run(four, "megatron")) > run(four, "kernels")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(dp=4, zero=3),
        Parallel(dp=4, zero=3, zero_group=2),
        Parallel(dp=4, zero=2),
        Parallel(dp=2, tp=2, pp=2, zero=1),
        Parallel(dp=2, pp=2, vpp=2, zero=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("software", ["kernels", "megatron", "torch"])
def test_against_the_reference(name: str, parallel: Parallel, software: str) -> None:
    model, items = MODELS[name]
    assert_tails_equal(job_of(model(), items(8), parallel, overlap=overlap(gradients=True), software=software))


@pytest.mark.parametrize("made", [wide, partial(wide, 4)])
def test_hidden_reductions_cost_their_share(made: Callable[[], Model]) -> None:
    """Serial kernels, reductions after the stages: hidden is what runs before the pipeline ends."""
    job = job_of(made(), text_items(8), Parallel(dp=2, zero=1), overlap=overlap(gradients=True), software="megatron")
    share = 0.37
    cluster = Cluster("h100", 1, 2, with_factors(interference=share).override)
    report = simulate(TrainingJob(job.model, cluster, job.parallel, job.training, job.batch))
    (rank,) = report.timeline.ranks
    reductions = [piece for piece in rank.outer if piece.kind is OpKind.REDUCE_SCATTER]
    hidden = sum(min(piece.end_s, report.makespan_s) - min(piece.start_s, report.makespan_s) for piece in reductions)
    lost = next(piece for piece in rank.outer if piece.name == "interference")
    assert hidden > 0
    assert lost.end_s - lost.start_s == pytest.approx(share * hidden, abs=2**-40)
    assert report.breakdown_s["interference"] == pytest.approx(share * hidden, abs=2**-40)
    step = next(piece for piece in rank.outer if piece.kind is OpKind.OPTIMIZER)
    assert step.start_s == lost.end_s


def test_nothing_hides_without_overlap_and_nothing_is_lost() -> None:
    job = job_of(gpt(), text_items(8), Parallel(dp=4, zero=3), overlap=overlap(), software="torch", fsdp="none")
    assert "interference" not in simulate(job).breakdown_s


@pytest.mark.parametrize(
    ("software", "sequence_parallel", "told", "expected"),
    [
        ("megatron", True, None, True),
        ("megatron", False, None, True),
        ("torch", True, None, False),
        ("kernels", True, None, False),
        ("megatron", True, False, False),
        ("torch", False, True, True),
    ],
)
def test_who_hides_tensor_parallel_collectives(
    software: str, sequence_parallel: bool, told: bool | None, expected: bool
) -> None:
    job = job_of(
        gpt(),
        text_items(2),
        Parallel(tp=2, sequence_parallel=sequence_parallel),
        overlap=Overlap(tensor_parallel=told),
        software=software,
    )
    assert job.overlaps_tensor_parallel is expected
    if software == "megatron" and told is None:  # without sequence parallelism since 2022
        early = replace(job, training=replace(job.training, software_date="2021-04"))
        assert early.overlaps_tensor_parallel is sequence_parallel
    told_so = job_of(
        job.model, text_items(2), job.parallel, overlap=Overlap(tensor_parallel=expected), software=software
    )
    assert simulate(job).iteration_time_s == simulate(told_so).iteration_time_s


def test_every_shipped_profile_says_where_its_factors_come_from() -> None:
    for name in list_profiles():
        profile = load_profile(name)
        assert set(profile.software) == {Software.MEGATRON, Software.TORCH}
        for key, number in profile.numbers():
            if key.startswith("software.") and number.value not in (0, 1):
                known = (Provenance.FITTED, Provenance.TRANSFERRED, Provenance.MEASURED)
                assert number.provenance in known, (name, key)


def test_factors_are_read_inherited_and_overridden(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\n[software.torch]\nmatmul = 1.5\n')
    profile = load_profile(str(path))
    torch = profile.software[Software.TORCH]
    shipped = load_profile("h100").software[Software.TORCH]
    assert (torch.matmul.value, torch.matmul.provenance) == (1.5, Provenance.SPEC)
    assert (torch.memory_bound.value, torch.memory_bound.provenance) == (shipped.memory_bound.value, Provenance.FITTED)
    path.write_text('base = "h100"\nmem_bytes_per_s = 3e12\n')  # another device
    other = load_profile(str(path)).software[Software.TORCH]
    assert other.memory_bound.value == shipped.memory_bound.value
    assert other.memory_bound.provenance is Provenance.TRANSFERRED
    assert profile.number("software.torch.matmul").value == 1.5
    job = load_run("lm-7b", ["training.software=torch", "cluster.override.software.torch.attention=9"])
    assert job.training.software is Software.TORCH
    assert job.cluster.profile.software[Software.TORCH].attention.value == 9


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[software.megatron]\nmatmul = 0.9\n", "software.megatron.matmul"),
        ("[software.megatron]\nsoftmax = 1.0\n", "software.megatron.softmax"),
        ("[software.jax]\nmatmul = 1.0\n", "software.jax"),
        ("[software.kernels]\nmatmul = 1.0\n", "software.kernels"),
        ("[software.torch]\ninterference = -1\n", "software.torch.interference"),
    ],
)
def test_bad_factors_are_refused_with_their_place(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "h100"\n{text}')
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    assert where in str(caught.value.where)


def test_an_unknown_software_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Training(software="pytorch")
    assert (caught.value.where, caught.value.nearest) == ("training.software", "torch")


def test_a_profile_made_by_hand_has_no_factors() -> None:
    shipped = load_profile("h100")
    bare = DeviceProfile(
        **{name: getattr(shipped, name) for name in shipped.__dataclass_fields__ if name not in ("software",)}
    )
    assert bare.under(Software.TORCH) is bare


@pytest.mark.parametrize("name", MODELS)
def test_transfers_between_pipeline_ranks_take_longer_and_nothing_else(name: str) -> None:
    model, items = MODELS[name]

    def run(seconds: float) -> Report:
        cluster = Cluster("h100", 1, 2, with_factors(transfer_s=seconds).override)
        job = job_of(model(), items(4), Parallel(pp=2), overlap=overlap())
        return simulate(TrainingJob(job.model, cluster, job.parallel, job.training, job.batch))

    short, late = run(0.0), run(2**-10)
    for before, after in zip(short.timeline.ranks, late.timeline.ranks, strict=True):
        sends = [[piece for piece in rank.outer if piece.kind is OpKind.P2P] for rank in (before, after)]
        lasted = [[piece.end_s - piece.start_s for piece in own] for own in sends]
        assert lasted[1] == [seconds + 2**-10 for seconds in lasted[0]]
        stages = [[stage.end_s - stage.start_s for stage in rank.stages] for rank in (before, after)]
        assert stages[0] == stages[1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("group", [None, 2])
def test_fsdp_keeps_one_copy_of_its_shards(name: str, group: int | None) -> None:
    """fp32 parameters and two moments, fp32 gradients: 16 bytes of a shard's element, 18 with a 16-bit copy."""
    model, items = MODELS[name]
    parallel = Parallel(dp=4, zero=3, zero_group=group)
    reports = {
        software: simulate(job_of(model(), items(4), parallel, software=software)) for software in ("torch", "megatron")
    }
    shard = -(-model().num_parameters() // (group or 4))
    assert reports["torch"].static_memory_bytes == (16 * shard,)
    assert reports["megatron"].static_memory_bytes == (18 * shard,)
    assert_tails_equal(job_of(model(), items(4), parallel, software="torch", master_dtype="bf16"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("version", ["fsdp1", "fsdp2", "none"])
@pytest.mark.parametrize("grad_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_of_fsdp_against_the_reference(name: str, grad_dtype: str, version: str) -> None:
    model, items = MODELS[name]
    for parallel in (Parallel(dp=4, zero=3), Parallel(dp=2, pp=2, zero=3)):
        options = {"software": "torch", "fsdp": version, "grad_dtype": grad_dtype}
        assert_tails_equal(job_of(model(), items(4), parallel, overlap=overlap(gradients=True), **options))


def test_what_fsdp_copies() -> None:
    """Bytes of a parameter over two ranks, with fp32 masters: 3 for the cast shard; FSDP2 copies what was gathered (4)
    and casts gradients into the buffer (6); FSDP1 joins (4), casts (6) and divides (8) them."""
    assert Fsdp.FIRST.gather_bytes(1000, DType.BF16, DType.FP32, 2) == 3000
    assert Fsdp.SECOND.gather_bytes(1000, DType.BF16, DType.FP32, 2) == 7000
    assert Fsdp.SECOND.reduce_bytes(1000, DType.BF16, DType.FP32) == 6000
    assert Fsdp.FIRST.reduce_bytes(1000, DType.BF16, DType.FP32) == 18000
    assert Fsdp.FIRST.reduce_bytes(1000, DType.BF16, DType.BF16) == 8000
    assert (
        Fsdp.NONE.gather_bytes(1000, DType.BF16, DType.FP32, 2)
        == Fsdp.NONE.reduce_bytes(9, DType.BF16, DType.BF16)
        == 0
    )


def test_which_fsdp_a_date_has() -> None:
    def version(**options: object) -> Fsdp:
        return job_of(gpt(), text_items(8), Parallel(dp=4, zero=3), **options).fsdp

    assert version(software="torch") is Fsdp.SECOND
    assert version(software="torch", software_date="2023-10") is Fsdp.FIRST
    assert version(software="torch", fsdp="none") is version(software="megatron") is Fsdp.NONE


def test_autograd_adds_every_gradient() -> None:
    """Of DistributedDataParallel and ZeRO-1; FSDP's gradients are new in every microbatch."""
    for zero, fuses in ((0, False), (1, False), (3, True)):
        job = job_of(gpt(), text_items(8), Parallel(dp=4, zero=zero), software="torch")
        assert job.fuses_accumulation is fuses
        assert job_of(gpt(), text_items(8), Parallel(dp=4, zero=zero)).fuses_accumulation


def test_a_factor_depends_on_device_kernel_precision_software_and_date_alone() -> None:
    """Two jobs that differ in model, batch, layout, sharding, recomputation and schedule find one device: same
    coefficients, object by object."""
    options = {"software": "torch", "software_date": "2023-10", "attention_kernel": "triton-fa1"}
    one = job_of(gpt(), text_items(8), Parallel(dp=4, zero=3), **options)
    others = [
        job_of(vlm(), vlm_items(4), Parallel(dp=2, pp=2, zero=1), recompute="full", **options),
        job_of(wide(), text_items(16), Parallel(tp=2, pp=2, vpp=2), eager_modules=True, grad_dtype="bf16", **options),
        job_of(gpt(), text_items(8), Parallel(dp=4, zero=1, zero_group=2), optimizer="sgd", **options),
    ]
    for other in others:
        assert other.profile == one.profile
        assert other.attention_factors == one.attention_factors
    assert job_of(gpt(), text_items(8), Parallel(dp=4), **{**options, "software": "megatron"}).profile != one.profile
    assert job_of(gpt(), text_items(8), Parallel(dp=4), **{**options, "attention_kernel": "fa2"}).profile != one.profile
