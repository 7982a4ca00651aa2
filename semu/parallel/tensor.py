"""Megatron's tensor and sequence parallelism as a ``ShardingPlan`` for semu's building blocks."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from semu.errors import unknown_name
from semu.hardware.software import Software
from semu.nn.layers.elementary import Embedding
from semu.nn.layers.mla import LatentAttention
from semu.nn.layers.transformer import MLP, CrossAttention, LMHead, SelfAttention
from semu.nn.model import Model
from semu.nn.module import Module
from semu.nn.trace.sharding import ShardingPlan, ShardingStyle
from semu.parallel.config import Parallel

MEGATRON_STYLES: Mapping[type[Module], Mapping[str, ShardingStyle]] = {
    SelfAttention: {"qkv": ShardingStyle.COLUMN, "out": ShardingStyle.ROW},
    CrossAttention: {
        "query": ShardingStyle.COLUMN,
        "key_value": ShardingStyle.COLUMN,
        "out": ShardingStyle.ROW,
    },
    LatentAttention: {"query_up": ShardingStyle.COLUMN, "kv_up": ShardingStyle.COLUMN, "out": ShardingStyle.ROW},
    MLP: {"up": ShardingStyle.COLUMN, "down": ShardingStyle.ROW},
    LMHead: {"projection": ShardingStyle.VOCABULARY},
    Embedding: {"": ShardingStyle.VOCABULARY},
}
"""Style of each part of the known building blocks (1909.08053 §3); the empty name is the module itself."""


def has_dtensor(parallel: Parallel, software: Software) -> bool:
    """Whether sequence and context parallelism are DTensor's: PyTorch's FSDP, which shards parameters, goes with no
    other."""
    return software.kernels is Software.TORCH and parallel.zero >= 2


def megatron_plan(model: Model, parallel: Parallel) -> ShardingPlan:
    """The sharding plan of a model: building blocks as Megatron splits them, then the patterns of the job.

    A pattern of ``parallel.plan`` wins over the table; what neither names is replicated.

    Raises:
        ConfigError: a pattern that matches no module.
    """
    if parallel.plan:
        _check_patterns(model, parallel)
    if parallel.tp == 1:
        return ShardingPlan()
    styles: dict[str, ShardingStyle] = {}
    patterns = ShardingPlan(patterns=parallel.plan)
    parts: dict[type[Module], list[tuple[str, ShardingStyle]]] = {}
    for modality in model.modules:
        for path, module in modality.body.named_modules(modality.name):
            kind = type(module)
            if kind not in parts:
                styles_of_kind = [styled.items() for base, styled in MEGATRON_STYLES.items() if issubclass(kind, base)]
                parts[kind] = [
                    (f".{part}" if part else "", style) for styled in styles_of_kind for part, style in styled
                ]
            for part, style in parts[kind]:
                styles[path + part] = style
    if parallel.plan:
        styles = {path: patterns.pattern_style(path) or style for path, style in styles.items()}
    return ShardingPlan(parallel.tp, parallel.sequence_parallel, styles, parallel.plan)


def _check_patterns(model: Model, parallel: Parallel) -> None:
    """Refuse a pattern that matches no module: it is a slip of the pen that would leave modules replicated."""
    paths = [path for m in model.modules for path, _ in m.body.named_modules(m.name)]
    for pattern in parallel.plan:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise unknown_name("module pattern", pattern, paths, where="parallel.plan")
