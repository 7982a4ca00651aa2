"""A parallelism per modality module: against the slow reference, closed forms, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import NO_OVERLAP, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times
from simulation.rooms import MIB, capacity_for

from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.simulation import simulate
from semu.simulation.memory.changes_that_fit import nearest_fit

MODELS = {"vlm": (vlm, vlm_items, "vit"), "t2v": (t2v, t2v_items, "dit"), "t2v encoder": (t2v, t2v_items, "llm")}


def job(kind: str, own: ModuleParallel | None, parallel: Parallel, count: int = 3, **options: object) -> TrainingJob:
    model, items, module = MODELS[kind]
    modules = {module: own} if own is not None else {}
    return job_of(
        model(),
        items(count * parallel.dp, seed=1),
        replace(parallel, modules=modules),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sp", "no_sp"])
@pytest.mark.parametrize(("tp", "own", "pp"), [(4, 1, 1), (4, 2, 2), (2, 1, 4), (4, 1, 3)])
def test_times_and_memory_are_the_reference_s(kind: str, tp: int, own: int, pp: int, sequence_parallel: bool) -> None:
    parallel = Parallel(tp=tp, pp=pp, sequence_parallel=sequence_parallel)
    assert_tails_equal(job(kind, ModuleParallel(tp=own), parallel))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    model, items, _ = random.choice(list(MODELS.values()))
    names = [module.name for module in model().modules]
    dp, tp, pp = random.choice([(1, 4, 2), (2, 4, 1), (2, 2, 3), (1, 2, 4), (3, 4, 2)])
    modules = {
        name: ModuleParallel(
            tp=(own := random.choice([n for n in (1, 2, 4) if tp % n == 0])),
            sequence_parallel=random.choice([None, True, False]) if own > 1 else None,
        )
        for name in random.sample(names, 1 if names[-1] == "llm" else random.randint(1, 2))
        if not (names[-1] == "llm" and name == "llm")
    }
    made = job_of(
        model(layers=random.randint(2, 4)),
        items(dp * random.randint(1, 4), seed=seed),
        Parallel(
            dp=dp, tp=tp, pp=pp, sequence_parallel=random.random() < 0.6, zero=random.randint(0, 1), modules=modules
        ),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5, gradients=random.random() < 0.5),
        schedule=random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full", "selective"]),
        gradient_clipping=random.random() < 0.5,
        gpus_per_node=dp * tp * pp if random.random() < 0.5 else tp,
    )
    assert_tails_equal(made)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("own", [ModuleParallel(cp=1), ModuleParallel(tp=1, cp=1), ModuleParallel(tp=1)], ids=str)
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (2, 2)])
def test_beside_context_parallelism(kind: str, own: ModuleParallel, tp: int, pp: int) -> None:
    for sequence_parallel in (True, False):
        parallel = Parallel(tp=tp, cp=2, pp=pp, sequence_parallel=sequence_parallel)
        assert_tails_equal(job(kind, own, parallel))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", MODELS)
def test_stages_wait_for_parameters_that_are_gathered_over_different_groups(kind: str) -> None:
    made = job(kind, ModuleParallel(tp=1), Parallel(dp=2, tp=2, pp=1), overlap=overlap(parameters=True))
    free = expand(replace(made, training=replace(made.training, overlap=NO_OVERLAP)))
    assert_equal(simulate(made), expand(made, gather_times(free)))


STRATEGIES: dict[str, dict[str, object]] = {
    "recomputed groups of layers": {"recompute": "full", "recompute_layers": 2, "recompute_method": "uniform"},
    "recomputed first layers": {"recompute": "full", "recompute_layers": 1, "recompute_method": "block"},
    "offload": {"offload": ["activations", "optimizer"]},
    "weights on the host": {"offload": ["activations", "weights"], "offload_fraction": 0.5},
    "attention in kernels": {"attention": "unfused"},
    "fp8": {"precision": "fp8"},
    "software": {"software": "torch"},
    "clipping": {"gradient_clipping": True},
    "loss scale": {"precision": "fp16", "loss_scaling": True},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["vlm", pytest.param("t2v", marks=pytest.mark.slow)])
def test_beside_everything_else(kind: str, strategy: str) -> None:
    assert_tails_equal(job(kind, ModuleParallel(tp=2), Parallel(dp=2, tp=4, pp=2), **STRATEGIES[strategy]))


@pytest.mark.parametrize("cp_kind", ["ring", "all_gather", "all_to_all"])
def test_beside_every_kind_of_context_parallelism(cp_kind: str) -> None:
    assert_tails_equal(job("t2v", ModuleParallel(tp=1), Parallel(tp=2, cp=2, pp=2, cp_kind=cp_kind)))


@pytest.mark.parametrize("frozen", [("vit",), ("llm",)], ids=str)
def test_frozen_modules(frozen: tuple[str, ...]) -> None:
    parallel = Parallel(dp=2, tp=4, pp=2, modules={"vit": ModuleParallel(tp=1)})
    assert_tails_equal(job_of(vlm(frozen=frozen), vlm_items(4), parallel))


def test_virtual_stages() -> None:
    parallel = Parallel(tp=4, pp=2, vpp=2, modules={"vit": ModuleParallel(tp=1)})
    assert_tails_equal(job_of(vlm(layers=4), vlm_items(4), parallel))


def test_a_microbatch_without_items() -> None:
    parallel = Parallel(tp=4, pp=2, modules={"vit": ModuleParallel(tp=1)})
    assert_tails_equal(job_of(vlm(), vlm_items(3, empty=(1,)), parallel))


@pytest.mark.parametrize("parallel", [Parallel(tp=4, pp=2), Parallel(tp=2, cp=2, pp=2)], ids=Parallel.label)
def test_a_text_model_of_one_module(parallel: Parallel) -> None:
    """Sequences spread over the ranks; a microbatch with one of them leaves the others without work."""
    own = ModuleParallel(tp=parallel.tp // 2, cp=1)
    assert_tails_equal(job_of(gpt(), text_items(3), replace(parallel, modules={"llm": own})))


@pytest.mark.parametrize("partition", ["layers", "latency"])
def test_stages_cut_otherwise(partition: str) -> None:
    made = job("vlm", ModuleParallel(tp=1), Parallel(tp=4, pp=2, partition=partition))
    report = simulate(made)
    assert report.model_flop == simulate(job("vlm", ModuleParallel(tp=1), Parallel(tp=4, pp=2))).model_flop
    assert len(report.timeline.ranks) == 2


def test_changes_that_fit_are_looked_for() -> None:
    parallel = Parallel(dp=2, tp=2)
    held = max(simulate(job("vlm", ModuleParallel(tp=1), parallel)).held_memory_bytes)
    override = {"memory_bytes": capacity_for(held - 8 * MIB, parallel)}
    made = job("vlm", ModuleParallel(tp=1), parallel, override=override)
    report = simulate(made)
    assert not report.fits
    assert nearest_fit(made, report, simulate)
