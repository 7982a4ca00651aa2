"""Weights on the host: against the slow reference, and against bytes and times by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import (
    carry_along,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
    wide,
)
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times
from simulation.rooms import capacity_for

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.graph.tensor import Role
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.cost import collective_latency
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.nn.trace.offload import HOST_LINK
from semu.parallel.config import Parallel
from semu.present.report import FittingChange
from semu.simulation.memory.changes_that_fit import changed, nearest_fit, single_changes
from semu.units import TIME_GRID_PER_S
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig
from semu_models.text.mixtral import Mixtral, MixtralConfig

ALL = ["weights", "activations", "optimizer"]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize(("tp", "tensor"), [(1, False), (2, True)], ids=["tp1", "tp2_overlap"])
@pytest.mark.parametrize(("pp", "vpp"), [pytest.param(1, 1, marks=pytest.mark.slow), (2, 1), (2, 2)])
@pytest.mark.parametrize("offload", [["weights"], ALL], ids=["weights", "all"])
def test_text_as_the_reference(offload: list[str], pp: int, vpp: int, tp: int, tensor: bool, recompute: str) -> None:
    for share in (None, 0.5):
        job = job_of(
            gpt(4),
            text_items(4),
            Parallel(pp=pp, tp=tp, vpp=vpp),
            overlap=overlap(tensor=tensor),
            recompute=recompute,
            attention="unfused" if recompute == "selective" else "fused",
            offload=offload,
            offload_fraction=share,
            override={"pcie_bytes_per_s": 4e9} if share else None,
        )
        assert_tails_equal(job)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("offload", [["weights"], ["weights", "activations"]], ids=["weights", "all"])
def test_other_models_as_the_reference(offload: list[str], pp: int) -> None:
    """A frozen encoder, modules in a row, tensors that only pass through, a precision without master weights."""
    for job in (
        job_of(vlm(frozen=("vit",)), vlm_items(3, empty=(1,)), Parallel(pp=pp), offload=offload),
        job_of(vlm(frozen=("llm",)), vlm_items(3), Parallel(pp=pp), offload=offload, recompute="full"),
        job_of(t2v(), t2v_items(3), Parallel(pp=pp), schedule="gpipe", offload=offload),
        job_of(carry_along(), text_items(3), Parallel(pp=pp), offload=offload),
        job_of(gpt(), text_items(3), Parallel(pp=min(pp, 3)), offload=offload, precision="fp32"),
    ):
        assert_tails_equal(job)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("software", ["megatron", "torch"])
@pytest.mark.parametrize("offload", [["weights"], ["weights", "optimizer"]], ids=["weights", "state too"])
def test_data_parallel_as_the_reference(offload: list[str], software: str, zero: int) -> None:
    for hidden in (overlap(), overlap(gradients=True, tensor=True)):
        options: dict[str, Any] = {"offload": offload, "software": software, "overlap": hidden}
        parallel = Parallel(dp=2, tp=2, zero=zero)
        assert_tails_equal(job_of(gpt(), text_items(4), parallel, **options))
        assert_tails_equal(job_of(vlm(frozen=["vit"]), vlm_items(4), parallel, offload_fraction=0.5, **options))
    if zero == 3:
        for kept in (Parallel(dp=4, zero=3, reshard_after_forward=False), Parallel(dp=4, zero=3, zero_group=2)):
            hide = overlap(parameters=True, gradients=True)
            assert_tails_equal(job_of(gpt(), text_items(4), kept, offload=offload, software=software, overlap=hide))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_buckets_are_full_when_their_layers_gradients_are(zero: int) -> None:
    """Several buckets, each reduced while layers before it still wait for their weights."""
    parallel = Parallel(dp=2, zero=zero)
    assert_tails_equal(job_of(wide(3), text_items(4), parallel, overlap=overlap(gradients=True), offload="weights"))


@pytest.mark.parametrize("parallel", [Parallel(dp=2, zero=1), Parallel(dp=2, pp=2, zero=1), Parallel(dp=2, zero=2)])
def test_only_what_stays_on_the_device_is_gathered_beside_the_first_forwards(parallel: Parallel) -> None:
    for layers in (["*"], ["llm.layers.1"]):
        options: dict[str, Any] = {"offload": "weights", "offload_layers": layers}
        if layers == ["*"]:
            options = {"offload": "weights"}
        free = expand(job_of(gpt(), text_items(4), parallel, **options))
        job = job_of(gpt(), text_items(4), parallel, overlap=overlap(parameters=True), **options)
        report = semu.simulate(job)
        assert_equal(report, expand(job, gather_times(free)))
        for rank in report.timeline.ranks:
            late = [piece for piece in rank.outer if piece.kind is OpKind.ALL_GATHER and piece.start_s > 0]
            out = next((piece for piece in rank.outer if piece.name == "weights out"), None)
            assert out is None or max(piece.end_s for piece in late) == out.start_s


# -- by hand -------------------------------------------------------------------------------------------------------
SEQ, HIDDEN, LAYERS, VOCAB = 1024, 512, 4, 512
GPT_LAYER = 12 * HIDDEN**2 + 13 * HIDDEN
LLAMA_LAYER = (2 + 1) * HIDDEN**2 + 3 * HIDDEN * 1408 + 2 * HIDDEN
MIXTRAL_LAYER = (2 + 1) * HIDDEN**2 + 8 * HIDDEN + 8 * 3 * HIDDEN * 256 + 2 * HIDDEN


def big_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(LAYERS, HIDDEN, heads=8, vocab=VOCAB, positions=SEQ)), name="llm")


def big_llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(LAYERS, HIDDEN, 1408, heads=8, kv_heads=4, vocab=VOCAB)), name="llm")


def big_mixtral() -> Model:
    return decoder_model("llm", Mixtral(MixtralConfig(LAYERS, HIDDEN, 256, heads=8, kv_heads=4, vocab=VOCAB)))


MODELS: list[tuple[Callable[[], Model], int]] = [
    (big_gpt, GPT_LAYER),
    (big_llama, LLAMA_LAYER),
    (big_mixtral, MIXTRAL_LAYER),
]


def job_on(model: Model, parallel: Parallel, override: dict[str, object] | None = None, **training: Any) -> TrainingJob:
    return TrainingJob(
        model,
        Cluster("h100", 1, parallel.num_gpus, override or {}),
        parallel,
        Training(**{"micro_batch": 1, "global_batch": 4 * parallel.dp, "seq_len": SEQ, **training}),
    )


def run(model: Model, parallel: Parallel | None = None, **options: Any) -> semu.Report:
    return semu.simulate(job_on(model, parallel or Parallel(), **options))


@pytest.mark.parametrize(("make", "layer"), MODELS)
@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.0])
def test_bytes_by_hand(make: Callable[[], Model], layer: int, share: float) -> None:
    """2 bytes a parameter of every chosen layer are on the host; on the device two such layers while stages run."""
    plain = run(make(), recompute="full")
    moved = run(make(), recompute="full", offload="weights", offload_fraction=share)
    count, each = int(share * LAYERS), 2 * layer
    assert moved.host_memory_bytes == (count * each,)
    assert plain.static_memory_bytes[0] - moved.static_memory_bytes[0] == count * each
    assert (moved.model_flop, moved.hardware_flop) == (plain.model_flop, plain.hardware_flop)
    curve = moved.timeline.ranks[0].memory
    parameters = curve.by_role[curve.roles.index(Role.PARAMETER)]
    on_device = 2 * (make().num_parameters() - count * layer)
    assert (parameters.min(), parameters.max()) == (on_device, on_device + min(count, 2) * each)
    assert plain.peak_memory_bytes[0] - moved.peak_memory_bytes[0] == max(count - 2, 0) * each
    if not share:
        assert moved.iteration_time_s == plain.iteration_time_s
        assert any("offload of weights changes nothing" in note for note in moved.warnings)
    else:
        assert any(f"weights: {count * each / 2**30:.2f} GiB" in note for note in moved.warnings)


@pytest.mark.parametrize(("make", "layer"), MODELS[:2])
def test_bytes_of_stages_and_shards_by_hand(make: Callable[[], Model], layer: int) -> None:
    for parallel in (Parallel(pp=2), Parallel(pp=2, vpp=2)):
        moved, plain = run(make(), parallel, offload="weights"), run(make(), parallel)
        assert moved.host_memory_bytes is not None
        away = tuple(a - b for a, b in zip(plain.static_memory_bytes, moved.static_memory_bytes, strict=True))
        assert away == moved.host_memory_bytes
        assert sum(away) == LAYERS * 2 * layer
    whole = 2 * HIDDEN if make is big_llama else 6 * HIDDEN  # norms and, of GPT, two biases are on every rank
    moved = run(make(), Parallel(tp=2), offload="weights")
    assert moved.host_memory_bytes == (LAYERS * 2 * ((layer - whole) // 2 + whole),)


def test_shards_by_hand() -> None:
    """ZeRO-3: the host has a rank's shard, as 2 bytes a parameter or, in torch, as the 4 of the master itself."""
    for software, each in (("megatron", 2), ("torch", 4)):
        plain = run(big_llama(), Parallel(dp=2, zero=3), software=software)
        moved = run(big_llama(), Parallel(dp=2, zero=3), software=software, offload="weights")
        shard = each * LAYERS * LLAMA_LAYER // 2
        assert moved.host_memory_bytes == (shard,)
        assert plain.static_memory_bytes[0] - moved.static_memory_bytes[0] == shard
        stage = next(iter(moved.timeline.ranks[0].stage_operators()))[1]
        copies = [n for s, n in zip(stage.table.streams, stage.net_bytes.tolist(), strict=True) if s == "reload"]
        assert copies == [each * LLAMA_LAYER // 2] * LAYERS


def test_experts_by_hand() -> None:
    """Of eight experts a rank has four, whole."""
    moved = run(big_mixtral(), Parallel(dp=2, ep=2), offload="weights")
    assert moved.host_memory_bytes == (2 * LAYERS * (MIXTRAL_LAYER - 4 * 3 * HIDDEN * 256),)


# -- time by hand --------------------------------------------------------------------------------------------------
def by_block(report: semu.Report, rank: int) -> tuple[dict[str, float], dict[str, float]]:
    """Time of the kernels of every block in the first forward and in the first backward of a rank [s]."""
    found: dict[str, dict[str, float]] = {}
    for stage, operators in report.timeline.ranks[rank].stage_operators():
        own = found.setdefault(stage.phase.value, {})
        if stage.microbatch == 0:
            for path, start, end in zip(operators.table.blocks, operators.start_s, operators.end_s, strict=True):
                own[path] = own.get(path, 0.0) + float(end - start)
    return found["F"], found["B"]


def expected(blocks: dict[str, float], copy_s: float) -> float:
    """A stage: what precedes the layers beside the first copy, every layer beside the copy for the next, the rest."""
    order = list(blocks)
    layers = [path for path in order if ".layers." in path]
    ahead = sum(blocks[path] for path in order[: order.index(layers[0])])
    behind = sum(blocks[path] for path in order[order.index(layers[-1]) + 1 :])
    steady = sum(max(blocks[path], copy_s) for path in layers[:-1])
    assert ahead <= copy_s or copy_s <= min(blocks[path] for path in layers)
    return max(ahead, copy_s) + steady + blocks[layers[-1]] + behind


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("make", "layer"), MODELS)
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("rate", [2e12, 5e9])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_layer_takes_its_kernels_or_the_copy_of_the_next_one(
    make: Callable[[], Model], layer: int, pp: int, rate: float, recompute: str
) -> None:
    override: dict[str, object] = {"pcie_bytes_per_s": rate}
    options: dict[str, Any] = {"parallel": Parallel(pp=pp, partition="layers"), "recompute": recompute}
    plain = run(make(), **options)
    moved = run(make(), **options, override=override, offload="weights")
    profile = Cluster("h100", 1, 1, override).profile

    def copy(size: int) -> float:
        (group,) = {link for stream, link in HOST_LINK.items() if stream.name == "reload"}
        return round(collective_latency(profile, OpKind.P2P, group, size) * TIME_GRID_PER_S) / TIME_GRID_PER_S

    assert copy(2 * layer) >= 2 * layer / (profile.pcie_bytes_per_s.value * profile.links[Port.PCIE].of(OpKind.P2P).net)
    for rank in range(pp):
        for phase, blocks in zip("FB", by_block(plain, rank), strict=True):
            bound = [copy(2 * layer) > seconds for path, seconds in blocks.items() if ".layers." in path]
            assert all(bound) == (rate < 1e12) and any(bound) == (rate < 1e12)
            for stage in moved.timeline.ranks[rank].stages:
                if stage.phase.value == phase:
                    assert stage.end_s - stage.start_s == expected(blocks, copy(2 * layer))
    if pp == 1:  # all microbatches one after the other, then the step, then the new weights
        stages = sum(expected(blocks, copy(2 * layer)) for blocks in by_block(plain, 0))
        step = plain.iteration_time_s - plain.makespan_s
        assert moved.iteration_time_s == 4 * stages + step + copy(LAYERS * 2 * layer)
        exposed = moved.breakdown_s["exposed_communication"]
        assert exposed["offload"] == copy(LAYERS * 2 * layer)  # type: ignore[index]


