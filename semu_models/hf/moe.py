"""Dialects of language models with experts."""

from __future__ import annotations

from typing import Any

from semu.nn import LatentSizes, Model
from semu_models.hf.common import NO_DROPOUT, SILU
from semu_models.hf.dialect import Dialect, Fixed, Spelling, count, counts, optional_size, size, switch, words
from semu_models.hf.text import decoder_sizes, decoder_spellings, windows
from semu_models.hf.values import Values
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, decoder_model
from semu_models.text.deepseek import DeepSeekConfig, deepseek_model
from semu_models.text.gpt_oss import GptOssConfig
from semu_models.text.mixtral import MixtralConfig
from semu_models.text.qwen2_moe import Qwen2MoEConfig
from semu_models.text.qwen_moe import QwenMoEConfig


def expert_spellings(experts: int, top_k: int | None) -> dict[str, Spelling]:
    """How many experts there are and how many a token uses, in every spelling.

    Args:
        experts, top_k: defaults of a model type; None: the file must have the key.
    """
    return {
        "experts": size("num_local_experts", "num_experts", "n_routed_experts", default=experts),
        "top_k": size("num_experts_per_tok", "experts_per_token", default=top_k),
    }


_ROUTING = {
    "norm_topk_prob": "scale of the routing weights",
    "routed_scaling_factor": "scale of the routing weights",
    "scoring_func": "how the router scores; the sizes are the same",
    "topk_method": "how the router chooses; the sizes are the same",
    "n_group": "limits which nodes a token's experts are on; the routing is balanced here",
    "topk_group": "limits which nodes a token's experts are on; the routing is balanced here",
    "router_jitter_noise": "noise on the router's input",
}


def _model(name: str, config: DecoderConfig) -> Model:
    return decoder_model(name, ConfiguredDecoder(config))


def _mixtral(values: Values) -> MixtralConfig:
    sizes = decoder_sizes(values)
    return MixtralConfig(
        **sizes,
        **windows(values, [True] * sizes["layers"]),
        experts=values.size("experts"),
        top_k=values.size("top_k"),
    )


def _dense_layers(values: Values) -> tuple[int, ...]:
    """Layers without experts: those that are listed, and all but every so-manieth."""
    listed, step = values.get("mlp_only_layers") or (), values.size("sparse_step")
    return tuple(number for number in range(values.size("layers")) if number in listed or (number + 1) % step)


def _qwen_experts(values: Values) -> dict[str, Any]:
    return {
        **decoder_sizes(values),
        "moe_ffn": values.size("moe_ffn"),
        "experts": values.size("experts"),
        "top_k": values.size("top_k"),
        "dense_layers": _dense_layers(values),
    }


def _qwen2_moe(values: Values) -> Qwen2MoEConfig:
    return Qwen2MoEConfig(**_qwen_experts(values), shared_ffn=values.size("shared_ffn"))


def _qwen3_moe(values: Values) -> QwenMoEConfig:
    return QwenMoEConfig(**_qwen_experts(values), attention_bias=values.switch("attention_bias"))


def _gpt_oss(values: Values) -> GptOssConfig:
    sizes = decoder_sizes(values)
    return GptOssConfig(
        **sizes,
        **windows(values, [number % 2 == 0 for number in range(sizes["layers"])]),
        attention_bias=values.switch("attention_bias"),
        experts=values.size("experts"),
        top_k=values.size("top_k"),
    )


def _deepseek(values: Values) -> DeepSeekConfig:
    if values.get("further_tokens"):
        values.notes.append(
            f"{values.keys['further_tokens']}: transformers' class trains no further tokens, and neither does this "
            'model; [model] name = "deepseek-v3-mtp" does'
        )
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
        shared_experts=values.get("shared_experts") or 0,
        tied=values.switch("tied"),
        attention_bias=values.switch("attention_bias"),
        latent=LatentSizes(
            kv_lora_rank=values.size("kv_lora_rank"),
            qk_head_dim=values.size("qk_head_dim"),
            qk_pos_emb_head_dim=values.size("qk_pos_emb_head_dim"),
            v_head_dim=values.size("v_head_dim"),
            q_lora_rank=values.get("q_lora_rank"),
        ),
    )


MIXTRAL = Dialect(
    family="mixtral",
    model_types=("mixtral",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=32000, context=131072),
        **expert_spellings(8, 2),
        "window": optional_size("sliding_window", default=None),
        "layer_types": words("layer_types"),
    },
    config=_mixtral,
    model=_model,
    fixed={"hidden_act": SILU, "attention_dropout": NO_DROPOUT},
    ignored=_ROUTING,
    architectures=("MixtralForCausalLM",),
)

_QWEN_LAYERS = {
    "sparse_step": size("decoder_sparse_step", default=1),
    "mlp_only_layers": counts("mlp_only_layers"),
}
_QWEN_FIXED = {
    "hidden_act": SILU,
    "attention_dropout": NO_DROPOUT,
    "use_sliding_window": Fixed((False, None), "layers would attend to a window"),
}
_QWEN_IGNORED = {
    **_ROUTING,
    "sliding_window": "use_sliding_window is false",
    "layer_types": "use_sliding_window is false",
}

