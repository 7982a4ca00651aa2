"""``make_batch``: the options of run.toml's ``[batch]`` become a batch; every key is checked.

    kind                  text | vlm | t2v | mixed | pairs | fixed | file; default: what the model reads, else text
    seed                  an integer >= 0 (text has nothing to draw and ignores it); default 0

``_KEYS`` has the other keys of each kind; ``path`` is required. ``contents`` (text | vlm | t2v | mixed) says what
samples the file holds; without it, the streams that the model reads say it. What a model says of its images and clips
(``Merging``) is the default of ``patches_per_image`` and ``tokens_per_image``, and decides how frames of sound become
tokens; shares default to equal parts of what it reads. Other keys, and keys of another kind, are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from semu.checks import check_count, check_member, check_seed
from semu.errors import ConfigError, unknown_name
from semu.nn.merging import Merging
from semu.workload.batch import AbstractBatch, text_batch
from semu.workload.fixed import STREAMS, fixed_batch
from semu.workload.metadata import contents_for
from semu.workload.mixed import mixed_batch
from semu.workload.pairs import pair_batch
from semu.workload.recorded import file_batch
from semu.workload.t2v import t2v_batch
from semu.workload.vlm import PATCHES_PER_IMAGE, vlm_batch


class BatchKind(Enum):
    """Where samples come from; the value is run.toml's word."""

    TEXT = "text"
    VLM = "vlm"
    T2V = "t2v"
    MIXED = "mixed"
    PAIRS = "pairs"
    FIXED = "fixed"
    FILE = "file"


_SHARES = ("image_share", "audio_share")
_PER_IMAGE = ("patches_per_image", "tokens_per_image")
_KEYS: Mapping[BatchKind, tuple[str, ...]] = {
    BatchKind.TEXT: (),
    BatchKind.VLM: ("text_per_image", "images_mean", "images_max", "attend_across_samples", "placement", *_PER_IMAGE),
    BatchKind.T2V: ("resolution", "max_seconds", "max_clips"),
    BatchKind.MIXED: (*_SHARES, "audio_seconds", "text_per_image", *_PER_IMAGE, "attend_across_samples", "placement"),
    BatchKind.PAIRS: ("text_tokens", "patches_per_image"),
    BatchKind.FIXED: STREAMS,
    BatchKind.FILE: (
        *("path", "contents", "images_max", "attend_across_samples", "placement", "max_seconds", "max_clips"),
    ),
}
_COMMON = ("kind", "seed")


def make_batch(
    options: Mapping[str, object],
    where: str = "batch",
    base_dir: str | Path | None = None,
    streams: Collection[str] | None = None,
    mergings: Collection[Merging] = (),
) -> AbstractBatch:
    """The batch that run.toml's ``[batch]`` describes.

    Args:
        options: the table.
        where: place of the table, for messages: an error's ``where`` is ``{where}.{key}``, or the line of a file.
        base_dir: folder that a relative ``path`` starts from; None: the current one.
        streams: what the model reads, which decides the kind of a batch and the contents of a file that do not name
            them; None: unknown.
        mergings: what the model says of the items that it reads.
    Raises:
        ConfigError: an unknown key (with a 'did you mean'), a key of another kind, a value out of range, a bad file.
    """
    wanted = options.get("kind", kind_for(streams or ()).value)
    kind = check_member(wanted, BatchKind, f"{where}.kind", "kind of batch")
    legal = _COMMON + _KEYS[kind]
    for key in options:
        if key in legal:
            continue
        owners = [other.value for other, keys in _KEYS.items() if key in keys]
        if owners:
            raise ConfigError(
                f"{key!r} is not an option of kind = {kind.value!r}",
                where=f"{where}.{key}",
                expected="one of " + ", ".join(legal),
                got=key,
                nearest=f"kind = {owners[0]!r}",
            )
        raise unknown_name("batch option", key, legal, where=f"{where}.{key}")
    arguments: dict[str, Any] = {key: value for key, value in options.items() if key != "kind"}
    if kind is BatchKind.FILE and streams is not None and "contents" not in arguments:
        contents = contents_for(streams)
        arguments |= {} if contents is None else {"contents": contents.value}
    try:
        return _build(kind, arguments | _from_model(kind, arguments, streams, mergings), base_dir)
    except ConfigError as error:
        if error.where in [f"batch.{key}" for key in legal]:
            error.where = where + error.where.removeprefix("batch")
        raise


