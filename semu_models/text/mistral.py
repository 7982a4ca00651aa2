"""Mistral: as Llama, with sliding windows in every layer of its first version (2310.06825 §2).

The second and third version of Mistral 7B attend to the whole sequence. Nemo and Small have heads narrower than
hidden / heads.
"""

from __future__ import annotations

from semu.nn import Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, decoder_model


@dataclass(frozen=True)
class MistralConfig(DecoderConfig):
    """Sizes of a Mistral; ``window`` holds for all layers."""

    kv_heads: int = 8
    vocab: int = 32000


MISTRAL_7B = MistralConfig(layers=32, hidden=4096, ffn=14336, heads=32, window=4096)
"""Mistral 7B v0.1 (2310.06825 Table 1)."""
MISTRAL_7B_V0_3 = MistralConfig(layers=32, hidden=4096, ffn=14336, heads=32, vocab=32768)
"""Mistral 7B v0.3 (config.json of Mistral-7B-v0.3)."""
MISTRAL_NEMO_12B = MistralConfig(layers=40, hidden=5120, ffn=14336, heads=32, vocab=131072, head_dim=128)
"""Mistral Nemo (config.json of Mistral-Nemo-Base-2407)."""
MISTRAL_SMALL_24B = MistralConfig(layers=40, hidden=5120, ffn=32768, heads=32, vocab=131072, head_dim=128)
"""Mistral Small 3 (config.json of Mistral-Small-24B-Base-2501)."""


class Mistral(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: MistralConfig) -> None:
        super().__init__(config)


def mistral_7b() -> Model:
    """Mistral 7B v0.1, with its windows."""
    return decoder_model("mistral-7b", Mistral(MISTRAL_7B))


def mistral_7b_v0_3() -> Model:
    """Mistral 7B v0.3."""
    return decoder_model("mistral-7b-v0.3", Mistral(MISTRAL_7B_V0_3))


def mistral_nemo_12b() -> Model:
    """Mistral Nemo."""
    return decoder_model("mistral-nemo-12b", Mistral(MISTRAL_NEMO_12B))


def mistral_small_24b() -> Model:
    """Mistral Small 3."""
    return decoder_model("mistral-small-24b", Mistral(MISTRAL_SMALL_24B))
