"""A row's ``lora`` in the words of a run file: ``lora_table``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from semu.checks import is_integer, is_number
from semu.errors import ConfigError
from semu.nn.layers.lora_sites import ALL_LINEAR, PROJECTIONS

_KNOWN = frozenset(name for table in PROJECTIONS.values() for name in table)
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention": ("linear_qkv", "linear_proj"),
    "mlp": ("linear_fc1", "linear_fc2"),
}
"""What a group of projections that is named alone means."""


def lora_table(told: Mapping[str, object] | None) -> dict[str, object] | None:
    """``[model.lora]``: rank, targets, and dropout where there is one; None: every parameter trains.

    ``targets`` is a list of names as in ``[model.lora]``, or a remark in which such names, or the words attention and
    mlp, stand; without any, all linear layers.

    Raises:
        ConfigError: no rank, or one that is no integer >= 1.
    """
    if told is None:
        return None
    rank = told.get("rank", told.get("r"))
    if not is_integer(rank) or rank < 1:
        raise ConfigError("a wrong value", where="lora.rank", expected="an integer >= 1", got=rank)
    targets = told.get("targets")
    if isinstance(targets, list):
        names = [name for name in targets if isinstance(name, str)]
    else:
        words = re.findall(r"[a-z0-9_*.\-]+", str(targets or "").lower())
        names = [word for word in words if word in _KNOWN or word == ALL_LINEAR]
        names = names or [name for word in words for name in _GROUPS.get(word, ())]
    table: dict[str, object] = {"rank": rank, "targets": list(dict.fromkeys(names)) or [ALL_LINEAR]}
    dropout = told.get("dropout")
    return {**table, "dropout": dropout} if is_number(dropout) else table
