"""``semu.evaluate`` against ``semu.simulate``, bit for bit; what is remembered of a model goes when
the model changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.models.test_experts import moe
from simulation.reference.expansion import expand

import semu
from semu import memo
from semu.engine.kernels.pipeline_memory import exact_summit
from semu.job import TrainingJob
from semu.nn.layers.transformer import MLP
from semu.nn.model import Model
from semu.parallel.modules import ModuleParallel
from semu.present.estimate import Estimate
from semu.simulation.memory.memory_events import MemoryEvents
from semu.simulation.memory.ranks import _precedence

FIGURES = tuple(item.name for item in fields(Estimate) if item.name != "reserve")


def figures(found: object) -> dict[str, object]:
    return {name: getattr(found, name) for name in (*FIGURES, "reserved_memory_bytes", "fits")}


def random_job(seed: int) -> TrainingJob:
    """Any model, parallelism and options; a third of the jobs run one microbatch again and again."""
    random = Random(seed)
    model, items = random.choice([(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
    dp, tp, pp, vpp = random.choice(
        [(1, 1, 4, 1), (1, 2, 3, 1), (2, 1, 2, 2), (3, 2, 1, 1), (2, 2, 2, 1), (4, 1, 2, 1), (1, 4, 2, 2), (2, 1, 1, 1)]
    )
    count = dp * pp * random.randint(1, 3)
    own = items(count, seed=seed)
    zero = random.choice([0, 1, 2, 3])
    return job_of(
        model(layers=random.randint(3, 5)),
        own[:1] * count if seed % 3 == 0 else own,
        semu.Parallel(
            dp=dp,
            tp=tp,
            pp=pp,
            vpp=vpp,
            sequence_parallel=random.random() < 0.7,
            zero=zero,
            reshard_after_forward=random.random() < 0.6,
        ),
        overlap=overlap(
            tensor=random.random() < 0.5,
            pipeline=random.random() < 0.5,
            gradients=random.random() < 0.5,
            parameters=random.random() < 0.5,
        ),
        schedule="1f1b" if vpp > 1 else random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full", "selective"]),
        precision=random.choice(["bf16", "fp8"] if tp == 1 else ["bf16"]),
        gradient_clipping=random.random() < 0.3,
        overhead_s=random.choice([0.0, 0.01]),
        workspaces=random.choice(["none", "transformer_engine"]),
        gpus_per_node=random.choice([0, dp * tp * pp // 2 if dp * tp * pp % 2 == 0 else 0]),
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(40))
def test_the_figures_of_simulate(seed: int) -> None:
    found = semu.evaluate(random_job(seed))
    again, report = semu.evaluate(random_job(seed)), semu.simulate(random_job(seed))
    assert figures(found) == figures(again) == figures(report)


FEATURES = ("launch", "modules", "experts", "context", "blockwise", "offload")


def job_with(feature: str, seed: int) -> TrainingJob:
    """A job of any sizes with one of the features; half of them run one microbatch again and again."""
    random = Random(seed)
    model, items, names = random.choice(
        [(gpt, text_items, ["llm"]), (vlm, vlm_items, ["vit"]), (t2v, t2v_items, ["dit"])]
    )
    if feature == "modules":
        model, items, names = random.choice([(vlm, vlm_items, ["vit"]), (t2v, t2v_items, ["dit"])])
    if feature == "experts":
        model, items = moe, text_items
    tp = 1 if feature == "blockwise" else 2
    sizes: dict[str, Any] = {
        "dp": 2,
        "tp": random.choice([1, tp]),
        "pp": random.choice([1, 2, 3]),
        "zero": random.randint(0, 1),
    }
    options: dict[str, Any] = {
        "launch": {"launch": True, "override": {"host": {"launch_s": random.choice([2e-6, 2e-5])}}},
        "blockwise": {"precision": "fp8", "fp8_recipe": "blockwise"},
        "offload": {"offload": random.choice([["activations"], ["optimizer"], ["activations", "optimizer"]])},
    }.get(feature, {})
    if feature == "modules":
        own = ModuleParallel(tp=1) if random.random() < 0.7 else ModuleParallel(sequence_parallel=False)
        sizes |= {"tp": 2, "modules": {names[0]: own}}
    if feature == "experts":
        sizes |= {"ep": 2, "etp": 1, "zero": random.randint(0, 3), "reshard_after_forward": random.random() < 0.6}
    if feature == "context":
        sizes |= {"cp": 2, "cp_kind": random.choice(["ring", "all_gather", "all_to_all"])}
    count = 2 * random.randint(1, 3)
    return job_of(
        model(layers=random.randint(3, 4)),
        items(1, seed=seed) * count if random.random() < 0.5 else items(count, seed=seed),
        semu.Parallel(**sizes),
        overlap=overlap(
            tensor=random.random() < 0.5,
            pipeline=random.random() < 0.5,
            gradients=random.random() < 0.5,
            parameters=random.random() < 0.5,
        ),
        recompute=random.choice(["none", "full", "selective"]),
        software=random.choice(["megatron", "torch", "kernels"]),
        workspaces=random.choice(["none", "transformer_engine"]),
        gpus_per_node=random.choice([0, 2 * sizes["tp"]]),
        **options,
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("feature", FEATURES)
def test_the_figures_of_simulate_with(feature: str, seed: int) -> None:
    memo.clear()
    cold = figures(semu.evaluate(job_with(feature, seed)))
    job = job_with(feature, seed)
    found, again, report = semu.evaluate(job), semu.evaluate(job), semu.simulate(job)
    assert cold == figures(found) == figures(again) == figures(report)


DENSE = semu.Parallel(dp=2, tp=2, pp=2)
CHANGES: dict[str, Callable[[TrainingJob], TrainingJob]] = {
    **{
        name: lambda job, name=name, value=value: trained(job, **{name: value})
        for name, value in {
            "launch": True,
            "software": "torch",
            "precision": "fp8",
            "offload": ["activations"],
            "grad_dtype": "bf16",
            "master_dtype": "bf16",
            "optimizer_state_dtype": "bf16",
            "cross_entropy": "unfused",
            "gradient_accumulation_fusion": False,
            "workspaces": "transformer_engine",
            "gradient_clipping": True,
            "overhead_s": 0.5,
            "recompute": "full",
            "schedule": "gpipe",
            "attention": "unfused",
            "global_batch": 4,
        }.items()
    },
    "optimizer on the host": lambda job: trained(job, offload=["optimizer"]),
    "weights on the host": lambda job: trained(job, offload=["weights", "activations"], offload_fraction=0.5),
    "no overlap": lambda job: trained(job, overlap=overlap()),
    "every second layer": lambda job: trained(job, recompute="full", recompute_every=2),
    "products are kept": lambda job: trained(job, recompute="full", recompute_policy="every_second_matmul"),
    "modules": lambda job: spread(job, modules={"vit": ModuleParallel(tp=1)}),
    "sequence": lambda job: spread(job, sequence_parallel=False),
    "zero": lambda job: spread(job, zero=0),
    "context": lambda job: spread(job, dp=1, cp=2),
    "all-gathered context": lambda job: spread(job, dp=1, cp=2, cp_kind="all_gather"),
    "layers": lambda job: spread(job, partition="layers") if len(job.model.modules) == 1 else spread(job, vpp=2),
    "latency": lambda job: spread(job, partition="latency"),
    "virtual stages": lambda job: trained(spread(job, vpp=2), schedule="interleaved"),
    "data parallel": lambda job: spread(job, dp=4, pp=1),
    "tensor parallel": lambda job: spread(job, dp=1, tp=4),
    "small nodes": lambda job: replace(job, cluster=replace(job.cluster, nodes=4, gpus_per_node=2)),
    "slow memory": lambda job: replace(job, cluster=replace(job.cluster, override={"mem_bytes_per_s": 1.1e12})),
    "slow host": lambda job: trained(
        replace(job, cluster=replace(job.cluster, override={"host": {"launch_s": 5e-5}})), launch=True
    ),
    "another device": lambda job: replace(job, cluster=replace(job.cluster, device="h100")),
}
FP8: dict[str, Callable[[TrainingJob], TrainingJob]] = {
    "blockwise": lambda job: trained(job, fp8_recipe="blockwise"),
    "weights in every microbatch": lambda job: trained(job, fp8_weights="microbatch"),
    "primary weights": lambda job: trained(job, fp8_weights="primary"),
}
EXPERTS: dict[str, Callable[[TrainingJob], TrainingJob]] = {
    "dense": lambda job: spread(job, ep=1),
    "split otherwise": lambda job: spread(job, etp=1),
    "whole": lambda job: spread(job, ep=1, etp=1),
    "imbalance": lambda job: trained(job, moe_imbalance=1.5),
    "capacity": lambda job: trained(job, moe_capacity_factor=0.5),
    "single products": lambda job: trained(job, moe_grouped_gemm=False),
    "small nodes": lambda job: replace(job, cluster=replace(job.cluster, nodes=4, gpus_per_node=2)),
}


def trained(job: TrainingJob, **changes: object) -> TrainingJob:
    own = {item.name: getattr(job.training, item.name) for item in fields(job.training)} | changes
    return TrainingJob(job.model, job.cluster, job.parallel, semu.Training(**own), job.batch)


def spread(job: TrainingJob, **changes: Any) -> TrainingJob:
    return TrainingJob(job.model, job.cluster, replace(job.parallel, **changes), job.training, job.batch)


def assert_apart(make: Callable[[], TrainingJob], change: Callable[[TrainingJob], TrainingJob]) -> None:
    """A, B, A in one process are as each of them alone, and the settings do change something."""
    memo.clear()
    cold = figures(semu.evaluate(make()))
    memo.clear()
    other = figures(semu.evaluate(change(make())))
    memo.clear()
    job = make()
    warm = [figures(semu.evaluate(each)) for each in (job, change(job), job, change(job))]
    assert warm == [cold, other, cold, other]
    assert cold != other


@pytest.mark.sampled(2)
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_jobs_that_differ_in_one_setting(name: str, equal: bool) -> None:
    model, items = (vlm, vlm_items) if name in ("modules", "layers", "latency") else (gpt, text_items)

    def make() -> TrainingJob:
        batch = items(1) * 8 if equal else items(8)
        hidden = overlap(tensor=True, gradients=True, parameters=True)
        job = job_of(model(layers=4), batch, DENSE, overlap=hidden, override={"host": {"launch_s": 2e-5}})
        return trained(job, software="megatron")

    assert_apart(make, CHANGES[name])


@pytest.mark.parametrize("name", FP8)
def test_jobs_that_differ_in_their_fp8(name: str) -> None:
    assert_apart(lambda: job_of(gpt(), text_items(4), semu.Parallel(dp=2, pp=2), precision="fp8"), FP8[name])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EXPERTS)
def test_jobs_that_differ_in_their_experts(name: str) -> None:
    own, hidden = replace(DENSE, ep=2), overlap(gradients=True)
    assert_apart(
        lambda: job_of(moe(layers=2), text_items(4), own, overlap=hidden, workspaces="transformer_engine"),
        EXPERTS[name],
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_one_model_under_many_settings(seed: int) -> None:
    """What is remembered of a model never reaches a job with other settings."""
    random = Random(seed)
    model = random.choice([gpt, vlm])(layers=4)
    items = (text_items if model.name.startswith("tiny-gpt") or len(model.modules) == 1 else vlm_items)(8)
    jobs = [
        job_of(
            model,
            random.choice([items, items[:1] * 8]),
            semu.Parallel(dp=dp, tp=tp, pp=pp, zero=zero, sequence_parallel=sequence),
            overlap=overlap(tensor=tensor, gradients=True, parameters=random.random() < 0.5),
            recompute=random.choice(["none", "full", "selective"]),
            recompute_layers=None,
            attention=random.choice(["fused", "unfused"]),
            grad_dtype=random.choice(["fp32", "bf16"]),
        )
        for dp, tp, pp, zero, sequence, tensor in [
            (1, 1, 1, 0, True, False),
            (2, 1, 1, 2, True, False),
            (2, 2, 2, 1, True, True),
            (2, 2, 2, 0, False, False),
            (1, 2, 4, 1, True, False),
            (4, 1, 1, 3, True, False),
            (2, 1, 2, 1, True, False),
        ]
    ]
    random.shuffle(jobs)
    warm = [figures(semu.evaluate(job)) for job in jobs for _ in range(2)][::2]
    fresh = []
    for job in jobs:
        other = random.choice([gpt])(layers=4) if len(model.modules) == 1 else vlm(layers=4)
        fresh.append(figures(semu.evaluate(TrainingJob(other, job.cluster, job.parallel, job.training, job.batch))))
    assert warm == fresh


@pytest.mark.parametrize(("dp", "tp", "pp", "vpp"), [(1, 1, 3, 1), (2, 1, 2, 2), (2, 2, 1, 1), (2, 1, 4, 1)])
def test_equal_microbatches_against_the_reference(dp: int, tp: int, pp: int, vpp: int) -> None:
    own = semu.Parallel(dp=dp, tp=tp, pp=pp, vpp=vpp)
    items = text_items(1) * (dp * pp * 2)
    job = job_of(gpt(layers=5), items, own, overlap=overlap(gradients=True))
    assert_equal(semu.simulate(job), expand(job))


def test_equal_microbatches_are_no_special_case() -> None:
    """One microbatch again and again, and the same ones made anew; parameters come late."""
    own = semu.Parallel(dp=2, tp=1, pp=2, vpp=2)
    hidden = overlap(gradients=True, parameters=True)
    same = semu.evaluate(job_of(gpt(layers=5), text_items(1) * 8, own, overlap=hidden))
    anew = semu.evaluate(job_of(gpt(layers=5), [text_items(1)[0] for _ in range(8)], own, overlap=hidden))
    assert figures(same) == figures(anew)


def _freeze(model: Model) -> None:
    model.freeze([f"{model.modules[0].name}.layers.0"])


def _unfreeze_one(model: Model) -> None:
    next(parameter for _, parameter in model.named_parameters()).requires_grad = False


@pytest.mark.parametrize("change", [_freeze, _unfreeze_one])
def test_a_model_that_changes_is_looked_at_again(change: Callable[[Model], None]) -> None:
    model, other = gpt(), gpt()
    change(other)
    before = figures(semu.evaluate(job_of(model, text_items(4), semu.Parallel(pp=2))))
    change(model)
    after = figures(semu.evaluate(job_of(model, text_items(4), semu.Parallel(pp=2))))
    assert after == figures(semu.evaluate(job_of(other, text_items(4), semu.Parallel(pp=2))))
    assert after != before


def test_a_class_that_changes_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(gpt(), text_items(2))
    before = semu.evaluate(job)
    forward = MLP.forward

    def twice(self: MLP, x: semu.nn.Tensor) -> semu.nn.Tensor:
        return forward(self, forward(self, x))

    monkeypatch.setattr(MLP, "forward", twice)
    assert semu.evaluate(job).iteration_time_s > before.iteration_time_s
    monkeypatch.undo()
    assert figures(semu.evaluate(job)) == figures(before)


def test_custom_latencies_are_not_remembered() -> None:
    job = job_of(gpt(), text_items(4), semu.Parallel(pp=2))
    before = figures(semu.evaluate(job))
    slow = semu.evaluate(job, latency_rules={semu.OpKind.MATMUL: lambda seen: seen.default_s * 2})
    assert slow.iteration_time_s > semu.evaluate(job).iteration_time_s
    assert figures(semu.evaluate(job)) == before


sizes = st.integers(-6, 6)


@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    net=st.lists(sizes, min_size=6, max_size=6),
    outside=st.lists(st.tuples(st.integers(0, 12), sizes), max_size=8),
    inner=st.lists(st.tuples(st.integers(0, 3), sizes), max_size=5),
    number=st.integers(0, 5),
)
def test_the_exact_summit_of_a_stage(
    lengths: list[int], net: list[int], outside: list[tuple[int, int]], inner: list[tuple[int, int]], number: int
) -> None:
    """Against all events in a row, sorted at once."""
    position = number % len(lengths)
    ends = np.cumsum(lengths).astype(np.float64)
    begin, stop = ends[position] - lengths[position], ends[position]
    ground = sorted(outside)
    events = MemoryEvents(
        np.array([time for time, _ in ground], dtype=np.float64).reshape(1, -1),
        np.array([size for _, size in ground], dtype=np.int64).reshape(1, -1),
    )
    own = sorted((min(time, lengths[position]), size) for time, size in inner)
    within = np.array([time for time, _ in own], dtype=np.float64)
    change = np.array([size for _, size in own], dtype=np.int64)
    sums = np.array(net[: len(lengths)], dtype=np.int64)
    found = exact_summit(begin, stop, position, ends, sums, events.time[0], events.size[0], within, change)

    level = sum(size for time, size in ground if time < begin) + int(sums[ends < begin].sum())
    around = [(time, size) for time, size in ground if begin <= time <= stop]
    others = [i for i in range(len(lengths)) if begin <= ends[i] <= stop and i != position]
    before, after = [i for i in others if i < position], [i for i in others if i > position]
    steps = [size for _, size in around] + [sums[i] for i in before] + change.tolist() + [sums[i] for i in after]
    times = [time for time, _ in around] + [ends[i] for i in before]
    times += (begin + within).tolist() + [ends[i] for i in after]
    rank = _precedence(len(times), np.array([size for _, size in around], dtype=np.int64))
    order = np.lexsort((rank, np.array(times, dtype=np.float64)))
    total = level + np.cumsum(np.array(steps, dtype=np.int64)[order])
    ordered = np.array(times, dtype=np.float64)[order]
    first = int((ordered == ordered[:1]).sum())
    if first and total[:first].max() <= level:
        total = total[first - 1 :]
    assert found == int(total.max(initial=0))
