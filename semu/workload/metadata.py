"""Real metadata: a JSONL file, one sample a line, read as the samples that ``vlm.py`` and ``t2v.py`` pack.

A line is one JSON object; all keys are optional, empty lines are skipped::

    {"text_tokens": 120, "images": [{"patches": 2704, "tokens": 169}, {"patches": 1024, "tokens": 64}]}
    {"text_tokens": 120, "images": 3}                                    three images of 2704 patches, 169 tokens
    {"text_tokens": 38, "video_seconds": 4.2, "resolution": [256, 256]}  a clip and its caption

    text_tokens     tokens of text, without the images' tokens; default 0
    images          a count (0 too), or for each image the patches that enter the encoder and the tokens that enter the
                    backbone
    video_seconds   playing time of the sample's clip [s]
    resolution      [height, width] of the clip [px]; default 256 x 256

A file holds one kind of samples. Where nobody says which (``contents``; a run file's model says it too), the keys do:
with ``video_seconds`` it is ``t2v``, else with ``images`` ``vlm``, even if every count is 0, else ``text``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, unknown_name
from semu.workload.checks import check_count, check_number, check_resolution
from semu.workload.t2v import DEFAULT_RESOLUTION, Clips, VideoTokenizer
from semu.workload.vlm import PATCHES_PER_IMAGE, TOKENS_PER_IMAGE, ImageTextSamples

IntArray = NDArray[np.int64]


class Contents(Enum):
    """What kind of samples a metadata file holds; the value is run.toml's word."""

    TEXT = "text"
    VLM = "vlm"
    T2V = "t2v"


STREAMS: Mapping[Contents, tuple[str, ...]] = MappingProxyType(
    {Contents.TEXT: ("text",), Contents.VLM: ("text", "vision"), Contents.T2V: ("text", "video")}
)
"""Streams that a model may read, by kind of samples."""


def contents_for(streams: Collection[str]) -> Contents | None:
    """The kind of samples that a model needs.

    Args:
        streams: what the model reads. None is the answer where they tell nothing.
    """
    if "vision" in streams:
        return Contents.VLM
    if "video" in streams:
        return Contents.T2V
    return Contents.TEXT if "text" in streams else None


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metadata file.

    Attributes:
        line: its number in the file, from 1.
        text_tokens: >= 0.
        images: (patches, tokens) of each image, each >= 1; None: the line does not mention images.
        video_seconds: > 0, or None.
        resolution: (height, width) of the clip [px].
    """

    line: int
    text_tokens: int = 0
    images: tuple[tuple[int, int], ...] | None = None
    video_seconds: float | None = None
    resolution: tuple[int, int] = DEFAULT_RESOLUTION


@dataclass(frozen=True)
class Metadata:
    """A metadata file that has been read and checked.

    Attributes:
        path: as given.
        contents: kind of its samples.
        sha256: of the file's bytes, hexadecimal; two files are equal if they hold the same bytes.
        samples: in the order of the file, at least one.
    """

    path: str = field(compare=False)
    contents: Contents
    sha256: str
    samples: tuple[Sample, ...] = field(compare=False, repr=False)

    def place(self, index: int) -> str:
        """Where sample ``index`` stands: ``file.jsonl:LINE``."""
        return f"{self.path}:{self.samples[index].line}"

    def image_text(self) -> ImageTextSamples:
        """The samples of a ``text`` or ``vlm`` file."""
        listed = [sample.images or () for sample in self.samples]
        counts = np.array([len(images) for images in listed], np.int64)
        images = np.array([image for images in listed for image in images], np.int64).reshape(-1, 2)
        return ImageTextSamples(
            text_tokens=np.array([sample.text_tokens for sample in self.samples], np.int64),
            image_ptr=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
            patches=images[:, 0].copy(),
            tokens=images[:, 1].copy(),
            has_vision=self.contents is Contents.VLM,
        )

    def clips(self, tokenizer: VideoTokenizer) -> Clips:
        """The samples of a ``t2v`` file."""
        frames = np.array([tokenizer.frames(sample.video_seconds or 0.0) for sample in self.samples], np.int64)
        size = np.array([sample.resolution for sample in self.samples], np.int64)
        return Clips(
            frames=frames,
            video_tokens=tokenizer.tokens(frames, size[:, 0], size[:, 1]),
            caption_tokens=np.array([sample.text_tokens for sample in self.samples], np.int64),
            fps=tokenizer.fps,
        )


def read_metadata(path: str | Path, contents: Contents | None = None) -> Metadata:
    """Read a JSONL file of samples (format: see the module).

    Args:
        path: of the file.
        contents: what it must hold; None: what its keys say.
    Raises:
        ConfigError: no such file, no samples in it, or a bad line (``where`` is ``file.jsonl:LINE``).
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the metadata file: {error.strerror or error}",
            where=str(path),
            expected="a JSONL file, one sample a line",
        ) from error
    samples = tuple(
        _read_line(line, number, f"{path}:{number}")
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    )
    if not samples:
        raise ConfigError("the metadata file is empty", where=str(path), expected="at least one sample")
    kind = contents if contents is not None else _infer(samples)
    for sample in samples:
        _check_kind(sample, kind, f"{path}:{sample.line}")
    return Metadata(str(path), kind, hashlib.sha256(data).hexdigest(), samples)


