"""Stable Diffusion's U-Nets: parameters as published, FLOP by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nn.tracing_kit import flop, number, options, spec

from semu import simulate
from semu.nn import Model, Sequences
from semu.nn.layers.convolution import Conv1d
from semu.nn.trace.block import trace_block
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


def test_frames_of_a_clip_are_images_to_the_autoencoder() -> None:
    """One sequence of three frames costs what three images cost, and less than one image of all their pixels."""
    latents, frames = 4, 3
    pixels = 64 * latents

    def _flop(count: int, length: int, image: int | None) -> int:
        encoder = PixelEncoder(image=image)
        encoder.requires_grad_(False)
        x = spec(count * length, 3, grad=False, sequences=Sequences.uniform(count, length, "vision"))
        return flop(trace_block(encoder, [x], options()).graph.operators)

    assert _flop(1, frames * pixels, latents) == _flop(frames, pixels, None) < _flop(1, frames * pixels, None)


def test_a_convolution_with_channels_first_is_between_copies() -> None:
    """Each of its three products copies both tensors that it shares with the model, and its weight at a third of the
    rate; with one tap none is copied. A bias is added apart."""
    tokens, inputs, outputs = 64, 8, 24
    x = spec(tokens, inputs, sequences=Sequences.uniform(1, tokens))

    def _moved(taps: int = 9, **changes: bool) -> int:
        block = trace_block(Conv1d(inputs, outputs, taps), [x], replace(options(), **changes))
        return sum(number(operator.mem_bytes) for operator in block.graph.operators)

    both = 2 * tokens * (inputs + outputs)  # bytes
    weight = 2 * inputs * outputs * 9
    assert _moved(channels_first=True) - _moved() == 3 * 2 * both + 3 * 6 * weight
    assert _moved(1, channels_first=True) == _moved(1)
    assert _moved(eager_modules=True) - _moved() == 2 * tokens * outputs * (2 + 1)  # bias, and the sum of its gradient


def test_flop_are_those_that_are_published() -> None:
    """BK-SDM (2305.15798 Table 1): 339 GMAC a step of SD 1.4's U-Net at 512 px, attention's own products left out."""
    job = load_run("sd-1.5", cluster="h100:1x1")
    per_sample = simulate(job).model_flop / 3 / job.training.global_batch
    text = 77
    pixels = {64**2: (320, 5), 32**2: (640, 5), 16**2: (1280, 5), 8**2: (1280, 1)}
    attention = sum(4 * n * (n + text) * width * count for n, (width, count) in pixels.items())
    assert (per_sample - attention) / 2 == pytest.approx(339e9, rel=0.005)