def test_activations_come_back_behind_the_weights_of_their_layer() -> None:
    """One stream: weights and activations of the last layer, then of the one before, and so on."""
    moved = run(big_gpt(), offload=["weights", "activations"], recompute="full")
    backward = next(o for s, o in moved.timeline.ranks[0].stage_operators() if s.phase.value == "B")
    order = [
        (path.rsplit(".", 1)[1], block)
        for path, block, stream in zip(backward.table.paths, backward.table.blocks, backward.table.streams, strict=True)
        if stream == "reload"
    ]
    layers = [f"llm.layers.{number}" for number in reversed(range(LAYERS))]
    assert order == [(what, path) for path in layers for what in ("weights", "reload")]
    both = (LAYERS * 2 * GPT_LAYER + LAYERS * 2 * SEQ * HIDDEN,)
    assert moved.host_memory_bytes == both


def test_optimizer_state_and_weights_share_the_host() -> None:
    moved = run(big_llama(), offload=["optimizer", "weights"])
    assert moved.host_memory_bytes == (12 * big_llama().num_parameters() + 2 * LAYERS * LLAMA_LAYER,)
    names = [piece.name for piece in moved.timeline.ranks[0].outer if piece.start_s >= moved.makespan_s]
    assert names == ["optimizer state in", "Adam step", "optimizer state out", "weights out"]


