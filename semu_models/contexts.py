"""``CONTEXTS``: how long the sequences are on which shipped language models were trained.

Of most models the length of the main stage of pretraining; what was lengthened for a short last stage is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTEXTS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), 1024),  # GPT-2 paper §2.3
        "gpt3-175b": 2048,  # 2005.14165 §2.1
        **dict.fromkeys(("lm-5b", "lm-7b"), 2048),  # 2302.13971, whose shape they have
        **dict.fromkeys(("llama-30b", "llama-65b"), 2048),  # 2302.13971 §2.2
        **dict.fromkeys(("falcon-7b", "falcon-40b"), 2048),  # 2311.16867 Table 14
        **dict.fromkeys(("bloom-7b1", "bloom-176b"), 2048),  # 2211.05100 Table 3
        "phi-3-mini": 4096,  # 2404.14219 §2
        "phi-4": 4096,  # 2412.08905 §3
        **dict.fromkeys(("olmo2-7b", "olmo2-13b", "olmo2-32b"), 4096),  # 2501.00656 Table 1
        **dict.fromkeys(("llama2-7b", "llama2-13b", "llama2-70b"), 4096),  # 2307.09288 Table 1
        **dict.fromkeys(("llama3-8b", "llama3-70b", "llama3-405b"), 8192),  # 2407.21783 §3.4.1, Table 4
        **dict.fromkeys(("mistral-7b", "mistral-7b-v0.3"), 8192),  # 2310.06825 Table 1
        "mixtral-8x7b": 32768,  # 2401.04088 Table 1
        **dict.fromkeys(
            ("qwen2-0.5b", "qwen2-1.5b", "qwen2-7b", "qwen2-72b", "qwen2-57b-a14b"), 4096
        ),  # 2407.10671 §3.2
        **dict.fromkeys(("qwen2-32b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b"), 4096),
        **dict.fromkeys(("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"), 4096),
        **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b-a22b"), 4096),  # 2505.09388 §3.2; 2.5: 2412.15115 §3.3
        **dict.fromkeys(("deepseek-v2", "deepseek-v2-lite"), 4096),  # 2405.04434 §3.1.2
        **dict.fromkeys(("deepseek-v3", "deepseek-v3-mtp"), 4096),  # 2412.19437 §4.2
        "kimi-k2": 4096,  # 2507.20534 §2.5
        **dict.fromkeys(("gemma2-2b", "gemma2-9b", "gemma2-27b"), 8192),  # 2408.00118 §2
        **dict.fromkeys(("gemma3-1b", "gemma3-4b", "gemma3-12b", "gemma3-27b"), 32768),  # 2503.19786 §2.1
        **dict.fromkeys(("bert-base", "bert-large"), 512),  # 1810.04805 §A.2
    }
)
"""Model -> tokens of a sequence in training; a model that is missing: not published."""

LATENTS: Mapping[str, int] = MappingProxyType({"sd-1.5": 64**2, "sd-2": 64**2, "sdxl": 128**2})
"""Pixels of the latents on which a model was trained last: images of 512 px, SDXL of 1024 px (2307.01952 §2.5)."""
CAPTION = 77
"""Tokens of a caption of CLIP's text encoders (2103.00020 §2.4)."""
