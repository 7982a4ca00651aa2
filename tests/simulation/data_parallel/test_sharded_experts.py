"""ZeRO-2, ZeRO-3 and HSDP with experts spread over ranks: against the slow reference, bytes by hand, command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from simulation.comparison import assert_tails_equal
from simulation.data_parallel.test_sharding import OVERLAPS, traffic
from simulation.jobs import job_of, overlap, text_items
from simulation.models.test_experts import SIZES, latent, moe

from semu.cli.command import main
from semu.errors import ConfigError
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu_models.text.mixtral import Mixtral, MixtralConfig


@pytest.mark.sampled(3)
@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: Parallel(**sizes).label())
def test_everything_against_the_reference(sizes: dict[str, int], zero: int) -> None:
    parallel = Parallel(**sizes, zero=zero)
    for options in (overlap(tensor=zero == 3), overlap(gradients=True, parameters=zero == 3)):
        job = job_of(
            moe(shared=True, dense=1), text_items(parallel.dp * 2), parallel, overlap=options, gradient_clipping=True
        )
        assert_tails_equal(job)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("hidden", ["none", "both"])
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}], ids=["resharded", "kept"])
@pytest.mark.parametrize(
    "sizes", [{"ep": 2}, {"pp": 2, "ep": 2}, {"tp": 2, "ep": 4, "etp": 1}, {"tp": 2, "ep": 2, "etp": 1}]
)
def test_sharding_groups(sizes: dict[str, int], options: dict[str, bool], hidden: str) -> None:
    """Two groups; in the first case a group has every expert once, so that experts are only summed across groups."""
    parallel = Parallel(dp=4, zero=3, zero_group=2, **sizes, **options)  # type: ignore[arg-type]
    assert_tails_equal(job_of(moe(dense=1), text_items(8), parallel, overlap=OVERLAPS[hidden], gpus_per_node=4))


@pytest.mark.slow
def test_latent_attention() -> None:
    assert_tails_equal(job_of(latent(), text_items(4), Parallel(dp=2, tp=2, ep=2, zero=3)))


# -- by hand -----------------------------------------------------------------------------------------------------------
LAYERS, DP = 3, 4
EXPERT = 3 * 64 * 48
LAYER = 2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 64 * 8  # norms, queries and output, keys and values, router
HEAD = 64 + 128 * 64
DENSE = 128 * 64 + LAYERS * LAYER + HEAD


def mixtral() -> Model:
    """Eight experts in each of three layers, two for a token."""
    config = MixtralConfig(layers=LAYERS, hidden=64, ffn=48, heads=4, kv_heads=2, vocab=128)
    return Model.from_module(Mixtral(config), name="llm")


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_mixtral_by_hand(ep: int, microbatches: int) -> None:
    """All else is sharded over dp = 4, experts over 4 / ep; each has gathers and reductions of its own."""
    experts, shards = LAYERS * 8 // ep * EXPERT, DP // ep
    items = text_items(1) * (DP * microbatches)
    report = simulate(job_of(mixtral(), items, Parallel(dp=DP, ep=ep, zero=3)))
    assert mixtral().num_parameters() == DENSE + LAYERS * 8 * EXPERT
    assert report.static_memory_bytes == (18 * (DENSE // DP + experts // shards),)
    found = traffic(report)
    if ep == 1:  # experts lie in the blocks' units
        everything = DENSE + experts
        assert found["fsdp", "all_gather"] == microbatches * 2 * (2 * everything - HEAD) * 3 // 4
        assert found["fsdp", "reduce_scatter"] == microbatches * 4 * everything * 3 // 4
        return
    assert found["fsdp", "all_gather"] == microbatches * 2 * (2 * DENSE - HEAD) * 3 // 4
    assert found["fsdp", "reduce_scatter"] == microbatches * 4 * DENSE * 3 // 4
    assert found["efsdp", "all_gather"] == microbatches * 2 * 2 * experts * (shards - 1) // shards
    assert found["efsdp", "reduce_scatter"] == microbatches * 4 * experts * (shards - 1) // shards
    curve = report.timeline.ranks[0].memory
    parameters = curve.by_role[curve.roles.index(Role.PARAMETER)]
    gathered = 2 * LAYER + (2 * 8 // ep * EXPERT if shards > 1 else 0)
    assert parameters.min() == 2 * (DENSE // DP + experts // shards)
    # a layer while it runs; the output layer stays to the backward, when no layer is gathered
    assert parameters.max() - parameters.min() == max(gathered, 2 * HEAD, 2 * 128 * 64)


@pytest.mark.parametrize("ep", [2, 4])
def test_zero_2_by_hand(ep: int) -> None:
    experts, shards = LAYERS * 8 // ep * EXPERT, DP // ep
    report = simulate(job_of(mixtral(), text_items(1) * DP, Parallel(dp=DP, ep=ep, zero=2)))
    static = 2 * (DENSE + experts) + 16 * (DENSE // DP + experts // shards)
    assert report.static_memory_bytes == (static,)
    found = traffic(report)
    assert found["dp", "reduce_scatter"] == 4 * DENSE * 3 // 4
    assert found["edp", "reduce_scatter"] == 4 * experts * (shards - 1) // shards


@pytest.mark.parametrize("ep", [2, 4])
def test_pipelines_by_hand(ep: int) -> None:
    """Two ranks: a table and two layers, a layer and the output layer."""
    report = simulate(
        job_of(
            mixtral(),
            text_items(1) * (DP * 3),
            Parallel(dp=DP, pp=2, ep=ep, zero=3, layout={"layers": [2, 1]}),  # type: ignore[arg-type]
        )
    )
    each = 8 // ep * EXPERT
    dense = [128 * 64 + 2 * LAYER, LAYER + HEAD]
    experts = [2 * each, each]
    shards = DP // ep
    assert report.static_memory_bytes == tuple(
        18 * (own // DP + routed // shards) for own, routed in zip(dense, experts, strict=True)
    )
    found = traffic(report)
    assert found["fsdp", "all_gather"] == 3 * 2 * 2 * sum(dense) * 3 // 4
    assert found["efsdp", "all_gather"] == 3 * 2 * 2 * sum(experts) * (shards - 1) // shards


def test_groups_that_hold_every_expert_once() -> None:
    """HSDP: experts are whole in each of two groups, and their gradients are summed across these."""
    report = simulate(job_of(mixtral(), text_items(1) * DP, Parallel(dp=DP, ep=2, zero=3, zero_group=2)))
    experts = LAYERS * 4 * EXPERT
    assert report.static_memory_bytes == (18 * (DENSE // 2 + experts),)
    found = traffic(report)
    assert found["efsdp", "all_gather"] == found["efsdp", "reduce_scatter"] == 0
    assert found["hsdp", "all_reduce"] == 4 * DENSE // 2 + 4 * experts  # 2 (n - 1) / n = 1


@pytest.mark.parametrize(("ep", "group"), [(2, 4), (2, 2), (4, 4)])
def test_zero_1_in_groups(ep: int, group: int) -> None:
    """Experts are sharded over the ranks of a group that hold the same ones; a shard is summed across the groups."""
    dp = 8
    report = simulate(job_of(mixtral(), text_items(1) * dp, Parallel(dp=dp, ep=ep, zero=1, zero_group=group)))
    experts, shards = LAYERS * 8 // ep * EXPERT, group // ep
    assert report.static_memory_bytes == (6 * (DENSE + experts) + 12 * (-(-DENSE // group) - (-experts // shards)),)
    found = [(piece.kind, piece.group_ranks, piece.net_bytes) for piece in report.timeline.ranks[0].outer]
    wanted = []
    for size, ranks in ((experts, shards), (DENSE, group)):
        share, groups = -(-4 * size // ranks), dp // group
        if groups > 1:
            wanted.append((OpKind.ALL_REDUCE, groups, 2 * share * (groups - 1) // groups))
        if ranks > 1:
            wanted.append((OpKind.REDUCE_SCATTER, ranks, 4 * size * (ranks - 1) // ranks))
            wanted.append((OpKind.ALL_GATHER, ranks, 2 * size * (ranks - 1) // ranks))
    moved = [piece for piece in found if piece[0].is_communication and piece[2]]
    assert Counter(moved) == Counter(wanted)


# -- run files and the command line ------------------------------------------------------------------------------------
RUN = """
[model.transformer]
layers = 4
hidden = 256
heads = 4
vocab = 512
gated_mlp = true
ffn = 512
experts = 8
top_k = 2
moe_ffn = 128