def test_without_master_weights_the_step_reads_them_first() -> None:
    moved = run(big_gpt(), offload="weights", master_dtype="bf16")
    sizes = {piece.name: piece.net_bytes for piece in moved.timeline.ranks[0].outer}
    assert sizes["weights in"] == sizes["weights out"] == LAYERS * 2 * GPT_LAYER


def test_it_is_proposed_where_it_fits() -> None:
    model = Model.from_module(GPT(GPTConfig(8, hidden=2048, heads=16, vocab=512, positions=512)), name="llm")
    away = 6 * 2 * (12 * 2048**2 + 13 * 2048)
    plain = run(model)
    assert plain.reserved_memory_bytes is not None
    options: dict[str, object] = {
        "memory_bytes": capacity_for(plain.reserved_memory_bytes[0] - away // 2, Parallel()),
    }
    job = job_on(model, Parallel(), options, seq_len=512)
    report = semu.simulate(job)
    assert not report.fits
    labels = [change.label() for change in nearest_fit(job, report, semu.simulate)]
    assert "training.offload=weights" in labels
    more = {change.get("training.offload") for change in single_changes(job_on(model, Parallel(), offload="optimizer"))}
    assert {("optimizer", "activations"), ("optimizer", "weights")} < more
    change = changed(job, {"training.offload": ("optimizer", "weights")})
    assert change.training.offload == ("weights", "optimizer")
    label = FittingChange({"training.offload": ("optimizer", "weights")}, 0, 0, 0.0, 0.0).label()
    assert label == 'training.offload=["optimizer","weights"]'


def test_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[model.transformer]
layers = {LAYERS}
hidden = {HIDDEN}
ffn = 1408
heads = 8
kv_heads = 4
vocab = {VOCAB}
gated_mlp = true

[cluster]
device = "h100"
gpus_per_node = 1

[training]
global_batch = 2
seq_len = {SEQ}
offload = "weights"
offload_fraction = 0.5
"""
    )
    assert main(["simulate", str(path), "--json"]) == 0
    half = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(path), "--json", "--set", "training.offload_fraction=1"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert half["host_memory_bytes"] == [LAYERS // 2 * 2 * LLAMA_LAYER]
    assert whole["host_memory_bytes"] == [LAYERS * 2 * LLAMA_LAYER]
    assert half["static_memory_bytes"][0] - whole["static_memory_bytes"][0] == LAYERS // 2 * 2 * LLAMA_LAYER
    assert whole["iteration_time_s"] > half["iteration_time_s"]
    assert half["job"]["training"]["offload"] == ["weights"]


# -- what is refused -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "where", "nearest"),
    [
        ({"precision": "fp8"}, "training.fp8_weights", "microbatch"),
        ({"precision": "fp8", "fp8_weights": "primary"}, "training.fp8_weights", "microbatch"),
        ({"recompute": "full", "recompute_layers": 2, "recompute_method": "uniform"}, "training.recompute_layers", 1),
        ({"offload_layers": ["llm.layer.1"]}, "training.offload_layers", None),
        ({"offload_fraction": 2}, "training.offload_fraction", 1),
    ],
)
def test_what_is_refused(options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        run(big_gpt(), offload="weights", **options)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_fp8_casts_of_every_microbatch_and_single_recomputed_layers_are_not() -> None:
    for options in (
        {"precision": "fp8", "fp8_weights": "microbatch"},
        {"recompute": "full", "recompute_layers": 2, "recompute_method": "block"},
        {"recompute": "full", "recompute_layers": 1},
    ):
        assert_tails_equal(job_of(gpt(), text_items(3), Parallel(), offload="weights", **options))  # type: ignore[arg-type]
