"""Training steps that are measured whole: one layer, and a small model; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibration.table import Value
from semu.errors import ConfigError


@dataclass(frozen=True)
class StepCase:
    """A training step: forward, backward, optimizer.

    Attributes:
        scope: ``layer``: one decoder layer between given input and given gradient; ``model``: tokens to loss.
        layers, hidden, ffn, heads, kv_heads, vocab: sizes; vocab 0: neither embedding nor loss.
        seq_len, micro_batch: tokens of a sequence, sequences. recompute: ``none`` or ``full``.
        optimizer: ``foreach`` or ``fused`` Adam. dtype: of parameters, gradients and moments alike.
    """

    scope: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    micro_batch: int
    recompute: str = "none"
    optimizer: str = "fused"
    dtype: str = "bf16"

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        ends = 2 * self.vocab * self.hidden + self.hidden if self.vocab else 0
        return self.layers * layer + ends

    def row(self) -> dict[str, Value]:
        """Key columns of ``model_steps.csv``, without ``device``."""
        return {name: getattr(self, name) for name in _COLUMNS}

    @classmethod
    def of(cls, row: Mapping[str, str]) -> StepCase:
        """Read a row of ``model_steps.csv``.

        Raises:
            ConfigError: a size that is no number.
        """
        try:
            return cls(**{name: kind(row[name]) for name, kind in _COLUMNS.items()})
        except ValueError as error:
            raise ConfigError(f"not a step: {error}", where="model_steps.csv", got=dict(row)) from error

    def label(self) -> str:
        """For people."""
        name = "layer" if self.scope == "layer" else f"model of {self.num_parameters / 1e6:.0f} M, {self.layers} layers"
        recompute = "" if self.recompute == "none" else ", recompute " + self.recompute
        size = f"hidden {self.hidden}, {self.micro_batch} x {self.seq_len} tokens"
        return f"{name}, {size}{recompute}, {self.optimizer} Adam"


_COLUMNS = {
    "scope": str,
    "dtype": str,
    "layers": int,
    "hidden": int,
    "ffn": int,
    "heads": int,
    "kv_heads": int,
    "vocab": int,
    "seq_len": int,
    "micro_batch": int,
    "recompute": str,
    "optimizer": str,
}

LAYER_8B = StepCase("layer", 1, 4096, 14336, 32, 8, 0, 4096, 1)
"""A layer of Llama 3 8B (2407.21783 Table 3)."""
LAYER_7B = StepCase("layer", 1, 4096, 11008, 32, 32, 0, 2048, 2)
"""A layer of Llama 7B (2302.13971 Table 2)."""
LAYER_1B = StepCase("layer", 1, 2048, 5632, 16, 16, 0, 2048, 4)
MODEL_500M = StepCase("model", 8, 2048, 5632, 16, 16, 32000, 2048, 4)
MODEL_1B = StepCase("model", 16, 2048, 8192, 32, 8, 128256, 4096, 2)
"""As Llama 3.2 1B, with an untied output table."""


def step_cases(*, quick: bool = False) -> list[StepCase]:
    """What is measured. ``quick``: tiny ones, for a dry run."""
    if quick:
        tiny = StepCase("layer", 1, 64, 96, 4, 2, 0, 16, 2)
        model = replace(tiny, scope="model", layers=2, vocab=128)
        return [tiny, model, replace(model, recompute="full", optimizer="foreach")]
    return [
        LAYER_8B,
        replace(LAYER_8B, micro_batch=4),
        LAYER_7B,
        LAYER_1B,
        MODEL_500M,
        replace(MODEL_500M, optimizer="foreach"),
        replace(MODEL_500M, recompute="full"),
        replace(MODEL_500M, micro_batch=1),
        MODEL_1B,
        replace(MODEL_1B, recompute="full"),
    ]
