"""The parallelism of single modality modules: what it is told of, and whether it fits the model."""

from __future__ import annotations

from dataclasses import replace

from semu.errors import ConfigError, unknown_name
from semu.nn.layers.transformer import CrossAttention, SelfAttention
from semu.nn.model import Model
from semu.nn.rules.attention.shared_heads import ranks_share
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel


def named_modules(model: Model, parallel: Parallel) -> Parallel:
    """The same with modality modules by name, where their role was given (``encoder``: all encoders).

    Raises:
        ConfigError: a name that no modality module and no role has, two sizes for one module.
    """
    names = [module.name for module in model.modules]
    if all(name in names for name in parallel.modules):
        return parallel
    roles = {module.role.value for module in model.modules}
    found: dict[str, tuple[str, ModuleParallel]] = {}
    for told, own in parallel.modules.items():
        if told not in names and told not in roles:
            raise unknown_name("modality module", told, {*names, *roles}, where=f"parallel.modules.{told}")
        for module in model.modules:
            if told not in (module.name, module.role.value if told not in names else module.name):
                continue
            other, before = found.setdefault(module.name, (told, own))
            if before != own:
                raise ConfigError(
                    f"two different parallelisms for the module {module.name}",
                    where=f"parallel.modules.{told}",
                    expected=f"{other} or {told}, not both",
                    got=f"{other} and {told}",
                    nearest=other,
                )
    return replace(parallel, modules={name: own for name, (_, own) in found.items()})


def check_modules(model: Model, parallel: Parallel) -> None:
    """Heads must divide; key-value heads may also be shared by whole ranks.

    Args:
        parallel: with modality modules by name.
    Raises:
        ConfigError: heads that do not divide by the module's tp.
    """
    for name in parallel.modules:
        tp = parallel.of_module(name).tp
        body = next(module.body for module in model.modules if module.name == name)
        for path, part in body.named_modules(name):
            if not isinstance(part, SelfAttention | CrossAttention):
                continue
            counts = [part.heads]
            if isinstance(part, SelfAttention) and (part.whole_norm or not ranks_share(part.kv_heads, tp)):
                counts.append(part.kv_heads)
            for heads in counts:
                if heads % tp:
                    legal = [n for n in range(1, tp + 1) if heads % n == 0 and parallel.tp % n == 0]
                    raise ConfigError(
                        f"the {heads} heads of {path} do not divide over {tp} tensor-parallel ranks",
                        where=f"parallel.modules.{name}.tp",
                        expected=f"a divisor of {heads} heads and of parallel.tp = {parallel.tp}",
                        got=tp,
                        nearest=max(legal),
                    )
