"""Modules on GPUs of their own, encoders that share ranks or are on every rank: against the slow reference."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import job_of, overlap, text_items, valm, valm_items, vlm, vlm_items
from simulation.reference.modules import block_of

from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.parallel.modules import ModuleParallel
from semu.schedule.stage_plan import StagePlan
from semu.searcher.grid.grid_search import grid
from semu.searcher.job_search import search
from semu.searcher.planner.planner import Planner
from semu.simulation import prepare, simulate

FROZEN = ("vit.embedding", "vit.layers", "audio.embedding", "audio.layers")
"""Encoders without their projectors."""


def own(**sizes: Any) -> ModuleParallel:
    return ModuleParallel(**sizes)


def job(model: Model, gpus: int, segments: str = "apart", count: int = 6, **options: Any) -> TrainingJob:
    """On nodes of ``gpus_per_node``, by default one."""
    parallel = Parallel(segments=segments, **options.pop("parallel", {}))
    items = (valm_items if len(model.modules) == 3 else vlm_items)(count, seed=1)
    made = job_of(model, items, Parallel(), **options)
    per_node = options.get("gpus_per_node") or gpus
    cluster = Cluster("h800", gpus // per_node, per_node)
    return TrainingJob(model, cluster, parallel, made.training, made.batch)


VLM: tuple[tuple[int, int, dict[str, ModuleParallel]], ...] = (
    (6, 2, {"vit": own(pp=1, tp=1, gpus=2), "llm": own(pp=2)}),
    (5, 2, {"vit": own(pp=1, tp=1, gpus=1), "llm": own(pp=2)}),
    (8, 2, {"vit": own(pp=2, tp=1, gpus=4), "llm": own(pp=2)}),
    (12, 2, {"vit": own(pp=1, tp=1, gpus=4), "llm": own(pp=2)}),
    (6, 1, {"vit": own(pp=1, tp=4, gpus=4), "llm": own(pp=2, tp=1)}),
    (8, 1, {"vit": own(pp=1, tp=4, gpus=4), "llm": own(pp=2, tp=2)}),
    (7, 2, {"vit": own(pp=1, tp=1, gpus=3), "llm": own(pp=2, tp=2)}),
)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("per_node", [0, 1])
@pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sp", "no_sp"])
@pytest.mark.parametrize(("gpus", "tp", "modules"), VLM)
def test_encoders_of_another_width(
    gpus: int, tp: int, modules: dict[str, ModuleParallel], sequence_parallel: bool, per_node: int
) -> None:
    parallel = {"tp": tp, "modules": modules, "sequence_parallel": sequence_parallel}
    assert_tails_equal(job(vlm(), gpus, parallel=parallel, gpus_per_node=per_node))


VALM: dict[str, tuple[int, str, dict[str, Any]]] = {
    "apart": (8, "apart", {"tp": 2, "pp": 4, "shares": {"vit": 1, "audio": 1, "llm": 2}}),
    "on own GPUs": (
        7,
        "apart",
        {"tp": 2, "modules": {"vit": own(gpus=2, tp=1), "audio": own(gpus=1, tp=1), "llm": own(pp=2)}},
    ),
    "an encoder on two ranks": (
        10,
        "apart",
        {"tp": 2, "modules": {"vit": own(gpus=2, tp=1, pp=2), "llm": own(pp=3)}, "pp": 6},
    ),
    "colocated": (8, "colocated", {"tp": 2, "pp": 4, "shares": {"vit": 2, "audio": 2, "llm": 2}}),
    "colocated on own GPUs": (6, "colocated", {"tp": 2, "modules": {"vit": own(gpus=2, tp=1), "llm": own(pp=2)}}),
    "replicated": (4, "replicated", {"tp": 2, "pp": 2}),
    "replicated in groups": (6, "replicated", {"tp": 2, "pp": 3, "modules": {"audio": own(tp=1)}}),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("frozen", [(), FROZEN, ("vit", "audio")], ids=["all train", "projectors", "frozen"])
@pytest.mark.parametrize("place", VALM)
def test_two_encoders_in_every_placement(place: str, frozen: tuple[str, ...]) -> None:
    gpus, segments, parallel = VALM[place]
    assert_tails_equal(job(valm(frozen=frozen), gpus, segments, parallel=parallel))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(10))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    dp, tp, pp = random.choice([(1, 2, 2), (2, 2, 1), (2, 1, 2), (1, 4, 1)])
    encoders = {
        name: own(tp=random.choice([1, 2, 4]), pp=random.choice([1, 2]), sequence_parallel=random.choice([None, False]))
        for name in ("vit", "audio")
    }
    groups = {name: random.choice([1, 2, 3]) for name in encoders}
    modules = {
        name: replace(one, gpus=dp * groups[name] * (one.tp or 1) * (one.pp or 1)) for name, one in encoders.items()
    }
    gpus = sum(one.gpus or 0 for one in modules.values()) + dp * tp * pp
    made = job(
        valm(frozen=random.choice([(), FROZEN])),
        gpus,
        parallel={
            "dp": dp,
            "tp": tp,
            "zero": random.randint(0, 1),
            "sequence_parallel": random.random() < 0.6,
            "modules": modules | {"llm": own(pp=pp)},
        },
        count=4 * dp,
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5, gradients=random.random() < 0.5),
        schedule=random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full", "selective"]),
        gradient_clipping=random.random() < 0.5,
        gpus_per_node=random.choice([0, 1]),
    )
    assert_tails_equal(made)


def test_context_parallelism_of_its_own() -> None:
    """The backbone's sequences over two ranks, the encoder's whole; and the other way round."""
    for vit, llm in ((own(gpus=2, tp=1, cp=1), own(cp=2, pp=2)), (own(gpus=4, tp=2, cp=2), own(cp=1, pp=1))):
        gpus = (vit.gpus or 0) + 2 * (llm.cp or 1) * (llm.pp or 1)
        assert_tails_equal(job(vlm(), gpus, parallel={"tp": 2, "modules": {"vit": vit, "llm": llm}}))


def test_equal_sizes_are_todays_result() -> None:
    """GPUs told, shares told by pp, and nothing told but shares: the same bits."""
    plain = simulate(job(vlm(), 6, parallel={"tp": 2, "pp": 3, "shares": {"vit": 1, "llm": 2}}))
    for modules in ({"vit": own(pp=1), "llm": own(pp=2)}, {"vit": own(pp=1, gpus=2), "llm": own(pp=2, gpus=4)}):
        told = simulate(job(vlm(), 6, parallel={"tp": 2, "modules": modules}))
        assert told.iteration_time_s == plain.iteration_time_s
        assert told.peak_memory_bytes == plain.peak_memory_bytes
        assert [row.stages for row in told.timeline.ranks] == [row.stages for row in plain.timeline.ranks]


def test_the_model_s_work_is_the_same_in_every_placement() -> None:
    """Encoders that are repeated for nobody are no work of the model."""
    found = {
        segments: simulate(job(valm(frozen=FROZEN), gpus, segments, parallel={"tp": 2, **parallel}))
        for gpus, segments, parallel in ((4, "mixed", {"pp": 2}), (4, "replicated", {"pp": 2}), (8, "apart", {"pp": 4}))
    }
    assert len({report.model_flop for report in found.values()}) == 1
    extra = {segments: report.hardware_flop - report.model_flop for segments, report in found.items()}
    assert extra["replicated"] > extra["mixed"] == extra["apart"]


@pytest.mark.parametrize("place", ["on own GPUs", "an encoder on two ranks", "apart"])
def test_means_weigh_ranks_by_their_gpus(place: str) -> None:
    """Kernels, optimizer and idle time of every GPU, counted from the timeline; ``assert_equal`` has the rest."""
    gpus, segments, parallel = VALM[place]
    made = job(valm(), gpus, segments, parallel=parallel)
    report = simulate(made)
    counts = [len(block_of(made, rank, 0)) for rank in range(made.parallel.pp)]
    assert (len(set(counts)) > 1) == (place != "apart") and sum(counts) * made.parallel.dp == gpus
    busy = optimizer = inside = 0.0
    for count, rank in zip(counts, report.timeline.ranks, strict=True):
        for stage, operators in rank.stage_operators():
            inside += count * (stage.end_s - stage.start_s)
            for stream, start, end in zip(operators.table.streams, operators.start_s, operators.end_s, strict=True):
                busy += count * (end - start) if stream == "compute" else 0.0
        optimizer += count * sum(p.end_s - p.start_s for p in rank.outer if p.kind is OpKind.OPTIMIZER)
    shown = report.breakdown_s
    assert shown["compute"] == pytest.approx(busy / sum(counts), rel=1e-12)
    assert shown["optimizer"] == pytest.approx(optimizer / sum(counts), rel=1e-12)
    assert report.bubble_ratio == pytest.approx(1 - inside / (sum(counts) * report.makespan_s), rel=1e-12)
    parts = {**shown, **shown["exposed_communication"]}  # type: ignore[dict-item]
    del parts["exposed_communication"]
    assert sum(parts.values()) == pytest.approx(report.iteration_time_s, rel=1e-12)  # type: ignore[arg-type]
    assert abs(parts["other"]) <= 1e-12 * report.iteration_time_s  # type: ignore[operator]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("rollouts", [0, 64])
@pytest.mark.parametrize("place", VALM)
def test_searches_keep_the_placement(place: str, rollouts: int, recompute: str) -> None:
    """Chunks stay on their ranks, and no search is slower than the run as it stands, under 1F1B."""
    gpus, segments, parallel = VALM[place]
    made = job(valm(frozen=FROZEN), gpus, segments, parallel=parallel, recompute=recompute)
    found = search(made, rollouts=rollouts, workers=1)
    assert found.job.parallel == made.parallel
    places = [[(chunk.chunk, chunk.module) for chunk in prepare(one).layout.chunks] for one in (made, found.job)]
    assert places[0] == places[1]
    again = simulate(found.job, plan=found.plan)
    assert found.report.iteration_time_s == again.iteration_time_s <= simulate(made).iteration_time_s
    assert found.solution.lower_bound_s <= found.solution.makespan_s
    if not rollouts:
        return
    with pytest.raises(ConfigError, match="cut them anew"):
        search(job(valm(), gpus, segments, parallel=parallel), rollouts=1, segments={"llm": 2})


@pytest.mark.parametrize("place", VALM)
def test_a_plan_that_decides_nothing_changes_nothing(place: str) -> None:
    """Copies of encoders that nobody reads have no backward under a plan either."""
    gpus, segments, parallel = VALM[place]
    made = job(valm(frozen=FROZEN), gpus, segments, parallel=parallel)
    plain, planned = simulate(made), simulate(made, plan=StagePlan())
    assert planned.iteration_time_s == plain.iteration_time_s
    assert planned.peak_memory_bytes == plain.peak_memory_bytes
    assert planned.hardware_flop == plain.hardware_flop


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", VALM)
def test_planners_keep_the_placement(place: str) -> None:
    """What is planned for a batch runs on the same ranks, no slower than under 1F1B."""
    gpus, segments, parallel = VALM[place]
    made = job(valm(frozen=FROZEN), gpus, segments, parallel=parallel)
    with Planner(made, [made.batch], rollouts=0, workers=1) as planner:
        step = next(planner)
    assert step.job.parallel == made.parallel
    assert simulate(step.job, plan=step.plan).iteration_time_s <= simulate(made).iteration_time_s


def test_grids_of_placements() -> None:
    """All placements of a job that has encoders; of modules on GPUs of their own, the job's sizes alone."""
    plain = job(valm(frozen=FROZEN), 8, "mixed", parallel={"tp": 2, "pp": 4, "dp": 1})
    found = grid(plain, vary=("segments",), framework="any")
    times = {row.point.segments: row.figures.iteration_time_s for row in found.rows}
    assert times.keys() == {"mixed", "apart", "colocated", "replicated"}
    for segments, seconds in times.items():
        same = replace(plain, parallel=replace(plain.parallel, segments=segments))
        assert seconds == simulate(same).iteration_time_s
    gpus, segments, parallel = VALM["on own GPUs"]
    own_gpus = job(valm(frozen=FROZEN), gpus, segments, parallel=parallel)
    schedules = grid(own_gpus, vary={"schedule": ("1f1b", "zb-h1")}, framework="any")
    assert {row.point.schedule for row in schedules.rows} == {"1f1b", "zb-h1"}
    assert {(row.point.tp, row.point.pp) for row in schedules.rows} == {(own_gpus.parallel.tp, own_gpus.parallel.pp)}


