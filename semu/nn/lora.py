"""LoRA (2106.09685): adapters of low rank beside frozen linear layers, on any model and applied from outside.

A linear layer of semu may fuse projections that other frameworks keep apart (queries, keys and values; gate and up):
each gets an adapter of its own, so that parameters are counted as PEFT counts them, rank x (in + out) per projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from semu.errors import ConfigError, unknown_name
from semu.nn import functional as F
from semu.nn.changes import CHANGES
from semu.nn.layers import Linear
from semu.nn.mla import LatentAttention
from semu.nn.model import Model
from semu.nn.module import Module, Parameter
from semu.nn.moe import Router
from semu.nn.rules.low_rank import add_parts, low_rank
from semu.nn.tensor import Tensor
from semu.nn.transformer import MLP, CrossAttention, SelfAttention

ALL_LINEAR = "all-linear"
"""Target: every linear layer of the transformer layers but the routers of experts."""


@dataclass(frozen=True)
class Projection:
    """What a name in another framework means here.

    Attributes:
        linear: attribute that holds the layer. part, of: one of so many equal parts, where the layer does not name its
            own; part None: the whole layer is one projection.
    """

    linear: str
    part: int | None = None
    of: int = 1


_QUERY, _KEY, _VALUE = (Projection("qkv", part, 3) for part in range(3))
PROJECTIONS: Mapping[type[Module], Mapping[str, Projection]] = {
    SelfAttention: {
        **dict.fromkeys(("q_proj", "query", "to_q"), _QUERY),
        **dict.fromkeys(("k_proj", "key", "to_k"), _KEY),
        **dict.fromkeys(("v_proj", "value", "to_v"), _VALUE),
        **dict.fromkeys(("o_proj", "out_proj", "c_proj", "linear_proj", "to_out"), Projection("out")),
        **dict.fromkeys(("c_attn", "qkv_proj", "linear_qkv"), Projection("qkv")),
    },
    CrossAttention: {
        **dict.fromkeys(("q_proj", "query", "to_q"), Projection("query")),
        **dict.fromkeys(("k_proj", "key", "to_k"), Projection("key_value", 0, 2)),
        **dict.fromkeys(("v_proj", "value", "to_v"), Projection("key_value", 1, 2)),
        **dict.fromkeys(("o_proj", "out_proj", "c_proj", "linear_proj", "to_out"), Projection("out")),
    },
    LatentAttention: {
        "q_proj": Projection("query_up"),
        "q_a_proj": Projection("query_down"),
        "q_b_proj": Projection("query_up"),
        "kv_a_proj_with_mqa": Projection("kv_down"),
        "kv_b_proj": Projection("kv_up"),
        "o_proj": Projection("out"),
        "linear_proj": Projection("out"),
    },
    MLP: {
        "gate_proj": Projection("up", 0, 2),
        "up_proj": Projection("up", 1, 2),
        **dict.fromkeys(("fc1", "c_fc", "linear_fc1", "gate_up_proj"), Projection("up")),
        **dict.fromkeys(("down_proj", "fc2", "c_proj", "linear_fc2"), Projection("down")),
    },
}
"""Module -> name in transformers, diffusers or Megatron-LM -> layer."""


@dataclass(frozen=True)
class LoRA:
    """Which layers get adapters.

    Attributes:
        rank: of every adapter, >= 1.
        targets: ``"all-linear"``; names of projections (``q_proj``, ``c_attn``, ``linear_fc1``, ...); module paths; or
            ``fnmatch`` patterns of paths that end in either (``llm.*.q_proj``). As in PEFT, a name stands for all
            modules whose path ends in it.
        dropout: probability on what an adapter reads; each draws its own mask.
        alpha: the scale is alpha / rank; costs nothing and is kept for the record.
        trainable: module paths or patterns of what is trained beside the adapters (PEFT's ``modules_to_save``, here
            without a frozen copy).
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
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ConfigError(
                "not a rank", where="model.lora.rank", expected="an integer >= 1", got=self.rank, nearest=1
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(
                "not a probability", where="model.lora.dropout", expected="0 <= p < 1", got=self.dropout, nearest=0
            )
        if not self.targets:
            raise ConfigError(
                "no layer gets an adapter", where="model.lora.targets", expected="at least one name", got=[]
            )


class LoRALinear(Linear):
    """A linear layer with adapters; the layer's own parameters are what they were.

    Args:
        base: the layer. rank: of the adapters. parts: adapted projections, each as (number, first row, rows).
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


@dataclass
class _Site:
    """A linear layer that may get adapters.

    Attributes:
        path: in the model. parent, name: where it hangs. linear: itself. widths: of its projections.
        names: full name elsewhere -> number of the part, or None for the layer as one projection.
        is_layer: it is a part of a transformer layer, and no router's.
    """

    path: str
    parent: Module
    name: str
    linear: Linear
    widths: tuple[int, ...]
    names: dict[str, int | None]
    is_layer: bool

    def chosen(self, target: str) -> set[int | None]:
        """Parts that a target names; None: the layer as one projection."""
        if target == ALL_LINEAR:
            return set(range(len(self.widths))) if self.is_layer else set()
        if _names(target, self.path):
            return set(range(len(self.widths)))
        return {part for name, part in self.names.items() if _names(target, name)}


def add_lora(model: Model, lora: LoRA, *, where: str = "model.lora") -> Model:
    """Freeze a model and put adapters beside its linear layers; returns the model.

    Args:
        model: changed in place. lora: which layers. where: place of the options, for messages.
    Raises:
        ConfigError: a target or a path that names nothing, or a layer that is named both whole and in parts.
    """
    sites = list(_sites(model))
    wanted: dict[str, set[int | None]] = {}
    for target in lora.targets:
        found = False
        for site in sites:
            parts = site.chosen(target)
            found |= bool(parts)
            wanted.setdefault(site.path, set()).update(parts)
        if not found:
            known = sorted({name.rpartition(".")[2] for site in sites for name in site.names})
            raise unknown_name("projection or module path", target, [ALL_LINEAR, *known], where=f"{where}.targets")
    paths = {path for m in model.modules for path, _ in m.body.named_modules(m.name)}
    own = dict(model.named_parameters())
    trained = set()
    for word in lora.trainable:
        named = {p for p in own if p == word or p.startswith(f"{word}.") or fnmatchcase(p, word)}
        if not named:
            raise unknown_name("module path", word, sorted(paths), where=f"{where}.trainable")
        trained |= named
    for path, parameter in own.items():
        parameter.requires_grad = path in trained
    wrapped: dict[int, LoRALinear] = {}
    for site in sites:
        if parts := wanted[site.path]:
            if id(site.linear) not in wrapped:
                wrapped[id(site.linear)] = _adapted(site, parts, lora, where)
            _replace(site, wrapped[id(site.linear)])
    return model


def _adapted(site: _Site, parts: set[int | None], lora: LoRA, where: str) -> LoRALinear:
    if isinstance(site.linear, LoRALinear):
        raise ConfigError("a layer has adapters already", where=site.path, expected="one call of add_lora")
    if None in parts and len(parts) > 1 and len(site.widths) > 1:
        raise ConfigError(
            f"{site.path} is named as one projection and in parts",
            where=f"{where}.targets",
            expected="either, as c_attn or as q_proj",
            got=list(lora.targets),
        )
    if None in parts:
        sizes: tuple[tuple[int, int], ...] = ((0, sum(site.widths)),)
    else:
        sizes = tuple((number, site.widths[number]) for number in sorted(part for part in parts if part is not None))
    return LoRALinear(site.linear, lora.rank, sizes, lora.dropout)


def _replace(site: _Site, new: Module) -> None:
    """Hang a module in the place of a layer, attribute or member of a list."""
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


def _sites(model: Model) -> Iterator[_Site]:
    for modality in model.modules:
        layer = ""
        for path, module in modality.body.named_modules(modality.name):
            if module.fp8_region:
                layer = f"{path}."
            known = {
                name: projection
                for kind, table in PROJECTIONS.items()
                if isinstance(module, kind)
                for name, projection in table.items()
            }
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    is_inside = bool(layer) and f"{path}.".startswith(layer) and not isinstance(module, Router)
                    yield _site(f"{path}.{name}", module, name, child, known, is_inside)


def _site(
    path: str, parent: Module, name: str, linear: Linear, known: Mapping[str, Projection], is_layer: bool
) -> _Site:
    here = {word: projection for word, projection in known.items() if projection.linear == name}
    rows = linear.weight.shape[0]
    is_gated = not isinstance(parent, MLP) or parent.gated
    parts = max((projection.of for projection in here.values()), default=1) if is_gated else 1
    widths = linear.parts or (rows // parts,) * parts
    names: dict[str, int | None] = {}
    for word, projection in here.items():
        if len(widths) == 1:
            if word != "gate_proj":
                names[f"{path.removesuffix(name)}{word}"] = 0
        else:
            names[f"{path.removesuffix(name)}{word}"] = projection.part
    return _Site(path, parent, name, linear, widths, names, is_layer)


def _names(target: str, path: str) -> bool:
    """Whether a word names a path: it ends in it, or matches as a pattern."""
    return path == target or path.endswith(f".{target}") or fnmatchcase(path, target)