QWEN2_MOE = Dialect(
    family="qwen-moe",
    model_types=("qwen2_moe",),
    spellings={
        **decoder_spellings(layers=24, hidden=2048, ffn=5632, heads=16, kv_heads=16, vocab=151936, context=32768),
        **expert_spellings(60, 4),
        **_QWEN_LAYERS,
        "moe_ffn": size("moe_intermediate_size", default=1408),
        "shared_ffn": size("shared_expert_intermediate_size", default=5632),
    },
    config=_qwen2_moe,
    model=_model,
    fixed={**_QWEN_FIXED, "qkv_bias": Fixed((True, None), "queries, keys and values would have no biases")},
    ignored=_QWEN_IGNORED,
    architectures=("Qwen2MoeForCausalLM",),
)

QWEN3_MOE = Dialect(
    family="qwen-moe",
    model_types=("qwen3_moe",),
    spellings={
        **decoder_spellings(layers=24, hidden=2048, ffn=6144, heads=32, kv_heads=4, vocab=151936, context=32768),
        **expert_spellings(128, 8),
        **_QWEN_LAYERS,
        "moe_ffn": size("moe_intermediate_size", default=768),
        "attention_bias": switch("attention_bias", default=False),
    },
    config=_qwen3_moe,
    model=_model,
    fixed=_QWEN_FIXED,
    ignored=_QWEN_IGNORED,
    architectures=("Qwen3MoeForCausalLM",),
)

_LATENT_SPELLINGS = {
    "kv_lora_rank": size("kv_lora_rank", default=512),
    "q_lora_rank": optional_size("q_lora_rank", default=1536),
    "qk_head_dim": size("qk_nope_head_dim", default=128),
    "qk_pos_emb_head_dim": size("qk_rope_head_dim", default=64),
    "v_head_dim": size("v_head_dim", default=128),
    "attention_bias": switch("attention_bias", default=False),
}
_LATENT_IGNORED = {
    **_ROUTING,
    "head_dim": "the rotated part of a head, qk_rope_head_dim",
    "qk_head_dim": "qk_nope_head_dim + qk_rope_head_dim",
    "num_key_value_heads": "latent attention has no grouped heads",
}
_LATENT_FIXED = {
    "hidden_act": SILU,
    "attention_dropout": NO_DROPOUT,
    "moe_layer_freq": Fixed((1, None), "layers behind the first dense ones would have no experts"),
    "mlp_bias": Fixed((False, None), "feed-forward networks would have biases"),
}


def _latent_decoder(**defaults: int) -> dict[str, Spelling]:
    shared = decoder_spellings(**defaults)
    return {name: item for name, item in shared.items() if name not in ("kv_heads", "head_dim")} | _LATENT_SPELLINGS


DEEPSEEK_V2 = Dialect(
    family="deepseek",
    model_types=("deepseek_v2",),
    spellings={
        **_latent_decoder(layers=32, hidden=4096, ffn=11008, heads=32, vocab=102400, context=2048),
        **expert_spellings(64, None),
        "moe_ffn": size("moe_intermediate_size", default=1407),
        "shared_experts": count("n_shared_experts", default=2, nullable=True),
        "dense_layers": count("first_k_dense_replace", default=0),
    },
    config=_deepseek,
    model=deepseek_model,
    fixed=_LATENT_FIXED,
    ignored=_LATENT_IGNORED,
    architectures=("DeepseekV2ForCausalLM",),
    source="transformers 5.23",
)

DEEPSEEK_V3 = Dialect(
    family="deepseek",
    model_types=("deepseek_v3", "kimi_k2"),
    spellings={
        **_latent_decoder(layers=61, hidden=7168, ffn=18432, heads=128, vocab=129280, context=4096),
        **expert_spellings(256, 8),
        "moe_ffn": size("moe_intermediate_size", default=2048),
        "shared_experts": count("n_shared_experts", default=1, nullable=True),
        "dense_layers": count("first_k_dense_replace", default=3),
        "further_tokens": count("num_nextn_predict_layers", default=None),
    },
    config=_deepseek,
    model=deepseek_model,
    fixed=_LATENT_FIXED,
    ignored=_LATENT_IGNORED,
    architectures=("DeepseekV3ForCausalLM",),
)

GPT_OSS = Dialect(
    family="gpt-oss",
    model_types=("gpt_oss",),
    spellings={
        **decoder_spellings(
            layers=36, hidden=2880, ffn=2880, heads=64, kv_heads=8, head_dim=64, vocab=201088, context=131072
        ),
        **expert_spellings(128, 4),
        "attention_bias": switch("attention_bias", default=True),
        "window": size("sliding_window", default=128),
        "layer_types": words("layer_types"),
    },
    config=_gpt_oss,
    model=_model,
    fixed={"hidden_act": SILU, "attention_dropout": NO_DROPOUT},
    understood={
        "swiglu_limit": "clamps gate and up; any limit costs the same",
        "swiglu_alpha": "slope of the gate; any slope costs the same",
        "initial_context_length": "context before it was extended",
    },
    ignored=_ROUTING,
    architectures=("GptOssForCausalLM",),
)

MOE = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, GPT_OSS)
"""Language models with experts."""