def test_ranks_lie_one_behind_the_other() -> None:
    made = job(vlm(), 12, parallel={"tp": 2, "modules": {"vit": own(tp=1, gpus=4), "llm": own(pp=2)}})
    mesh = Mesh(made.parallel, made.cluster)
    assert (made.parallel.dp, made.parallel.pp, made.parallel.num_gpus) == (2, 3, 12)
    assert [mesh.gpu(pp=rank, dp=dp) for rank in range(3) for dp in range(2)] == [0, 2, 4, 6, 8, 10]
    assert [mesh.stage_of_gpu(gpu) for gpu in range(12)] == [0] * 4 + [1] * 4 + [2] * 4
    vit, llm = mesh.of_module("vit"), mesh.of_module("llm")
    assert (vit.parallel.dp, vit.dp_group(0).num_ranks) == (4, 4)
    assert (llm.parallel.dp, llm.dp_group(2).num_ranks, llm.gpu(pp=2, dp=1)) == (2, 2, 10)


def test_warm_up_is_the_distance_to_the_end() -> None:
    """Two encoders side by side have as many microbatches in flight, whichever comes first."""
    made = job(valm(), 4, count=8, parallel={"pp": 4, "shares": {"vit": 1, "audio": 1, "llm": 2}})
    order = prepare(made).schedule()
    phases = [[stage.phase.value for stage in stages] for stages in order.orders]
    ahead = [own.index("B") for own in phases]
    assert ahead == [3, 3, 2, 1]


