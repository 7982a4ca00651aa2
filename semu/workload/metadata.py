"""Real metadata: a JSONL file, one sample a line, read as the samples that ``vlm.py`` and ``t2v.py`` pack.

A line is one JSON object; all keys are optional, empty lines are skipped::

    {"text_tokens": 120, "images": [{"patches": 2704, "tokens": 169}, {"patches": 1024, "tokens": 64}]}
    {"text_tokens": 120, "images": 3}                                    three images of 2704 patches, 169 tokens
    {"text_tokens": 38, "video_seconds": 4.2, "resolution": [256, 256]}  a clip and its caption
    {"text_tokens": 45, "audio": [{"frames": 1230, "tokens": 307}]}      a sound and its transcript
    {"id": "web-000017", "text_tokens": 900}                             a sample with a name of its own
    {"images": [{"patches": 2704, "tokens": 169}], "layout": [["text", 40], ["vision", 0], ["text", 80]]}

    id              what a data loader calls the sample, a string or an integer, once in a file; default: its line
    text_tokens     tokens of text, without the tokens of images and sounds; default 0
    images          a count (0 too), or for each image the patches that enter the encoder and the tokens that enter the
                    backbone; where the model says what its images are, a count means those
    audio           a count (0 too), or for each clip of sound the mel frames that enter the encoder (padding included)
                    and the tokens that enter the backbone; a count means clips of 3000 frames, 750 tokens
    video_seconds   playing time of the sample's clip [s]
    resolution      [height, width] of the clip [px]; default 256 x 256
    layout          where images and sounds stand: runs in order, ["text", tokens], ["vision", number of the image] or
                    ["audio", number of the clip], with a third entry [tokens] where an item comes in parts

A file holds one kind of samples. Where nobody says which (``contents``; a run file's model says it too), the keys do:
with ``video_seconds`` it is ``t2v``, else with ``audio`` ``mixed`` (images are welcome), else with ``images`` ``vlm``,
even if every count is 0, else ``text``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_count, check_number, check_resolution, check_word, is_integer
from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.layouts import Layout, read_layout, text_of
from semu.workload.mixed import FRAMES_TO_TOKENS
from semu.workload.packing import offsets
from semu.workload.samples import Items, Samples
from semu.workload.t2v import DEFAULT_RESOLUTION, Clips, VideoTokenizer
from semu.workload.vlm import PATCHES_PER_IMAGE, TOKENS_PER_IMAGE

IntArray = NDArray[np.int64]


class Contents(Enum):
    """What kind of samples a metadata file holds; the value is run.toml's word."""

    TEXT = "text"
    VLM = "vlm"
    T2V = "t2v"
    MIXED = "mixed"


STREAMS: Mapping[Contents, tuple[str, ...]] = MappingProxyType(
    {
        Contents.TEXT: ("text",),
        Contents.VLM: ("text", "vision"),
        Contents.T2V: ("text", "video"),
        Contents.MIXED: ("text", "vision", "audio"),
    }
)
"""Streams that a model may read, by kind of samples."""


def contents_for(streams: Collection[str]) -> Contents | None:
    """The kind of samples that a model needs.

    Args:
        streams: what the model reads. None is the answer where they tell nothing.
    """
    kinds = {"audio": Contents.MIXED, "vision": Contents.VLM, "video": Contents.T2V, "text": Contents.TEXT}
    return next((kind for stream, kind in kinds.items() if stream in streams), None)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metadata file.

    Attributes:
        line: its number in the file, from 1. text_tokens: >= 0.
        images: (patches, tokens) of each image, each >= 1; None: the line does not mention images.
        video_seconds: > 0, or None. resolution: (height, width) of the clip [px].
        audio: (frames, tokens) of each clip of sound, each >= 1; None: the line does not mention any.
        layout: its runs; None: the line does not say.
        id: what a data loader calls it; None: the line does not say.
    """

    line: int
    text_tokens: int = 0
    images: tuple[tuple[int, int], ...] | None = None
    video_seconds: float | None = None
    resolution: tuple[int, int] = DEFAULT_RESOLUTION
    audio: tuple[tuple[int, int], ...] | None = None
    layout: Layout | None = None
    id: str | int | None = None


@dataclass(frozen=True)
class Metadata:
    """A metadata file that has been read and checked.

    Attributes:
        path: as given. contents: kind of its samples.
        sha256: of the file's bytes, hexadecimal; two files are equal if they hold the same bytes.
        samples: in the order of the file, at least one.
    """

    path: str = field(compare=False)
    contents: Contents
    sha256: str
    samples: tuple[Sample, ...] = field(compare=False, repr=False)

    def ids(self) -> tuple[str | int, ...]:
        """What a data loader calls each sample: its ``id``, else the number of its line."""
        return tuple([sample.line if sample.id is None else sample.id for sample in self.samples])

    def place(self, index: int) -> str:
        """Where sample ``index`` stands: ``file.jsonl:LINE``."""
        return f"{self.path}:{self.samples[index].line}"

    def packable(self, *, audio_in_text: bool = True) -> Samples:
        """The samples of a file without video. ``audio_in_text``: sounds take places among the text's tokens."""
        items = {}
        for name in STREAMS[self.contents][1:]:
            listed = [(sample.images if name == "vision" else sample.audio) or () for sample in self.samples]
            sizes = np.array([item for own in listed for item in own], np.int64).reshape(-1, 2)
            items[name] = Items(offsets(np.array([len(own) for own in listed], np.int64)), sizes[:, 0], sizes[:, 1])
        text = np.array([sample.text_tokens for sample in self.samples], np.int64)
        layouts = [sample.layout for sample in self.samples]
        merged = frozenset({"vision", "audio"} if audio_in_text else {"vision"})
        return Samples(text, items, merged, layouts=layouts if any(layouts) else ())

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


