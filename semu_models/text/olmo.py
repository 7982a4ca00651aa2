"""OLMo 2 (2501.00656): as Llama, with norms behind the branches and over all queries and all keys of a token."""

from __future__ import annotations

from typing import ClassVar

from semu.nn import NormPlacement
from semu.records import dataclass
from semu_models.text.decoder import DecoderConfig, DecoderStyle


@dataclass(frozen=True)
class Olmo2Config(DecoderConfig):
    """Sizes of an OLMo 2."""

    STYLE: ClassVar[DecoderStyle] = DecoderStyle(placement=NormPlacement.BEHIND, whole_norm=True)
