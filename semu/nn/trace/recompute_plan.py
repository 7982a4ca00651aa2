"""``RecomputePlan``: which parts of a block are computed again in the backward pass, by module kind or by path.

Kinds are Megatron-LM's words (``--recompute-modules``). A module class states its kind in ``recompute_kind``; so may a
user's module. ``OUTPUT_KINDS`` are single kernels whose *output* is dropped and made again when the backward pass first
reads it (Megatron core's ``CheckpointWithoutOutput``): recomputing them as modules would save nothing, since their
input is kept, and their output too as the input of the next module.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from semu.records import dataclass

RECOMPUTE_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "core_attn": "scores, softmax, dropout and context of any attention; queries, keys and values are kept",
        "attention": "SelfAttention and CrossAttention with their projections; their inputs are kept",
        "mlp": "MLP; its input is kept",
        "layernorm": "LayerNorm and RMSNorm: the output is dropped, the input is kept",
        "act": "the non-linearity of a feed-forward network: the output is dropped, the input is kept",
        "mla_up_proj": "queries, keys and values of LatentAttention are dropped, the latents are kept",
        "moe": "MixtureOfExperts: router, dispatch, experts; its input is kept",
        "shared_experts": "the shared experts of a mixture; their input is kept",
        "moe_act": "the non-linearity of routed experts: the output is dropped, the input is kept",
    }
)
"""Kind -> what is computed again."""

KIND_ALIASES: Mapping[str, str] = MappingProxyType({"norm": "layernorm", "core_attention": "core_attn"})
"""Other words for kinds."""

OUTPUT_KINDS = ("layernorm", "act", "moe_act", "mla_up_proj")
"""Kinds whose output is dropped."""

RULE_KINDS = ("core_attn", "act", "moe_act", "mla_up_proj")
"""Kinds that operator rules declare, not module classes."""


@dataclass(frozen=True)
class RecomputePlan:
    """What is computed again inside a block.

    Attributes:
        kinds: module kinds. patterns: ``fnmatch`` patterns of module paths from the model's root; a module that matches
            is computed again from its inputs, a norm as the kind ``layernorm`` says.
    """

    kinds: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: tuple[str, ...]) -> RecomputePlan:
        """The plan of a list of kinds and path patterns."""
        return cls(
            kinds=tuple(sorted({KIND_ALIASES.get(name, name) for name in names if not is_pattern(name)})),
            patterns=tuple(sorted({name for name in names if is_pattern(name)})),
        )

    def matches(self, path: str) -> bool:
        """Whether a pattern names the module at ``path``."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def names(self, kind: str, path: str) -> bool:
        """Whether a module or rule of this kind, at this path, is computed again."""
        return kind in self.kinds or self.matches(path)


def is_pattern(name: str) -> bool:
    """Whether a word of a list is a module path, not a kind."""
    return "." in name or "*" in name