def read_metadata(
    path: str | Path, contents: Contents | None = None, sizes: Mapping[str, tuple[int, int]] | None = None
) -> Metadata:
    """Read a JSONL file of samples (format: see the module).

    Args:
        path: of the file.
        contents: what it must hold; None: what its keys say.
        sizes: stream -> what an item of it puts into the encoder and into the backbone where a line gives a count;
            default: 2704 patches and 169 tokens, 3000 frames and 750 tokens.
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
    samples = [
        read_sample(read_json(line, place := f"{path}:{number}"), number, place, sizes)
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    ]
    return metadata_of(samples, str(path), hashlib.sha256(data).hexdigest(), contents)


def metadata_of(samples: Sequence[Sample], path: str, sha256: str, contents: Contents | None = None) -> Metadata:
    """Samples that have been read, checked against each other.

    Args:
        samples: in order. path: where they are from. sha256: of their text. contents: as ``read_metadata``.
    Raises:
        ConfigError: no samples, or one of another kind.
    """
    if not samples:
        raise ConfigError("the metadata file is empty", where=path, expected="at least one sample")
    kind = contents
    if kind is None:
        keys = {"video_seconds": Contents.T2V, "audio": Contents.MIXED, "images": Contents.VLM}
        has_key = (kind for key, kind in keys.items() if any(getattr(item, key) is not None for item in samples))
        kind = next(has_key, Contents.TEXT)
    for sample in samples:
        _check_kind(sample, kind, f"{path}:{sample.line}")
    _check_ids(samples, path)
    return Metadata(path, kind, sha256, tuple(samples))


_KEYS = ("id", "text_tokens", "images", "video_seconds", "resolution", "audio", "layout")
_WINDOW_FRAMES = 3000
"""Frames of 30 s."""
_DEFAULT_SIZES = {
    "vision": (PATCHES_PER_IMAGE, TOKENS_PER_IMAGE),
    "audio": (_WINDOW_FRAMES, FRAMES_TO_TOKENS.tokens_of_one(_WINDOW_FRAMES, "audio")),
}


@dataclass(frozen=True)
class _Listed:
    """Words for the items of a key: what it is called, one of them, its two sizes, the stream it makes."""

    key: str
    item: str
    sizes: tuple[str, str]
    stream: str


_IMAGES = _Listed("images", "an image", ("patches", "tokens"), "vision")
_AUDIO = _Listed("audio", "a clip of sound", ("frames", "tokens"), "audio")


def read_json(line: bytes, place: str) -> object:
    """The value of a line. ``place``: where it is, for messages.

    Raises:
        ConfigError: not JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, an integer of thousands of digits, nesting
        raise ConfigError("not JSON", where=place, expected="one JSON object a line", got=shorten(line)) from error


