"""``Training``: batch sizes, precision, memory strategies, schedule; validated at the door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from semu.errors import ConfigError, unknown_name
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.software import Software
from semu.job.experts import check_capacity, check_imbalance, check_padding
from semu.job.kinds import (
    Attention,
    CrossEntropy,
    Fp8Weights,
    Optimizer,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputePolicy,
    Workspaces,
)
from semu.job.offload import OFFLOADS, OffloadPlan
from semu.job.schedule_options import check_file, read_limit
from semu.nn.trace.recompute_plan import RECOMPUTE_KINDS, RecomputePlan
from semu.parallel.config import Overlap

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


def _of_full(mode: Recompute, value: object, layers: object, key: str) -> RecomputePolicy | int | None:
    """A setting that only full recomputation of every layer by itself has."""
    if value is None:
        return None
    if mode is not Recompute.FULL or layers is not None:
        raise ConfigError(
            f"{key} is of full recomputation of single layers",
            where=f"training.{key}",
            expected='nothing, or recompute = "full" without recompute_layers',
            got=value.value if isinstance(value, Enum) else str(value),
            nearest='recompute = "full"' if layers is None else "no recompute_layers",
        )
    if key == "recompute_policy":
        return _enum(RecomputePolicy, value, "training.recompute_policy")
    _positive(value, f"training.{key}")
    return value if isinstance(value, int) else None


def _at_least_zero(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError("out of range", where=where, expected="a finite number >= 0", got=value, nearest=0)
    return float(value)


def _between(value: object, least: float, most: float, where: str) -> float:
    is_number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (is_number and least <= value <= most and value < float("inf")):  # type: ignore[operator]
        legal = f"{least:g} to {most:g}" if most < float("inf") else f"a finite number >= {least:g}"
        raise ConfigError("out of range", where=where, expected=legal, got=value, nearest=least)
    return float(value)  # type: ignore[arg-type]


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


def _fp8_recipe(value: object, precision: Precision) -> Fp8Recipe:
    """How fp8 tensors are scaled; blockwise needs some."""
    chosen = _enum(Fp8Recipe, value, "training.fp8_recipe")
    if chosen is Fp8Recipe.BLOCKWISE and precision is not Precision.FP8:
        raise ConfigError(
            "blockwise scales without fp8",
            where="training.fp8_recipe",
            expected='tensorwise, or training.precision = "fp8"',
            got=f"blockwise with {precision.value}",
            nearest='training.precision = "fp8"',
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
        recompute: activation recomputation; an enum member or its value, or a list: SELECTIVE, of the module kinds
            (``semu.nn.trace.recompute_plan.RECOMPUTE_KINDS``) and module paths that it names.
        schedule: name of the pipeline schedule, see ``semu.schedule.ALL_SCHEDULES``.
        overlap: which communication may hide behind computation.
        attention: FUSED or UNFUSED; an enum member or its value.
        recompute_layers, recompute_method: which layers ``recompute = full`` covers, chunk by chunk. BLOCK: the first
            ``recompute_layers``, each by itself. UNIFORM: all of them in groups of ``recompute_layers`` (the last may
            be smaller), one kept input per group. None: every layer by itself; layers without a method: BLOCK.
        recompute_modules: what SELECTIVE recomputes; None: the attention core. A list as ``recompute`` lands here.
        master_dtype: of the optimizer's copy of the parameters; the parameters' own type: no copy.
        optimizer_state_dtype: of Adam's two moments, FP32 or BF16.
        fp8_weights: how often fp8 linears cast their weights; None: see ``TrainingJob.fp8_weights``; without fp8 it has
            no effect.
        gradient_clipping: the global gradient norm is found and the gradients are scaled by it before every step
            (Megatron-LM's ``--clip-grad 1.0``, which is its default); here off unless asked for.
        loss_scaling: fp16's dynamic loss scale: gradients are unscaled and searched for infinities before every step.
        overhead_s: time of an iteration outside the model (data loading, logging) [s]; default 0.
        software: who runs the job (``semu.hardware.software.Software``), an enum member or its value: it decides which
            factors of the device's profile apply.
        jitter: relative standard deviation of each stage's latency, for ``simulate(samples=...)``; default 0.
        moe_imbalance: how unevenly tokens reach experts: rows of the worst rank of an expert-parallel group / mean
            rows, >= 1 (default: evenly), or a list of what every expert gets, in any unit. The worst rank's rows decide
            times and memory.
        moe_capacity_factor: rows that an expert takes, in multiples of the mean; the rest is dropped; None: dropless.
        moe_pad_to_capacity: every expert computes its whole capacity.
        moe_grouped_gemm: a rank's experts are one grouped product (Megatron-LM's ``--moe-grouped-gemm``); false:
            products of their own, one after the other, costed together as one product with one fixed time.
        workspaces: whose workspaces count into the peaks; NONE unless asked for.
        recompute_policy: what ``recompute = full`` keeps of a layer: EVERY_SECOND_MATMUL is torchtitan's
            ``selective_ac_option = "op"``; None: its input alone.
        recompute_every: of every so many layers the last is recomputed (torchtitan's ``selective_ac_option = "2"``).
        cross_entropy: UNFUSED, IN_PLACE or FUSED; an enum member or its value.
        eager_modules: RMS norms, gated activations and rotary embeddings run operator by operator, as in PyTorch
            without ``torch.compile`` and without fused kernels of their own (``semu.nn.trace.eager``).
        gradient_accumulation_fusion: products for weight gradients add into the gradient buffers themselves, as in
            Megatron-LM; false: they write a tensor of the parameters' type, which is added.
        offload: what lives on the host, words of ``semu.job.offload.OFFLOADS``; None: nothing.
        offload_layers, offload_fraction: the layers whose activations and weights do, by path or share; None: all.
        fp8_recipe: TENSORWISE or BLOCKWISE scales (``semu.hardware.fp8``); an enum member or its value.
        launch: no kernel starts before its host has issued it, the profile's ``host.launch_s`` each; here off unless
            asked for.
        schedule_file: the schedule as a file (``semu.schedule.files``: text or CSV), in the place of ``schedule``.
        activation_limit: of an automatic schedule: the activations of so many microbatches on each rank, in multiples
            of pp, ``"p"``, ``"1.5p"``, ``"2p"``; None: what the schedule's name says.
        optimizer_post_validation: ranks step as soon as their own gradients are reduced and go on with the next
            iteration; norms and infinities are looked at afterwards (2401.10241 §4): an iteration lasts as long as
            the rank that is busy longest, from its first stage to its step.
        straggler_share: probability that a GPU is a straggler throughout a drawn iteration, for
            ``simulate(samples=...)``; default 0.
        straggler_slowdown: latency of a straggler's stages / usual latency, >= 1; default 1.
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
    attention: Attention
    recompute_layers: int | None
    recompute_method: RecomputeMethod | None
    recompute_modules: tuple[str, ...] | None
    master_dtype: DType
    optimizer_state_dtype: DType
    fp8_weights: Fp8Weights | None
    gradient_clipping: bool
    loss_scaling: bool
    overhead_s: float
    jitter: float
    moe_imbalance: float | tuple[float, ...]
    moe_capacity_factor: float | None
    moe_pad_to_capacity: bool
    moe_grouped_gemm: bool
    software: Software
    workspaces: Workspaces
    offload: tuple[str, ...] | None
    offload_layers: tuple[str, ...] | None
    offload_fraction: float | None
    recompute_policy: RecomputePolicy | None
    recompute_every: int | None
    cross_entropy: CrossEntropy
    gradient_accumulation_fusion: bool
    eager_modules: bool
    launch: bool
    fp8_recipe: Fp8Recipe
    schedule_file: str | None
    activation_limit: float | None
    optimizer_post_validation: bool
    straggler_share: float
    straggler_slowdown: float

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
        master_dtype: DType | str = DType.FP32,
        optimizer_state_dtype: DType | str = DType.FP32,
        fp8_weights: Fp8Weights | str | None = None,
        gradient_clipping: bool = False,
        loss_scaling: bool = False,
        overhead_s: float = 0.0,
        jitter: float = 0.0,
        moe_imbalance: float | Sequence[float] = 1.0,
        moe_capacity_factor: float | None = None,
        moe_pad_to_capacity: bool = False,
        moe_grouped_gemm: bool = True,
        software: Software | str = Software.MEGATRON,
        workspaces: Workspaces | str = Workspaces.NONE,
        offload: Sequence[str] | str | None = None,
        offload_layers: Sequence[str] | None = None,
        offload_fraction: float | None = None,
        recompute_policy: RecomputePolicy | str | None = None,
        recompute_every: int | None = None,
        cross_entropy: CrossEntropy | str = CrossEntropy.IN_PLACE,
        gradient_accumulation_fusion: bool = True,
        eager_modules: bool = False,
        launch: bool = False,
        fp8_recipe: Fp8Recipe | str = Fp8Recipe.TENSORWISE,
        schedule_file: str | None = None,
        activation_limit: str | float | None = None,
        optimizer_post_validation: bool = False,
        straggler_share: float = 0.0,
        straggler_slowdown: float = 1.0,
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
        offloads = OffloadPlan.of(offload, offload_layers, offload_fraction)
        words = tuple(name for name in OFFLOADS if getattr(offloads, name))
        values = {
            "micro_batch": micro_batch,
            "global_batch": global_batch,
            "seq_len": seq_len,
            "precision": arithmetic,
            "grad_dtype": gradient,
            "optimizer": _enum(Optimizer, optimizer, "training.optimizer"),
            "recompute": mode,
            "schedule": schedule,
            "overlap": _overlap(overlap),
            "attention": _enum(Attention, attention, "training.attention"),
            "recompute_layers": recompute_layers,
            "recompute_method": _recompute_method(mode, recompute_layers, recompute_method),
            "recompute_modules": modules,
            "master_dtype": _master_dtype(master_dtype, arithmetic),
            "optimizer_state_dtype": _state_dtype(optimizer_state_dtype, "training.optimizer_state_dtype", states),
            "fp8_weights": None if fp8_weights is None else _enum(Fp8Weights, fp8_weights, "training.fp8_weights"),
            "gradient_clipping": _switch(gradient_clipping, "training.gradient_clipping"),
            "loss_scaling": loss_scaling,
            "overhead_s": _at_least_zero(overhead_s, "training.overhead_s"),
            "jitter": _at_least_zero(jitter, "training.jitter"),
            "moe_imbalance": check_imbalance(moe_imbalance),
            "moe_capacity_factor": check_capacity(moe_capacity_factor),
            "moe_pad_to_capacity": check_padding(moe_pad_to_capacity, moe_capacity_factor),
            "moe_grouped_gemm": _switch(moe_grouped_gemm, "training.moe_grouped_gemm"),
            "software": _enum(Software, software, "training.software"),
            "workspaces": _enum(Workspaces, workspaces, "training.workspaces"),
            "recompute_policy": _of_full(mode, recompute_policy, recompute_layers, "recompute_policy"),
            "recompute_every": _of_full(mode, recompute_every, recompute_layers, "recompute_every"),
            "cross_entropy": _enum(CrossEntropy, cross_entropy, "training.cross_entropy"),
            "eager_modules": _switch(eager_modules, "training.eager_modules"),
            "gradient_accumulation_fusion": _switch(
                gradient_accumulation_fusion, "training.gradient_accumulation_fusion"
            ),
            "offload": words or None,
            "offload_layers": offloads.layers,
            "offload_fraction": None if offload_fraction is None else offloads.fraction,
            "launch": _switch(launch, "training.launch"),
            "fp8_recipe": _fp8_recipe(fp8_recipe, arithmetic),
            "schedule_file": check_file(schedule_file),
            "activation_limit": read_limit(activation_limit),
            "optimizer_post_validation": _switch(optimizer_post_validation, "training.optimizer_post_validation"),
            "straggler_share": _between(straggler_share, 0, 1, "training.straggler_share"),
            "straggler_slowdown": _between(straggler_slowdown, 1, float("inf"), "training.straggler_slowdown"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def offload_plan(self) -> OffloadPlan:
        """What lives on the host."""
        return OffloadPlan.of(self.offload, self.offload_layers, self.offload_fraction)

    @property
    def recompute_plan(self) -> RecomputePlan:
        """What is recomputed inside layers: something under SELECTIVE only."""
        if self.recompute is not Recompute.SELECTIVE:
            return RecomputePlan()
        return RecomputePlan.of(self.recompute_modules or ("core_attn",))
