"""Llama: RMS norm, rotary positions, SwiGLU, grouped queries, no biases, an untied output table.

Llama 2 (2307.09288) groups the queries of its largest model only; Llama 3 (2407.21783) all, and has four times the
vocabulary. Llama 3.1 has the shapes of Llama 3. The small models of Llama 3.2 tie their tables.
"""

from __future__ import annotations

from semu.nn import Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, decoder_model


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """Sizes of a Llama, and of the families that build on it."""


LLAMA2_7B = LlamaConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000)
"""Llama 2 7B (2307.09288 Table 1; widths: config.json of Llama-2-7b-hf)."""
LLAMA2_13B = LlamaConfig(layers=40, hidden=5120, ffn=13824, heads=40, kv_heads=40, vocab=32000)
"""Llama 2 13B (2307.09288 Table 1; widths: config.json of Llama-2-13b-hf)."""
LLAMA2_70B = LlamaConfig(layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=32000)
"""Llama 2 70B (2307.09288 Table 1; widths: config.json of Llama-2-70b-hf)."""

LLAMA3_8B = LlamaConfig(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256)
"""Llama 3 8B (2407.21783 Table 3; DIP Table 2)."""
LLAMA3_70B = LlamaConfig(layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=128256)
"""Llama 3 70B (2407.21783 Table 3)."""
LLAMA3_405B = LlamaConfig(layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, vocab=128256)
"""Llama 3 405B (2407.21783 Table 3)."""

LLAMA3_2_1B = LlamaConfig(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocab=128256, head_dim=64, tied=True)
"""Llama 3.2 1B (config.json of Llama-3.2-1B)."""
LLAMA3_2_3B = LlamaConfig(layers=28, hidden=3072, ffn=8192, heads=24, kv_heads=8, vocab=128256, head_dim=128, tied=True)
"""Llama 3.2 3B (config.json of Llama-3.2-3B)."""

LLAMA_30B = LlamaConfig(layers=60, hidden=6656, ffn=17920, heads=52, kv_heads=52, vocab=32000)
"""Llama 33B, which its files call 30B (2302.13971 Table 2)."""
LLAMA_65B = LlamaConfig(layers=80, hidden=8192, ffn=22016, heads=64, kv_heads=64, vocab=32000)
"""Llama 65B (2302.13971 Table 2)."""

LM_7B = LlamaConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000)
"""DIP Table 1's "LM 7B", whose shape is not printed: that of Llama 7B (2302.13971 Table 2; 2307.09288)."""

LM_5B = LlamaConfig(layers=24, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000)
"""DIP Table 1's "LM 5B", whose shape is not printed: LM 7B with 24 layers (5.1 B; 7.1 B with ViT 2B in front)."""


class Llama(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)


def llama2_7b() -> Model:
    """Llama 2 7B."""
    return decoder_model("llama2-7b", Llama(LLAMA2_7B))


def llama2_13b() -> Model:
    """Llama 2 13B."""
    return decoder_model("llama2-13b", Llama(LLAMA2_13B))


def llama2_70b() -> Model:
    """Llama 2 70B."""
    return decoder_model("llama2-70b", Llama(LLAMA2_70B))


def llama3_8b() -> Model:
    """Llama 3 8B."""
    return decoder_model("llama3-8b", Llama(LLAMA3_8B))


def llama3_70b() -> Model:
    """Llama 3 70B."""
    return decoder_model("llama3-70b", Llama(LLAMA3_70B))


def llama3_405b() -> Model:
    """Llama 3 405B."""
    return decoder_model("llama3-405b", Llama(LLAMA3_405B))


def llama3_2_1b() -> Model:
    """Llama 3.2 1B."""
    return decoder_model("llama3.2-1b", Llama(LLAMA3_2_1B))


def llama3_2_3b() -> Model:
    """Llama 3.2 3B."""
    return decoder_model("llama3.2-3b", Llama(LLAMA3_2_3B))


def llama_30b() -> Model:
    """Llama 33B."""
    return decoder_model("llama-30b", Llama(LLAMA_30B))


def llama_65b() -> Model:
    """Llama 65B."""
    return decoder_model("llama-65b", Llama(LLAMA_65B))


def lm_5b() -> Model:
    """The language model of DIP Table 1's vision-language model, alone."""
    return decoder_model("lm-5b", Llama(LM_5B))


def lm_7b() -> Model:
    """The unimodal model of DIP Table 1."""
    return decoder_model("lm-7b", Llama(LM_7B))
