"""``pad_vocabulary``: token tables with a few rows more, so that tensor parallelism divides them."""

from __future__ import annotations

import math

from semu.checks import check_integer
from semu.nn.layers.elementary import Embedding
from semu.nn.model import Model


def vocabulary_rows(model: Model) -> int | None:
    """Rows of a model's largest token table; None: it has none."""
    return max((table.weight.shape[0] for table in _tables(model)), default=None)


def pad_vocabulary(model: Model, multiple: int) -> dict[int, int]:
    """Round the rows of all token tables, and of projections to as many rows, up to a multiple.

    As Megatron-LM's ``--make-vocab-size-divisible-by`` x tp does, and its padded vocabulary in 2104.04473 §5.1.

    Args:
        model: changed in place. multiple: >= 1.
    Returns:
        Rows before -> rows after, of the tables that have changed.
    Raises:
        ConfigError: a multiple below 1.
    """
    check_integer(multiple, "model.vocab_multiple", "a size")
    if multiple == 1:
        return {}
    rows = {table.weight.shape[0] for table in _tables(model)}
    padded = {count: -(-count // multiple) * multiple for count in rows if count % multiple}
    every = {parameter for part in model.modules for parameter in part.body.parameters()}
    for parameter in every:
        if parameter.shape and parameter.shape[0] in padded:
            parameter.shape = (padded[parameter.shape[0]], *parameter.shape[1:])
            parameter.numel = math.prod(parameter.shape)
    return padded


def _tables(model: Model) -> list[Embedding]:
    return [item for part in model.modules for item in part.body.modules() if isinstance(item, Embedding)]
