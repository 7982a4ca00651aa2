"""Stable Diffusion's U-Nets: parameters as published, FLOP by hand."""

from __future__ import annotations

import pytest

from semu import simulate
from semu.nn import Model
from semu.runfile import load_run
from semu_models.generation.frozen import T5_XXL, PixelEncoder, caption_module
from semu_models.generation.unet import sd_1_5, sd_2, sdxl


@pytest.mark.parametrize(
    ("model", "parameters"), [(sd_1_5(), 859_520_964), (sd_2(), 865_910_724), (sdxl(), 2_567_463_684)]
)
def test_parameters_are_those_of_the_published_weights(model: Model, parameters: int) -> None:
    assert model.num_parameters() == parameters


def test_encoders_have_their_published_parameters() -> None:
    assert PixelEncoder().num_parameters() == 34_163_592 + 72  # with the map behind it (quant_conv)
    assert caption_module("text", T5_XXL, None).body.num_parameters() == pytest.approx(4.762e9, rel=0.001)


def test_flop_are_those_that_are_published() -> None:
    """BK-SDM (2305.15798 Table 1): 339 GMAC a step of SD 1.4's U-Net at 512 px, attention's own products left out."""
    job = load_run("sd-1.5", cluster="h100:1x1")
    flop = simulate(job).model_flop / 3 / job.training.global_batch
    text = 77
    pixels = {64**2: (320, 5), 32**2: (640, 5), 16**2: (1280, 5), 8**2: (1280, 1)}
    attention = sum(4 * n * (n + text) * width * count for n, (width, count) in pixels.items())
    assert (flop - attention) / 2 == pytest.approx(339e9, rel=0.005)
