"""``fsdp_engine``: PyTorch's FSDP as accelerate sets it up -> ``Engine``.

accelerate keeps fp32 parameters, computes and reduces in the 16-bit type of the mixed precision, and leaves gradients
whole on every rank until the last microbatch, unless ``sync_each_batch`` is told (``Accelerator.no_sync``).
"""

from __future__ import annotations

from semu.errors import unknown_name
from semu.imports.flags import Effect
from semu.imports.huggingface.engine import NODE, Engine
from semu.imports.settings import Settings
from semu.parallel.fsdp import Fsdp

STRATEGIES = {
    "FULL_SHARD": (3, True, None),
    "SHARD_GRAD_OP": (3, False, None),
    "NO_SHARD": (0, True, None),
    "HYBRID_SHARD": (3, True, NODE),
    "HYBRID_SHARD_ZERO2": (3, False, NODE),
}
"""Strategy -> (zero, reshard, group) of ``Engine``; PyTorch's SHARD_GRAD_OP shards parameters between iterations."""
_NUMBERS = {str(number): name for number, name in enumerate(STRATEGIES, start=1)}


def fsdp_engine(
    settings: Settings, *, strategy: str | None, keys: tuple[str, str], precision: str, version: int
) -> Engine:
    """The engine of a strategy.

    Args:
        settings: that tell it, for messages. strategy: a word of ``STRATEGIES``, or its number; a switch of
            ``reshard_after_forward``; None: the program's own, all sharded.
        keys: of the strategy, and of what asks for parameters ahead. precision: of the run. version: of FSDP.
    Raises:
        ConfigError: a strategy that PyTorch does not have.
    """
    strategy_key, prefetch = keys
    word = "FULL_SHARD" if strategy is None else _NUMBERS.get(strategy, strategy.upper().replace("-", "_"))
    word = {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"}.get(word, word)
    if word not in STRATEGIES:
        legal = [*STRATEGIES, "true", "false"]
        raise unknown_name("strategy of FSDP", str(strategy), legal, where=settings.where(strategy_key))
    zero, reshard, group = STRATEGIES[word]
    policy = settings.get(prefetch) if version == 1 else None
    if policy is not None and str(policy).upper() != "BACKWARD_PRE" and zero == 3:
        why = "parameters are gathered in the backward when they are needed"
        settings.approximate(prefetch, why, Effect(slower=0.03))
    return Engine(
        settings,
        zero=zero,
        reshard=reshard,
        group=group,
        grad_dtype=precision if precision in ("bf16", "fp16") else "fp32",
        has_master=True,
        fsdp=(Fsdp.FIRST if version == 1 else Fsdp.SECOND).value if zero == 3 else None,
        overlap={"grad_reduce": True, "param_gather": True},
        defers=zero == 3,
    )