[cluster]
device = "h100"
gpus_per_node = 8

[parallel]
dp = 4
pp = 2
ep = 2
zero = 3

[training]
micro_batch = 1
global_batch = 16
seq_len = 512
"""


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["simulate", *words, "--json"]) in (0, 3)
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    sharded = answer(capsys, str(path))
    kept = answer(capsys, str(path), "--set", "parallel.reshard_after_forward=false")
    whole = answer(capsys, str(path), "--set", "parallel.zero=1")
    other = answer(capsys, str(path), "--parallel", "dp4-tp2-pp1-ep4")
    assert sharded["static_memory_bytes"] == kept["static_memory_bytes"]
    peaks = [max(found["peak_memory_bytes"]) for found in (sharded, kept, whole)]  # type: ignore[call-overload]
    assert peaks[0] < min(peaks[1:])
    assert sharded["static_memory_bytes"] != other["static_memory_bytes"]
    exposed = sharded["breakdown_s"]["exposed_communication"]  # type: ignore[index]
    assert exposed["fsdp"] > 0
    assert "fsdp" not in kept["breakdown_s"]["exposed_communication"]  # type: ignore[index]


# -- weights on the host -----------------------------------------------------------------------------------------------
@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", [{"ep": 2}, {"pp": 2, "ep": 2}, {"tp": 2, "ep": 2, "zero_group": 2}])
def test_shards_of_experts_may_live_on_the_host(sizes: dict[str, int]) -> None:
    parallel = Parallel(dp=4, zero=3, **sizes)  # type: ignore[arg-type]
    if parallel.expert_shard_ranks == 1:
        with pytest.raises(ConfigError, match="experts that no two ranks share") as caught:
            simulate(job_of(moe(), text_items(8), parallel, offload=["weights"]))
        assert (caught.value.where, caught.value.nearest) == ("training.offload", "optimizer")
        return
    assert_tails_equal(job_of(moe(), text_items(8), parallel, offload=["weights"], overlap=OVERLAPS["both"]))


def test_what_is_kept_through_a_pipeline_does_not_live_on_the_host() -> None:
    parallel = Parallel(dp=4, pp=2, zero=3, reshard_after_forward=False)
    with pytest.raises(ConfigError, match="keeps gathered through a pipeline") as caught:
        simulate(job_of(moe(), text_items(8), parallel, offload=["weights"]))
    assert (caught.value.where, caught.value.nearest) == ("parallel.reshard_after_forward", "true")
