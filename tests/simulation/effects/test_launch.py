"""CPU launch through ``semu.simulate``: against the slow reference, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.comparison import assert_equal, assert_tails_equal
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
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.runfile import load_run
from semu.simulation import simulate
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig
from semu_models.text.mixtral import Mixtral, MixtralConfig

MODELS: dict[str, tuple[Any, Any]] = {
    "text": (gpt, text_items),
    "vlm": (vlm, vlm_items),
    "t2v": (t2v, t2v_items),
    "carry": (carry_along, text_items),
    "attention": (attention_encoder, text_items),
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    launch_us=st.sampled_from([0.0, 0.5, 2.0, 4.0, 7.3, 30.0, 200.0]),
    shape=st.sampled_from([(1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 1, 3), (3, 1, 1), (1, 4, 1)]),
    pipeline=st.booleans(),
    tensor=st.booleans(),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    recompute=st.sampled_from(["none", "full"]),
    count=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_any_job_as_the_reference(
    kind: str,
    launch_us: float,
    shape: tuple[int, int, int],
    pipeline: bool,
    tensor: bool,
    schedule: str,
    recompute: str,
    count: int,
    seed: int,
) -> None:
    model, items = MODELS[kind]
    dp, tp, pp = shape
    job = job_of(
        model(),
        items(dp * count, seed=seed),
        Parallel(dp=dp, tp=tp if model in (gpt, vlm, t2v) else 1, pp=min(pp, 2) if model is attention_encoder else pp),
        overlap=overlap(tensor=tensor and tp > 1, pipeline=pipeline),
        schedule=schedule,
        recompute=recompute,
        launch=True,
        override={"host": {"launch_s": launch_us * 1e-6}},
    )
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("launch_us", [3.0, 20.0])
@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(dp=2),
        Parallel(dp=2, pp=2, zero=1),
        Parallel(pp=2, vpp=2),
        Parallel(dp=2, zero=2),
        Parallel(dp=2, zero=3),
        Parallel(cp=2),
    ],
    ids=["dp", "zero1", "vpp", "zero2", "zero3", "cp"],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_iterations_as_the_reference(parallel: Parallel, gradients: bool, launch_us: float) -> None:
    choices: list[dict[str, Any]] = [{}, {"offload": "activations"}, {"offload": "weights"}]
    for options in choices:
        if options.get("offload") == "activations" and (parallel.cp > 1 or parallel.zero >= 2):
            continue
        job = job_of(
            gpt(4),
            text_items(4),
            parallel,
            overlap=overlap(gradients=gradients),
            launch=True,
            software="kernels",
            override={"host": {"launch_s": launch_us * 1e-6}},
            **options,
        )
        if parallel.zero >= 2:
            assert_equal(simulate(job), expand(job))
        else:
            assert_tails_equal(job)


@pytest.mark.parametrize("launch_us", [1.0, 15.0])
@pytest.mark.parametrize("pp", [1, 2])
def test_parameters_and_launches_together(pp: int, launch_us: float) -> None:
    items = text_items(6)
    job, free = (
        job_of(
            gpt(4),
            items,
            Parallel(dp=dp, pp=pp, zero=zero),
            overlap=overlap(parameters=True),
            launch=True,
            software="kernels",
            override={"host": {"launch_s": launch_us * 1e-6}},
        )
        for dp, zero in ((2, 1), (2, 0))
    )
    report = simulate(job)
    assert_equal(report, expand(job, gather_times(expand(free))))
    breakdown = report.breakdown_s
    assert launch_us == 1 or breakdown["launch"] > 0  # type: ignore[operator]
    assert breakdown["other"] == pytest.approx(0, abs=1e-12)


# -- by hand -------------------------------------------------------------------------------------------------------
SEQ = 64


def small_gpt(layers: int = 2) -> Model:
    return Model.from_module(GPT(GPTConfig(layers, 64, heads=4, vocab=256, positions=SEQ)), name="llm")


def small_llama(layers: int = 2) -> Model:
    return Model.from_module(Llama(LlamaConfig(layers, 64, 192, heads=4, kv_heads=2, vocab=256)), name="llm")


def big_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(2, 4096, heads=32, vocab=8192, positions=4096)), name="llm")


def big_llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(2, 4096, 11008, heads=32, kv_heads=8, vocab=8192)), name="llm")


def run(model: Model, launch_us: float, *, launch: bool = True, seq: int = SEQ, pp: int = 1, **options: Any) -> Any:
    cluster = Cluster("h100", 1, pp, {"host": {"launch_s": launch_us * 1e-6}})
    training = Training(1, 3, seq, launch=launch, software="kernels", **options)
    return semu.simulate(TrainingJob(model, cluster, Parallel(pp=pp), training))


@pytest.mark.parametrize("build", [small_gpt, small_llama])
def test_where_every_kernel_is_shorter_than_a_launch(build: Any) -> None:
    """n launches, then the last kernel: nothing else is in the time of the stages."""
    plain = run(build(), 0, launch=False)
    stages = plain.timeline.ranks[0]
    operators = [stages.expand(number) for number in range(len(stages.stages))]
    lasts = [(o.end_s - o.start_s) for o in operators]
    launch = 2.0**-10  # 977 us, on the time grid
    assert max(float(own.max()) for own in lasts) < launch
    count = sum(len(own) for own in lasts)
    report = run(build(), launch * 1e6)
    assert report.makespan_s == count * launch + lasts[-1][-1]
    assert report.iteration_time_s - report.makespan_s == plain.iteration_time_s - plain.makespan_s
    assert report.breakdown_s["launch"] == report.makespan_s - plain.makespan_s
    assert report.breakdown_s["compute"] == plain.breakdown_s["compute"]
    assert report.bubble_ratio == 0
    assert report.peak_memory_bytes == plain.peak_memory_bytes
    starts = [
        start for number in range(len(stages.stages)) for start in report.timeline.ranks[0].expand(number).start_s
    ]
    assert starts == [(number + 1) * launch for number in range(count)]


@pytest.mark.parametrize("build", [big_gpt, big_llama])
def test_a_big_model_pays_for_its_first_launch_alone(build: Any) -> None:
    """The device is slower than the host from the first product on: what comes before it waits."""
    plain, report = run(build(), 4, launch=False, seq=4096), run(build(), 4, seq=4096)
    first = semu.units.quantize_time(4e-6)
    lost = report.makespan_s - plain.makespan_s
    assert first <= lost <= 2 * first
    assert report.breakdown_s["launch"] == lost
    assert lost < 1e-3 * plain.makespan_s


@pytest.mark.parametrize("build", [small_gpt, small_llama])
def test_a_pipeline_that_synchronises_begins_every_stage_with_a_launch(build: Any) -> None:
    """Launches of 30 us, kernels of less: a stage behind a transfer takes all its launches and its last kernel. The
    last rank's backward follows its forward without one, as the first rank's forward follows a backward; there the host
    is ahead by the last kernel before."""
    launch = semu.units.quantize_time(30e-6)
    report = run(build(), 30, pp=2)
    for rank in report.timeline.ranks:
        for number, stage in enumerate(rank.stages):
            operators = rank.expand(number)
            last = operators.end_s[-1] - operators.start_s[-1]
            ahead = 0.0
            follows = "F" if rank.rank == 1 else "B"
            if number and rank.stages[number - 1].phase.value == follows != stage.phase.value:
                before = rank.expand(number - 1)
                ahead = before.end_s[-1] - before.start_s[-1]
            assert stage.end_s - stage.start_s == len(operators.start_s) * launch - ahead + last, stage.label


@pytest.mark.parametrize(
    ("build", "software", "forward", "backward"),
    [
        # 2 norms, 4 products, attention and its copies, GELU, 2 residuals; 2 norms of two kernels, 4 products of three,
        # 4 biases, attention, the gradients of queries, keys and values joined, GELU, 2 sums at the branches
        (small_gpt, "torch", 2 + 4 + 4 + 1 + 2, 4 + 12 + 4 + 6 + 1 + 1 + 2),
        # the same with norms of 8 and 2 + 15 kernels, queries and keys rotated by 3 each, a gate of 2 and 3
        (small_llama, "torch", 16 + 4 + 6 + 4 + 2 + 2, 34 + 12 + 6 + 6 + 1 + 3 + 2),
    ],
    ids=["gpt", "llama"],
)
def test_an_eager_layer_is_as_many_launches_as_it_has_kernels(
    build: Any, software: str, forward: int, backward: int
) -> None:
    launch = 2.0**-10

    def _makespan(layers: int) -> float:
        cluster = Cluster("h100", 1, 1, {"host": {"eager_launch_s": launch}})
        training = Training(1, 3, SEQ, software=software, eager_modules=True)
        return semu.simulate(TrainingJob(build(layers), cluster, Parallel(), training)).makespan_s

    assert _makespan(3) - _makespan(2) == pytest.approx(3 * (forward + backward) * launch, rel=1e-9)


@pytest.mark.parametrize("kind", ["text", "vlm"])
@pytest.mark.parametrize("launch_us", [1.0, 26.0])
def test_eager_jobs_as_the_reference(kind: str, launch_us: float) -> None:
    model, items = MODELS[kind]
    options: dict[str, Any] = {"software": "torch", "eager_modules": True}
    options["override"] = {"host": {"eager_launch_s": launch_us * 1e-6}}
    for parallel in (Parallel(pp=2), Parallel(tp=2, sequence_parallel=True)):
        job = job_of(model(), items(2), parallel, **options)
        assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("kind", ["text", "vlm"])
@pytest.mark.parametrize(("parallel", "per_node"), [("pp2 tp2", 2), ("pp4", 2), ("pp2 tp4", 2), ("pp3 tp2", 4)])
def test_hosts_that_move_messages_as_the_reference(kind: str, parallel: str, per_node: int) -> None:
    model, items = MODELS[kind]
    sizes = {item[:2]: int(item[2:]) for item in parallel.split()}
    options: dict[str, Any] = {"software": "torch", "eager_modules": True, "gpus_per_node": per_node}
    options["override"] = {"host": {"eager_launch_s": 8e-6, "transfer_stall": 0.5}}
    layout = Parallel(**sizes, dp=2 if parallel == "pp3 tp2" else 1, sequence_parallel="tp" in sizes)
    job = job_of(model(), items(4), layout, **options)
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize(("name", "ranks"), [("gpt", 2), ("gpt", 4), ("llama", 2)])
def test_a_network_that_needs_hosts_slows_launches_of_tensor_groups(name: str, ranks: int) -> None:
    """Launches of 1 ms, beside which the GPU does nothing: an iteration is as long as its launches."""

    def _time(tp: int, nodes: int, fabric: str | None, *, pp: int = 2) -> float:
        per_node = tp * pp // nodes
        cluster = Cluster("h100", nodes, per_node, {"host": {"eager_launch_s": 1e-3}}, fabric=fabric)
        training = Training(1, 4, SEQ, software="torch", eager_modules=True)
        return semu.simulate(TrainingJob(model, cluster, Parallel(pp=pp, tp=tp), training)).makespan_s

    model = {"gpt": small_gpt, "llama": small_llama}[name](4)
    assert _time(ranks, 2, "efa") / _time(ranks, 2, None) == pytest.approx(1 + 0.6 * (ranks - 1), rel=0.02)
    assert _time(ranks, 1, "efa") == _time(ranks, 1, None)  # no transfer crosses nodes
    assert _time(1, 2, "efa") == pytest.approx(_time(1, 2, None), rel=0.02)
    assert _time(ranks, 2, "efa", pp=1) == pytest.approx(_time(ranks, 2, None, pp=1), rel=0.02)  # no transfers


def test_the_stall_of_hosts_is_said_and_uncertain() -> None:
    def _report(**override: Any) -> Any:
        cluster = Cluster("h100", 2, 2, {"host": override}, fabric="efa")
        training = Training(1, 4, SEQ, software="torch", eager_modules=True)
        return semu.simulate(TrainingJob(small_llama(4), cluster, Parallel(pp=2, tp=2), training))

    slow, quick = _report(), _report(transfer_stall=0)
    said = slow.to_json()["job"]["training"]
    assert said["transfer_stall"] == {"value": 0.6, "provenance": "fitted"}
    assert "transfer_stall" not in quick.to_json()["job"]["training"]
    kinds = {item.kind: item for item in slow.uncertainty.kinds}
    launch, stall = kinds["host.eager_launch_s"], kinds["host.transfer_stall"]
    assert stall.time_s == pytest.approx(0.6 * launch.time_s) and stall.spread > launch.spread
    assert "host.transfer_stall" not in {item.kind for item in quick.uncertainty.kinds}
    with pytest.raises(ConfigError) as caught:
        _report(transfer_stall=-1)
    assert caught.value.where == "cluster.override.host.transfer_stall"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["text", "vlm"])
@pytest.mark.parametrize("launch_us", [1.0, 40.0])
@pytest.mark.parametrize("pipeline", [False, True])
def test_launches_that_block_as_the_reference(kind: str, launch_us: float, pipeline: bool) -> None:
    model, items = MODELS[kind]
    override = {"host": {"blocking_launch_s": launch_us * 1e-6}}
    options: dict[str, Any] = {"launch_blocking": True, "override": override, "overlap": overlap(pipeline=pipeline)}
    for parallel in (Parallel(), Parallel(pp=2), Parallel(pp=2, tp=2), Parallel(tp=2, sequence_parallel=True)):
        job = job_of(model(), items(2), parallel, **options)
        assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("build", [small_gpt, big_gpt])
def test_a_kernel_behind_which_the_host_wakes_up_costs_its_launch_whatever_it_takes(build: Any) -> None:
    """Asynchronous launches hide behind kernels that are longer; these add up."""
    launch = 2.0**-14  # 61 us, on the time grid
    cluster = Cluster("h100", 1, 1, {"host": {"blocking_launch_s": launch}})

    def _makespan(layers: int, **options: Any) -> float:
        model = Model.from_module(GPT(replace(config, layers=layers)), name="llm")
        training = Training(1, 3, SEQ, software="kernels", **options)
        return semu.simulate(TrainingJob(model, cluster, Parallel(), training)).makespan_s

    config = GPTConfig(2, 64 if build is small_gpt else 4096, heads=4, vocab=256, positions=SEQ)
    plain, blocking = (_makespan(3, **options) - _makespan(2, **options) for options in ({}, {"launch_blocking": True}))
    # forward 13 and backward 22 kernels of a layer, as above without the sums of four weights' gradients
    assert blocking - plain == pytest.approx(3 * (13 + 22) * launch, rel=1e-9)


def test_it_follows_software_and_date() -> None:
    def _launches(**options: Any) -> bool:
        return Training(1, 1, SEQ, **options).launches

    assert not _launches() and not _launches(eager_modules=True) and not _launches(software="torch")
    assert _launches(software="torch", eager_modules=True) and _launches(software="torch", software_date="2023-02")
    assert not _launches(software="torch", software_date="2023-03")
    assert not _launches(software="megatron", software_date="2023-02")
    assert not _launches(software="torch", eager_modules=True, launch=False) and _launches(launch=True)
    assert not _launches(software="megatron-deepspeed", eager_modules=True)
    assert _launches(launch_blocking=True) and not _launches(launch_blocking=True, launch=False)
    assert Training(1, 1, SEQ, launch="auto") == Training(1, 1, SEQ)
    report = simulate(job_of(gpt(), text_items(2), software="torch", eager_modules=True))
    assert report.breakdown_s["launch"] > 0  # type: ignore[operator]
    assert report.to_json()["job"]["training"]["launch_s"] == {"value": 2.6e-05, "provenance": "transferred"}  # type: ignore[index]


# -- mixtures of experts under Megatron-LM ---------------------------------------------------------------------------
EXPERTS = 8


def mixture_job(layers: int, launch_s: float, **options: Any) -> TrainingJob:
    """A layer: 2 norms, 2 products, attention with 2 rotations, 2 residuals; router, dispatch to 2 ranks, 4 experts."""
    config = MixtralConfig(layers, 64, 48, heads=4, kv_heads=2, vocab=256, experts=EXPERTS, top_k=2)
    cluster = Cluster("h100", 1, 2, {"host": {"eager_launch_s": launch_s}})
    given = {"software_date": "2025-06", **options}
    return TrainingJob(Mixtral(config), cluster, Parallel(dp=2, ep=2), Training(1, 4, SEQ, **given))


def test_a_layer_with_experts_is_as_many_launches_as_its_modules_have() -> None:
    """Beside launches of 1 ms the GPU does nothing: an iteration is as long as its launches."""
    launch, local = 2.0**-10, EXPERTS // 2
    dense = (1 + 1) + (3 + 3) + 4 + 2 + 2
    router, dispatch = 3 + 10 + 15, 12 + 10 + 5 + 20 + 3 + 3 + 10 + 2
    experts = 2 * (4 + local / 3) + 1
    forward = dense + router + dispatch + experts
    back = (2 + 2) + 2 * (2 + 2) + 6 + 1 + 2  # norms, products twice, attention, its gradients joined, rotations
    back += 2  # gradients of the norms' weights
    router_back, dispatch_back = 2 + 2 + 16 + 1, 3 + 10 + 3 + 3 + 20 + 2
    experts_back = 2 * (4 + local / 3) + 2 * (4 + local / 3 + local) + 1
    backward = back + router_back + dispatch_back + experts_back
    times = [simulate(mixture_job(layers, launch)).makespan_s for layers in (2, 3)]
    assert (times[1] - times[0]) / launch / 2 == pytest.approx(forward + backward, abs=0.5)


def test_hosts_of_mixtures_follow_software_and_date() -> None:
    assert mixture_job(2, 1e-5).launches and not mixture_job(2, 1e-5, launch=False).launches
    for options in (
        {"software_date": None},
        {"software_date": "2026-08"},
        {"software": "torch"},
        {"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True},
    ):
        assert not mixture_job(2, 1e-5, **options).launches, options
    dense = TrainingJob(small_llama(2), Cluster("h100", 1, 1), None, Training(1, 4, SEQ, software_date="2025-06"))
    assert not dense.launches
    assert "launch" in simulate(mixture_job(2, 1e-5)).breakdown_s
    shared = simulate(mixture_job(2, 1e-5), contention=True)
    assert "launch" not in shared.breakdown_s and any("CPU launch time" in note for note in shared.warnings)
    alone = simulate(mixture_job(2, 1e-5, launch=False))
    assert shared.iteration_time_s >= alone.iteration_time_s


def test_hosts_that_read_counts_back_are_not_ahead_of_a_forward() -> None:
    """Long sequences, whose backwards take the device longer than the host: every forward starts a host afresh all the
    same, so that all last equally long, although the host issued each backward ahead of the device."""
    config = MixtralConfig(2, 512, 256, heads=4, kv_heads=2, vocab=256, experts=EXPERTS, top_k=2)
    cluster = Cluster("h100", 1, 2, {"host": {"eager_launch_s": 1.6e-5}})
    training = Training(1, 8, 16384, software_date="2025-06")
    report = simulate(TrainingJob(Mixtral(config), cluster, Parallel(dp=2, ep=2), training))
    stages = report.timeline.ranks[0].stages
    lasts = [stage.end_s - stage.start_s for stage in stages if stage.phase.value == "F"]
    free = simulate(TrainingJob(Mixtral(config), cluster, Parallel(dp=2, ep=2), replace(training, launch=False)))
    alone = {stage.phase.value: stage.end_s - stage.start_s for stage in free.timeline.ranks[0].stages}
    assert max(lasts) == pytest.approx(min(lasts), rel=0.01) and min(lasts) > 1.05 * alone["F"]


def test_it_is_off_unless_asked_for_and_says_so() -> None:
    off = run(small_gpt(), 4, launch=False)
    on = run(small_gpt(), 4)
    assert "launch" not in off.breakdown_s and any("CPU launch time" in note for note in off.warnings)
    assert not any("CPU launch time" in note for note in on.warnings)
    assert on.to_json()["job"]["training"]["launch_s"]["value"] == 4e-6
    assert "launch" in on.breakdown_s
    assert on.provenance["spec"] > off.provenance.get("spec", 0)  # of the overridden launch_s
    assert run(small_gpt(), 0).iteration_time_s == off.iteration_time_s


def test_sampled_iterations_keep_their_launches() -> None:
    job = job_of(gpt(), text_items(4), Parallel(dp=2, pp=2, zero=1), overlap=overlap(gradients=True), launch=True)
    report = simulate(job, samples=3)
    assert report.samples is not None
    assert report.samples.p50_s == report.iteration_time_s


def test_it_is_asked_for_in_a_run_file() -> None:
    changes = ["training.launch=true", "cluster.override.host.launch_s=20e-6", "training.micro_batch=1"]
    job = load_run("lm-7b", changes)
    assert job.training.launch and job.profile.host.launch_s.value == 20e-6
    assert load_run("lm-7b", ["training.launch=auto"]).training.launch is None


def test_a_launch_that_is_no_switch() -> None:
    with pytest.raises(ConfigError) as caught:
        Training(launch=4e-6)  # type: ignore[arg-type]
    assert caught.value.where == "training.launch"
