"""LoRA: parameters as PEFT counts them, costs by hand, times and memory against the slow reference, run files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nn.tracing_kit import D, F, W, options, run, spec
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import LANGUAGE, gpt, job_of, overlap, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

import semu_models
from semu.errors import ConfigError, GraphError
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn import Linear, LoRA, LoRALinear, Model, Module, add_lora
from semu.nn.trace.block import trace_block
from semu.nn.trace.sharding import ShardingStyle
from semu.parallel.config import Parallel
from semu.runfile import load_run, resolve_run
from semu.simulation import simulate
from semu_models.text.mixtral import Mixtral, MixtralConfig

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("model", "rank", "targets", "count", "source"),
    [
        ("llama3-8b", 16, ALL, 41_943_040, "PEFT on Llama 3 8B, r = 16, all linear layers"),
        ("llama3-8b", 16, ("all-linear",), 41_943_040, "the same"),
        ("lm-7b", 8, ("q_proj", "v_proj"), 4_194_304, "PEFT on LLaMA 7B, r = 8 (its default targets)"),
        ("gpt3-175b", 1, ("q_proj", "v_proj"), 4_718_592, "2106.09685 Table 4: 4.7 M"),
        ("gpt3-175b", 8, ("q_proj", "v_proj"), 37_748_736, "2106.09685 Table 4: 37.7 M"),
        ("gpt3-175b", 2, ALL[:4], 18_874_368, "2106.09685 Table 5: 18 M"),
        (
            "gpt3-175b",
            1,
            ("c_attn",),
            96 * (12288 + 3 * 12288),
            "one adapter beside the fused projection, r (in + out)",
        ),
        ("gpt2", 8, ("c_attn",), 294_912, "PEFT 0.21 on GPT2LMHeadModel"),
        ("mixtral-8x7b", 8, ("q_proj", "v_proj"), 3_407_872, "32 x 8 x (4096 + 4096 + 4096 + 1024)"),
        ("mixtral-8x7b", 8, ("all-linear",), 121_112_576, "PEFT 0.21 on transformers 4.57, routers and experts too"),
        ("mixtral-8x7b", 8, ("w1", "w2", "w3"), 113_246_208, "the same, experts only"),
        ("mixtral-8x7b", 8, ("q_proj", "w1", "w2", "w3"), 115_343_360, "the same, and the queries"),
        ("deepseek-v3", 4, ("q_a_proj", "kv_b_proj"), 61 * 4 * (7168 + 1536 + 512 + 32768), "r (in + out)"),
        ("vlm-s", 8, ("llm.*.q_proj",), 32 * 8 * 8192, "of the language model only"),
        ("dit-5b", 4, ("cross_attention.k_proj",), 28 * 4 * 7168, "half of the fused keys and values"),
    ],
)
def test_parameters(model: str, rank: int, targets: tuple[str, ...], count: int, source: str) -> None:
    built = semu_models.build(model)
    before = built.num_parameters()
    add_lora(built, LoRA(rank, targets))
    assert built.num_parameters(trainable_only=True) == count, source
    assert built.num_parameters() == before + count


def test_what_else_is_trained() -> None:
    model = vlm()
    adapter = sum(p.numel for path, p in model.named_parameters() if path.startswith("vit.adapter"))
    add_lora(model, LoRA(4, ("llm.*.q_proj", "llm.*.v_proj"), trainable=("vit.adapter",)))
    kv = LANGUAGE.kv_heads * LANGUAGE.hidden // LANGUAGE.heads
    lora = LANGUAGE.layers * 4 * (LANGUAGE.hidden + LANGUAGE.hidden + LANGUAGE.hidden + kv)
    assert model.num_parameters(trainable_only=True) == adapter + lora
    trained = {path for path, p in model.named_parameters() if p.requires_grad}
    assert {path for path in trained if "lora_" not in path} == {p for p in trained if p.startswith("vit.adapter")}


def test_projector_and_adapters_of_the_language_model() -> None:
    """LLaVA-1.5 (2310.03744) with r = 128: adapters on the language model's layers, the projector trained whole."""
    model = semu_models.build("llava-1.5-7b")
    lora = LoRA(128, ("llm.*_proj",), trainable=("vision.projector.mlp",))
    layer = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert add_lora(model, lora).num_parameters(trainable_only=True) == 32 * 128 * layer + projector


