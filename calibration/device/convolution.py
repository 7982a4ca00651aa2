"""Convolutions of diffusion networks, autoencoders and patch embeddings: forward, input and weight gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibration.case import Case, spread
from calibration.table import Value

if TYPE_CHECKING:
    from calibration.bench import Bench
    from calibration.timing import Call

UNET = (
    (320, 320, 64, 3, 1),
    (640, 640, 32, 3, 1),
    (1280, 1280, 16, 3, 1),
    (1280, 1280, 8, 3, 1),
    (320, 640, 32, 3, 1),
    (640, 1280, 16, 3, 1),
    (640, 320, 64, 3, 1),
    (960, 320, 64, 3, 1),
    (1280, 640, 32, 3, 1),
    (1920, 640, 32, 3, 1),
    (2560, 1280, 16, 3, 1),
    (2560, 1280, 8, 3, 1),
    (320, 320, 64, 3, 2),
    (640, 640, 32, 3, 2),
    (1280, 1280, 16, 3, 2),
    (640, 320, 64, 1, 1),
    (1280, 640, 32, 1, 1),
    (2560, 1280, 16, 1, 1),
    (320, 320, 64, 1, 1),
    (4, 320, 64, 3, 1),
    (320, 4, 64, 3, 1),
)
"""(channels in, out, pixels of a side, kernel, stride) of Stable Diffusion's U-Net over latents of 64 x 64
(2112.10752; diffusers' UNet2DConditionModel)."""
AUTOENCODER = (
    (3, 128, 512, 3, 1),
    (128, 128, 512, 3, 1),
    (128, 256, 256, 3, 1),
    (256, 256, 256, 3, 1),
    (512, 512, 128, 3, 1),
    (512, 512, 64, 3, 1),
)
"""Of its autoencoder over images of 512 x 512, which only runs forward."""
PATCHES = ((3, 1024, 224, 14, 14), (3, 768, 224, 16, 16), (3, 768, 224, 32, 32))
PASSES = ("fwd", "dgrad", "wgrad")
LAYOUTS = ("nhwc", "nchw")
BATCHES = (8, 32)


def convolution_cases(*, quick: bool = False) -> list[Case]:
    """The grid. ``quick``: two small shapes, for a dry run."""
    if quick:
        shapes = ((8, 16, 8, 3, 1), (3, 16, 8, 4, 4))
        return spread(
            _case("bf16", which, 2, shape, layout) for shape in shapes for which in PASSES for layout in LAYOUTS
        )
    return spread(_all_cases())


def _all_cases() -> Iterator[Case]:
    for batch in BATCHES:
        for shape in UNET:
            for which in PASSES:
                yield _case("bf16", which, batch, shape, "nhwc")
                if batch == BATCHES[-1]:
                    yield _case("bf16", which, batch, shape, "nchw")
                    yield _case("fp16", which, batch, shape, "nhwc")
    for shape in AUTOENCODER:
        for layout in LAYOUTS:
            yield _case("bf16", "fwd", 2, shape, layout)
    for shape in PATCHES:
        for which in ("fwd", "wgrad"):  # pixels need no gradient
            yield _case("bf16", which, 64, shape, "nhwc")
            yield _case("bf16", which, 64, shape, "nchw")


def _case(dtype: str, which: str, batch: int, shape: tuple[int, int, int, int, int], layout: str) -> Case:
    inputs, outputs, side, kernel, stride = shape
    row: dict[str, Value] = {
        "dtype": dtype,
        "pass": which,
        "batch": batch,
        "channels_in": inputs,
        "channels_out": outputs,
        "side": side,
        "kernel": kernel,
        "stride": stride,
        "layout": layout,
        "note": "torch conv2d",
    }
    moved = batch * (inputs * side**2 + outputs * side_out(row) ** 2) + inputs * outputs * kernel**2
    return Case("convolutions", row, 2 * moved)


def side_out(row: dict[str, Any]) -> int:
    """Pixels of a side of the result; padding keeps the side where the stride is 1, patches have none."""
    return int(row["side"]) // int(row["stride"])


def convolution_flop(row: dict[str, Any]) -> float:
    """FLOP of a row, the same in all passes: 2 pixels out x channels in x channels out x kernel^2."""
    pixels = int(row["batch"]) * side_out(row) ** 2
    return 2.0 * pixels * int(row["channels_in"]) * int(row["channels_out"]) * int(row["kernel"]) ** 2


def build_convolution(bench: Bench, case: Case) -> Call:
    """Operands and the call."""
    import torch
    import torch.nn.functional as F

    row: dict[str, Any] = dict(case.row)
    layout = torch.channels_last if row["layout"] == "nhwc" else torch.contiguous_format
    stride, kernel = row["stride"], row["kernel"]
    padding = 0 if stride == kernel else kernel // 2
    inputs, outputs, batch, dtype = row["channels_in"], row["channels_out"], row["batch"], row["dtype"]

    def _operand(*shape: int) -> Any:
        return bench.random(*shape, dtype=dtype).contiguous(memory_format=layout)

    x = _operand(batch, inputs, row["side"], row["side"])
    weight = _operand(outputs, inputs, kernel, kernel)
    if row["pass"] == "fwd":
        return lambda: F.conv2d(x, weight, None, stride, padding)
    grad = _operand(batch, outputs, side_out(row), side_out(row))
    wanted = [row["pass"] == "dgrad", row["pass"] == "wgrad", False]
    fixed = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], 1, wanted)
    return lambda: torch.ops.aten.convolution_backward(grad, x, weight, None, *fixed)