def kind_for(streams: Collection[str]) -> BatchKind:
    """The kind of generated samples that a model needs. ``streams``: what it reads."""
    contents = contents_for(streams)
    return BatchKind(contents.value) if contents is not None else BatchKind.TEXT


def _from_model(
    kind: BatchKind, arguments: Mapping[str, Any], streams: Collection[str] | None, mergings: Collection[Merging]
) -> dict[str, Any]:
    """Arguments that were not given and the model decides."""
    result: dict[str, Any] = {}
    by_stream = {merging.stream: merging for merging in mergings}
    images, audio = by_stream.get("vision"), by_stream.get("audio")
    if kind in (BatchKind.VLM, BatchKind.MIXED) and images is not None:
        patches = arguments.get("patches_per_image", images.length or PATCHES_PER_IMAGE)
        result["patches_per_image"] = check_count(patches, "batch.patches_per_image")
        tokens = images.tokens_of_one(patches, "batch.patches_per_image")
        if "tokens_per_image" not in arguments:
            result["tokens_per_image"] = tokens
    if kind is BatchKind.PAIRS:
        for stream, key in (("text", "text_tokens"), ("vision", "patches_per_image")):
            merging = by_stream.get(stream)
            if key not in arguments and merging is not None and merging.length is not None:
                result[key] = merging.length
    if kind is BatchKind.MIXED:
        result |= {"audio": audio} if audio is not None else {}
        if streams is not None and not arguments.keys() & set(_SHARES):
            read = [name for name in ("vision", "audio") if name in streams]
            if audio is not None and audio.tokens is None:  # nothing to attend to in a text without its clip
                result |= {"image_share": 0.0, "audio_share": 1.0}
            else:
                shares = {name: 1 / (len(read) + 1) if name in read else 0.0 for name in ("vision", "audio")}
                result |= {"image_share": shares["vision"], "audio_share": shares["audio"]}
    if kind is BatchKind.FILE:
        sizes = {}
        for merging in mergings:
            default = merging.length or {"vision": PATCHES_PER_IMAGE}.get(merging.stream)
            if default is not None and default % merging.multiple == 0:
                sizes[merging.stream] = (default, merging.tokens_of_one(default, "batch"))
        result |= {"sizes": sizes, "audio_in_text": audio is None or audio.tokens is not None}
    return result


_BUILDERS: Mapping[BatchKind, Callable[..., AbstractBatch]] = {
    BatchKind.TEXT: text_batch,
    BatchKind.VLM: vlm_batch,
    BatchKind.T2V: t2v_batch,
    BatchKind.MIXED: mixed_batch,
    BatchKind.PAIRS: pair_batch,
    BatchKind.FIXED: fixed_batch,
}


def _build(kind: BatchKind, arguments: dict[str, Any], base_dir: str | Path | None) -> AbstractBatch:
    if kind in (BatchKind.TEXT, BatchKind.PAIRS, BatchKind.FIXED):  # nothing to draw
        check_seed(arguments.pop("seed", 0), "batch.seed")
    if kind is not BatchKind.FILE:
        return _BUILDERS[kind](**arguments)
    path = arguments.pop("path", None)
    if not isinstance(path, str) or not path:
        raise ConfigError("no metadata file", where="batch.path", expected="the path of a JSONL file", got=path)
    return file_batch(path if base_dir is None else Path(base_dir) / path, arguments.pop("contents", None), **arguments)
