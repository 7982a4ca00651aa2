"""Memory strategies through ``simulate``: against the slow reference, hand counts and the forms of 2205.05198."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import (
    LANGUAGE,
    Distance,
    attention_encoder,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.reference.costs import symbols_of, value
from simulation.reference.expansion import Expansion, expand

from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Recompute, Training, TrainingJob
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.runfile import load_run
from semu.runfile.transformer import TransformerConfig
from semu.simulation import simulate
from semu_models.text.decoder import Decoder
from semu_models.text.llama import Llama

S, B, H, A, LAYERS = 64, 2, 128, 8, 3
SB = S * B


# -- the slow reference ------------------------------------------------------------------------------------------------
def saved_on(expected: Expansion, rank: int) -> int:
    """Most bytes that the layers of a rank keep at once over all replicas, stage by stage."""
    model, job, most = expected.model, expected.model.job, 0
    items = job.batch.microbatches(job.num_microbatches * job.parallel.dp, job.training.micro_batch, None)
    for number, replica in enumerate(expected.replicas):
        own = [symbols_of(item, job.parallel.tp) for item in items[number :: job.parallel.dp]]
        held = 0
        for chunk, phase, microbatch in replica.orders[rank]:
            if not model.has_backward(chunk):
                continue
            sizes = {
                model.home(block, storage): value(block.trace.graph.storages[storage].size_bytes, own[microbatch])
                for block in model.chunk(chunk)
                if block.is_layer
                for storage in block.saved()
            }
            held += sum(sizes.values()) if phase == "F" else -sum(sizes.values())
            most = max(most, held)
    return most


def check(job: TrainingJob) -> Report:
    report, expected = simulate(job), expand(job)
    assert_equal(report, expected)
    assert [row.activation_bytes for row in report.ranks] == [saved_on(expected, r) for r in range(job.parallel.pp)]
    return report


@pytest.mark.sampled(6)
@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize(
    "recompute", ["none", "selective", "full", ["mlp", "norm"], ["attention", "core_attn", "act"], ["*.layers.1.mlp"]]
)
@pytest.mark.parametrize(("pp", "tp"), [(1, 2), (2, 1), (3, 2)])
def test_text(pp: int, tp: int, recompute: Any, attention: str) -> None:
    parallel = Parallel(pp=pp, tp=tp, sequence_parallel=pp == 3)
    check(job_of(gpt(), text_items(3), parallel, recompute=recompute, attention=attention))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recompute", ["selective", ["mlp", "layernorm"], ["vit.layers.*.attention", "act"]])
@pytest.mark.parametrize("frozen", [(), ("vit",), ("llm",)], ids=lambda names: "+".join(names))
def test_vision_language(frozen: tuple[str, ...], recompute: Any) -> None:
    job = job_of(
        vlm(frozen=frozen),
        vlm_items(3),
        Parallel(pp=2, tp=2),
        overlap=overlap(tensor=True, pipeline=True),
        recompute=recompute,
        attention="unfused",
    )
    check(job)


@pytest.mark.parametrize("recompute", ["selective", ["attention", "layernorm"]])
def test_text_to_video(recompute: Any) -> None:
    check(job_of(t2v(), t2v_items(3), Parallel(pp=2, tp=2), recompute=recompute, attention="unfused"))


def test_attention_whose_output_leaves() -> None:
    check(job_of(attention_encoder(), text_items(3), Parallel(pp=2), recompute="selective", attention="unfused"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["block", "uniform"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 2)])
def test_layers_by_method(pp: int, tp: int, layers: int, method: str) -> None:
    for model, items in ((gpt(6), text_items(3)), (vlm(layers=4), vlm_items(3)), (t2v(layers=4), t2v_items(3))):
        job = job_of(
            model,
            items,
            Parallel(pp=pp, tp=tp),
            recompute="full",
            recompute_layers=layers,
            recompute_method=method,
        )
        check(job)


# -- closed forms ------------------------------------------------------------------------------------------------------
def decoder(layers: int = LAYERS, **sizes: Any) -> Model:
    table = {"layers": layers, "hidden": H, "heads": A, "vocab": 512, "dropout": 0.1, "positions": S, **sizes}
    return TransformerConfig.from_table(table).model()


def run(model: Model, tp: int = 1, sp: bool = False, micro_batch: int = B, **training: Any) -> Report:
    options = {"precision": "fp16", "seq_len": S, "attention": "unfused", **training}
    job = TrainingJob(
        model,
        Cluster("a100-80g", 1, tp),
        Parallel(tp=tp, sequence_parallel=sp),
        Training(micro_batch=micro_batch, global_batch=micro_batch, **options),
    )
    return simulate(job)


def table_2(recompute: str, t: int, sp: bool) -> int:
    """Activation bytes of a layer, 2205.05198 Table 2, and the norms' mean and deviation, which it neglects."""
    sbh, scores = SB * H, 5 * A * S * SB
    statistics = 16 * SB // (t if sp else 1)
    if recompute == "full":
        return 2 * sbh // (t if sp else 1)
    kept = 34 * sbh // t if sp else 10 * sbh + 24 * sbh // t
    return kept + statistics + (scores // t if recompute == "none" else 0)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sp"), [(1, False), (8, False), (8, True)])
def test_a_layer_saves_what_table_2_says(tp: int, sp: bool, recompute: str) -> None:
    report = run(decoder(), tp, sp, recompute=recompute)
    (row,) = report.ranks
    assert row.activation_bytes == LAYERS * table_2(recompute, tp, sp)
    assert row.peak_bytes - row.static_bytes > row.activation_bytes
    one = run(decoder(LAYERS + 1), tp, sp, recompute=recompute).ranks[0]
    grown = one.peak_bytes - one.static_bytes - (row.peak_bytes - row.static_bytes)
    assert grown == table_2(recompute, tp, sp)  # the peak itself, one layer apart


def test_no_mask_without_dropout_and_none_of_fused_attention() -> None:
    sbh, per_layer = SB * H, LAYERS
    plain = run(decoder(dropout=0.0)).ranks[0].activation_bytes
    assert plain == per_layer * (32 * sbh + 2 * A * S * SB + 16 * SB)
    fused = run(decoder(), attention="fused").ranks[0].activation_bytes
    assert fused == per_layer * (34 * sbh + 4 * A * SB + 16 * SB)
    again = run(decoder(), attention="fused", recompute="selective").ranks[0].activation_bytes
    assert again == per_layer * (34 * sbh + 16 * SB)


def test_the_embedding_has_a_mask_too() -> None:
    """At the peak of a model without layers, in the head, it is all that dropout adds."""

    def peak(p: float) -> int:
        return run(Model.from_module(Decoder(0, H, 512, Module, dropout=p), name="llm")).ranks[0].peak_bytes

    assert peak(0.1) - peak(0.0) == SB * H


def test_grouped_queries() -> None:
    """Llama by hand: without fused attention keys and values are copied for every head, q, k and qkv are not kept."""
    c = LANGUAGE
    model = Model.from_module(Llama(c), name="llm")
    h, f, a = c.hidden, c.ffn, c.heads
    kv = c.kv_heads * h // a
    common = 2 * SB * (2 * h + h + h + h + 3 * f) + 8 * SB  # norms, inputs of qkv, out and up, up and swiglu
    fused = run(model, attention="fused").ranks[0].activation_bytes
    assert fused == c.layers * (common + 2 * SB * (h + 2 * kv) + 2 * SB * (h + kv) + 4 * SB * a)
    unfused = run(model).ranks[0].activation_bytes
    assert unfused == c.layers * (common + 2 * SB * 3 * h + 2 * a * S * SB)
    core = run(model, recompute="selective").ranks[0].activation_bytes
    assert core == c.layers * (common + 2 * SB * (h + 2 * kv) + 2 * SB * (h + kv))


SAVED = {
    "mlp": 16 * SB * H,  # its input stays
    "layernorm": 4 * SB * H,
    "act": 8 * SB * H,
    "core_attn": 5 * A * S * SB,
    "attention": 8 * SB * H + 5 * A * S * SB,
}
AGAIN = {
    "mlp": 16 * SB * H * H,
    "layernorm": 0,
    "act": 0,
    "core_attn": 4 * S * SB * H,
    "attention": 8 * SB * H * H + 4 * S * SB * H,
}


@pytest.mark.parametrize(
    "kinds", [[kind] for kind in SAVED] + [["layernorm", "act", "core_attn"], ["mlp", "attention"]]
)
def test_bytes_and_flop_of_kinds(kinds: list[str]) -> None:
    none, again = run(decoder()), run(decoder(), recompute=kinds)
    saved = none.ranks[0].activation_bytes - again.ranks[0].activation_bytes
    assert saved == LAYERS * sum(SAVED[kind] for kind in kinds)
    # the head's final norm is recomputed too: no FLOP
    assert again.hardware_flop - none.hardware_flop == LAYERS * sum(AGAIN[kind] for kind in kinds)
    assert again.model_flop == none.model_flop
    assert again.iteration_time_s > none.iteration_time_s
    assert again.hfu > again.mfu


def test_flop_of_modes() -> None:
    """Selective: the two products of the attention core, 4 b s^2 h a layer (2205.05198 appendix A); full: a layer."""
    forward = 24 * SB * H * H + 4 * S * SB * H
    for attention, half in (("unfused", 1), ("fused", 2)):
        none, selective, full = (
            run(decoder(), attention=attention, recompute=mode) for mode in ("none", "selective", "full")
        )
        assert selective.hardware_flop - none.hardware_flop == LAYERS * 4 * S * SB * H // half
        assert full.hardware_flop - none.hardware_flop == LAYERS * (forward - 4 * S * SB * H * (half - 1) // half)
        assert none.model_flop == selective.model_flop == full.model_flop
        assert none.mfu > selective.mfu > full.mfu
    assert run(decoder()).model_flop == run(decoder(), attention="fused").model_flop
    assert run(decoder()).mfu_full_attention * run(decoder()).iteration_time_s == pytest.approx(
        run(decoder(), attention="fused").mfu_full_attention * run(decoder(), attention="fused").iteration_time_s
    )


def test_methods_keep_what_they_say() -> None:
    layer, kept = table_2("none", 1, False), table_2("full", 1, False)
    for layers in (1, 2, 3):
        block = run(decoder(), recompute="full", recompute_layers=layers, recompute_method="block")
        assert block.ranks[0].activation_bytes == layers * kept + (LAYERS - layers) * layer
        uniform = run(decoder(), recompute="full", recompute_layers=layers, recompute_method="uniform")
        assert uniform.ranks[0].activation_bytes == -(-LAYERS // layers) * kept
        assert uniform.hardware_flop == run(decoder(), recompute="full").hardware_flop
    default, first = (
        run(decoder(), recompute="full", recompute_layers=1, **m) for m in ({}, {"recompute_method": "block"})
    )
    assert default.ranks == first.ranks


def test_uniform_by_one_is_full() -> None:
    full, uniform = (
        run(decoder(), recompute="full", **options)
        for options in ({}, {"recompute_layers": 1, "recompute_method": "uniform"})
    )
    assert full.iteration_time_s == uniform.iteration_time_s
    assert full.ranks == uniform.ranks


# -- published closed forms --------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_formula_rows(data_dir: Path) -> None:
    """Activation bytes of every row without interleaving: within 0.5 %, 1.2 % where the row is a rounded percentage."""
    rows = json.loads((data_dir / "runs" / "runs.json").read_text())
    rows = [row for row in rows if row["trust"] == "formula" and row["schedule_kind"] in (None, "1f1b")]
    assert rows
    for row in rows:
        model = row["model"]
        table = {name: model[name] for name in ("layers", "hidden", "heads", "vocab", "tied_embeddings")}
        config = {**table, "ffn": model["ffn_hidden"], "positions": model["seq_len"], "dropout": 0.1}
        job = TrainingJob(
            TransformerConfig.from_table(config).model(),
            Cluster(row["profile"], row["gpus"] // row["gpus_per_node"], row["gpus_per_node"]),
            Parallel(dp=row["dp"], tp=row["tp"], pp=row["pp"], sequence_parallel=row["sequence_parallel"]),
            Training(
                micro_batch=row["micro_batch"],
                global_batch=min(row["global_batch"], row["dp"] * row["micro_batch"] * (row["pp"] + 1)),
                seq_len=model["seq_len"],
                precision=row["precision_kind"],
                recompute=row["recompute_kind"],
                attention="unfused",
            ),
        )
        first = simulate(job).ranks[0]
        published = row["measured_values"]
        tolerance = 0.012 if row["recompute_kind"] == "full" else 0.005
        assert first.activation_bytes == pytest.approx(published["activation_bytes"], rel=tolerance), row["id"]
        static = first.static_bytes * first.layer_parameters / first.parameters
        assert static == pytest.approx(published["params_grads_optimizer_bytes"], rel=0.005), row["id"]


# -- run files and errors ----------------------------------------------------------------------------------------------
FILE = """
[model.transformer]
layers = 4
hidden = 128
heads = 8
vocab = 512
[cluster]
device = "a100-80g"
gpus_per_node = 1
[training]
seq_len = 64
recompute = {recompute}
{more}
"""


def load(folder: Path, recompute: str, more: str = "") -> TrainingJob:
    path = folder / "run.toml"
    path.write_text(FILE.format(recompute=recompute, more=more))
    return load_run(path)


def test_a_run_file_says_all_of_it(tmp_path: Path) -> None:
    training = load(
        tmp_path, '"full"', 'recompute_layers = 2\nrecompute_method = "uniform"\nattention = "unfused"'
    ).training
    assert training == replace(
        Training(micro_batch=1, global_batch=training.global_batch, seq_len=64, recompute="full"),
        recompute_layers=2,
        recompute_method="uniform",
        attention="unfused",
    )
    listed = load(tmp_path, '["mlp", "llm.layers.0.attention_norm"]').training
    assert listed.recompute is Recompute.SELECTIVE
    assert listed.recompute_modules == ("mlp", "llm.layers.0.attention_norm")
    assert load(tmp_path, '"selective"').training.recompute_plan.kinds == ("core_attn",)


@pytest.mark.parametrize(
    ("recompute", "more", "message", "nearest"),
    [
        ('["mpl"]', "", "unknown module kind 'mpl'", "mlp"),
        ('["core_atn"]', "", "unknown module kind 'core_atn'", "core_attn"),
        ('["llm.layer.0.mlp"]', "", "unknown module path", "llm.layers.0.mlp"),
        ("[]", "", "neither a recompute mode nor a list of modules", "selective"),
        ('["full"]', "", "'full' says it all", "full"),
        ('"ful"', "", "unknown recompute 'ful'", "full"),
        ('"none"', "recompute_layers = 2", "recompute_layers is of full recomputation", 'recompute = "full"'),
        ('"selective"', "recompute_layers = 2", "recompute_layers is of full recomputation", 'recompute = "full"'),
        ('["mlp"]', 'recompute_method = "block"', "recompute_method is of full", 'recompute = "full"'),
        ('"full"', 'recompute_method = "block"', "needs a number of layers", 1),
        ('"full"', "recompute_layers = 0", "not a valid number", 1),
        ('"full"', 'recompute_layers = 1\nrecompute_method = "blok"', "unknown recompute_method 'blok'", "block"),
        ('"none"', 'attention = "unfussed"', "unknown attention 'unfussed'", "unfused"),
    ],
)
def test_mistakes(tmp_path: Path, recompute: str, more: str, message: str, nearest: object) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, recompute, more)
    assert caught.value.nearest == nearest
    assert "run.toml:" in str(caught.value.where)


def test_more_layers_than_a_stage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recompute_layers = 9, and no stage has more than 4 layers") as caught:
        simulate(load(tmp_path, '"full"', "recompute_layers = 9"))
    assert caught.value.nearest == 4


def test_modules_without_selective() -> None:
    with pytest.raises(ConfigError, match="recompute is not selective"):
        Training(recompute="full", recompute_modules=("mlp",))
    assert replace(Training(recompute=["mlp"]), micro_batch=2).recompute_modules == ("mlp",)


class Squash(Module):
    """A user's module with a kind of its own."""

    recompute_kind = "squash"

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Linear(H, H), Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(F.gelu(self.inner(x)))
        return out


def test_a_users_kind() -> None:
    def model() -> Model:
        body = Sequential(Linear(H, H), Squash(), Distance(H))
        return Model("m", [ModalityModule("m", ModalityRole.BACKBONE, body, (InputSpec("text", H),))])

    none, again = (run(model(), recompute=mode).ranks[0].activation_bytes for mode in ("none", ["squash"]))
    assert none - again == 2 * 2 * SB * H  # inputs of gelu and of the second product
    with pytest.raises(ConfigError, match="no module of kind 'mlp'"):
        run(model(), recompute=["mlp"])