def read_sample(value: object, number: int, place: str, sizes: Mapping[str, tuple[int, int]] | None = None) -> Sample:
    """A sample of its JSON object.

    Args:
        value: the object. number: what ``Sample.line`` becomes. place: where it is, for messages.
        sizes: as ``read_metadata``.
    Raises:
        ConfigError: not a sample.
    """
    if not isinstance(value, dict):
        raise ConfigError("not a sample", where=place, expected="a JSON object", got=shorten(json.dumps(value)))
    sizes = _DEFAULT_SIZES | dict(sizes or {})
    for key in value:
        check_word(key, _KEYS, "key of a sample", place)
    try:
        sample = Sample(
            line=number,
            text_tokens=check_count(value.get("text_tokens", 0), "text_tokens", least=0),
            images=tuple(_read_items(value["images"], place, _IMAGES, sizes)) if "images" in value else None,
            video_seconds=(
                check_number(value["video_seconds"], "video_seconds", most=1e6, is_above=True)
                if "video_seconds" in value
                else None
            ),
            resolution=check_resolution(value.get("resolution", DEFAULT_RESOLUTION), "resolution"),
            audio=tuple(_read_items(value["audio"], place, _AUDIO, sizes)) if "audio" in value else None,
            id=_read_id(value["id"], place) if "id" in value else None,
        )
        if "layout" not in value:
            return sample
        items = {"vision": sample.images or (), "audio": sample.audio or ()}
        layout = read_layout(value["layout"], items, sample.text_tokens if "text_tokens" in value else None)
        return replace(sample, layout=layout, text_tokens=text_of(layout))
    except ConfigError as error:
        if error.where is not None and error.where.startswith(place):
            raise
        raise ConfigError.of(error, message=f"{error.where}: {error.message}", where=place) from error


def _read_id(value: object, place: str) -> str | int:
    if is_integer(value) or (isinstance(value, str) and value):
        return value
    raise ConfigError("not an id", where=place, expected="a string or an integer", got=shorten(json.dumps(value)))


def _read_items(
    value: object, place: str, what: _Listed, sizes: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    if not isinstance(value, list):
        yield from (sizes[what.stream],) * check_count(value, what.key, least=0, most=1_000_000)
        return
    for index, item in enumerate(value):
        where = f"{what.key}[{index}]"
        if not isinstance(item, dict):
            example = json.dumps(dict(zip(what.sizes, _DEFAULT_SIZES[what.stream], strict=True)))
            raise ConfigError(f"not {what.item}", where=where, expected=example, got=item)
        for key in item:
            check_word(key, what.sizes, f"key of {where}", place)
        for key in what.sizes:
            if key not in item:
                raise ConfigError(f"{what.item} without a size", where=where, expected=f"the key {key!r}")
        entering, tokens = (check_count(item[key], f"{where}.{key}") for key in what.sizes)
        yield entering, tokens


def _check_ids(samples: Sequence[Sample], path: str) -> None:
    """Refuse an id that two samples have."""
    if all(sample.id is None for sample in samples):
        return
    lines: dict[str | int, int] = {}
    for sample in samples:
        own = sample.line if sample.id is None else sample.id
        if own in lines:
            raise ConfigError(
                "two samples with one id",
                where=f"{path}:{sample.line}",
                expected=f"an id that line {lines[own]} does not have",
                got=own,
            )
        lines[own] = sample.line


def _check_kind(sample: Sample, kind: Contents, place: str) -> None:
    """Refuse what a model of this kind has no module for, and samples that hold nothing."""
    has_video = sample.video_seconds is not None
    if has_video and kind is not Contents.T2V:
        raise ConfigError("a clip in a file of text or images", where=place, expected=f"samples of kind {kind.value}")
    if sample.audio and kind is not Contents.MIXED:
        raise ConfigError(
            "sound in a file without sound",
            where=place,
            expected=f"samples of kind {kind.value}",
            nearest='contents = "mixed"' if kind is not Contents.T2V else None,
        )
    if sample.images and kind not in (Contents.VLM, Contents.MIXED):
        raise ConfigError(
            "an image in a file without images",
            where=place,
            expected=f"samples of kind {kind.value}",
            nearest='contents = "vlm"' if kind is Contents.TEXT else None,
        )
    if kind is Contents.T2V and not has_video:
        raise ConfigError("a sample without a clip in a file of clips", where=place, expected="the key 'video_seconds'")
    if sample.text_tokens == 0 and not sample.images and not sample.audio:
        what = {Contents.T2V: "a caption", Contents.MIXED: "text, images or sound"}.get(kind, "text or images")
        raise ConfigError("nothing in the sample for the language model", where=place, expected=what)


def shorten(line: bytes | str, limit: int = 60) -> str:
    """The beginning of a line, for messages."""
    text = (line if isinstance(line, str) else line.decode("utf-8", errors="replace")).strip()
    return text if len(text) <= limit else text[:limit] + "..."
