"""What the options of recomputation mean to one another: the mode, its layers, its method, its policy."""

from __future__ import annotations

from enum import Enum

from semu.checks import check_member
from semu.errors import ConfigError
from semu.job.kinds import Recompute, RecomputeMethod
from semu.nn.trace.recompute_plan import RECOMPUTE_KINDS


def read_recompute(value: object, modules: object) -> tuple[Recompute, tuple[str, ...] | None]:
    """The mode, and the modules that SELECTIVE names.

    Raises:
        ConfigError: neither a mode nor a list of modules, or modules beside another mode.
    """
    mode = check_member(value, Recompute, "training.recompute") if isinstance(value, Recompute | str) else None
    if mode is not None and modules is None:
        return mode, None
    if mode is not Recompute.SELECTIVE and modules is not None:
        raise ConfigError(
            "modules to recompute, and recompute is not selective",
            where="training.recompute_modules",
            expected='nothing, or recompute = "selective"',
            got=repr(modules),
            nearest='recompute = "selective"',
        )
    named = value if mode is None else modules
    names = list(named) if isinstance(named, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "neither a recompute mode nor a list of modules",
            where="training.recompute",
            expected="none, selective, full or a list of " + ", ".join(RECOMPUTE_KINDS),
            got=repr(named),
            nearest="selective",
        )
    modes = [name for name in names if name in ("none", "selective", "full")]
    if modes:
        raise ConfigError(
            f"{modes[0]!r} says it all, it is no module of a list",
            where="training.recompute",
            expected=f"{modes[0]!r}, or a list of module kinds",
            got=repr(names),
            nearest=modes[0],
        )
    return Recompute.SELECTIVE, tuple(names)


def read_method(mode: Recompute, layers: int | None, method: RecomputeMethod | None) -> RecomputeMethod | None:
    """The method; only full recomputation has one, and it needs a number of layers.

    Raises:
        ConfigError: layers or a method under another mode, a method without layers.
    """
    key = "recompute_layers" if layers is not None else "recompute_method" if method is not None else None
    if key is not None and mode is not Recompute.FULL:
        raise ConfigError(
            f"{key} is of full recomputation, and recompute = {mode.value}",
            where=f"training.{key}",
            expected='nothing, or recompute = "full"',
            got=method.value if layers is None and method is not None else layers,
            nearest='recompute = "full"',
        )
    if method is not None and layers is None:
        raise ConfigError(
            f"recompute_method = {method.value} needs a number of layers",
            where="training.recompute_layers",
            expected="an integer >= 1",
            got="nothing",
            nearest=1,
        )
    return RecomputeMethod.BLOCK if layers is not None and method is None else method


def check_single_layers(mode: Recompute, value: object, layers: int | None, key: str) -> None:
    """A setting that only full recomputation of every layer by itself has.

    Raises:
        ConfigError: it is given under another mode, or beside a number of layers.
    """
    if value is not None and (mode is not Recompute.FULL or layers is not None):
        raise ConfigError(
            f"{key} is of full recomputation of single layers",
            where=f"training.{key}",
            expected='nothing, or recompute = "full" without recompute_layers',
            got=value.value if isinstance(value, Enum) else str(value),
            nearest='recompute = "full"' if layers is None else "no recompute_layers",
        )
