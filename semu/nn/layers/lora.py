"""LoRA (2106.09685): adapters of low rank beside frozen linear layers, on any model and applied from outside.

A linear layer of semu may fuse projections that other frameworks keep apart (queries, keys and values; gate and up):
each projection gets an adapter, so that parameters are counted as in PEFT, rank x (in + out) per projection.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from semu.checks import check_integer, check_probability
from semu.errors import ConfigError, unknown_name
from semu.nn import functional as F
from semu.nn.changes import CHANGES
from semu.nn.layers.elementary import Linear
from semu.nn.layers.lora_experts import LoRAExperts
from semu.nn.layers.lora_sites import ALL_LINEAR, Site, sites_of
from semu.nn.layers.moe import Experts
from semu.nn.model import Model
from semu.nn.module import Module, Parameter
from semu.nn.rules.low_rank_adapters import add_parts, low_rank
from semu.nn.trace.tensor import Tensor
from semu.records import dataclass


@dataclass(frozen=True)
class LoRA:
    """Which layers get adapters.

    Attributes:
        rank: of every adapter, >= 1.
        targets: ``"all-linear"``; names of projections (``q_proj``, ``c_attn``, ``linear_fc1``, ...); module paths; or
            ``fnmatch`` patterns of paths that end in either (``llm.*.q_proj``). As in PEFT, a name stands for all
            modules whose path ends in it.
        dropout: probability on an adapter's input; every adapter draws a mask.
        alpha: the scale is alpha / rank; costs nothing.
        trainable: paths or patterns of modules that train beside the adapters (PEFT's ``modules_to_save``, here without
            a frozen copy).
    Raises:
        ConfigError: a rank below 1, a probability out of range, no target.
    """

    rank: int
    targets: tuple[str, ...] = (ALL_LINEAR,)
    dropout: float = 0.0
    alpha: float | None = None
    trainable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("targets", "trainable"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        check_integer(self.rank, "model.lora.rank", "a rank")
        check_probability(self.dropout, "model.lora.dropout")
        if not self.targets:
            raise ConfigError(
                "no layer gets an adapter", where="model.lora.targets", expected="at least one name", got=[]
            )


class LoRALinear(Linear):
    """A linear layer with adapters; the parameters of the layer stay as they are.

    Args:
        base: the layer. rank: of the adapters. parts: adapted projections, each as (number, rows).
        dropout: on what an adapter reads.
    """

    def __init__(self, base: Linear, rank: int, parts: tuple[tuple[int, int], ...], dropout: float) -> None:
        Module.__init__(self)
        self.parts = base.parts
        self.weight = base.weight
        self.bias = base.bias
        self.dropout = dropout
        self.adapters = tuple(number for number, _ in parts)
        for number, width in parts:
            setattr(self, f"lora_a{number}", Parameter(rank, base.weight.shape[1]))
            setattr(self, f"lora_b{number}", Parameter(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        y = F.linear(x, self.weight, self.bias, self.parts)
        added = [
            low_rank(F.dropout(x, self.dropout), getattr(self, f"lora_a{number}"), getattr(self, f"lora_b{number}"))
            for number in self.adapters
        ]
        return add_parts(y, added)


def add_lora(model: Model, lora: LoRA, *, where: str = "model.lora") -> Model:
    """Freeze a model and put adapters beside its linear layers; returns the model.

    Args:
        model: changed in place. lora: which layers. where: place of the options, for messages.
    Raises:
        ConfigError: a target or path without a match, or a layer that is named both whole and in parts.
    """
    sites = list(sites_of(model))
    wanted: dict[str, set[int | None]] = {}
    for target in lora.targets:
        chosen = {site.path: site.chosen(target) for site in sites}
        if not any(chosen.values()):
            words = sorted({name.rpartition(".")[2] for site in sites for name in site.names})
            raise unknown_name("projection or module path", target, [ALL_LINEAR, *words], where=f"{where}.targets")
        for path, parts in chosen.items():
            wanted.setdefault(path, set()).update(parts)
    parameters = dict(model.named_parameters())
    trained = set()
    for word in lora.trainable:
        named = {p for p in parameters if p == word or p.startswith(f"{word}.") or fnmatchcase(p, word)}
        if not named:
            paths = {path for m in model.modules for path, _ in m.body.named_modules(m.name)}
            raise unknown_name("module path", word, sorted(paths), where=f"{where}.trainable")
        trained |= named
    for path, parameter in parameters.items():
        parameter.requires_grad = path in trained
    wrapped: dict[int, LoRALinear | LoRAExperts] = {}
    for site in sites:
        if parts := wanted[site.path]:
            if id(site.module) not in wrapped:
                wrapped[id(site.module)] = _adapted(site, parts, lora, where)
            _replace(site, wrapped[id(site.module)])
    return model


def has_lora(model: Model) -> bool:
    """Whether a layer has an adapter."""
    return any(
        isinstance(item, LoRALinear | LoRAExperts) for m in model.modules for _, item in m.body.named_modules(m.name)
    )


def _adapted(site: Site, parts: set[int | None], lora: LoRA, where: str) -> LoRALinear | LoRAExperts:
    if isinstance(site.module, LoRALinear | LoRAExperts):
        raise ConfigError("a layer has adapters already", where=site.path, expected="one call of add_lora")
    if None in parts and len(parts) > 1 and len(site.widths) > 1:
        raise ConfigError(
            f"{site.path} is named as one projection and in parts",
            where=f"{where}.targets",
            expected="either, as c_attn or as q_proj",
            got=list(lora.targets),
        )
    numbers = tuple(sorted(part for part in parts if part is not None))
    if isinstance(site.module, Experts):
        return LoRAExperts(site.module, lora.rank, numbers, lora.dropout)
    sizes = ((0, sum(site.widths)),) if None in parts else tuple((number, site.widths[number]) for number in numbers)
    return LoRALinear(site.module, lora.rank, sizes, lora.dropout)


def _replace(site: Site, new: Module) -> None:
    """Put a module in the place of a layer, an attribute or a member of a list."""
    if site.name in site.parent.__dict__:
        children = site.parent._children()
        order = list(children)
        setattr(site.parent, site.name, new)
        again = {name: children[name] for name in order}
        children.clear()
        children.update(again)
    else:
        site.parent._children()[site.name] = new
        CHANGES.note()
