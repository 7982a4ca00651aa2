"""Batches of text-to-video models: clips with similar durations, grouped up to a total playing time.

Objects: ``VideoTokenizer`` (seconds and pixels to latent tokens), ``Clips`` (what grouping needs to know),
``T2vBatch`` (seeded generator), ``t2v_batch``.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.checks import check_count, check_number, check_resolution, check_seed
from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request
from semu.workload.distributions import VIDEO_SOURCES, draw_clips, make_generator
from semu.workload.packing import offsets, pack_similar

IntArray = NDArray[np.int64]

DEFAULT_RESOLUTION = (256, 256)
MAX_SECONDS = 16.0
MAX_CLIPS = 8
CLIP_POOL = 512
"""Clips among which similar durations are sought; the pool of a data loader, our choice."""


@dataclass(frozen=True)
class VideoTokenizer:
    """How a clip becomes the latent tokens of a video decoder.

    Attributes:
        fps: frames per second after transcoding (DIP §7.1).
        compression: of the latent, (time, height, width); MovieGen's temporal autoencoder (2410.13720): 8 x 8 x 8.
        patch: latent cells that make one token, (time, height, width); MovieGen: 1 x 2 x 2.
    """

    fps: int = 16
    compression: tuple[int, int, int] = (8, 8, 8)
    patch: tuple[int, int, int] = (1, 2, 2)

    def __post_init__(self) -> None:
        check_count(self.fps, "tokenizer.fps")
        for name in ("compression", "patch"):
            sizes = tuple(check_count(value, f"tokenizer.{name}") for value in getattr(self, name))
            if len(sizes) != 3:
                raise ConfigError(
                    "not three sizes", where=f"tokenizer.{name}", expected="time, height, width", got=sizes
                )
            object.__setattr__(self, name, sizes)

    def frames(self, seconds: float) -> int:
        """Frames of a clip of that many seconds, at least 1; a part of a frame is dropped."""
        return max(1, math.floor(seconds * self.fps + 1e-9))

    def tokens(self, frames: IntArray, height: IntArray, width: IntArray) -> IntArray:
        """Latent tokens of clips, int64[num_clips]: each axis is padded up to whole latent cells and patches.

        Args:
            frames, height, width: int64[num_clips] [frames], [px], [px].
        """
        result = np.ones_like(frames)
        for size, compression, patch in zip((frames, height, width), self.compression, self.patch, strict=True):
            cells = -(-size // compression)
            result = result * -(-cells // patch)
        return result


@dataclass(frozen=True, eq=False)
class Clips:
    """Video clips with captions.

    Attributes:
        frames: int64[num_clips], >= 1, at ``fps``. fps: frames per second.
        video_tokens, caption_tokens: int64[num_clips], latent tokens, tokens of the caption.
    """

    frames: IntArray
    video_tokens: IntArray
    caption_tokens: IntArray
    fps: int

    def group(self, max_seconds: float, max_clips: int, seq_len: int | None, seed: int) -> tuple[Clips, IntArray]:
        """Group clips of similar durations.

        Args:
            max_seconds, max_clips: playing time [s] and clips of a group.
            seq_len: latent tokens of a group; None: no limit.
            seed: of the order of the groups, see ``pack_similar``.
        Returns:
            The clips in the order of their groups, and bounds int64[num_groups + 1].
        """
        weights = [self.frames, np.ones_like(self.frames)]
        capacities = [_frames_per_group(max_seconds, self.fps), max_clips]
        if seq_len is not None:
            weights.append(self.video_tokens)
            capacities.append(seq_len)
        order, bounds = pack_similar(self.frames, weights, capacities, CLIP_POOL, seed)
        grouped = Clips(self.frames[order], self.video_tokens[order], self.caption_tokens[order], self.fps)
        return grouped, bounds

    def microbatches(self, bounds: IntArray, count: int, micro_batch: int) -> list[Microbatch]:
        """Cut the first ``count * micro_batch`` groups into microbatches.

        Args:
            bounds: of the groups, int64[>= count * micro_batch + 1].
            count, micro_batch: as for ``AbstractBatch.microbatches``.
        """
        edges = bounds[: count * micro_batch + 1 : micro_batch]
        captions, video = self.caption_tokens.copy(), self.video_tokens.copy()
        captions.flags.writeable = video.flags.writeable = False
        seconds = (np.diff(offsets(self.frames)[edges]) / self.fps).tolist()
        ends = edges.tolist()
        return [
            Microbatch.from_arrays({"text": captions[start:end], "video": video[start:end]}, end - start, playing)
            for start, end, playing in zip(ends[:-1], ends[1:], seconds, strict=True)
        ]


@dataclass(frozen=True)
class T2vBatch(AbstractBatch):
    """Packed clip groups with the shapes of DIP §7.1 (MovieGen's configuration).

    Clips come from three data sets with equal weights (``VIDEO_SOURCES``), are cut to ``max_seconds`` and grouped
    with clips of similar duration. ``training.seq_len``, where given, also limits the latent tokens of a group.

    The default resolution is 256 x 256: DIP does not print it, but says that it follows MovieGen (2410.13720), whose
    first joint image-video stage trains there; 16 s are then 32 x 16 x 16 = 8192 latent tokens, the context length of
    DIP's other models. MovieGen's last stage, 768 x 768, has 73,728 tokens, most of whose cost is attention.
    DIP's Fig. 4d has a spread (largest / smallest FLOP of 100 batches, Llama3 8B + DiT 5B) of 4.15. Here, median over
    seeds: 2.5 at 256 px, 4.3 at 512 px, 7.0 at 768 px. The published number lies between MovieGen's two resolutions;
    neither the resolution nor the mixture of clips was adjusted to meet it.

    Attributes:
        seed: >= 0. resolution: (height, width) of all clips [px].
        max_seconds: longest clip and longest group [s]. max_clips: most clips in a group.
        tokenizer: frame rate, latent compression and patches.
    Raises:
        ConfigError: a number out of range.
    """

    seed: int = 0
    resolution: tuple[int, int] = DEFAULT_RESOLUTION
    max_seconds: float = MAX_SECONDS
    max_clips: int = MAX_CLIPS
    tokenizer: VideoTokenizer = field(default_factory=VideoTokenizer)

    def __post_init__(self) -> None:
        check_seed(self.seed, "batch.seed")
        object.__setattr__(self, "resolution", check_resolution(self.resolution, "batch.resolution"))
        check_max_seconds(self.max_seconds, self.tokenizer)
        check_count(self.max_clips, "batch.max_clips")

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Captions and latent tokens."""
        return ("text", "video")

    @property
    def default_seq_len(self) -> None:
        """None: groups are limited by playing time."""
        return None

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches of ``micro_batch`` clip groups."""
        check_request(count, micro_batch, seq_len)
        self._check_seq_len(seq_len)
        return list(_read(self, count, micro_batch, seq_len))

    def _grouped(self, needed: int, seq_len: int | None) -> tuple[Clips, IntArray]:
        """Clips in the order of their groups, and the bounds of at least ``needed`` groups."""
        pools: list[Clips] = []
        per_group = _frames_per_group(self.max_seconds, self.tokenizer.fps)
        frames = 0
        while max(frames // per_group, CLIP_POOL * len(pools) // self.max_clips) < needed:  # so many there are at least
            pools.append(self._draw(make_generator(self.seed, len(pools))))
            frames += int(pools[-1].frames.sum())
        names = ("frames", "video_tokens", "caption_tokens")
        columns = {name: np.concatenate([getattr(pool, name) for pool in pools]) for name in names}
        clips = Clips(**columns, fps=self.tokenizer.fps)
        return clips.group(self.max_seconds, self.max_clips, seq_len, self.seed)

    def describe(self) -> dict[str, object]:
        """Kind, seed and shapes."""
        return {
            "kind": "t2v",
            "seed": self.seed,
            "resolution": list(self.resolution),
            "max_seconds": self.max_seconds,
            "max_clips": self.max_clips,
            "fps": self.tokenizer.fps,
            "compression": list(self.tokenizer.compression),
            "patch": list(self.tokenizer.patch),
            "sources": [source.name for source in VIDEO_SOURCES],
        }

    def _draw(self, generator: np.random.Generator) -> Clips:
        """One pool of clips."""
        durations, captions = draw_clips(generator, CLIP_POOL)
        longest = self.tokenizer.frames(self.max_seconds)
        frames = np.clip(np.floor(durations * self.tokenizer.fps).astype(np.int64), 1, longest)
        return Clips(frames, self._tokens(frames), captions, self.tokenizer.fps)

    def _tokens(self, frames: IntArray) -> IntArray:
        height, width = self.resolution
        return self.tokenizer.tokens(frames, np.full_like(frames, height), np.full_like(frames, width))

    def _check_seq_len(self, seq_len: int | None) -> None:
        longest = int(self._tokens(np.array([self.tokenizer.frames(self.max_seconds)], np.int64))[0])
        if seq_len is not None and seq_len < longest:
            raise ConfigError(
                f"a clip of {self.max_seconds:g} s has more latent tokens than the context",
                where="training.seq_len",
                expected=f">= {longest} tokens, a lower resolution, or a smaller max_seconds",
                got=seq_len,
                nearest=longest,
            )


def _frames_per_group(max_seconds: float, fps: int) -> int:
    """Most frames of the clips of a group together."""
    return math.floor(max_seconds * fps + 1e-9)


@memo.remembered(4)
def _read(batch: T2vBatch, count: int, micro_batch: int, seq_len: int | None) -> tuple[Microbatch, ...]:
    """The microbatches of a batch; a job that is simulated again reads the same."""
    clips, bounds = batch._grouped(count * micro_batch, seq_len)
    return tuple(clips.microbatches(bounds, count, micro_batch))


def check_max_seconds(max_seconds: float, tokenizer: VideoTokenizer) -> None:
    """Validate the longest clip: at least one frame.

    Raises:
        ConfigError: shorter than a frame, or not a number.
    """
    check_number(max_seconds, "batch.max_seconds", least=1.0 / tokenizer.fps, most=1e6)


t2v_batch = T2vBatch
