"""Phi, OLMo 2, GLM-4, Falcon and BLOOM: products against torch's own count, layers and collectives by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nn.tracing_kit import Apply, backward, forward, number, options, rows, run, run_megatron, spec

from semu.errors import ConfigError
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn import Embedding, LoRA, Module, SelfAttention, Sequences, add_lora
from semu.nn import functional as F
from semu.nn.trace.block import trace_block
from semu_models.hf import load_hf
from semu_models.text.falcon import FalconConfig, ParallelLayer
from semu_models.text.olmo import Olmo2Config
from tests.semu_models.chain import flop, operators_of, packed, trace_model

H, HEADS, TOKENS = 64, 4, 32
SIZES = {"num_hidden_layers": 3, "hidden_size": H, "num_attention_heads": HEADS, "vocab_size": 96, "pad_token_id": 0}
WIDE = {**SIZES, "intermediate_size": 160, "num_key_value_heads": 2}
FILES: dict[str, dict[str, Any]] = {
    "phi3": {**WIDE, "partial_rotary_factor": 0.5},
    "olmo2": WIDE,
    "glm4": {**WIDE, "head_dim": 16},
    "falcon": SIZES,
    "falcon-new": {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-rw": {**SIZES, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
    "bloom": {"n_layer": 3, "hidden_size": H, "n_head": HEADS, "vocab_size": 96},
}
PACKING = Sequences.uniform(2, TOKENS // 2)


def fields_of(name: str) -> dict[str, Any]:
    return {"model_type": name.partition("-")[0], **FILES[name]}


@pytest.mark.parametrize("name", FILES)
def test_products_are_those_that_torch_counts(name: str) -> None:
    """Forward FLOP of transformers' class, by torch's counter; backward is twice that."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    length = 24
    fields = {key: value for key, value in fields_of(name).items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(name.partition("-")[0], **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.int64), use_cache=False)
    links = trace_model(load_hf(fields_of(name)).model)
    assert flop(links, packed("text", [length]), full_attention=True) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", FILES)
def test_tensor_parallelism_shares_the_products(name: str, tp: int) -> None:
    """Also where ranks share key-value heads, unless all heads' keys are normed together."""
    model = load_hf(fields_of(name)).model
    if tp > 2 and name == "olmo2":
        with pytest.raises(Exception, match="2 key-value heads cannot be split"):
            trace_model(model, tp=tp)
        return
    assert tp * flop(trace_model(model, tp=tp), packed("text", [32], tp)) == flop(
        trace_model(model), packed("text", [32])
    )


def paths(module: Module, tp: int = 1) -> list[str]:
    arriving = spec(TOKENS, H, shards=(tp, 1), sequences=PACKING)
    return [op.path for op in forward(run_megatron(module, arriving, tp=tp, sp=tp > 1))]


def falcon(**options: Any) -> FalconConfig:
    return FalconConfig(layers=2, hidden=H, ffn=4 * H, heads=HEADS, kv_heads=1, vocab=96, **options)


def test_falcons_branches_are_side_by_side() -> None:
    layer = falcon().layer(0)
    assert isinstance(layer, ParallelLayer)
    assert sum("norm" in path for path in paths(layer)) == 1
    assert [path for path in paths(layer) if "add" in path] == ["add", "add"]
    assert sum("norm" in path for path in paths(falcon(norms=2).layer(0))) == 2
    assert [path for path in paths(layer) if "rope" in path] == ["attention.rope", "attention.rope"]
    assert not [path for path in paths(falcon(rotary=False).layer(0)) if "rope" in path]
    heavy = falcon(norms=2).layer(0).num_parameters()
    assert heavy - layer.num_parameters() == 2 * H
    with pytest.raises(ConfigError, match="number of norms"):
        falcon(norms=1, parallel=False)


