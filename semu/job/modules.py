"""Whether the parallelism of single modality modules fits the model."""

from __future__ import annotations

from semu.errors import ConfigError, unknown_name
from semu.nn.model import Model
from semu.nn.transformer import CrossAttention, SelfAttention
from semu.parallel.config import Parallel


def check_modules(model: Model, parallel: Parallel) -> None:
    """Modules that there are, with heads that divide.

    Raises:
        ConfigError: a name that no modality module has, heads that do not divide by the module's tp.
    """
    names = [module.name for module in model.modules]
    for name in parallel.modules:
        if name not in names:
            raise unknown_name("modality module", name, names, where=f"parallel.modules.{name}")
        tp = parallel.of_module(name).tp
        body = next(module.body for module in model.modules if module.name == name)
        for path, part in body.named_modules(name):
            if not isinstance(part, SelfAttention | CrossAttention):
                continue
            counts = (part.heads, part.kv_heads) if isinstance(part, SelfAttention) else (part.heads,)
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
