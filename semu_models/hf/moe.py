"""Dialects of language models with experts."""

from __future__ import annotations

from semu.nn import LatentSizes, Model
from semu_models.decoder import decoder_model
from semu_models.deepseek import DeepSeek, DeepSeekConfig
from semu_models.hf.common import NO_BIAS, NO_DROPOUT, SILU
from semu_models.hf.dialect import Dialect, Fixed, Spelling, count, optional_size, size
from semu_models.hf.text import decoder_spellings, refuse_tied
from semu_models.hf.values import Values
from semu_models.mixtral import Mixtral, MixtralConfig
from semu_models.qwen_moe import QwenMoE, QwenMoEConfig


def experts_spelling(default: int) -> Spelling:
    """How many experts there are, in every spelling."""
    return size("num_local_experts", "num_experts", "n_routed_experts", default=default)


_ROUTING = {
    "norm_topk_prob": "scale of the routing weights",
    "routed_scaling_factor": "scale of the routing weights",
    "scoring_func": "how the router scores; the sizes are the same",
    "topk_method": "how the router chooses; the sizes are the same",
    "n_group": "limits which nodes a token's experts are on; the routing is balanced here",
    "topk_group": "limits which nodes a token's experts are on; the routing is balanced here",
}


def _mixtral(values: Values) -> MixtralConfig:
    if values.get("head_dim") is not None and values.size("head_dim") * values.size("heads") != values.size("hidden"):
        raise values.error("head_dim", "heads of another width than hidden / heads", got=values.get("head_dim"))
    refuse_tied(values)
    return MixtralConfig(
        layers=values.size("layers"),
        hidden=values.size("hidden"),
        ffn=values.size("ffn"),
        heads=values.size("heads"),
        kv_heads=values.size_or("kv_heads", values.size("heads"), "kv_heads; num_attention_heads"),
        vocab=values.size("vocab"),
        experts=values.size("experts"),
        top_k=values.size("top_k"),
    )


def _mixtral_model(name: str, config: MixtralConfig) -> Model:
    return decoder_model(name, Mixtral(config))


MIXTRAL = Dialect(
    family="mixtral",
    model_types=("mixtral",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=32000, context=131072),
        "head_dim": size("head_dim"),
        "experts": experts_spelling(8),
        "top_k": size("num_experts_per_tok", default=2),
    },
    config=_mixtral,
    model=_mixtral_model,
    fixed={
        "hidden_act": SILU,
        "attention_dropout": NO_DROPOUT,
        "sliding_window": Fixed((None,), "layers would attend to a window"),
    },
    ignored={"router_jitter_noise": "noise on the router's input"},
    architectures=("MixtralForCausalLM",),
)


def _qwen3_moe(values: Values) -> QwenMoEConfig:
    refuse_tied(values)
    heads = values.size("heads")
    head_dim = values.get("head_dim") or values.quotient("hidden", "heads")
    return QwenMoEConfig(
        layers=values.size("layers"),
        hidden=values.size("hidden"),
        moe_ffn=values.size("moe_ffn"),
        heads=heads,
        kv_heads=values.size_or("kv_heads", heads, "kv_heads; num_attention_heads"),
        head_dim=values.size_or("head_dim", head_dim, "head_dim; hidden_size / num_attention_heads"),
        vocab=values.size("vocab"),
        experts=values.size("experts"),
        top_k=values.size("top_k"),
    )


def _qwen3_moe_model(name: str, config: QwenMoEConfig) -> Model:
    return decoder_model(name, QwenMoE(config))


QWEN3_MOE = Dialect(
    family="qwen-moe",
    model_types=("qwen3_moe",),
    spellings={
        **decoder_spellings(layers=24, hidden=2048, ffn=6144, heads=32, kv_heads=4, vocab=151936, context=32768),
        "head_dim": size("head_dim"),
        "moe_ffn": size("moe_intermediate_size", default=768),
        "experts": experts_spelling(128),
        "top_k": size("num_experts_per_tok", default=8),
    },
    config=_qwen3_moe,
    model=_qwen3_moe_model,
    fixed={
        "hidden_act": SILU,
        "attention_bias": NO_BIAS,
        "attention_dropout": NO_DROPOUT,
        "use_sliding_window": Fixed((False, None), "layers would attend to a window"),
        "decoder_sparse_step": Fixed((1, None), "layers would have no experts"),
        "mlp_only_layers": Fixed(([], None), "layers would have no experts"),
    },
    ignored={**_ROUTING, "sliding_window": "use_sliding_window is false"},
    architectures=("Qwen3MoeForCausalLM",),
)


def _deepseek(values: Values) -> DeepSeekConfig:
    refuse_tied(values)
    if values.get("shared_experts") != 1:
        got = values.get("shared_experts")
        raise values.error("shared_experts", "one shared expert is modelled", expected="1", got=got)
    return DeepSeekConfig(
        layers=values.size("layers"),
        hidden=values.size("hidden"),
        ffn=values.size("ffn"),
        heads=values.size("heads"),
        vocab=values.size("vocab"),
        dense_layers=values.size("dense_layers"),
        moe_ffn=values.size("moe_ffn"),
        experts=values.size("experts"),
        top_k=values.size("top_k"),
        latent=latent_sizes(values),
    )


def latent_sizes(values: Values) -> LatentSizes:
    """Widths of latent attention."""
    return LatentSizes(
        kv_lora_rank=values.size("kv_lora_rank"),
        qk_head_dim=values.size("qk_head_dim"),
        qk_pos_emb_head_dim=values.size("qk_pos_emb_head_dim"),
        v_head_dim=values.size("v_head_dim"),
        q_lora_rank=values.get("q_lora_rank"),
    )


LATENT_SPELLINGS = {
    "kv_lora_rank": size("kv_lora_rank", default=512),
    "q_lora_rank": optional_size("q_lora_rank", default=1536),
    "qk_head_dim": size("qk_nope_head_dim", default=128),
    "qk_pos_emb_head_dim": size("qk_rope_head_dim", default=64),
    "v_head_dim": size("v_head_dim", default=128),
}


def _deepseek_model(name: str, config: DeepSeekConfig) -> Model:
    return decoder_model(name, DeepSeek(config))


DEEPSEEK_V3 = Dialect(
    family="deepseek",
    model_types=("deepseek_v3",),
    spellings={
        **decoder_spellings(layers=61, hidden=7168, ffn=18432, heads=128, vocab=129280, context=4096),
        **LATENT_SPELLINGS,
        "moe_ffn": size("moe_intermediate_size", default=2048),
        "experts": experts_spelling(256),
        "shared_experts": optional_size("n_shared_experts", default=1),
        "top_k": size("num_experts_per_tok", default=8),
        "dense_layers": count("first_k_dense_replace", default=3),
    },
    config=_deepseek,
    model=_deepseek_model,
    fixed={
        "hidden_act": SILU,
        "attention_bias": NO_BIAS,
        "attention_dropout": NO_DROPOUT,
        "moe_layer_freq": Fixed((1, None), "layers behind the first dense ones would have no experts"),
    },
    ignored={
        **_ROUTING,
        "head_dim": "the rotated part of a head, qk_rope_head_dim",
        "qk_head_dim": "qk_nope_head_dim + qk_rope_head_dim",
        "num_key_value_heads": "latent attention has no grouped heads",
        "num_nextn_predict_layers": "transformers' class has no multi-token prediction, and neither has this model",
    },
    architectures=("DeepseekV3ForCausalLM",),
)

MOE = (MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
"""Language models with experts."""
