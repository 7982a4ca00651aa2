"""Streams of batches: a JSONL file, one iteration a line, or a metadata file cut into iterations.

A line is one JSON object with one of two keys::

    {"samples": [{"text_tokens": 120, "images": 3}, {"text_tokens": 300}, ...]}
    {"microbatches": [{"streams": {"text": [8019, 113], "vision": [2704], "vision_tokens": [169]}, "samples": 2}, ...]}

    samples         samples as in a metadata file (``semu.workload.metadata``), packed as that is; as many microbatches
                    as the job has
    microbatches    packed already: per microbatch the lengths of every stream's sequences (``semu.workload.batch``),
                    and optionally ``samples`` (default: sequences of the first stream), ``video_seconds`` (0) and
                    ``layout``: what stands where in the text (``semu.workload.layouts``).
                    Their number may differ from line to line; those of all data-parallel replicas, microbatch after
                    microbatch

Empty lines are skipped. A file whose first line has neither key is a metadata file: its samples, packed once, are
dealt to the iterations in order; what does not fill the last one is left over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from semu.checks import check_count, check_number, check_word
from semu.errors import ConfigError
from semu.files import write_file
from semu.workload.batch import AbstractBatch, Microbatch
from semu.workload.layouts import read_runs, runs_of
from semu.workload.listed import ListedBatch
from semu.workload.metadata import (
    Contents,
    Metadata,
    contents_for,
    metadata_of,
    read_json,
    read_metadata,
    read_sample,
    shorten,
)
from semu.workload.mixed import MixedBatch
from semu.workload.recorded import FileBatch
from semu.workload.samples import Placement
from semu.workload.t2v import T2vBatch
from semu.workload.vlm import VlmBatch

_KEYS = ("samples", "microbatches")
_MICROBATCH_KEYS = ("streams", "samples", "video_seconds", "layout")


def read_stream(
    path: str | Path, like: AbstractBatch, *, count: int, micro_batch: int, seq_len: int | None = None
) -> Iterator[AbstractBatch]:
    """The batches of a file, read as they are asked for.

    Args:
        path: of the file. like: the job's own batch: kind of samples, sizes of images, limits of packing.
        count: microbatches of all replicas in an iteration that do not say how many they are.
        micro_batch, seq_len: as for ``AbstractBatch.microbatches``.
    Raises:
        ConfigError: no such file (at once), or a bad line (when its iteration is asked for; ``where`` names it).
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = next((line for line in file if line.strip()), "")
    except OSError as error:
        raise ConfigError(
            f"cannot read the stream: {error.strerror or error}",
            where=str(path),
            expected="a JSONL file, one iteration a line",
        ) from error
    if not first:
        raise ConfigError("the stream is empty", where=str(path), expected="at least one iteration")
    if _is_line_of_samples(first):
        return windows(read_like(like, path), count, micro_batch, seq_len)
    return _iterations(Path(path), like)


def write_stream(
    path: str | Path,
    batches: Iterable[AbstractBatch],
    *,
    count: int,
    micro_batch: int,
    seq_len: int | None = None,
) -> int:
    """Write batches as a stream of packed microbatches; returns how many there were.

    Args:
        path: of the file. batches: in order. count, micro_batch, seq_len: as for ``AbstractBatch.microbatches``; a
            ``ListedBatch`` is written whole.
    Raises:
        ConfigError: a batch that cannot be read, or a file that cannot be written.
    """
    written = 0

    def _write(temporary: Path) -> None:
        nonlocal written
        with open(temporary, "w", encoding="utf-8") as file:
            for batch in batches:
                own = len(batch.items) if isinstance(batch, ListedBatch) else count
                rows = [_row(item) for item in batch.microbatches(own, micro_batch, seq_len)]
                file.write(json.dumps({"microbatches": rows}, separators=(",", ":")) + "\n")
                written += 1

    write_file(Path(path), _write)
    return written


def read_like(like: AbstractBatch, path: str | Path) -> FileBatch:
    """The samples of a metadata file, packed under the limits of another batch, which says what kind they are of.

    Raises:
        ConfigError: as ``read_metadata``.
    """
    return recorded_like(like, read_metadata(path, _contents(like), _sizes(like)))


def recorded_like(like: AbstractBatch, metadata: Metadata) -> FileBatch:
    """Recorded samples, packed under the limits of another batch."""
    if isinstance(like, FileBatch):
        return replace(like, metadata=metadata)
    if isinstance(like, VlmBatch):
        limits = {"images_max": like.images_max, "attend_across_samples": like.attend_across_samples}
        return FileBatch(metadata, like.seed, **limits, placement=_placement(like))  # type: ignore[arg-type]
    if isinstance(like, T2vBatch):
        return FileBatch(
            metadata, like.seed, max_seconds=like.max_seconds, max_clips=like.max_clips, tokenizer=like.tokenizer
        )
    if isinstance(like, MixedBatch):
        across = like.attend_across_samples
        return FileBatch(metadata, like.seed, attend_across_samples=across, placement=_placement(like))
    return FileBatch(metadata)


