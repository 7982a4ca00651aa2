"""``ModuleParallel``: sizes that follow, and what is refused with the nearest legal value."""

from __future__ import annotations

import pytest
from simulation.jobs import job_of, t2v, t2v_items, text_items, vlm, vlm_items

import semu_models
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.nn import ModalityModule, ModalityRole, Model
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.parallel.modules import ModuleParallel
from semu.simulation import simulate


def test_the_same_gpus_in_other_sizes() -> None:
    job = Parallel(dp=2, tp=8, cp=2, pp=4, modules={"vit": {"tp": 2}, "audio": ModuleParallel(tp=1, cp=1)})  # type: ignore[dict-item]
    vit, audio, llm = (job.of_module(name) for name in ("vit", "audio", "llm"))
    assert (vit.dp, vit.cp, vit.tp, vit.pp) == (8, 2, 2, 4)
    assert (audio.dp, audio.cp, audio.tp, audio.pp) == (32, 1, 1, 4)
    assert (llm.dp, llm.cp, llm.tp, llm.pp) == (2, 2, 8, 4)
    assert {own.num_gpus for own in (job, vit, audio, llm)} == {128}
    assert [job.item_groups(name) for name in ("vit", "audio", "llm")] == [4, 16, 1]


def test_groups_stand_where_the_ranks_are() -> None:
    """2 replicas of 8 GPUs on nodes of 4: groups of 2 neighbours, gradients summed over every second GPU of all 16."""
    parallel = Parallel(dp=2, tp=8, modules={"vit": ModuleParallel(tp=2)})
    mesh = Mesh(parallel, Cluster("h800", 4, 4))
    vit = mesh.of_module("vit")
    assert (vit.worst_tp_group.num_ranks, vit.worst_tp_group.num_nodes) == (2, 1)
    assert (mesh.worst_tp_group.num_ranks, mesh.worst_tp_group.num_nodes) == (8, 2)
    assert (vit.dp_group(0).num_ranks, vit.dp_group(0).num_nodes, vit.dp_group(0).ranks_per_node) == (8, 4, 2)
    assert mesh.of_module("llm") is mesh
    whole, pairs = mesh.exchange_group(8, 8), mesh.exchange_group(4, 8)
    assert whole is not None
    assert pairs is not None
    assert (whole.name, whole.num_ranks, whole.num_nodes) == ("reshard", 8, 2)
    assert (pairs.name, pairs.num_ranks, pairs.num_nodes, pairs.ranks_per_node) == ("reshard4", 4, 2, 2)
    assert mesh.exchange_group(1, 8) is None


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("tp", 3, 2),
        ("tp", 16, 4),
        ("tp", 0, 1),
        ("cp", 3, 2),
        ("dp", 5, 4),
        ("pp", 1, 2),
        ("vpp", 2, 1),
        ("ep", 2, 1),
        ("tp", True, 1),
        ("tpp", 2, "tp"),
        ("sequence_parallel", "yes", None),
    ],
)
def test_sizes_that_do_not_fit(key: str, value: object, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(dp=4, tp=4, pp=2, cp=2, modules={"vit": {key: value}})  # type: ignore[dict-item]
    assert (caught.value.where, caught.value.nearest) == (f"parallel.modules.vit.{key}", nearest)


def test_sequence_parallelism_of_one_rank() -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(tp=4, modules={"vit": ModuleParallel(tp=1, sequence_parallel=True)})
    assert caught.value.where == "parallel.modules.vit.sequence_parallel"


@pytest.mark.parametrize("value", [1, "tp1", None])
def test_no_table(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(modules={"vit": value})  # type: ignore[dict-item]
    assert caught.value.where == "parallel.modules.vit"
    with pytest.raises(ConfigError) as caught:
        Parallel(modules=value)  # type: ignore[arg-type]
    assert caught.value.where == "parallel.modules"


def refused(parallel: Parallel, model: Model | None = None) -> ConfigError:
    chosen = model if model is not None else vlm()
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(chosen, vlm_items(parallel.dp), parallel))
    return caught.value


def test_an_unknown_module() -> None:
    error = refused(Parallel(tp=2, modules={"vitt": ModuleParallel(tp=1)}))
    assert (error.where, error.nearest) == ("parallel.modules.vitt", "vit")


def test_a_role_stands_for_its_modules() -> None:
    by_role = job_of(vlm(), vlm_items(2), Parallel(tp=2, modules={"encoder": ModuleParallel(tp=1)}))
    assert by_role.parallel.modules == {"vit": ModuleParallel(tp=1)}
    both = {"encoder": ModuleParallel(tp=1), "vit": ModuleParallel(tp=2)}
    assert refused(Parallel(tp=2, modules=both)).where == "parallel.modules.vit"


def test_heads_that_do_not_divide() -> None:
    """4 heads of the vision transformer, 8 and 4 of the language model."""
    error = refused(Parallel(tp=8, modules={"vit": ModuleParallel(tp=8)}))
    assert (error.where, error.nearest) == ("parallel.modules.vit.tp", 4)


def test_a_module_may_have_fewer_heads_than_the_job_has_ranks() -> None:
    job = job_of(t2v(), t2v_items(1), Parallel(tp=4, modules={"dit": ModuleParallel(tp=2)}))
    assert simulate(job).iteration_time_s > 0


def test_items_that_do_not_belong_together() -> None:
    """Nobody knows which image stands in which text."""
    error = refused(Parallel(tp=4, modules={"llm": ModuleParallel(tp=2)}))
    assert (error.where, error.nearest) == ("parallel.modules.llm", "tp = 4")


@pytest.mark.parametrize(("zero", "nearest"), [(2, 1), (3, 1)])
def test_sharded_gradients_and_parameters(zero: int, nearest: int) -> None:
    error = refused(Parallel(dp=2, tp=2, zero=zero, modules={"vit": ModuleParallel(tp=1)}))
    assert (error.where, error.nearest) == ("parallel.zero", nearest)


def test_sharding_groups() -> None:
    error = refused(Parallel(dp=4, tp=2, zero=1, zero_group=2, modules={"vit": ModuleParallel(tp=1)}))
    assert error.where == "parallel.zero_group"


def test_a_shared_parameter() -> None:
    """A second language model that uses the first one's layers."""
    llm = t2v().modules[0]
    again = ModalityModule("again", ModalityRole.BACKBONE, llm.body, llm.inputs)
    model = Model("twice", [llm, again])
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(model, text_items(1), Parallel(tp=2, modules={"llm": ModuleParallel(tp=1)})))
    assert caught.value.where == "parallel.modules.llm"


def test_experts() -> None:
    model = semu_models.build("mixtral-8x7b")
    name = model.modules[0].name
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(model, text_items(1), Parallel(tp=2, modules={name: ModuleParallel(tp=1)})))
    assert caught.value.where == "parallel.modules"
