"""Phi-3 (2404.14219) and Phi-4 (2412.08905): the layers of a Llama."""

from __future__ import annotations

from semu.nn import Model
from semu_models.text.decoder import ConfiguredDecoder, decoder_model
from semu_models.text.llama import LlamaConfig

PHI_3_MINI = LlamaConfig(layers=32, hidden=3072, ffn=8192, heads=32, kv_heads=32, vocab=32064)
"""Phi-3 mini (2404.14219 §2; config.json of Phi-3-mini-4k-instruct)."""
PHI_4 = LlamaConfig(layers=40, hidden=5120, ffn=17920, heads=40, kv_heads=10, vocab=100352)
"""Phi-4 (2412.08905 §3; config.json of phi-4)."""


def phi_3_mini() -> Model:
    """Phi-3 mini."""
    return decoder_model("phi-3-mini", ConfiguredDecoder(PHI_3_MINI))


def phi_4() -> Model:
    """Phi-4."""
    return decoder_model("phi-4", ConfiguredDecoder(PHI_4))
