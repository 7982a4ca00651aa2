"""The table of training options, continued: what surrounds the pipeline, and random draws."""

from __future__ import annotations

from collections.abc import Sequence

from semu.hardware.kinds import DType
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
from semu.job.kinds import Optimizer, OptimizerKernels, ParameterSync, SplitMatrices
from semu.job.left_out import read_left_out
from semu.parallel.fsdp import Fsdp

ALWAYS, STEP = Shown.ALWAYS, Influence.STEP


@part
class ShardingOptions(AbstractOptions):
    """How sharded parameters and gradients travel."""

    fsdp: OptionalWord[Fsdp] = option(
        None,
        word(Fsdp),
        "whose copies on the device surround the gathers and reductions of ZeRO-3 (semu.parallel.fsdp): those of the"
        " first or second generation of PyTorch's FSDP, or none; None: under torch what it had at its date",
    )


@part
class StepOptions(AbstractOptions):
    """What happens between the last backward and the next iteration."""

    optimizer: Word[Optimizer] = option(
        Optimizer.ADAM, word(Optimizer), "the optimizer whose step ends the iteration", influence=STEP, shown=ALWAYS
    )
    optimizer_kernels: Word[OptimizerKernels] = option(
        OptimizerKernels.FUSED,
        word(OptimizerKernels),
        "how Adam and the like step: one fused kernel, or one for each operation (PyTorch's default)",
        influence=STEP,
    )
    weight_average: bool = option(
        False,
        SWITCH,
        "an exponential moving average of the weights (EMA), in the master weights' type, is updated behind every step",
        influence=STEP,
    )
    muon_steps: int = option(5, COUNT, "Newton-Schulz steps of Muon", influence=STEP)
    muon_dtype: Word[DType] = option(
        DType.TF32,
        word(DType, (DType.TF32, DType.BF16, DType.FP32), "a type of Muon's products"),
        "type of Muon's products: tf32 (Megatron-LM), bf16 or fp32",
        influence=STEP,
    )
    muon_split: Word[SplitMatrices] = option(
        SplitMatrices.BLOCKWISE,
        word(SplitMatrices),
        "how Muon steps matrices that tensor-parallel ranks share (Megatron-LM's --muon-tp-mode)",
        influence=STEP,
    )
    gradient_clipping: bool = option(
        False,
        SWITCH,
        "the global gradient norm is found and the gradients are scaled by it before every step (Megatron-LM's"
        " --clip-grad 1.0, which is its default)",
        influence=STEP,
        shown=ALWAYS,
    )
    optimizer_post_validation: bool = option(
        False,
        SWITCH,
        "ranks step as soon as their own gradients are reduced and go on with the next iteration; norms and infinities"
        " are looked at afterwards (2401.10241 §4): an iteration lasts as long as the rank that is busy longest, from"
        " its first stage to its step",
        influence=STEP,
    )
    parameter_sync: Word[ParameterSync] = option(
        ParameterSync.ALL_GATHER,
        word(ParameterSync),
        "how the parameters that a rank stepped reach the others under ZeRO-1: by one all-gather, or by a broadcast of"
        " every rank's, which no overlap hides",
        influence=STEP,
    )
    overhead_s: float = option(
        0.0,
        number(),
        "time of an iteration outside the model (data loading, logging)",
        unit="s",
        influence=STEP,
        shown=ALWAYS,
    )


@part
class NoiseOptions(AbstractOptions):
    """Random draws of ``simulate(samples=...)``."""

    jitter: float = option(
        0.0, number(), "relative standard deviation of each stage's latency", influence=STEP, shown=ALWAYS
    )
    straggler_share: float = option(
        0.0, number(0, 1), "probability that a GPU is a straggler throughout a drawn iteration", influence=STEP
    )
    straggler_slowdown: float = option(
        1.0, number(1), "latency of a straggler's stages / usual latency, >= 1", influence=STEP
    )
    left_out: Converted[tuple[str, ...] | None, Sequence[str] | None] = option(
        None,
        Value(ValueKind.STRINGS, read_left_out),
        'what the run has and semu does not model, each as "NAME SPREAD" with the relative standard deviation that it'
        " adds to the iteration time; widens the interval and changes nothing else",
        influence=STEP,
    )
