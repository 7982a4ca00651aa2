"""``Model``: modality modules in the order in which data flows through them (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from semu.checks import check_word
from semu.errors import ConfigError, unknown_name
from semu.hardware.kinds import DType
from semu.nn.merging import Merging
from semu.nn.module import Module, Parameter, Sequential
from semu.records import dataclass


class ModalityRole(Enum):
    """Place of a modality module in a multimodal model."""

    ENCODER = "encoder"
    BACKBONE = "backbone"
    DECODER = "decoder"


@dataclass(frozen=True)
class InputSpec:
    """A tensor that the data loader provides.

    Attributes:
        stream: name of the data stream: ``text``, ``vision``, ``video``, ...
        features: width of [tokens, features]; None: a vector of token ids.
        per_sequence: one row per sequence instead of one per token (e.g. a diffusion timestep).
    """

    stream: str
    features: int | None = None
    per_sequence: bool = False

    def dtype(self, tensor_dtype: DType) -> DType:
        """Element type: ids are int64, features are in the model's type."""
        return DType.INT64 if self.features is None else tensor_dtype


TEXT_IDS = InputSpec("text")
"""Token ids of the text stream."""


@dataclass(frozen=True)
class ModalityModule:
    """One encoder, backbone or decoder.

    Attributes:
        name: unique in the model, the first part of all module paths.
        role: encoder, backbone or decoder.
        body: its layers; a ``Sequential`` can be cut between members, any other module is one block.
        inputs: what the data loader gives its first block.
        sources: modality modules whose outputs follow as further arguments of the first block.
        merging: how items of its stream become tokens of the backbone; None: unknown, any batch is accepted.
    """

    name: str
    role: ModalityRole
    body: Module
    inputs: tuple[InputSpec, ...] = (TEXT_IDS,)
    sources: tuple[str, ...] = ()
    merging: Merging | None = None

    def blocks(self) -> list[tuple[str, Module]]:
        """Pipeline-able pieces by path, in order."""
        if isinstance(self.body, Sequential):
            return [(f"{self.name}.{name}", block) for name, block in self.body.named_children()]
        return [(self.name, self.body)]


class Model:
    """A model to train.

    Args:
        name: for reports.
        modules: modality modules in topological order.
    Raises:
        ConfigError: no module, a name twice, a source that does not come before.
    """

    def __init__(self, name: str, modules: Sequence[ModalityModule]) -> None:
        if not modules:
            raise ConfigError("a model needs a module", where=name, expected="at least one ModalityModule", got="none")
        known: list[str] = []
        for module in modules:
            if module.name in known:
                raise ConfigError("two modality modules of one name", where=name, got=module.name)
            for source in module.sources:
                check_word(source, known, "source module", f"{name}.{module.name}.sources")
            if not module.blocks():
                raise ConfigError("a module without layers", where=f"{name}.{module.name}", expected="one or more")
            known.append(module.name)
        self.name = name
        self.modules = tuple(modules)

    @classmethod
    def from_module(
        cls, module: Module, *, name: str | None = None, inputs: Sequence[InputSpec] = (TEXT_IDS,)
    ) -> Model:
        """Wrap any module as a model of one backbone.

        Args:
            module: its first block gets ``inputs``, by default token ids of the text stream.
            name: default: the class's name.
            inputs: what the data loader provides.
        """
        label = name if name is not None else type(module).__name__.lower()
        return cls(label, [ModalityModule(label, ModalityRole.BACKBONE, module, tuple(inputs))])

    @property
    def encoders(self) -> tuple[str, ...]:
        """Names of the encoders."""
        return tuple(module.name for module in self.modules if module.role is ModalityRole.ENCODER)

    @property
    def mergings(self) -> tuple[Merging, ...]:
        """How the items of each encoder become tokens, where the encoder says so."""
        return tuple(module.merging for module in self.modules if module.merging is not None)

    @property
    def reads_replicas(self) -> bool:
        """Whether a module exchanges with the other data-parallel replicas in its forward."""
        return any(item.reads_replicas for module in self.modules for item in module.body.modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every distinct parameter by path."""
        seen: set[int] = set()
        for module in self.modules:
            for path, parameter in module.body.named_parameters(module.name):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield path, parameter

    @property
    def is_trained(self) -> bool:
        """Whether any parameter is not frozen."""
        return any(parameter.requires_grad for _, parameter in self.named_parameters())

    def num_parameters(self, *, trainable_only: bool = False) -> int:
        """Elements of all distinct parameters."""
        every = {id(item): item for module in self.modules for item in module.body.parameters()}
        return sum(p.numel for p in every.values() if p.requires_grad or not trainable_only)

    def freeze(self, paths: Sequence[str], *, where: str = "model.frozen") -> Model:
        """Freeze every parameter at or below the given module paths, or of all modules of a role; returns the model.

        Raises:
            ConfigError: a path that names no module.
        """
        if not paths:
            return self
        roles: dict[str, list[str]] = {}
        for module in self.modules:
            roles.setdefault(module.role.value, []).append(module.name)
        full = {path for m in self.modules for path, _ in m.body.named_modules(m.name)}
        known = {".".join(path.split(".")[:n]) for path in full for n in range(1, path.count(".") + 2)}
        for asked in paths:
            paths_of = [asked] if asked in known else roles.get(asked, [])
            if not paths_of:
                raise unknown_name("module path", asked, [m.name for m in self.modules] + list(roles), where=where)
            for name, parameter in self.named_parameters():
                if any(name == path or name.startswith(f"{path}.") for path in paths_of):
                    parameter.requires_grad = False
        return self

    def __repr__(self) -> str:
        parts = ", ".join(f"{m.name} ({m.role.value}, {m.body.num_parameters() / 1e9:.2f} B)" for m in self.modules)
        return f"Model({self.name}: {parts})"