def test_what_is_never_used_gets_no_adapter() -> None:
    model = add_lora(semu_models.build("llava-1.5-7b"), LoRA(8, ("vision.*.q_proj", "llm.*.q_proj")))
    assert model.num_parameters(trainable_only=True) == 23 * 8 * 2 * 1024 + 32 * 8 * 2 * 4096


def wrapped(rank: int = 4, parts: tuple[tuple[int, int], ...] = ((0, 64), (2, 32))) -> LoRALinear:
    """Queries and values of a fused [128, 32] projection."""
    base = Linear(32, 128, bias=False, parts=(64, 32, 32))
    base.requires_grad_(False)
    return LoRALinear(base, rank, parts, 0.0)


def test_products_by_hand() -> None:
    m, k, r = 16, 32, 4
    block = run(wrapped(), spec(m, k))
    rows = [(op.kind, op.phase, op.flop, op.mem_bytes) for op in block.graph.operators]

    def product(a: int, n: int, b: int, phase: object) -> tuple[object, ...]:
        grad = (a * n + b * a) * 2 + 8 * n * b if phase is W else 2 * (a * b + b * n + a * n)
        return OpKind.MATMUL, phase, 2 * a * n * b, grad

    forward = [product(m, 128, k, F)]
    for width in (64, 32):
        forward += [product(m, r, k, F), product(m, width, r, F)]
    forward.append((OpKind.ADD, F, 0, 3 * 2 * m * 96))
    assert rows[: block.num_forward] == forward
    backward = [product(m, 128, k, D)]
    for width in (32, 64):
        backward += [product(m, width, r, D), product(m, width, r, W), product(m, r, k, D), product(m, r, k, W)]
    products = [row for row in rows[block.num_forward :] if row[0] is OpKind.MATMUL]
    assert sorted(map(str, products)) == sorted(map(str, backward))
    assert sum(row[0] is OpKind.ADD for row in rows[block.num_forward :]) == 2  # three gradients of x become one
    assert not any(w.path.endswith("weight") and w.gradient is not None for w in block.parameters)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("style", [ShardingStyle.COLUMN, ShardingStyle.ROW])
