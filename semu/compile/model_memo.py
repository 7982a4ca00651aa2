"""What is remembered of a model between calls of ``simulate``: how it was traced and cut, as long as it stays as it is.

A model is mutable, so everything is forgotten when any module or parameter has been assigned to (``semu.nn.changes``),
or when a class has other methods than before. Only models whose every block has a structure (``StructureReader``) are
remembered: nothing in them is hidden.

Keys hold every setting of the job but those named here, so that a setting that is new counts from its first day.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from semu import memo
from semu.compile.structure import Structure, StructureReader
from semu.job import TrainingJob
from semu.job.declare import Influence
from semu.job.training import OPTIONS
from semu.nn.changes import CHANGES
from semu.nn.layers.moe import MixtureOfExperts
from semu.nn.model import ModalityModule, Model
from semu.nn.module import Module, Parameter
from semu.parallel.axes import Shards, axes_of
from semu.parallel.mesh import Mesh
from semu.parallel.tensor import has_dtensor
from semu.records import dataclass

PLACEMENT = frozenset(
    {
        *axes_of(Shards.SAMPLES, Shards.LAYERS),
        "zero",
        "zero_group",
        "reshard_after_forward",
        "partition",
        "layout",
        "placement",
        "segments",
        "shares",
    }
)
"""Settings of ``Parallel`` that decide where blocks and optimizer states lie, and nothing inside a block."""
ZERO = frozenset({*axes_of(Shards.SAMPLES), "zero", "zero_group", "reshard_after_forward"})
"""Settings of ``Parallel`` that change no stage while ``zero`` is 0 or 1."""
BATCH = frozenset(row.name for row in OPTIONS if row.influence is Influence.MICROBATCHES)
"""Settings of ``Training`` that say how many microbatches there are, what is in them and in which order they run."""
AROUND = frozenset(row.name for row in OPTIONS if row.influence is not Influence.STAGES)
"""Settings of ``Training`` that change neither blocks nor stages."""

_REGISTERS = frozenset({"_modules", "_parameters"})
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


def settings(options: object, without: frozenset[str]) -> tuple[Hashable, ...]:
    """The values of a frozen dataclass but some, in order; mappings as tuples."""
    return tuple(
        [
            value if value.__class__ in _PLAIN else value._name_ if isinstance(value, Enum) else _hashable(value)
            for name, value in vars(options).items()
            if name not in without
        ]
    )


def _is_fixed(value: object) -> bool:
    """Whether a value cannot change in place, or notes that it does."""
    if value is None or isinstance(value, int | float | str | bytes | Enum | Module | Parameter):
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_fixed(item) for item in value)
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen or not hasattr(value, "__dict__"):
        return False
    return all(_is_fixed(item) for item in vars(value).values())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return tuple([(key, _hashable(item)) for key, item in value.items()])
    if isinstance(value, tuple | list):
        return tuple([_hashable(item) for item in value])
    if is_dataclass(value) and hasattr(value, "__dict__"):
        return type(value), settings(value, frozenset())
    known: Hashable = value
    return known


@dataclass(frozen=True, eq=False)
class ModelState:
    """A model as it is now; what is remembered of the model is remembered of its state, and forgotten with it.

    Attributes:
        is_fixed: no module holds anything that changes in place. has_experts: some module is a mixture of experts.
        reads_replicas: some module exchanges with other replicas. modules: the model's.
        classes: classes of its modules with what they define.
        structures: of its blocks; None: something in one is hidden.
    """

    is_fixed: bool
    has_experts: bool
    reads_replicas: bool
    modules: tuple[ModalityModule, ...]
    classes: tuple[tuple[type, tuple[object, ...]], ...]
    structures: Mapping[Module, Structure | None]

    @classmethod
    def of(cls, model: Model) -> ModelState:
        """Read a model."""
        reader = StructureReader()
        structures = {body: reader.read(body) for item in model.modules for _, body in item.blocks()}
        rest = [item.body for item in model.modules if item.body not in structures]  # whose members the blocks are
        rest += [module for body, own in structures.items() if own is None for module in body.modules()]
        kinds = reader.classes.keys() | {type(module) for module in rest}
        bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__ if issubclass(base, Module))
        return cls(
            is_fixed=reader.is_fixed
            and all(
                _is_fixed(value)
                for module in rest
                for name, value in vars(module).items()
                if value.__class__ not in _PLAIN and name not in _REGISTERS
            ),
            has_experts=any(issubclass(kind, MixtureOfExperts) for kind in kinds),
            reads_replicas=reader.reads_replicas or any(module.reads_replicas for module in rest),
            modules=model.modules,
            classes=tuple((base, tuple(vars(base).values())) for base in bases),
            structures=structures,
        )

    def holds(self, model: Model) -> bool:
        """Whether the model has the same modules, and their classes the same methods."""
        return self.modules is model.modules and all(
            len(vars(base)) == len(methods) and all(map(operator.is_, vars(base).values(), methods))
            for base, methods in self.classes
        )


_STATES = memo.ScopedTable[ModelState]("state of a model, by the count of changes to modules and parameters", 1)


def state_of(model: Model) -> ModelState:
    """The state of a model: the same object as long as nothing in the model changes."""
    state = _STATES.get(model, CHANGES.count, lambda: ModelState.of(model))
    return state if state.holds(model) else _STATES.of(model).put(CHANGES.count, ModelState.of(model))


def trace_key(
    job: TrainingJob,
    mesh: Mesh,
    *,
    has_experts: bool,
    reads_replicas: bool = False,
    tower_ends: Sequence[int] = (),
) -> tuple[Hashable, ...] | None:
    """Everything of a job but its model that its blocks can depend on; None: more than that.

    Experts are traced for the groups in which they and their tokens are spread; modules with a parallelism of their own
    have no key.
    """
    if job.parallel.modules:
        return None
    context = mesh.worst_cp_group, mesh.worst_context_levels, mesh.worst_context_parts
    gang = (mesh.worst_vocabulary_group, mesh.worst_pipeline_group) if job.parallel.spreads_vocabulary else None
    towers = mesh.worst_tower_group(tower_ends) if job.parallel.towers_meet else None
    groups = (mesh.worst_tp_group, context, mesh.worst_replica_group if reads_replicas else None, gang, towers)
    among = None
    if has_experts or job.parallel.ep > 1:
        among = mesh.worst_ep_group, mesh.worst_etp_group, mesh.worst_expert_group, job.hides_exchanges
    own = settings(job.parallel, PLACEMENT), settings(job.training, AROUND), among
    by_sharding = (  # what PLACEMENT changes nevertheless
        *(job.fp8_weights.name, job.gathers_fp8_weights, job.shards_are_masters, job.fuses_accumulation),
        has_dtensor(job.parallel, job.training.software),
    )
    is_replicated = job.parallel.segments == "replicated"
    return (*own, *by_sharding, job.fp8_copies, job.overlaps_tensor_parallel, groups, is_replicated)


def cut_key(job: TrainingJob) -> tuple[Hashable, ...] | None:
    """Everything of a job but its model and blocks that its chunks can depend on; None: more than that, or where it has
    no ``trace_key``."""
    parallel = job.parallel
    training = job.training
    if parallel.zero > 1 or parallel.cuts_by_time or training.recompute_layers is not None:
        return None
    if "weights" in (training.offload or ()):
        return None
    return settings(parallel, ZERO), settings(training, AROUND), job.overlaps_tensor_parallel


def placement_key(job: TrainingJob) -> tuple[Hashable, ...]:
    """Everything of a job but its model and its batch: where parameters lie, and what happens to them in an
    iteration. Of the batch and the schedule only whether they let ZeRO-3 gather once."""
    cluster = job.cluster
    where = job.profile, cluster.profile, cluster.places, job.gathers_once
    return settings(job.parallel, frozenset()), settings(job.training, BATCH), where
