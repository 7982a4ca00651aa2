"""Experts by hand: FLOP, bytes of the all-to-alls, parameters, static and activation bytes; tokens are conserved."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.jobs import job_of
from simulation.models.test_experts import EXPERTS, FFN, HEADS, HIDDEN, VOCAB, moe

from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind, Port
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.present.report import Report
from semu.simulation import simulate
from semu.workload import Microbatch
from semu_models.text.decoder import decoder_model
from semu_models.text.mixtral import MIXTRAL_8X7B, Mixtral, MixtralConfig

TOKENS = 128
H, F, E, T = HIDDEN, FFN, EXPERTS, TOKENS


def job(model: Model, sizes: dict[str, Any], tokens: int = TOKENS, **options: Any) -> TrainingJob:
    """One sequence for every replica."""
    parallel = Parallel(**sizes)
    items = [Microbatch({"text": [tokens]}, samples=1)] * parallel.dp
    return job_of(model, items, parallel, **options)


def mixtral(layers: int) -> Model:
    """The first layers of Mixtral 8x7B."""
    c = MIXTRAL_8X7B
    return decoder_model("mixtral", Mixtral(MixtralConfig(layers, c.hidden, c.ffn, c.heads)))


def operators(report: Report, stream: str) -> list[tuple[str, int]]:
    """(path behind the layer, wire bytes) of what runs on a stream of rank 0, in order."""
    found = []
    rank = report.timeline.ranks[0]
    for number in range(len(rank.stages)):
        ops = rank.expand(number)
        for path, name, size in zip(ops.table.paths, ops.table.streams, ops.net_bytes.tolist(), strict=True):
            if name == stream:
                found.append((path.split(".mlp.")[-1], size))
    return found


# -- FLOP --------------------------------------------------------------------------------------------------------------
LAYOUTS: list[dict[str, Any]] = [
    {"dp": 4},
    {"dp": 4, "ep": 2},
    {"dp": 4, "ep": 4},
    {"dp": 4, "tp": 2, "ep": 4},
    {"dp": 4, "tp": 2, "ep": 8, "etp": 1},
    {"dp": 4, "tp": 2, "etp": 1},
]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: Parallel(**sizes).label())
def test_flop_do_not_depend_on_the_layout(sizes: dict[str, Any]) -> None:
    """Every token is worked on by k experts once, wherever they are."""
    k = 2
    attention = 2 * T * H * 3 * H + 2 * T * H * H + 2 * T * T * H  # qkv, out, causal scores and context
    experts = 2 * T * H * E + k * T * (2 * H * 2 * F + 2 * F * H)
    forward = 2 * (attention + experts) + 2 * T * H * VOCAB
    report = simulate(job(moe(2, top_k=k), sizes))
    assert report.model_flop == 4 * 3 * forward
    assert report.tokens == 4 * T


@pytest.mark.parametrize("sizes", [{"dp": 2, "ep": 2}, {"dp": 2, "tp": 2, "ep": 4, "etp": 1}], ids=["dp2", "tp2"])
def test_flop_of_mixtral(sizes: dict[str, Any]) -> None:
    h, f, tokens, vocab = 4096, 14336, 256, 32000
    attention = 2 * tokens * h * (h + 2 * 1024) + 2 * tokens * h * h + 2 * tokens * tokens * h
    experts = 2 * tokens * h * 8 + 2 * tokens * 6 * h * f
    report = simulate(job(mixtral(1), sizes, tokens))
    assert report.model_flop == 2 * 3 * (attention + experts + 2 * tokens * h * vocab)


def test_imbalance_takes_time_and_memory_but_makes_no_work() -> None:
    sizes = {"dp": 4, "ep": 4}
    even, uneven = simulate(job(moe(), sizes)), simulate(job(moe(), sizes, moe_imbalance=1.5))
    assert uneven.model_flop == even.model_flop
    assert uneven.hardware_flop == even.hardware_flop
    assert uneven.iteration_time_s > even.iteration_time_s
    # two layers: rows, their probabilities, up and down inputs of half as many rows more
    more = T * 2 // 2
    assert uneven.ranks[0].activation_bytes - even.ranks[0].activation_bytes == 2 * more * (2 * H + 4 + 4 * F + 2 * F)


def test_loads_of_experts_say_what_the_worst_rank_gets() -> None:
    """The second of four ranks holds experts 2 and 3 of 8: 6 of 16 parts, where 4 are the mean."""
    loads = [1, 1, 3, 3, 2, 2, 2, 2]
    times = [
        simulate(job(moe(), {"dp": 4, "ep": 4}, moe_imbalance=given)).iteration_time_s
        for given in (loads, 1.5, [5] * 8, 1)
    ]
    assert times[0] == times[1] > times[2] == times[3]


def test_padding_is_work_and_dropping_saves_it() -> None:
    base = simulate(job(moe(1), {"dp": 4, "ep": 4}))
    expert_flop = 4 * 3 * 2 * T * 6 * H * F
    padded = simulate(job(moe(1), {"dp": 4, "ep": 4}, moe_capacity_factor=1.3, moe_pad_to_capacity=True))
    rows = E * -(-2 * T * 13 // (10 * E))  # every expert: 2 T 1.3 / E, rounded up
    assert rows == 336
    assert padded.model_flop - base.model_flop == expert_flop * (rows - 2 * T) // (2 * T)
    dropped = simulate(job(moe(1), {"dp": 4, "ep": 4}, moe_capacity_factor=0.5))
    assert base.model_flop - dropped.model_flop == expert_flop // 2
    limited = simulate(job(moe(1), {"dp": 4, "ep": 4}, moe_capacity_factor=1.25, moe_imbalance=2))
    same = simulate(job(moe(1), {"dp": 4, "ep": 4}, moe_imbalance=1.25))
    assert limited.iteration_time_s == same.iteration_time_s


# -- bytes on the wire -------------------------------------------------------------------------------------------------
def test_all_to_all_bytes() -> None:
    report = simulate(job(moe(1), {"dp": 4, "ep": 4}))
    rows = 2 * T
    there, back = rows * (2 * H + 4) * 3 // 4, rows * 2 * H * 3 // 4
    assert operators(report, "ep") == [
        ("dispatch.all_to_all", there),
        ("combine.all_to_all", back),
        ("combine_bw.all_to_all", back),
        ("dispatch_bw.all_to_all", there),
    ]


def test_all_to_all_bytes_of_an_uneven_mixtral() -> None:
    """The worst of two ranks gets 1.2 times its share."""
    report = simulate(job(mixtral(1), {"dp": 2, "ep": 2}, 256, moe_imbalance=1.2))
    rows = -(-2 * 256 * 12 // 10)
    there, back = rows * (2 * 4096 + 4) // 2, rows * 2 * 4096 // 2
    assert [size for _, size in operators(report, "ep")] == [there, back, back, there]


def test_with_expert_tensor_parallelism_rows_are_gathered_and_scattered() -> None:
    report = simulate(job(mixtral(1), {"dp": 2, "tp": 2, "ep": 2}, 256))
    rows = 2 * 128  # of a rank: its half of the sequence, twice
    assert [size for _, size in operators(report, "ep")] == [
        rows * (8192 + 4) // 2,
        rows * 8192 // 2,
        rows * 8192 // 2,
        rows * (8192 + 4) // 2,
    ]
    # gathered: 2 x rows, of which a rank sends half
    assert operators(report, "etp") == [
        ("dispatch.all_gather", rows * (8192 + 4)),
        ("combine.reduce_scatter", rows * 8192),
        ("combine_bw.all_gather", rows * 8192),
        ("dispatch_bw.reduce_scatter", rows * (8192 + 4)),
    ]


@pytest.mark.parametrize(
    ("sizes", "per_node", "ep", "etp", "edp"),
    [
        ({"dp": 16, "ep": 8}, 8, (8, 1), (1, 1), (2, 2)),
        ({"dp": 16, "ep": 16}, 8, (16, 2), (1, 1), (1, 1)),
        ({"dp": 8, "tp": 2, "ep": 8}, 8, (8, 2), (2, 1), (1, 1)),
        ({"dp": 8, "tp": 2, "ep": 4}, 8, (4, 1), (2, 1), (2, 2)),
        ({"dp": 8, "tp": 2, "ep": 8, "etp": 1}, 8, (8, 1), (1, 1), (2, 2)),
        ({"dp": 4, "tp": 4, "ep": 2, "etp": 2}, 2, (2, 2), (2, 1), (4, 4)),
        ({"dp": 2, "pp": 2, "ep": 2}, 4, (2, 1), (1, 1), (1, 1)),
    ],
)
def test_groups_are_mapped_by_rank_order(
    sizes: dict[str, Any], per_node: int, ep: tuple[int, int], etp: tuple[int, int], edp: tuple[int, int]
) -> None:
    """(ranks, nodes): expert tensor parallelism is fastest, then expert parallelism, then data."""
    parallel = Parallel(**sizes)
    mesh = Mesh(parallel, Cluster("h800", parallel.num_gpus // per_node, per_node))
    for group, expected in ((mesh.worst_ep_group, ep), (mesh.worst_etp_group, etp), (mesh.expert_dp_group(0), edp)):
        assert (group.num_ranks, group.num_nodes) == expected
        assert (group.port is Port.NIC) is (expected[1] > 1)


# -- parameters and memory ---------------------------------------------------------------------------------------------
def test_static_bytes_of_mixtral() -> None:
    """Experts: 8 / 4 of them, their optimizer shared by the two ranks that hold them; all else by the four of dp."""
    h, f = 4096, 14336
    dense = (h * (h + 2 * 1024) + h * h) // 2 + 2 * h + h * 8 + 2 * 32000 * h // 2 + h
    experts = 2 * 3 * h * f
    report = simulate(job(mixtral(1), {"dp": 4, "tp": 2, "ep": 4, "etp": 1}, 256))
    assert report.ranks[0].parameters == dense + experts
    assert report.static_memory_bytes == (6 * (dense + experts) + 12 * (dense // 4 + experts // 2),)
    everything = simulate(job(mixtral(1), {"dp": 4, "tp": 2, "ep": 4, "etp": 1, "zero": 0}, 256))
    assert everything.static_memory_bytes == (18 * (dense + experts),)


def test_total_and_active_parameters() -> None:
    report = simulate(job(mixtral(1), {"dp": 2, "ep": 2}, 256))
    assert report.parameters - report.active_parameters == 6 * 3 * 4096 * 14336
    assert report.to_json()["active_parameters"] == report.active_parameters
    assert "active" in report.details()


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_what_a_layer_keeps(ep: int) -> None:
    report = simulate(job(moe(1), {"dp": 4, "ep": ep}))
    rows = 2 * T
    attention = 2 * T * H * (1 + 1 + 3 + 2 + 1) + 4 * T * (1 + HEADS)  # x, norm, qkv, rotated q and k, context; scales
    routing = 2 * T * H * 2 + 4 * T + T * E * (4 + 1) + rows * 8  # x, norm and its scale, probabilities, mask, order
    experts = rows * (2 * H + 4 + 2 * 2 * F + 2 * F)  # rows and their probabilities, inputs of activation and of down
    assert report.ranks[0].activation_bytes == attention + routing + experts


def test_reductions_of_experts_and_of_all_else() -> None:
    """Two ranks hold the same experts, eight everything else."""
    report = simulate(job(moe(1), {"dp": 8, "ep": 4}))
    reductions = {
        piece.stream: piece for piece in report.timeline.ranks[0].outer if piece.kind is OpKind.REDUCE_SCATTER
    }
    dense = H * 4 * H + 2 * H + H * E + 2 * VOCAB * H + H
    experts = 2 * 3 * H * F
    assert reductions["dp"].net_bytes == dense * 4 * 7 // 8
    assert reductions["edp"].net_bytes == experts * 4 // 2
    gathers = {piece.stream: piece for piece in report.timeline.ranks[0].outer if piece.kind is OpKind.ALL_GATHER}
    assert gathers["dp"].net_bytes == dense * 2 * 7 // 8
    assert gathers["edp"].net_bytes == experts * 2 // 2
    (step,) = (piece for piece in report.timeline.ranks[0].outer if piece.kind is OpKind.OPTIMIZER)
    assert step.start_s >= max(piece.end_s for piece in reductions.values())