def _placement(like: VlmBatch | MixedBatch) -> Placement | None:
    """Where items stand: as recorded, unless places are to be drawn."""
    return Placement.EMBEDDED if like.placement is Placement.EMBEDDED else None


def windows(batch: FileBatch, count: int, micro_batch: int, seq_len: int | None) -> Iterator[AbstractBatch]:
    """The samples of a file, packed once, iteration after iteration; the last ones that fill none are left over.

    Raises:
        ConfigError: not enough for one iteration, or a sample larger than the context.
    """
    total = batch.capacity(micro_batch, seq_len)
    items = batch.microbatches(max(total // count, 1) * count, micro_batch, seq_len)
    for number, first in enumerate(range(0, len(items), count)):
        yield ListedBatch(tuple(items[first : first + count]), f"{batch.metadata.path}, iteration {number}")


def _iterations(path: Path, like: AbstractBatch) -> Iterator[AbstractBatch]:
    """One batch a line."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _batch(line, f"{path}:{number}", like)
    except OSError as error:
        raise ConfigError(f"cannot read the stream: {error.strerror or error}", where=str(path)) from error


def _batch(line: bytes, place: str, like: AbstractBatch) -> AbstractBatch:
    """The batch of a line."""
    table = read_json(line, place)
    if not isinstance(table, dict) or len(table.keys() & set(_KEYS)) != 1:
        expected = 'one of the keys "samples" and "microbatches"'
        raise ConfigError("not an iteration", where=place, expected=expected, got=shorten(line))
    for key in table:
        check_word(key, _KEYS, "key of an iteration", place)
    [(key, items)] = table.items()
    if not isinstance(items, list) or not items:
        raise ConfigError(f"no {key}", where=place, expected=f"a list of {key}", got=shorten(line))
    if key == "microbatches":
        return ListedBatch(
            tuple(_microbatch(item, f"{place} microbatches[{i}]") for i, item in enumerate(items)), place
        )
    samples = [read_sample(item, i, f"{place} samples[{i}]", _sizes(like)) for i, item in enumerate(items)]
    sha256 = hashlib.sha256(line).hexdigest()
    return recorded_like(like, metadata_of(samples, f"{place} samples", sha256, _contents(like)))


def _microbatch(value: Any, place: str) -> Microbatch:
    streams = value.get("streams") if isinstance(value, dict) else None
    if not isinstance(streams, dict) or not streams or not all(isinstance(own, list) for own in streams.values()):
        expected = '{"streams": {"text": [lengths], ...}}'
        raise ConfigError("not a microbatch", where=place, expected=expected, got=shorten(json.dumps(value)))
    for key in value:
        check_word(key, _MICROBATCH_KEYS, "key of a microbatch", place)
    try:
        samples = check_count(value.get("samples", len(next(iter(streams.values())))), "samples", least=0)
        seconds = check_number(value.get("video_seconds", 0.0), "video_seconds", most=1e9)
        found = Microbatch(streams, samples, seconds)
        if "layout" not in value:
            return found
        places = read_runs(value["layout"], found.lengths)
        return Microbatch.from_arrays(dict(found.lengths), samples, seconds, places)
    except (ConfigError, ValueError, OverflowError) as error:
        if not isinstance(error, ConfigError):
            raise ConfigError("not lengths", where=place, expected="lists of integers") from error
        raise ConfigError.of(error, where=f"{place} {error.where}" if error.where else place) from error


def _row(item: Microbatch) -> dict[str, object]:
    row: dict[str, object] = {"streams": {name: list(own) for name, own in item.streams.items()}}
    row["samples"] = item.samples
    if item.video_seconds:
        row["video_seconds"] = item.video_seconds
    if item.places is not None:
        row["layout"] = runs_of(item.spans())
    return row


def _is_line_of_samples(line: str) -> bool:
    """Whether a file begins as a metadata file does."""
    try:
        table = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(table, dict) and bool(table) and not table.keys() & set(_KEYS)


def _contents(like: AbstractBatch) -> Contents | None:
    return like.metadata.contents if isinstance(like, FileBatch) else contents_for(like.input_streams)


def _sizes(like: AbstractBatch) -> dict[str, tuple[int, int]]:
    """What an image puts into encoder and backbone where a sample only counts them."""
    patches, tokens = getattr(like, "patches_per_image", None), getattr(like, "tokens_per_image", None)
    return {"vision": (patches, tokens)} if isinstance(patches, int) and isinstance(tokens, int) else {}
