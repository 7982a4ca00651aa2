"""The table of training options: one row each, in parts. ``semu.job.declare`` says what a row holds.

Keys of run.toml's ``[training]`` come in this order, those of ``semu.job.kernel_options`` before those of experts, and
those of ``semu.job.step_options`` behind them. A part also checks what its options mean to one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from semu.checks import is_number
from semu.errors import ConfigError
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.packed import FrozenWeights
from semu.job.declare import (
    COUNT,
    SWITCH,
    AbstractOptions,
    Converted,
    Influence,
    OptionalWord,
    Shown,
    Value,
    ValueKind,
    Word,
    number,
    option,
    part,
    word,
)
from semu.job.kinds import (
    Dispatcher,
    Fp8Weights,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputePolicy,
    Workspaces,
)
from semu.job.offload import OFFLOADS, OffloadPlan
from semu.job.recomputation import check_single_layers, read_method, read_recompute
from semu.nn.trace.recompute_plan import RecomputePlan
from semu.parallel.config import Overlap

ALWAYS, ELSEWHERE = Shown.ALWAYS, Shown.ELSEWHERE
STEP, MICROBATCHES = Influence.STEP, Influence.MICROBATCHES
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)?\s*p")


def _read_loads(value: object, where: str) -> float | tuple[float, ...]:
    """A ratio >= 1, or loads of all experts >= 0 of which one is positive."""
    if isinstance(value, list | tuple):
        if not all(is_number(load) and 0 <= load < math.inf for load in value) or not sum(value):
            raise ConfigError(
                "not the loads of experts", where=where, expected="numbers >= 0, not all 0", got=repr(value)[:60]
            )
        return tuple(float(load) for load in value)
    if not is_number(value) or not 1 <= value < math.inf:
        raise ConfigError(
            "not an imbalance", where=where, expected="a ratio >= 1, or a list of expert loads", got=value, nearest=1
        )
    return float(value)


def _read_limit(value: object, where: str) -> float:
    """A limit of activations in multiples of p microbatches: ``"p"``, ``"1.5p"``, or the number."""
    times = float(value) if is_number(value) else math.nan
    if isinstance(value, str) and (match := _LIMIT.fullmatch(value.strip())) is not None:
        times = float(match[1] or 1)
    if not 0 < times < math.inf:
        raise ConfigError(
            "not a limit of activations",
            where=where,
            expected="multiples of p microbatches on each rank, like 'p', '1.5p' or '2p'",
            got=value,
            nearest="2p",
        )
    return times


def _read_path(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError("not a path", where=where, expected="a file, text or .csv", got=value)
    return value


def _read_overlap(value: object, where: str) -> Overlap:
    if value is not None and not isinstance(value, Overlap):
        raise ConfigError("not an Overlap", where=where, expected="semu.Overlap(...)", got=repr(value))
    return value or Overlap()


@part
class BatchOptions(AbstractOptions):
    """How many items a microbatch and an iteration have."""

    micro_batch: int = option(
        1,
        COUNT,
        "items per microbatch: sequences (text), packed sequences (VLM), packed clip groups (T2V)",
        influence=MICROBATCHES,
        shown=ALWAYS,
    )
    global_batch: int = option(
        1, COUNT, "items per iteration over all data-parallel replicas", influence=MICROBATCHES, shown=ALWAYS
    )
    seq_len: int | None = option(None, COUNT, "context length; None: the batch's own", unit="tokens", shown=ALWAYS)


@part
class PrecisionOptions(AbstractOptions):
    """Types of numbers."""

    precision: Word[Precision] = option(
        Precision.BF16, word(Precision), "arithmetic of the matrix products", shown=ALWAYS
    )
    grad_dtype: Word[DType] = option(
        DType.FP32,
        word(DType, (DType.FP32, DType.BF16, DType.FP16), "a gradient type"),
        "element type of the gradient buffers (Megatron-LM's default: fp32)",
        shown=ALWAYS,
    )
    master_dtype: Word[DType] = option(
        DType.FP32,
        word(DType, (DType.FP32, DType.BF16, DType.FP16), "an optimizer state type"),
        "element type of the optimizer's copy of the parameters; the parameters' own type: no copy",
        shown=ALWAYS,
    )
    optimizer_state_dtype: Word[DType] = option(
        DType.FP32,
        word(DType, (DType.FP32, DType.BF16), "an optimizer state type"),
        "element type of the optimizer's moments",
        shown=ALWAYS,
    )
    fp8_recipe: Word[Fp8Recipe] = option(
        Fp8Recipe.TENSORWISE, word(Fp8Recipe), "how fp8 tensors are scaled (semu.hardware.fp8)"
    )
    bf16_first_layers: int | None = option(
        None, COUNT, "under fp8: so many layers of every modality module's begin run in bf16 (mtp: none); None: none"
    )
    bf16_last_layers: int | None = option(None, COUNT, "under fp8: so many layers of its end run in bf16; None: none")
    fp8_weights: OptionalWord[Fp8Weights] = option(
        None,
        word(Fp8Weights),
        "how often fp8 linears cast their weights; None: see TrainingJob.fp8_weights; no effect without fp8",
        shown=ELSEWHERE,
    )
    frozen_weights: OptionalWord[FrozenWeights] = option(
        None,
        word(FrozenWeights),
        "how weights of linear layers inside transformer layers are stored that are not trained: nf4 (QLoRA,"
        " 2305.14314); None: as all others",
    )
    loss_scaling: bool = option(
        False,
        SWITCH,
        "fp16's dynamic loss scale: gradients are unscaled and searched for infinities before every step",
        influence=STEP,
        shown=ALWAYS,
    )

    def _check(self) -> None:
        super()._check()
        arithmetic = self.precision
        if self.loss_scaling and arithmetic is not Precision.FP16:
            raise ConfigError(
                "a loss scale is for fp16",
                where="training.loss_scaling",
                expected="false, or training.precision = fp16",
                got=f"true with {arithmetic.value}",
                nearest="false",
            )
        if self.master_dtype not in (DType.FP32, arithmetic.tensor_dtype):
            legal = dict.fromkeys((DType.FP32.value, arithmetic.tensor_dtype.value))
            raise ConfigError(
                f"no master weights in {self.master_dtype.value} for parameters in {arithmetic.tensor_dtype.value}",
                where="training.master_dtype",
                expected=" or ".join(legal),
                got=self.master_dtype.value,
                nearest=DType.FP32.value,
            )
        if self.fp8_recipe is not Fp8Recipe.TENSORWISE and arithmetic is not Precision.FP8:
            raise ConfigError(
                f"{self.fp8_recipe.value} scales without fp8",
                where="training.fp8_recipe",
                expected='tensorwise, or training.precision = "fp8"',
                got=f"{self.fp8_recipe.value} with {arithmetic.value}",
                nearest='training.precision = "fp8"',
            )


@part
class MemoryOptions(AbstractOptions):
    """What is recomputed, what lives on the host, whose workspaces count."""

    recompute: Converted[Recompute, Recompute | str | Sequence[str]] = option(
        Recompute.NONE,
        Value(ValueKind.WORDS, words=tuple(mode.value for mode in Recompute)),
        "activation recomputation; a list (selective) of the module kinds"
        " (semu.nn.trace.recompute_plan.RECOMPUTE_KINDS) and module paths that are recomputed",
        shown=ALWAYS,
    )
    recompute_layers: int | None = option(
        None, COUNT, "layers that full recomputation covers, chunk by chunk; None: every layer by itself", shown=ALWAYS
    )
    recompute_method: OptionalWord[RecomputeMethod] = option(
        None,
        word(RecomputeMethod),
        "block (where recompute_layers is given and no method): the first recompute_layers layers, each by itself;"
        " uniform: all layers in groups of recompute_layers (the last may be smaller), one kept input per group",
        shown=ALWAYS,
    )
    recompute_modules: Converted[tuple[str, ...] | None, Sequence[str] | None] = option(
        None,
        Value(None),
        "what selective recomputes; None: the attention core; a list as recompute lands here",
        shown=ELSEWHERE,
    )
    recompute_policy: OptionalWord[RecomputePolicy] = option(
        None,
        word(RecomputePolicy),
        "what full recomputation keeps of a layer beside its input; every_second_matmul is torchtitan's"
        ' selective_ac_option = "op"',
    )
    recompute_every: int | None = option(
        None, COUNT, 'of every so many layers the last is recomputed (torchtitan\'s selective_ac_option = "2")'
    )
    offload: Converted[tuple[str, ...] | None, Sequence[str] | str | None] = option(
        None, Value(ValueKind.WORDS), f"what lives on the host, some of {', '.join(OFFLOADS)}; None: nothing"
    )
    offload_layers: Converted[tuple[str, ...] | None, Sequence[str] | None] = option(
        None, Value(ValueKind.STRINGS), "paths of the layers whose activations and weights do; None: all layers"
    )
    offload_fraction: float | None = option(
        None, Value(ValueKind.NUMBER), "share of the layers whose activations and weights do, 0 to 1; None: all"
    )
    workspaces: Word[Workspaces] = option(
        Workspaces.NONE, word(Workspaces), "whose workspaces count into the peaks", influence=STEP
    )
    gradient_as_bucket_view: bool = option(
        False,
        SWITCH,
        "gradients lie in the buckets of PyTorch's DistributedDataParallel; false: they are copied there. Under"
        " software = torch only",
        influence=STEP,
    )
    memory_margin: float | None = option(
        None,
        number(most=1.0),
        "share of the device's memory that must stay free for a run to fit; None: the profile's memory_margin",
        influence=STEP,
    )

    def _check(self) -> None:
        super()._check()
        mode, modules = read_recompute(self.recompute, self.recompute_modules)
        self._set("recompute", mode)
        self._set("recompute_modules", modules)
        self._set("recompute_method", read_method(mode, self.recompute_layers, self.recompute_method))
        for name in ("recompute_policy", "recompute_every"):
            check_single_layers(mode, getattr(self, name), self.recompute_layers, name)
        plan = self.offload_plan
        self._set("offload", tuple(name for name in OFFLOADS if getattr(plan, name)) or None)
        self._set("offload_layers", plan.layers)
        self._set("offload_fraction", None if self.offload_fraction is None else plan.fraction)

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


@part
class ExpertOptions(AbstractOptions):
    """How tokens reach the experts of a mixture, and how a rank computes its experts."""

    moe_imbalance: Converted[float | tuple[float, ...], float | Sequence[float]] = option(
        1.0,
        Value(ValueKind.LOADS, _read_loads),
        "rows of the worst rank of an expert-parallel group / mean rows, >= 1, or a list of what every expert gets, in"
        " any unit; the worst rank's rows decide times and memory",
        shown=ELSEWHERE,
    )
    moe_capacity_factor: float | None = option(
        None,
        number(is_above=True, what="a capacity factor", nearest=1),
        "rows that an expert takes, in multiples of the mean, the rest is dropped; None: dropless",
        shown=ELSEWHERE,
    )
    moe_pad_to_capacity: bool = option(False, SWITCH, "every expert computes its whole capacity", shown=ELSEWHERE)
    moe_dispatcher: Word[Dispatcher] = option(
        Dispatcher.ALLTOALL,
        word(Dispatcher),
        "how rows reach experts: each by an all-to-all, or once to every node that has an expert of its token, or by an"
        " all-gather of all tokens",
    )
    moe_grouped_gemm: bool = option(
        True,
        SWITCH,
        "a rank's experts are one grouped product (Megatron-LM's --moe-grouped-gemm); false: products one after the"
        " other, costed together as one product with one fixed time",
        shown=ELSEWHERE,
    )

    def _check(self) -> None:
        super()._check()
        if self.moe_pad_to_capacity and self.moe_capacity_factor is None:
            raise ConfigError(
                "nothing to pad to",
                where="training.moe_pad_to_capacity",
                expected="training.moe_capacity_factor beside it, or false",
                got="true",
                nearest="false",
            )
        if self.moe_capacity_factor is not None and self.moe_dispatcher is Dispatcher.ALLGATHER:
            raise ConfigError(  # as Megatron-LM (transformer_config)
                "a capacity of experts, where all tokens are gathered",
                where="training.moe_dispatcher",
                expected="alltoall, or no training.moe_capacity_factor",
                got="allgather",
                nearest="alltoall",
            )


@part
class ScheduleOptions(AbstractOptions):
    """In which order stages run, and which communication hides behind them."""

    schedule: str = option(
        "1f1b",
        Value(ValueKind.STRING),
        "name of the pipeline schedule, see semu.schedule.ALL_SCHEDULES",
        influence=MICROBATCHES,
        shown=ALWAYS,
    )
    schedule_file: str | None = option(
        None,
        Value(ValueKind.STRING, _read_path),
        "the schedule as a file (semu.schedule.files: text or CSV), in the place of schedule",
        influence=MICROBATCHES,
    )
    activation_limit: Converted[float | None, str | float | None] = option(
        None,
        Value(ValueKind.STRING, _read_limit),
        'of an automatic schedule: the activations of so many microbatches on each rank, in multiples of pp: "p",'
        ' "1.5p", "2p"; None: what the schedule\'s name says',
        influence=MICROBATCHES,
    )
    overlap: Converted[Overlap, Overlap | None] = option(
        Overlap(),
        Value(None, _read_overlap),
        "which communication may hide behind computation (run.toml [overlap])",
        shown=ELSEWHERE,
    )
