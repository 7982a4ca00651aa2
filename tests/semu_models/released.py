"""Sizes of released language models, as transformers' configuration classes take them, and their parameters.

``PARAMETERS``: counted by transformers 5.23.0 with ``torch.device("meta")`` from ``CONFIGS`` (``AutoModelForCausalLM``,
``model.parameters()``, which has a tied table once and no buffers); a test counts them again where transformers is
installed. They are the published totals to all digits that these have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARAMETERS: Mapping[str, int] = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "glm4-9b": 9_399_951_360,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "kimi-k2": 1_026_408_209_408,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}

Config = tuple[str, dict[str, Any]]
"""Model type, arguments of its configuration."""


def _dense(model_type: str, hidden: int, ffn: int, layers: int, heads: int, kv: int, vocab: int, **more: Any) -> Config:
    return model_type, {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        **more,
    }


def _qwen2(
    hidden: int, ffn: int, layers: int, heads: int, kv: int, vocab: int = 152064, *, tied: bool = False
) -> Config:
    return _dense("qwen2", hidden, ffn, layers, heads, kv, vocab, tie_word_embeddings=tied)


def _qwen3(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool = False) -> Config:
    return _dense("qwen3", hidden, ffn, layers, heads, 8, 151936, head_dim=128, tie_word_embeddings=tied)


def _gemma(kind: str, hidden: int, ffn: int, layers: int, heads: int, kv: int, head_dim: int, vocab: int) -> Config:
    return _dense(kind, hidden, ffn, layers, heads, kv, vocab, head_dim=head_dim)


def _qwen_moe(kind: str, sizes: tuple[int, ...], moe_ffn: int, experts: int, top_k: int, **more: Any) -> Config:
    routing = {"moe_intermediate_size": moe_ffn, "num_experts": experts, "num_experts_per_tok": top_k}
    return _dense(kind, *sizes, 151936, **routing, **more)


def _deepseek(hidden: int, ffn: int, layers: int, heads: int, moe_ffn: int, experts: int, q_rank: int | None) -> Config:
    return _dense(
        "deepseek_v2",
        *(hidden, ffn, layers, heads, heads, 102400),
        moe_intermediate_size=moe_ffn,
        n_routed_experts=experts,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=q_rank,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


CONFIGS: Mapping[str, Config] = {
    "gpt2": ("gpt2", {}),
    "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "llama2-7b": _dense("llama", 4096, 11008, 32, 32, 32, 32000),
    "llama2-13b": _dense("llama", 5120, 13824, 40, 40, 40, 32000),
    "llama2-70b": _dense("llama", 8192, 28672, 80, 64, 8, 32000),
    "llama3-8b": _dense("llama", 4096, 14336, 32, 32, 8, 128256),
    "llama3-70b": _dense("llama", 8192, 28672, 80, 64, 8, 128256),
    "llama3-405b": _dense("llama", 16384, 53248, 126, 128, 8, 128256),
    "llama3.2-1b": _dense("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True),
    "llama3.2-3b": _dense("llama", 3072, 8192, 28, 24, 8, 128256, head_dim=128, tie_word_embeddings=True),
    "llama-30b": _dense("llama", 6656, 17920, 60, 52, 52, 32000),
    "llama-65b": _dense("llama", 8192, 22016, 80, 64, 64, 32000),
    "phi-3-mini": _dense("phi3", 3072, 8192, 32, 32, 32, 32064),
    "phi-4": _dense("phi3", 5120, 17920, 40, 40, 10, 100352, pad_token_id=0),
    "olmo2-7b": _dense("olmo2", 4096, 11008, 32, 32, 32, 100352),
    "olmo2-13b": _dense("olmo2", 5120, 13824, 40, 40, 40, 100352),
    "olmo2-32b": _dense("olmo2", 5120, 27648, 64, 40, 8, 100352),
    "glm4-9b": _dense("glm", 4096, 13696, 40, 32, 2, 151552, head_dim=128, attention_bias=True),
    "falcon-7b": ("falcon", {"num_attention_heads": 71, "num_hidden_layers": 32, "hidden_size": 4544}),
    "falcon-40b": (
        "falcon",
        {"num_attention_heads": 128, "num_hidden_layers": 60, "hidden_size": 8192, "num_kv_heads": 8}
        | {"new_decoder_architecture": True},
    ),
    "bloom-7b1": ("bloom", {"hidden_size": 4096, "n_layer": 30, "n_head": 32}),
    "bloom-176b": ("bloom", {"hidden_size": 14336, "n_layer": 70, "n_head": 112}),
    "mistral-7b": _dense("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    "mistral-7b-v0.3": _dense("mistral", 4096, 14336, 32, 32, 8, 32768, sliding_window=None),
    "mistral-nemo-12b": _dense("mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128, sliding_window=None),
    "mistral-small-24b": _dense("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128, sliding_window=None),
    "qwen2-0.5b": _qwen2(896, 4864, 24, 14, 2, 151936, tied=True),
    "qwen2-1.5b": _qwen2(1536, 8960, 28, 12, 2, 151936, tied=True),
    "qwen2-7b": _qwen2(3584, 18944, 28, 28, 4),
    "qwen2-72b": _qwen2(8192, 29568, 80, 64, 8),
    "qwen2.5-3b": _qwen2(2048, 11008, 36, 16, 2, 151936, tied=True),
    "qwen2.5-14b": _qwen2(5120, 13824, 48, 40, 8),
    "qwen2.5-32b": _qwen2(5120, 27648, 64, 40, 8),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64),
    "gemma2-2b": _gemma("gemma2", 2304, 9216, 26, 8, 4, 256, 256000),
    "gemma2-9b": _gemma("gemma2", 3584, 14336, 42, 16, 8, 256, 256000),
    "gemma2-27b": _gemma("gemma2", 4608, 36864, 46, 32, 16, 128, 256000),
    "gemma3-1b": _gemma("gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144),
    "gemma3-4b": _gemma("gemma3_text", 2560, 10240, 34, 8, 4, 256, 262208),
    "gemma3-12b": _gemma("gemma3_text", 3840, 15360, 48, 16, 8, 256, 262208),
    "gemma3-27b": _gemma("gemma3_text", 5376, 21504, 62, 32, 16, 128, 262208),
    "mixtral-8x7b": _dense("mixtral", 4096, 14336, 32, 32, 8, 32000),
    "mixtral-8x22b": _dense("mixtral", 6144, 16384, 56, 48, 8, 32000),
    "qwen3-30b-a3b": _qwen_moe("qwen3_moe", (2048, 6144, 48, 32, 4), 768, 128, 8, head_dim=128),
    "qwen3-235b-a22b": _qwen_moe("qwen3_moe", (4096, 12288, 94, 64, 4), 1536, 128, 8, head_dim=128),
    "qwen2-57b-a14b": _qwen_moe(
        "qwen2_moe", (3584, 18944, 28, 28, 4), 2560, 64, 8, shared_expert_intermediate_size=20480
    ),
    "qwen1.5-moe-a2.7b": _qwen_moe(
        "qwen2_moe", (2048, 5632, 24, 16, 16), 1408, 60, 4, shared_expert_intermediate_size=5632
    ),
    "deepseek-v2-lite": _deepseek(2048, 10944, 27, 16, 1408, 64, None),
    "deepseek-v2": _deepseek(5120, 12288, 60, 128, 1536, 160, 1536),
    "deepseek-v3": ("deepseek_v3", {}),
    "kimi-k2": (
        "deepseek_v3",
        {"vocab_size": 163840, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384}
        | {"first_k_dense_replace": 1},
    ),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt-oss-120b": ("gpt_oss", {}),
}
"""As the config.json of the released checkpoints; what is left out is the class's default."""