def test_collectives_are_as_narrow_as_the_rank(style: ShardingStyle, sp: bool) -> None:
    m, r, tp = 16, 4, 2
    is_row = style is ShardingStyle.ROW
    base = Linear(64, 32, bias=False)
    base.requires_grad_(False)
    module = LoRALinear(base, r, ((0, 32),), 0.0)
    cut = (1, tp) if is_row else (tp if sp else 1, 1)
    block = run(module, spec(m, 64, shards=cut), tp=tp, sp=sp, style=style)
    sent = [(op.kind, op.phase, op.net_bytes) for op in block.graph.operators if op.net_bytes]
    wide = m * (32 if is_row else 64) * 2

    def both(kind: OpKind, phase: object) -> list[tuple[object, object, int]]:
        size = 2 if kind is OpKind.ALL_REDUCE else 1
        return [(kind, phase, size * width // 2) for width in (wide, m * r * 2)]

    if not sp:
        expected = both(OpKind.ALL_REDUCE, F if is_row else D)
    elif is_row:
        expected = both(OpKind.REDUCE_SCATTER, F) + both(OpKind.ALL_GATHER, D)
    else:  # the frozen weight does not need its input again, B does need its own
        expected = both(OpKind.ALL_GATHER, F) + both(OpKind.REDUCE_SCATTER, D)
        expected.append((OpKind.ALL_GATHER, D, m * r * 2 // 2))
    assert sorted(map(str, sent)) == sorted(map(str, expected))
    local = {use.path: use.numel for use in block.parameters}
    assert local["lora_a0"] == 64 * r // (tp if is_row else 1)
    assert local["lora_b0"] == 32 * r // (1 if is_row else tp)


def test_adapters_do_not_run_in_fp8() -> None:
    model = add_lora(semu_models.build("llama3-8b"), LoRA(12))  # 12 is no multiple of 16
    layer = dict(model.modules[0].blocks())["llm.layers.0"]
    chosen = replace(options(), compute_dtype=DType.FP8)
    block = trace_block(layer, [spec(64, 4096)], chosen, root="llm.layers.0")
    kinds = {op.dtype for op in block.graph.operators if op.kind is OpKind.MATMUL and 12 in op.key}
    assert kinds == {DType.BF16}
    assert any(op.dtype is DType.FP8 for op in block.graph.operators)


def lora_gpt(targets: tuple[str, ...] = ("all-linear",), dropout: float = 0.0) -> Model:
    return add_lora(gpt(), LoRA(8, targets, dropout))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("pp", "tp", "sp", "tensor"), [(1, 1, False, False), (2, 2, True, True), (2, 2, False, False)])
@pytest.mark.parametrize("recompute", ["none", "full", ["core_attn", "mlp"]])
def test_against_the_reference(pp: int, tp: int, sp: bool, tensor: bool, recompute: str | list[str]) -> None:
    job = job_of(
        lora_gpt(dropout=0.1 if recompute == "none" else 0.0),
        text_items(3),
        Parallel(pp=pp, tp=tp, sequence_parallel=sp),
        recompute=recompute,
        overlap=overlap(tensor=tensor),
    )
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("zero", [0, 1])
def test_reduction_and_optimizer_against_the_reference(zero: int) -> None:
    assert_tails_equal(job_of(lora_gpt(("q_proj", "v_proj")), text_items(4), Parallel(dp=2, pp=2, zero=zero)))


def test_sharded_parameters_against_the_reference() -> None:
    job = job_of(lora_gpt(), text_items(4), Parallel(dp=2, zero=3))
    assert_equal(simulate(job), expand(job))


def test_vision_language_against_the_reference() -> None:
    model = add_lora(vlm(), LoRA(4, ("llm.*.q_proj", "llm.*.down_proj"), trainable=("vit.adapter",)))
    job = job_of(model, vlm_items(3), Parallel(pp=2, tp=2))
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("parallel", [Parallel(dp=2, ep=2), Parallel(dp=2, pp=2), Parallel(dp=2, tp=2, ep=2, etp=1)])
def test_experts_against_the_reference(parallel: Parallel) -> None:
    """As many rows to every expert; adapters of experts are reduced over the ranks that have the same experts."""
    model = Model.from_module(Mixtral(MixtralConfig(2, 64, 96, 4, 2, 128, experts=4, top_k=2)), name="llm")
    for targets in (("all-linear",), ("w2", "v_proj")):
        job = job_of(add_lora(model, LoRA(4, targets)), text_items(4), parallel)
        assert_tails_equal(job)
        model = Model.from_module(Mixtral(MixtralConfig(2, 64, 96, 4, 2, 128, experts=4, top_k=2)), name="llm")


def test_experts_by_hand() -> None:
    model = Model.from_module(Mixtral(MixtralConfig(1, 64, 96, 4, 2, 128, experts=4, top_k=2)), name="llm")
    add_lora(model, LoRA(4, ("w1", "w2")))
    layer = dict(model.modules[0].blocks())["llm.layers.0"]
    block = trace_block(layer, [spec(32, 64)], options(), root="llm.layers.0")
    rows = [(op.flop, op.key) for op in block.graph.operators[: block.num_forward] if op.kind is OpKind.GROUPED_MATMUL]
    m = 2 * 32
    sizes = [(m, 192, 64), (m, 4, 64), (m, 96, 4), (m, 64, 96), (m, 4, 96), (m, 64, 4)]
    assert [(flop, tuple(key)[:3]) for flop, key in rows] == [(2 * a * n * k, (a, n, k)) for a, n, k in sizes]


def test_experts_that_are_split_are_refused() -> None:
    model = Model.from_module(Mixtral(MixtralConfig(1, 64, 96, 4, 2, 128, experts=4, top_k=2)), name="llm")
    with pytest.raises(GraphError, match="expert tensor parallelism") as caught:
        simulate(job_of(add_lora(model, LoRA(4, ("w1",))), text_items(2), Parallel(tp=2)))
    assert caught.value.nearest == "etp = 1"


def test_states_are_of_the_adapters_only() -> None:
    model = lora_gpt()
    trained, frozen = model.num_parameters(trainable_only=True), model.num_parameters()
    report = simulate(job_of(model, text_items(1), Parallel(zero=0)))
    assert report.static_memory_bytes[0] == 2 * frozen + 16 * trained  # bf16; fp32 gradient, master, two moments


RUN = """\
[model]
name = "llama3-8b"
[model.lora]
rank = 16
targets = ["q_proj", "v_proj"]
alpha = 32
[cluster]
device = "h100"
gpus_per_node = 4
[parallel]
tp = 2
pp = 2
"""


def test_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    job = load_run(path)
    assert job.model.num_parameters(trainable_only=True) == 32 * 16 * (4096 + 4096 + 4096 + 1024)
    whole = load_run(path, ["model.lora.targets=all-linear", "model.frozen=['llm.layers.0']"])
    assert whole.model.num_parameters(trainable_only=True) == 41_943_040 * 31 // 32
    again = tmp_path / "again.toml"
    again.write_text(resolve_run(path).to_toml())
    assert simulate(load_run(again)).iteration_time_s == simulate(job).iteration_time_s


@pytest.mark.parametrize(
    ("change", "where", "nearest"),
    [
        ("rank = 0", "model.lora.rank", 1),
        ('rank = 4\ntargets = ["q_prj"]', "model.lora.targets", "q_proj"),
        ('rank = 4\ntargets = ["c_attn", "q_proj"]', "model.lora.targets", None),
        ("rank = 4\ntargets = []", "model.lora.targets", None),
        ("rank = 4\ndropout = 1.0", "model.lora.dropout", 0),
        ('rank = 4\ntrainable = ["llm.hed"]', "model.lora.trainable", "llm.head"),
        ('targets = ["q_proj"]', "model.lora.rank", None),
        ("rank = 4\nrannk = 4", "model.lora.rannk", "rank"),
    ],
)
def test_bad_options(tmp_path: Path, change: str, where: str, nearest: object) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\nname = "llama3-8b"\n[model.lora]\n{change}\n[cluster]\ndevice = "h100"\n')
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert caught.value.where is not None
    assert caught.value.where.endswith(where)
    assert caught.value.nearest == nearest


def test_once_only() -> None:
    model = lora_gpt()
    with pytest.raises(ConfigError, match="adapters already"):
        add_lora(model, LoRA(4))


def test_rank_that_tensor_parallelism_leaves_alone() -> None:
    """A rank need not divide by tp: it is never cut."""
    job = job_of(add_lora(gpt(), LoRA(3)), text_items(2), Parallel(tp=4))
    assert simulate(job).iteration_time_s > 0


def test_the_order_of_submodules_stays() -> None:
    plain, lora = gpt(), lora_gpt()

    def paths(model: Model) -> list[str]:
        return [path for path, _ in model.modules[0].body.named_modules()]

    assert paths(plain) == paths(lora)
    assert all(isinstance(m, Module) for m in lora.modules[0].body)  # type: ignore[union-attr]
