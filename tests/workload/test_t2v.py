"""The T2V generator: latent tokens, limits of a group, determinism, and the spread of DIP's Fig. 4d."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from semu import memo
from semu.errors import ConfigError
from semu.workload import Microbatch, T2vBatch, VideoTokenizer, t2v_batch


def latent_tokens(frames: int, height: int, width: int) -> int:
    """8x8x8 latent cells, 1x2x2 cells a token, every axis padded up."""
    result = (frames + 7) // 8
    for pixels in (height, width):
        cells = (pixels + 7) // 8
        result *= (cells + 1) // 2
    return result


@pytest.mark.paper
def test_latent_tokens_of_moviegen() -> None:
    tokenizer = VideoTokenizer()
    frames = np.array([256, 256, 1, 9], np.int64)
    height, width = np.array([256, 768, 100, 17], np.int64), np.array([256, 768, 50, 16], np.int64)
    expected = [8192, 73_728, latent_tokens(1, 100, 50), 2 * 2 * 1]
    assert tokenizer.tokens(frames, height, width).tolist() == expected
    assert [tokenizer.frames(s) for s in (16.0, 0.01, 1.99, 0.1 * 160)] == [256, 1, 31, 256]


def test_limits_of_a_group() -> None:
    for microbatch in t2v_batch(seed=1).microbatches(1000, 1):
        assert microbatch.video_seconds <= 16 and 1 <= microbatch.samples <= 8
        assert len(microbatch.streams["text"]) == len(microbatch.streams["video"]) == microbatch.samples
        assert min(microbatch.streams["text"]) >= 1
        seconds = [tokens / 256 / 2 for tokens in microbatch.streams["video"]]  # 256 tokens each half second
        assert microbatch.video_seconds <= sum(seconds) < microbatch.video_seconds + 0.5 * microbatch.samples


def test_groups_hold_similar_durations_and_grouping_is_greedy() -> None:
    microbatches = t2v_batch(seed=2).microbatches(1000, 1)
    groups = [m.streams["video"] for m in microbatches if m.samples > 1]
    assert statistics.median(max(g) / min(g) for g in groups) < 1.15
    assert any(m.samples == 8 for m in microbatches)
    short = [m for m in microbatches if 1 < m.samples < 8]
    assert statistics.mean(m.video_seconds for m in short) > 13  # closed because the next clip did not fit


def test_same_seed_same_result_and_a_prefix_does_not_depend_on_the_count() -> None:
    batch = t2v_batch(seed=3)
    many = batch.microbatches(1000, 2)
    assert batch.microbatches(1000, 2) == many
    for count in (1, 50, 300):
        assert batch.microbatches(count, 2) == many[:count]
    assert t2v_batch(seed=4).microbatches(50, 2) != many[:50]
    first, second = batch.microbatches(2, 1)
    assert many[0].streams["video"] == first.streams["video"] + second.streams["video"]
    assert many[0].video_seconds == first.video_seconds + second.video_seconds


def test_resolution_scales_tokens_not_groups() -> None:
    small = t2v_batch(seed=5).microbatches(50, 1)
    large = t2v_batch(seed=5, resolution=(512, 256)).microbatches(50, 1)
    assert [m.streams["text"] for m in small] == [m.streams["text"] for m in large]
    assert [tuple(2 * x for x in m.streams["video"]) for m in small] == [m.streams["video"] for m in large]


def test_seq_len_limits_the_latent_tokens() -> None:
    with pytest.raises(ConfigError) as caught:
        t2v_batch().microbatches(1, 1, seq_len=8191)
    assert (caught.value.where, caught.value.nearest) == ("training.seq_len", 8192)
    limited = t2v_batch().microbatches(500, 1, seq_len=8192)
    assert max(sum(m.streams["video"]) for m in limited) == 8192
    free = t2v_batch().microbatches(500, 1)
    assert max(sum(m.streams["video"]) for m in free) > 8192  # half seconds are padded up, clip by clip


def test_shorter_limits() -> None:
    microbatches = t2v_batch(max_seconds=4, max_clips=2).microbatches(300, 1)
    assert max(m.video_seconds for m in microbatches) == 4
    assert max(m.samples for m in microbatches) == 2


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"seed": -1}, "batch.seed"),
        ({"resolution": (256,)}, "batch.resolution"),
        ({"resolution": 256}, "batch.resolution"),
        ({"resolution": (256, 0)}, "batch.resolution"),
        ({"max_seconds": 0.01}, "batch.max_seconds"),
        ({"max_seconds": "16"}, "batch.max_seconds"),
        ({"max_clips": 0}, "batch.max_clips"),
    ],
)
def test_bad_options(arguments: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        t2v_batch(**arguments)  # type: ignore[arg-type]
    assert caught.value.where == where


def test_bad_tokenizer() -> None:
    with pytest.raises(ConfigError, match="three sizes"):
        VideoTokenizer(patch=(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fps"):
        VideoTokenizer(fps=0)


def test_describe_and_value() -> None:
    batch = T2vBatch(seed=1, resolution=[256, 256])  # type: ignore[arg-type]
    assert batch == t2v_batch(seed=1) and hash(batch) == hash(t2v_batch(seed=1))
    assert batch.default_seq_len is None
    assert json.loads(json.dumps(batch.describe()))["resolution"] == [256, 256]


# DIP Fig. 4d ---------------------------------------------------------------------------------------------------------


def forward_flop_t2v_s(microbatch: Microbatch) -> int:
    """Forward FLOP of Llama3 8B over the captions plus DiT 5B over the clips (DIP Table 2), attention not halved."""
    hidden, ffn, layers, kv = 4096, 14336, 32, 1024
    llama_weights = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn
    dit_hidden, dit_ffn, dit_layers = 3584, 10240, 28
    video_weights = 4 * dit_hidden**2 + 2 * dit_hidden**2 + 2 * dit_hidden * dit_ffn  # self, cross q and o, plain MLP
    caption_weights = 2 * dit_hidden**2  # cross k and v
    total = 0
    for text, video in zip(microbatch.streams["text"], microbatch.streams["video"], strict=True):
        total += layers * (2 * llama_weights * text + 4 * hidden * text * text)
        total += dit_layers * (2 * video_weights * video + 2 * caption_weights * text)
        total += dit_layers * 4 * dit_hidden * (video * video + video * text)
    return total


def spread(microbatches: Sequence[Microbatch]) -> float:
    flop = [forward_flop_t2v_s(microbatch) for microbatch in microbatches]
    return max(flop) / min(flop)


@pytest.mark.paper
def test_spread_of_fig_4d_lies_between_the_two_resolutions_of_moviegen() -> None:
    """DIP prints 4.15 and no resolution; forward and backward are in proportion, so forward FLOP are enough."""

    def median_spread(pixels: int) -> float:
        batches = (t2v_batch(seed, (pixels, pixels)).microbatches(100, 1) for seed in range(15))
        return statistics.median(spread(microbatches) for microbatches in batches)

    measured = {pixels: median_spread(pixels) for pixels in (256, 512, 768)}
    print("largest / smallest FLOP, published 4.15:", {pixels: round(x, 2) for pixels, x in measured.items()})
    assert measured[256] < 4.15 < measured[768]
    assert measured == pytest.approx({256: 2.5, 512: 4.3, 768: 7.0}, rel=0.05)  # as T2vBatch's docstring says


def test_a_batch_that_is_read_again_is_the_same_and_the_callers_own() -> None:
    first = T2vBatch(seed=3).microbatches(40, 2)
    again = T2vBatch(seed=3).microbatches(40, 2)
    assert again == first
    again.clear()
    assert T2vBatch(seed=3).microbatches(40, 2) == first
    memo.clear()
    assert T2vBatch(seed=3).microbatches(40, 2) == first
    assert T2vBatch(seed=4).microbatches(40, 2) != first
    assert T2vBatch(seed=3).microbatches(40, 1) != first