_KEYS = ("text_tokens", "images", "video_seconds", "resolution")
_IMAGE_KEYS = ("patches", "tokens")
_DEFAULT_IMAGE = (PATCHES_PER_IMAGE, TOKENS_PER_IMAGE)


def _read_line(line: bytes, number: int, place: str) -> Sample:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, an integer of thousands of digits, nesting
        raise ConfigError("not JSON", where=place, expected="one JSON object a line", got=_shorten(line)) from error
    if not isinstance(value, dict):
        raise ConfigError("not a sample", where=place, expected="a JSON object", got=_shorten(line))
    _check_keys(value, _KEYS, "key of a sample", place)
    try:
        return Sample(
            line=number,
            text_tokens=check_count(value.get("text_tokens", 0), "text_tokens", low=0),
            images=tuple(_read_images(value["images"], place)) if "images" in value else None,
            video_seconds=(
                check_number(value["video_seconds"], "video_seconds", high=1e6, above=True)
                if "video_seconds" in value
                else None
            ),
            resolution=check_resolution(value.get("resolution", DEFAULT_RESOLUTION), "resolution"),
        )
    except ConfigError as error:
        if error.where is not None and error.where.startswith(place):
            raise
        raise ConfigError(
            f"{error.where}: {error.message}",
            where=place,
            expected=error.expected,
            got=error.got,
            nearest=error.nearest,
        ) from error


def _read_images(value: object, place: str) -> Iterator[tuple[int, int]]:
    if not isinstance(value, list):
        yield from (_DEFAULT_IMAGE,) * check_count(value, "images", low=0, high=1_000_000)
        return
    for index, image in enumerate(value):
        if not isinstance(image, dict):
            raise ConfigError(
                "not an image", where=f"images[{index}]", expected='{"patches": 2704, "tokens": 169}', got=image
            )
        _check_keys(image, _IMAGE_KEYS, f"key of images[{index}]", place)
        for key in _IMAGE_KEYS:
            if key not in image:
                raise ConfigError("an image without a size", where=f"images[{index}]", expected=f"the key {key!r}")
        patches, tokens = (check_count(image[key], f"images[{index}].{key}") for key in _IMAGE_KEYS)
        yield patches, tokens


def _check_keys(value: Mapping[str, object], legal: tuple[str, ...], what: str, place: str) -> None:
    for key in value:
        if key not in legal:
            raise unknown_name(what, key, legal, where=place)


def _infer(samples: tuple[Sample, ...]) -> Contents:
    if any(sample.video_seconds is not None for sample in samples):
        return Contents.T2V
    return Contents.VLM if any(sample.images is not None for sample in samples) else Contents.TEXT


def _check_kind(sample: Sample, kind: Contents, place: str) -> None:
    """Refuse what a model of this kind has no module for, and samples that hold nothing."""
    has_video = sample.video_seconds is not None
    if has_video and kind is not Contents.T2V:
        raise ConfigError("a clip in a file of text or images", where=place, expected=f"samples of kind {kind.value}")
    if sample.images and kind is not Contents.VLM:
        raise ConfigError(
            "an image in a file without images",
            where=place,
            expected=f"samples of kind {kind.value}",
            nearest='contents = "vlm"' if kind is Contents.TEXT else None,
        )
    if kind is Contents.T2V and not has_video:
        raise ConfigError("a sample without a clip in a file of clips", where=place, expected="the key 'video_seconds'")
    if sample.text_tokens == 0 and not sample.images:
        what = "a caption" if kind is Contents.T2V else "text or images"
        raise ConfigError("nothing in the sample for the language model", where=place, expected=what)


def _shorten(line: bytes, limit: int = 60) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return text if len(text) <= limit else text[:limit] + "..."
