"""``TrainingJob`` = model + cluster + parallelism + training options + batch: data only, validated at the door."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from semu.errors import ConfigError, unknown_name
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType
from semu.nn.model import Model
from semu.nn.module import Module
from semu.parallel.config import Overlap, Parallel
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
    FULL = "full"


class Optimizer(Enum):
    """The optimizer whose step ends the iteration."""

    ADAM = "adam"


class Fp8Weights(Enum):
    """How often fp8 linears cast their weights.

    ITERATION: once, after the step; both copies (plain and transposed) are kept, 2 bytes per element. Megatron-LM's
    default: it tells Transformer Engine the first microbatch, which fills the layer's weight workspace.
    MICROBATCH: in every forward; nothing is kept but the transposed copy until the backward (Megatron-LM's
    ``disable_parameter_transpose_cache``, and torchao's float8 linears).
    """

    ITERATION = "iteration"
    MICROBATCH = "microbatch"


_E = TypeVar("_E", bound=Enum)


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


def _at_least_zero(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError("out of range", where=where, expected="a finite number >= 0", got=value, nearest=0)
    return float(value)


def _switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("not a switch", where=where, expected="true or false", got=value)
    return value


def _state_dtype(value: object, where: str, legal: tuple[DType, ...]) -> DType:
    chosen = _enum(DType, value, where)
    if chosen not in legal:
        words = " or ".join(dtype.value for dtype in legal)
        raise ConfigError(
            "not an optimizer state type", where=where, expected=words, got=chosen.value, nearest=legal[0].value
        )
    return chosen


def _master_dtype(value: object, precision: Precision) -> DType:
    """Type of the master weights; as wide as the parameters at least."""
    where = "training.master_dtype"
    chosen = _state_dtype(value, where, (DType.FP32, DType.BF16, DType.FP16))
    if chosen is not DType.FP32 and chosen is not precision.tensor_dtype:
        legal = dict.fromkeys((DType.FP32.value, precision.tensor_dtype.value))
        raise ConfigError(
            f"no master weights in {chosen.value} for parameters in {precision.tensor_dtype.value}",
            where=where,
            expected=" or ".join(legal),
            got=chosen.value,
            nearest=DType.FP32.value,
        )
    return chosen


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
        recompute: activation recomputation; an enum member or its value.
        schedule: name of the pipeline schedule, see ``semu.schedule.SCHEDULES``.
        overlap: which communication may hide behind computation.
        master_dtype: of the optimizer's copy of the parameters; the parameters' own type: no copy.
        optimizer_state_dtype: of Adam's two moments, FP32 or BF16.
        fp8_weights: how often fp8 linears cast their weights; without fp8 it has no effect.
        gradient_clipping: the global gradient norm is found and the gradients are scaled by it before every step
            (Megatron-LM's ``--clip-grad 1.0``, which is its default); here off unless asked for.
        loss_scaling: fp16's dynamic loss scale: gradients are unscaled and searched for infinities before every step.
        overhead_s: time of an iteration outside the model (data loading, logging) [s]; default 0.
        jitter: relative standard deviation of each stage's latency, for ``simulate(samples=...)``; default 0.
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
    master_dtype: DType
    optimizer_state_dtype: DType
    fp8_weights: Fp8Weights
    gradient_clipping: bool
    loss_scaling: bool
    overhead_s: float
    jitter: float

    def __init__(
        self,
        micro_batch: int = 1,
        global_batch: int = 1,
        seq_len: int | None = None,
        precision: Precision | str = Precision.BF16,
        grad_dtype: DType | str = DType.FP32,
        optimizer: Optimizer | str = Optimizer.ADAM,
        recompute: Recompute | str = Recompute.NONE,
        schedule: str = "1f1b",
        overlap: Overlap | None = None,
        master_dtype: DType | str = DType.FP32,
        optimizer_state_dtype: DType | str = DType.FP32,
        fp8_weights: Fp8Weights | str = Fp8Weights.ITERATION,
        gradient_clipping: bool = False,
        loss_scaling: bool = False,
        overhead_s: float = 0.0,
        jitter: float = 0.0,
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
        arithmetic = _enum(Precision, precision, "training.precision")
        if _switch(loss_scaling, "training.loss_scaling") and arithmetic is not Precision.FP16:
            raise ConfigError(
                "a loss scale is for fp16",
                where="training.loss_scaling",
                expected="false, or training.precision = fp16",
                got=f"true with {arithmetic.value}",
                nearest="false",
            )
        states = (DType.FP32, DType.BF16)
        values = {
            "micro_batch": micro_batch,
            "global_batch": global_batch,
            "seq_len": seq_len,
            "precision": arithmetic,
            "grad_dtype": gradient,
            "optimizer": _enum(Optimizer, optimizer, "training.optimizer"),
            "recompute": _enum(Recompute, recompute, "training.recompute"),
            "schedule": schedule,
            "overlap": _overlap(overlap),
            "master_dtype": _master_dtype(master_dtype, arithmetic),
            "optimizer_state_dtype": _state_dtype(optimizer_state_dtype, "training.optimizer_state_dtype", states),
            "fp8_weights": _enum(Fp8Weights, fp8_weights, "training.fp8_weights"),
            "gradient_clipping": _switch(gradient_clipping, "training.gradient_clipping"),
            "loss_scaling": loss_scaling,
            "overhead_s": _at_least_zero(overhead_s, "training.overhead_s"),
            "jitter": _at_least_zero(jitter, "training.jitter"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


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

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one data-parallel replica in one iteration."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)
