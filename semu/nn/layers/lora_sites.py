"""Where adapters of low rank can stand: linear layers and routed experts, by path and by other frameworks' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from semu.nn.layers.elementary import Linear
from semu.nn.layers.lora_experts import expert_widths
from semu.nn.layers.mla import LatentAttention
from semu.nn.layers.moe import Experts
from semu.nn.layers.transformer import MLP, CrossAttention, SelfAttention
from semu.nn.model import Model
from semu.nn.module import Module
from semu.records import dataclass

ALL_LINEAR = "all-linear"
"""Target: all linear layers of transformer layers, experts and routers included; no embedding, projector or head."""


@dataclass(frozen=True)
class Projection:
    """What a name in another framework means here.

    Attributes:
        linear: attribute that holds the layer. part, of: part ``part`` of ``of`` equal parts, where the layer does not
            say its parts; part None: the whole layer is one projection.
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
        **dict.fromkeys(("c_attn", "qkv_proj", "linear_qkv", "query_key_value"), Projection("qkv")),
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
        **dict.fromkeys(("fc1", "c_fc", "linear_fc1", "dense_h_to_4h", "gate_up_proj"), Projection("up")),
        **dict.fromkeys(("down_proj", "fc2", "c_proj", "linear_fc2", "dense_4h_to_h"), Projection("down")),
    },
}
"""Module -> name in transformers, diffusers or Megatron-LM -> layer."""

EXPERT_NAMES = {True: (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")), False: (("fc1",), ("fc2",))}
"""Whether experts are gated -> names of each of their projections."""


@dataclass
class Site:
    """A linear layer, or all experts of a layer, that may get adapters.

    Attributes:
        path: in the model. parent, name: the module and attribute that hold it. module: itself.
        widths: of its projections.
        names: full name in another framework -> number of the part, or None for the layer as one projection.
        is_layer: it is part of a transformer layer.
    """

    path: str
    parent: Module
    name: str
    module: Linear | Experts
    widths: tuple[int, ...]
    names: dict[str, int | None]
    is_layer: bool

    def chosen(self, target: str) -> set[int | None]:
        """Parts that a target names; None: the layer as one projection."""
        if target == ALL_LINEAR:
            return set(range(len(self.widths))) if self.is_layer else set()
        if names(target, self.path):
            return set(range(len(self.widths)))
        parts = {part for name, part in self.names.items() if names(target, name)}
        return parts - {None} if len(parts) > 1 else parts  # a pattern that fits whole and parts means the parts


def sites_of(model: Model) -> Iterator[Site]:
    """Every linear layer and every layer's experts that the model uses, by path."""
    for modality in model.modules:
        layer = unused = ""
        for path, module in modality.body.named_modules(modality.name):
            if module.is_held_only:
                unused = f"{path}."
            if unused and f"{path}.".startswith(unused):
                continue
            if module.fp8_region:
                layer = f"{path}."
            is_layer = bool(layer) and f"{path}.".startswith(layer)
            known = {
                name: projection
                for kind, table in PROJECTIONS.items()
                if isinstance(module, kind)
                for name, projection in table.items()
            }
            if isinstance(module, SelfAttention) and module.causal:  # of Falcon, BLOOM; BERT calls all layers so
                known["dense"] = Projection("out")
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    yield _linear(f"{path}.{name}", module, name, child, known, is_layer)
                elif isinstance(child, Experts):
                    yield _experts(f"{path}.{name}", module, name, child, is_layer)


def names(target: str, path: str) -> bool:
    """Whether ``target`` names a path: the path ends in it, or matches it as a pattern."""
    return path == target or path.endswith(f".{target}") or fnmatchcase(path, target)


def _linear(
    path: str, parent: Module, name: str, linear: Linear, known: Mapping[str, Projection], is_layer: bool
) -> Site:
    here = {word: projection for word, projection in known.items() if projection.linear == name}
    rows = linear.weight.shape[0]
    is_gated = not isinstance(parent, MLP) or parent.gated
    parts = max((projection.of for projection in here.values()), default=1) if is_gated else 1
    widths = linear.parts or (rows // parts,) * parts
    prefix, is_split = path.removesuffix(name), len(widths) > 1
    parts_by_name = {
        f"{prefix}{word}": projection.part if is_split else 0
        for word, projection in here.items()
        if is_split or word != "gate_proj"
    }
    return Site(path, parent, name, linear, widths, parts_by_name, is_layer)


def _experts(path: str, parent: Module, name: str, experts: Experts, is_layer: bool) -> Site:
    parts_by_name: dict[str, int | None] = {
        f"{path}.{word}": part for part, words in enumerate(EXPERT_NAMES[experts.gated]) for word in words
    }
    return Site(path, parent, name, experts, expert_widths(experts), parts_by_name, is_layer)
