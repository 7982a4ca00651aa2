"""``ShardingPlan``: which module is split how over the tensor-parallel group (DESIGN §3.7).

The plan is applied from outside while a model is traced; the model's code does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from fnmatch import fnmatchcase

from semu.records import dataclass


class ShardingStyle(Enum):
    """How one module's parameters and activations are split.

    COLUMN and ROW are Megatron's two halves of a split matrix product (1909.08053 §3), VOCABULARY splits an
    embedding table or a loss over the vocabulary, SEQUENCE works on a shard of the tokens with whole parameters
    (2205.05198 §4.2), REPLICATED does everything on every rank. EXPERT and CONTEXT are reserved for expert and
    context parallelism.
    """

    REPLICATED = "replicated"
    COLUMN = "column"
    ROW = "row"
    SEQUENCE = "sequence"
    VOCABULARY = "vocabulary"
    EXPERT = "expert"
    CONTEXT = "context"


class ContextKind(Enum):
    """How the ranks of a context-parallel group see one another's keys and values; the value is run.toml's word.

    RING passes them on from rank to rank beside the computation (Ring Attention, 2310.01889; ``p2p`` in Megatron-LM),
    ALL_GATHER collects them before it (Llama 3, 2407.21783 §3.3.2), ALL_TO_ALL gives every rank some of the heads of
    all tokens (DeepSpeed-Ulysses, 2309.14509; ``a2a`` in Megatron-LM), NEEDED sends a rank the keys that its tiles read
    (DCP, SOSP '25). AUTO is the fastest of RING, ALL_GATHER and NEEDED for every microbatch.
    """

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    NEEDED = "needed"
    AUTO = "auto"

    @property
    def sends_tiles(self) -> bool:
        """Whether what is sent depends on the mask's tiles."""
        return self in (ContextKind.NEEDED, ContextKind.AUTO)


EXCHANGES = (ContextKind.ALL_GATHER, ContextKind.NEEDED, ContextKind.RING)
"""What AUTO chooses from; gathers come first on the stream, as they wait for nothing but keys."""


@dataclass(frozen=True)
class ShardingPlan:
    """Styles by module path for one tensor-parallel group.

    Attributes:
        tp: ranks of the tensor-parallel group, >= 1.
        sequence_parallel: activations between split regions are sharded over tokens.
        styles: exact module path -> style.
        patterns: ``fnmatch`` pattern -> style, tried in order where no exact path matches.
    """

    tp: int = 1
    sequence_parallel: bool = False
    styles: Mapping[str, ShardingStyle] = field(default_factory=dict)
    patterns: Mapping[str, ShardingStyle] = field(default_factory=dict)

    def style(self, path: str) -> ShardingStyle:
        """Style of the module at ``path``; REPLICATED where the plan is silent."""
        exact = self.styles.get(path)
        return exact if exact is not None else self.pattern_style(path) or ShardingStyle.REPLICATED

    def pattern_style(self, path: str) -> ShardingStyle | None:
        """Style of the first pattern that matches ``path``, or None."""
        return next((style for pattern, style in self.patterns.items() if fnmatchcase(path, pattern)), None)

    @property
    def token_shards(self) -> int:
        """Into how many parts the tokens between split regions are cut: tp under sequence parallelism, else 1."""
        return self.tp if self.sequence_parallel else 1
