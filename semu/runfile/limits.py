"""What a run file may say but this version does not model: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu.errors import ConfigError, unknown_name
from semu.job import Optimizer, Precision, Recompute
from semu.runfile.places import Places
from semu.schedule import SCHEDULES, not_executed

_MODELLED_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({"parallel.zero": (0, 1, 2, 3)})
_MODELLED_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training.precision": tuple(item.value for item in Precision),
        "training.optimizer": tuple(item.value for item in Optimizer),
        "training.recompute": tuple(item.value for item in Recompute),
        "training.schedule": tuple(SCHEDULES),
    }
)
_KNOWN_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training.precision": tuple(item.value for item in Precision),
    }
)
"""Words of the format beyond the modelled ones."""


def refuse_unmodelled(config: Mapping[str, object], places: Places) -> None:
    """Say no to what would not be simulated as asked.

    Args:
        config: tables that have passed ``check_schema``.
        places: for messages.
    Raises:
        ConfigError: the key, what came and the legal values.
    """
    for key, sizes in _MODELLED_SIZES.items():
        size = _get(config, key)
        if isinstance(size, int) and size > max(sizes):
            raise _refusal(key, size, tuple(map(str, sizes)), max(sizes), places)
    for key, words in _MODELLED_WORDS.items():
        word = _get(config, key)
        if word is None or word in words or (key == "training.recompute" and isinstance(word, list)):
            continue
        if isinstance(word, str) and word not in _KNOWN_WORDS.get(key, ()):
            if key == "training.schedule":
                raise not_executed(word, places.where(key))
            known = (*words, *_KNOWN_WORDS.get(key, ()))
            raise unknown_name(key.rpartition(".")[2], word, set(known), where=places.where(key))
        raise _refusal(key, word, words, words[0], places)


def _refusal(key: str, value: object, legal: tuple[str, ...], nearest: object, places: Places) -> ConfigError:
    return ConfigError(
        _message(f"{key} = {value}"), where=places.where(key), expected=" or ".join(legal), got=value, nearest=nearest
    )


def _message(what: str) -> str:
    return f"{what} is not modelled by this version"


def _get(config: Mapping[str, object], key: str) -> object:
    """Value of a dotted key, None where it is absent."""
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
