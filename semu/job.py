"""``TrainingJob`` = model + cluster + parallelism + training options + batch: data only, validated at the door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from semu.errors import ConfigError, unknown_name
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType
from semu.nn.model import Model
from semu.nn.module import Module
from semu.nn.recompute_plan import KIND_ALIASES, RECOMPUTE_KINDS, RULE_KINDS, RecomputePlan, is_pattern
from semu.parallel.config import Overlap, Parallel
from semu.parallel.pipeline import nearest_multiple
from semu.workload.batch import AbstractBatch, text_batch


class Precision(Enum):
    """Arithmetic of the matrix products; the value is run.toml's word."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    TF32 = "tf32"
    FP32 = "fp32"

    @property
    def compute_dtype(self) -> DType:
        """Which peak of the device applies."""
        return DType(self.value)

    @property
    def tensor_dtype(self) -> DType:
        """Element type of parameters and activations."""
        if self in (Precision.TF32, Precision.FP32):
            return DType.FP32
        return DType.FP16 if self is Precision.FP16 else DType.BF16


class Recompute(Enum):
    """Which activations are computed again in the backward pass instead of kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class RecomputeMethod(Enum):
    """Which layers of a stage full recomputation covers (Megatron-LM's ``--recompute-method``)."""

    UNIFORM = "uniform"
    BLOCK = "block"


class Attention(Enum):
    """How attention is computed: one FlashAttention kernel, or separate kernels that keep the scores."""

    FUSED = "fused"
    UNFUSED = "unfused"


class Optimizer(Enum):
    """The optimizer whose step ends the iteration."""

    ADAM = "adam"


_E = TypeVar("_E", bound=Enum)

_GROUPED = ("1f1b", "interleaved")
"""Schedules that run virtual stages in turn, with as many microbatches at a time as there are pipeline ranks."""


def _enum(kind: type[_E], value: object, where: str) -> _E:
    if isinstance(value, kind):
        return value
    legal = [str(member.value) for member in kind]
    if not isinstance(value, str) or value not in legal:
        raise unknown_name(where.rsplit(".", 1)[-1], str(value), legal, where=where)
    return kind(value)


def _positive(value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError("not a count", where=where, expected="an integer >= 1", got=value, nearest=1)


def _overlap(value: object) -> Overlap:
    if value is None:
        return Overlap()
    if not isinstance(value, Overlap):
        raise ConfigError("not an Overlap", where="training.overlap", expected="semu.Overlap(...)", got=repr(value))
    return value


def _recompute(value: object, modules: object) -> tuple[Recompute, tuple[str, ...] | None]:
    """The mode, and the modules that SELECTIVE names."""
    mode = _enum(Recompute, value, "training.recompute") if isinstance(value, Recompute | str) else None
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


def _recompute_method(mode: Recompute, layers: object, method: object) -> RecomputeMethod | None:
    """The method; only full recomputation has one, and it needs a number of layers."""
    chosen = None if method is None else _enum(RecomputeMethod, method, "training.recompute_method")
    if layers is not None:
        _positive(layers, "training.recompute_layers")
    key = "recompute_layers" if layers is not None else "recompute_method" if chosen is not None else None
    if key is not None and mode is not Recompute.FULL:
        raise ConfigError(
            f"{key} is of full recomputation, and recompute = {mode.value}",
            where=f"training.{key}",
            expected='nothing, or recompute = "full"',
            got=layers if layers is not None else str(method),
            nearest='recompute = "full"',
        )
    if chosen is not None and layers is None:
        raise ConfigError(
            f"recompute_method = {chosen.value} needs a number of layers",
            where="training.recompute_layers",
            expected="an integer >= 1",
            got="nothing",
            nearest=1,
        )
    return RecomputeMethod.BLOCK if layers is not None and chosen is None else chosen


@dataclass(frozen=True)
class Training:
    """Training options (run.toml ``[training]`` and ``[overlap]``).

    Attributes:
        micro_batch: items per microbatch: sequences (text), packed sequences (VLM), packed clip groups (T2V).
        global_batch: items per iteration over all data-parallel replicas.
        seq_len: context length [tokens]; None: the batch's own default.
        precision: arithmetic; an enum member or its value.
        grad_dtype: element type of the gradient buffers: FP32 (Megatron's default) or BF16.
        optimizer: an enum member or its value.
        recompute: activation recomputation; an enum member or its value, or a list: SELECTIVE, of the module kinds
            (``semu.nn.recompute_plan.RECOMPUTE_KINDS``) and module paths that it names.
        schedule: name of the pipeline schedule, see ``semu.schedule.SCHEDULES``.
        overlap: which communication may hide behind computation.
        attention: FUSED or UNFUSED; an enum member or its value.
        recompute_layers, recompute_method: which layers ``recompute = full`` covers, chunk by chunk. BLOCK: the first
            ``recompute_layers``, each by itself. UNIFORM: all of them in groups of ``recompute_layers`` (the last may
            be smaller), one kept input per group. None: every layer by itself; layers without a method: BLOCK.
        recompute_modules: what SELECTIVE recomputes; None: the attention core. A list as ``recompute`` lands here.
    """

    micro_batch: int
    global_batch: int
    seq_len: int | None
    precision: Precision
    grad_dtype: DType
    optimizer: Optimizer
    recompute: Recompute
    schedule: str
    overlap: Overlap
    attention: Attention = Attention.FUSED
    recompute_layers: int | None = None
    recompute_method: RecomputeMethod | None = None
    recompute_modules: tuple[str, ...] | None = None

    def __init__(
        self,
        micro_batch: int = 1,
        global_batch: int = 1,
        seq_len: int | None = None,
        precision: Precision | str = Precision.BF16,
        grad_dtype: DType | str = DType.FP32,
        optimizer: Optimizer | str = Optimizer.ADAM,
        recompute: Recompute | str | Sequence[str] = Recompute.NONE,
        schedule: str = "1f1b",
        overlap: Overlap | None = None,
        attention: Attention | str = Attention.FUSED,
        recompute_layers: int | None = None,
        recompute_method: RecomputeMethod | str | None = None,
        recompute_modules: Sequence[str] | None = None,
    ) -> None:
        _positive(micro_batch, "training.micro_batch")
        _positive(global_batch, "training.global_batch")
        if seq_len is not None:
            _positive(seq_len, "training.seq_len")
        gradient = _enum(DType, grad_dtype, "training.grad_dtype")
        if gradient not in (DType.FP32, DType.BF16, DType.FP16):
            raise ConfigError(
                "not a gradient type", where="training.grad_dtype", expected="fp32, bf16 or fp16", got=gradient.value
            )
        mode, modules = _recompute(recompute, recompute_modules)
        values = {
            "micro_batch": micro_batch,
            "global_batch": global_batch,
            "seq_len": seq_len,
            "precision": _enum(Precision, precision, "training.precision"),
            "grad_dtype": gradient,
            "optimizer": _enum(Optimizer, optimizer, "training.optimizer"),
            "recompute": mode,
            "schedule": schedule,
            "overlap": _overlap(overlap),
            "attention": _enum(Attention, attention, "training.attention"),
            "recompute_layers": recompute_layers,
            "recompute_method": _recompute_method(mode, recompute_layers, recompute_method),
            "recompute_modules": modules,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def recompute_plan(self) -> RecomputePlan:
        """What is recomputed inside layers: something under SELECTIVE only."""
        if self.recompute is not Recompute.SELECTIVE:
            return RecomputePlan()
        return RecomputePlan.of(self.recompute_modules or ("core_attn",))


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides how long an iteration takes.

    Args:
        model: a ``semu.nn.Model``, or any ``semu.nn.Module`` (wrapped as a text model of one modality module).
        cluster: devices and links; its GPUs must equal dp x cp x tp x pp.
        parallel: sizes of the parallel dimensions.
        training: batch sizes, precision, recompute, schedule, overlap.
        batch: where microbatches come from; None: text sequences of ``training.seq_len`` tokens.
    Raises:
        ConfigError: sizes that do not fit together, with the nearest legal value.
    """

    model: Model
    cluster: Cluster
    parallel: Parallel
    training: Training
    batch: AbstractBatch

    def __init__(
        self,
        model: Model | Module,
        cluster: Cluster,
        parallel: Parallel | None = None,
        training: Training | None = None,
        batch: AbstractBatch | None = None,
    ) -> None:
        wrapped = model if isinstance(model, Model) else Model.from_module(model)
        object.__setattr__(self, "model", wrapped)
        object.__setattr__(self, "cluster", cluster)
        object.__setattr__(self, "parallel", parallel if parallel is not None else Parallel())
        object.__setattr__(self, "training", training if training is not None else Training())
        object.__setattr__(self, "batch", batch if batch is not None else text_batch())
        self._check_cluster()
        self._check_batch()
        self._check_recompute()
        self._check_virtual_stages()

    def _check_cluster(self) -> None:
        need, have = self.parallel.num_gpus, self.cluster.num_gpus
        if need != have:
            p = self.parallel
            rest = p.cp * p.tp * p.pp
            nearest = f"dp = {have // rest}" if have % rest == 0 else None
            raise ConfigError(
                f"dp x cp x tp x pp = {p.dp} x {p.cp} x {p.tp} x {p.pp} = {need} ranks on {have} GPUs",
                where="parallel",
                expected=f"a product of {have} (cluster {self.cluster.label()})",
                got=need,
                nearest=nearest,
            )

    def _check_batch(self) -> None:
        per_step = self.parallel.dp * self.training.micro_batch
        if self.training.global_batch % per_step:
            below = self.training.global_batch // per_step * per_step
            raise ConfigError(
                "the global batch does not divide into microbatches",
                where="training.global_batch",
                expected=f"a multiple of dp x micro_batch = {self.parallel.dp} x {self.training.micro_batch}",
                got=self.training.global_batch,
                nearest=max(per_step, below),
            )

    def _check_recompute(self) -> None:
        """Every name of the list must stand for something in the model."""
        names = self.training.recompute_modules or ()
        if all(name in RULE_KINDS for name in names):
            return
        found = [(path, item) for m in self.model.modules for path, item in m.body.named_modules(m.name)]
        known = {item.recompute_kind for _, item in found} - {""}
        for name in names:
            if is_pattern(name):
                if not any(RecomputePlan.of((name,)).matches(path) for path, _ in found):
                    raise unknown_name("module path", name, [path for path, _ in found], where="training.recompute")
            elif KIND_ALIASES.get(name, name) not in known | set(RULE_KINDS):
                legal = sorted(known | set(RULE_KINDS))
                if name in RECOMPUTE_KINDS or name in KIND_ALIASES:
                    raise ConfigError(
                        f"the model has no module of kind {name!r}",
                        where="training.recompute",
                        expected=", ".join(legal),
                        got=name,
                    )
                raise unknown_name("module kind", name, legal, where="training.recompute")

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one data-parallel replica in one iteration."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)

    @property
    def overlaps_sends(self) -> bool:
        """Whether P2P sends run beside the sender's compute; interleaving does that unless told otherwise."""
        chosen = self.training.overlap.pipeline
        return chosen if chosen is not None else self.parallel.vpp > 1

    def _check_virtual_stages(self) -> None:
        pp, vpp, count = self.parallel.pp, self.parallel.vpp, self.num_microbatches
        if vpp == 1:
            return
        if pp == 1:
            raise ConfigError(
                "virtual stages need several pipeline ranks to take turns on",
                where="parallel.vpp",
                expected="vpp = 1, or pp >= 2",
                got=vpp,
                nearest=1,
            )
        if count % pp and self.training.schedule in _GROUPED:
            per_step = self.parallel.dp * self.training.micro_batch
            raise ConfigError(
                f"{count} microbatches do not divide by pp = {pp}, as interleaved 1F1B (vpp = {vpp}) needs",
                where="training.global_batch",
                expected=f"a multiple of (dp x micro_batch) x pp = {per_step} x {pp}",
                got=self.training.global_batch,
                nearest=nearest_multiple(count, pp) * per_step,
            )