@pytest.mark.parametrize(
    ("gpus", "segments", "options", "where", "nearest"),
    [
        (
            8,
            "apart",
            {"modules": {"vit": own(gpus=2), "llm": own(gpus=4)}},
            "parallel.modules",
            "parallel.modules.llm.gpus = 6",
        ),
        (8, "apart", {"dp": 1, "tp": 2, "modules": {"vit": own(gpus=3)}}, "parallel.modules.vit.gpus", 2),
        (6, "mixed", {"modules": {"vit": own(gpus=2)}}, "parallel.segments", "apart"),
        (
            6,
            "apart",
            {"rank_order": "tp-cp-pp-dp", "modules": {"vit": own(gpus=2)}},
            "parallel.rank_order",
            "tp-cp-dp-pp",
        ),
        (6, "apart", {"pp": 4, "modules": {"vit": own(gpus=2, pp=1), "llm": own(pp=2)}}, "parallel.pp", 3),
        (6, "apart", {"modules": {"vit": own(gpus=2, dp=4), "llm": own(gpus=4)}}, "parallel.modules.vit.dp", 2),
        (2, "replicated", {"pp": 2, "zero": 2, "dp": 1}, "parallel.zero", 1),
        (2, "apart", {"pp": 2, "vpp": 2}, "parallel.vpp", 1),
    ],
)
def test_refusals(gpus: int, segments: str, options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(job(vlm(), gpus, segments, parallel=options))
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_encoders_that_share_ranks_say_the_same() -> None:
    modules = {"vit": own(gpus=2, pp=1), "audio": own(gpus=4)}
    with pytest.raises(ConfigError, match="share their pipeline ranks"):
        job(valm(), 8, "colocated", parallel={"modules": modules})


def test_tied_tables_across_gpus_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(
            job_of(_tied(), text_items(4), Parallel(segments="apart", modules={"a": own(gpus=1), "b": own(gpus=1)}))
        )
    assert "shared by a and b" in str(caught.value)


def _tied() -> Model:
    """Two modules with one token table."""
    from semu.nn import Embedding, ModalityModule, ModalityRole, Module, Sequential, Tensor

    table = Embedding(64, 32)

    class Again(Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            y: Tensor = self.table(ids) + x
            return y

    return Model(
        "tied",
        [
            ModalityModule("a", ModalityRole.ENCODER, Sequential({"embedding": table})),
            ModalityModule("b", ModalityRole.BACKBONE, Sequential({"again": Again()}), sources=("a",)),
        ],
    )
