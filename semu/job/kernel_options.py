"""The table of training options, continued: software and kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from semu.errors import ConfigError
from semu.hardware.attention_kernels import AttentionKernel
from semu.hardware.kinds import DType
from semu.hardware.software import Software
from semu.job.cuda_graphs import GRAPHS, read_cuda_graphs
from semu.job.declare import (
    AUTO_SWITCH,
    SWITCH,
    AbstractOptions,
    Converted,
    Influence,
    OptionalWord,
    Shown,
    Value,
    ValueKind,
    Word,
    option,
    part,
    word,
)
from semu.job.kinds import (
    Attention,
    CrossEntropy,
    GatheredInputs,
)
from semu.masks.bits import MASK_WORDS, read_mask
from semu.nn.trace.eager import Autocast, EagerKernels

ALWAYS, ELSEWHERE = Shown.ALWAYS, Shown.ELSEWHERE
STEP = Influence.STEP
COMPILED_SINCE = "2023-03"
"""PyTorch 2.0, the first with torch.compile."""
_DATE = re.compile(r"(19|20)\d\d-(0[1-9]|1[0-2])")


def _read_date(value: object, where: str) -> str:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise ConfigError("not a month", where=where, expected="YYYY-MM, like 2024-07", got=repr(value))
    return value


@part
class KernelOptions(AbstractOptions):
    """Who computes, with which kernels."""

    software: Word[Software] = option(
        Software.MEGATRON,
        word(Software),
        "who runs the job (semu.hardware.software): decides which factors of the device's profile apply",
        shown=ALWAYS,
    )
    attention: Word[Attention] = option(
        Attention.FUSED, word(Attention), "one FlashAttention kernel, or kernels that keep the scores", shown=ALWAYS
    )
    attention_kernel: OptionalWord[AttentionKernel] = option(
        None,
        word(AttentionKernel),
        "which fused kernel attention = fused is (semu.hardware.attention_kernels); None: what the software called at"
        " its date",
    )
    attention_deterministic: bool = option(
        False,
        SWITCH,
        "the attention kernel's backward adds in a fixed order, as under Megatron-LM's --deterministic-mode",
    )
    attention_mask: Converted[str, str] = option(
        MASK_WORDS[0],
        Value(ValueKind.STRING, read_mask),
        f"who sees whom in the text, {', '.join(MASK_WORDS)} (semu list masks), or a file: bits .npy, intervals .npz",
    )
    software_date: str | None = option(
        None,
        Value(ValueKind.STRING, _read_date),
        "month of the software's release, YYYY-MM; None: today's; decides which attention kernel it called",
    )
    cross_entropy: Word[CrossEntropy] = option(
        CrossEntropy.IN_PLACE, word(CrossEntropy), "how the token loss is made", shown=ALWAYS
    )
    gradient_accumulation_fusion: bool = option(
        True,
        SWITCH,
        "products for weight gradients add into the gradient buffers themselves, as in Megatron-LM; false: they write a"
        " tensor of the parameters' type, which is added",
        shown=ALWAYS,
    )
    fp8_gates: bool = option(
        False,
        SWITCH,
        "gated activations keep their input in fp8 for the backward (Megatron-LM's --activation-func-fp8-input-store)",
    )
    gathered_inputs: OptionalWord[GatheredInputs] = option(
        None,
        word(GatheredInputs),
        "inputs of column-split linears under sequence parallelism: the gathered ones are kept for the weight's"
        " gradient, or gathered again; None: kept under torch, again otherwise",
    )
    eager_modules: bool = option(
        False,
        SWITCH,
        "norms, gates, rotary embeddings, modulations, biases and convolutions run operator by operator, as in PyTorch"
        " without torch.compile and without fused kernels (semu.nn.trace.eager)",
    )
    eager_kernels: Word[EagerKernels] = option(
        EagerKernels.PLAIN,
        word(EagerKernels),
        "whose kernels norms and rotary embeddings are under eager_modules: PyTorch's operators, or those of the"
        " package flash-attn, with the copies that they want",
    )
    channels_last: Converted[bool | None, bool | str | None] = option(
        None,
        AUTO_SWITCH,
        "tensors of convolutions keep channels last, as tensor cores want them; false: every product of a convolution"
        " copies its operands. None or auto: false in eager mode, as is PyTorch's default",
    )
    patch_convolution: Converted[bool | None, bool | str | None] = option(
        None,
        AUTO_SWITCH,
        "patches of images are embedded by cuDNN's convolution (PyTorch's Conv2d), slower than the product of as many"
        " FLOP (semu.nn.rules.few_channels); false: by a product. None or auto: where the software is torch",
    )
    autocast: OptionalWord[Autocast] = option(
        None,
        word(Autocast),
        "the model runs under torch.autocast: norms compute in fp32, or in 16 bits too (low_precision_norms), and every"
        " microbatch copies fp32 weights to 16 bits, unless PyTorch's FSDP gathers them so; None: all is in 16 bits",
    )
    launch: Converted[bool | None, bool | str | None] = option(
        None,
        AUTO_SWITCH,
        "no kernel starts before its host has issued it (semu.simulation.effects.launch); None or auto: where a"
        " framework runs its modules operator by operator, and for mixtures of experts under Megatron-LM of before"
        " August 2026",
        shown=ELSEWHERE,
    )
    cuda_graphs: Converted[tuple[str, ...] | None, Sequence[str] | str | None] = option(
        None,
        Value(ValueKind.WORDS),
        f"what CUDA graphs launch at once, some of {', '.join(GRAPHS)}; None: nothing; shows where launches are"
        " modelled (training.launch)",
        influence=STEP,
    )
    launch_blocking: bool = option(False, SWITCH, "launches wait for the kernel before (CUDA_LAUNCH_BLOCKING=1)")

    def _check(self) -> None:
        super()._check()
        self._set("cuda_graphs", read_cuda_graphs(self.cuda_graphs))
        if self.autocast is not None and self.precision.tensor_dtype is DType.FP32:  # type: ignore[attr-defined]
            raise ConfigError(
                "autocast without a 16-bit type",
                where="training.autocast",
                expected="training.precision = bf16, fp16 or fp8, or no training.autocast",
                got=self.autocast.value,
            )

    @property
    def is_eager(self) -> bool:
        """Whether modules run operator by operator, each launched from Python: PyTorch where it is said
        (``eager_modules``), and before ``COMPILED_SINCE``."""
        is_early = self.software_date is not None and self.software_date < COMPILED_SINCE
        return self.software.kernels is Software.TORCH and (self.eager_modules or is_early)

    @property
    def runs_unfused(self) -> bool:
        """Whether modules run operator by operator, and not as fused kernels."""
        return self.eager_modules or self.is_eager

    @property
    def has_channels_first(self) -> bool:
        """Whether convolutions copy their operands to channels last and back."""
        return self.runs_unfused if self.channels_last is None else not self.channels_last

    @property
    def convolves_patches(self) -> bool:
        """Whether a convolution embeds patches of images."""
        return self.software.kernels is Software.TORCH if self.patch_convolution is None else self.patch_convolution

    @property
    def launches(self) -> bool:
        """Whether kernels wait for their hosts, whatever the model (``TrainingJob.launches``)."""
        return self.is_eager or self.launch_blocking if self.launch is None else self.launch