def test_olmos_norms_stand_behind_the_branches_and_over_all_heads() -> None:
    config = Olmo2Config(layers=2, hidden=H, ffn=160, heads=HEADS, kv_heads=2, vocab=96)
    norms = [path for path in paths(config.layer(0)) if path.endswith("rms_norm")]
    assert norms == [
        *("attention.query_norm.rms_norm", "attention.key_norm.rms_norm"),
        *("attention_out_norm.rms_norm", "mlp_out_norm.rms_norm"),
    ]
    own = config.layer(0).num_parameters()
    assert own == 4 * H * H - 2 * H * (H // 2) + 3 * H * 160 + 2 * H + H + H // 2


@pytest.mark.parametrize("tp", [1, 2])
def test_norms_over_split_heads_exchange_heads_for_tokens(tp: int) -> None:
    """OLMo-core: an all-to-all each way for queries and for keys; the norm is over whole rows of 1/tp of the tokens."""
    layer = SelfAttention(H, HEADS, 2, bias=False, whole_norm=True)
    block = run_megatron(layer, spec(TOKENS, H, shards=(tp, 1), sequences=PACKING), tp=tp, sp=tp > 1)
    for operators in (forward(block), backward(block)):
        exchanges = [op for op in operators if op.kind is OpKind.ALL_TO_ALL]
        sizes = sorted(number(op.net_bytes) for op in exchanges)
        queries, keys = (2 * TOKENS * width // 2 // 2 for width in (H, H // 2))  # half of a rank's half is sent
        assert sizes == ([] if tp == 1 else [keys, keys, queries, queries])
        norms = [op for op in operators if op.kind is OpKind.NORM]
        assert sorted(number(op.key[0]) for op in norms) == [TOKENS // tp, TOKENS // tp]
        assert sorted(number(op.key[1]) for op in norms) == [H // 2, H]


def test_heads_rotated_in_part_cost_a_fused_kernel_the_same_and_eager_mode_less() -> None:
    x = spec(TOKENS, HEADS, 16)
    whole, half = (Apply(lambda t, n=n: F.rope(t, n)) for n in (None, 8))
    assert rows(forward(run(whole, x))) == rows(forward(run(half, x)))
    eager = replace(options(), eager_modules=True)
    elements = TOKENS * HEADS * 16
    (passes, _), (fewer, _) = (
        sorted(rows(trace_block(module, [x], eager).graph.operators[:2])) for module in (whole, half)
    )
    assert passes[3] == 16 * elements
    assert fewer[3] == 20 * elements // 2  # 20 bytes for each rotated feature; the joining copy is the kernel


def test_blooms_embedding_has_a_norm() -> None:
    ids = spec(TOKENS, dtype=DType.INT64, grad=False, sequences=PACKING)
    plain, normed = run(Embedding(100, H), ids), run(Embedding(100, H, norm=True), ids)
    assert [op.path for op in forward(normed)] == [*(op.path for op in forward(plain)), "norm.layer_norm"]
    assert Embedding(100, H, norm=True).num_parameters() == 100 * H + 2 * H
    model = load_hf(fields_of("bloom")).model
    kinds = [op.path for op in operators_of(trace_model(model)) if "rope" in op.path or "table" in op.path]
    assert kinds == []


@pytest.mark.parametrize("name", ["falcon", "bloom"])
def test_adapters_stand_where_peft_puts_them(name: str) -> None:
    """PEFT's default targets: ``query_key_value``; rank x (width in + width out) for each layer."""
    model = load_hf(fields_of(name)).model
    add_lora(model, LoRA(rank=2, targets=("query_key_value", "dense_h_to_4h")))
    width = H + 2 * (H // HEADS) if name == "falcon" else 3 * H
    assert model.num_parameters(trainable_only=True) == 3 * 2 * ((H + width) + (H + 4 * H))
    model = load_hf(fields_of(name)).model
    add_lora(model, LoRA(rank=2, targets=("dense",)))
    assert model.num_parameters(trainable_only=True) == 3 * 2 * (H + H)
