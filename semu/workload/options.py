"""``make_batch``: the options of run.toml's ``[batch]`` become a batch; every key is checked.

    kind                  text | vlm | t2v | file; default text
    seed                  an integer >= 0 (text has nothing to draw and ignores it); default 0
    vlm                   text_per_image, images_mean, images_max, attend_across_samples
    t2v                   resolution, max_seconds, max_clips
    file                  path (required), contents, images_max, attend_across_samples, max_seconds, max_clips

``contents`` (text | vlm | t2v) says what samples the file holds; without it, the streams that the model reads say it.
Other keys, and keys of another kind, are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from semu.errors import ConfigError, unknown_name
from semu.workload.batch import AbstractBatch, text_batch
from semu.workload.checks import check_seed
from semu.workload.metadata import contents_for
from semu.workload.recorded import file_batch
from semu.workload.t2v import t2v_batch
from semu.workload.vlm import vlm_batch


class BatchKind(Enum):
    """Where samples come from; the value is run.toml's word."""

    TEXT = "text"
    VLM = "vlm"
    T2V = "t2v"
    FILE = "file"


_KEYS: Mapping[BatchKind, tuple[str, ...]] = {
    BatchKind.TEXT: (),
    BatchKind.VLM: ("text_per_image", "images_mean", "images_max", "attend_across_samples"),
    BatchKind.T2V: ("resolution", "max_seconds", "max_clips"),
    BatchKind.FILE: ("path", "contents", "images_max", "attend_across_samples", "max_seconds", "max_clips"),
}
_COMMON = ("kind", "seed")


def make_batch(
    options: Mapping[str, object],
    where: str = "batch",
    base_dir: str | Path | None = None,
    streams: Collection[str] | None = None,
) -> AbstractBatch:
    """The batch that run.toml's ``[batch]`` describes.

    Args:
        options: the table, see the module's table of keys.
        where: place of the table, for messages: an error's ``where`` is ``{where}.{key}``, or the line of a file.
        base_dir: folder that a relative ``path`` starts from; None: the current one.
        streams: what the model reads, which decides the contents of a file that does not name them; None: unknown.
    Raises:
        ConfigError: an unknown key (with a 'did you mean'), a key of another kind, a value out of range, a bad file.
    """
    kind = _read_kind(options.get("kind", BatchKind.TEXT.value), f"{where}.kind")
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
        return _BUILDERS[kind](arguments, base_dir)
    except ConfigError as error:
        if error.where in [f"batch.{key}" for key in legal]:
            error.where = where + error.where.removeprefix("batch")
        raise


def _read_kind(value: object, where: str) -> BatchKind:
    legal = [kind.value for kind in BatchKind]
    if not isinstance(value, str) or value not in legal:
        raise unknown_name("kind of batch", str(value), legal, where=where)
    return BatchKind(value)


def _make_text(arguments: dict[str, Any], base_dir: str | Path | None) -> AbstractBatch:
    check_seed(arguments.get("seed", 0), "batch.seed")
    return text_batch()


def _make_vlm(arguments: dict[str, Any], base_dir: str | Path | None) -> AbstractBatch:
    return vlm_batch(**arguments)


def _make_t2v(arguments: dict[str, Any], base_dir: str | Path | None) -> AbstractBatch:
    return t2v_batch(**arguments)


def _make_file(arguments: dict[str, Any], base_dir: str | Path | None) -> AbstractBatch:
    path = arguments.pop("path", None)
    if not isinstance(path, str) or not path:
        raise ConfigError("no metadata file", where="batch.path", expected="the path of a JSONL file", got=path)
    kind = arguments.pop("contents", None)
    if kind is not None and not isinstance(kind, str):
        raise ConfigError("not a kind of samples", where="batch.contents", expected="text, vlm or t2v", got=kind)
    return file_batch(path if base_dir is None else Path(base_dir) / path, kind, **arguments)


_BUILDERS: Mapping[BatchKind, Callable[[dict[str, Any], str | Path | None], AbstractBatch]] = {
    BatchKind.TEXT: _make_text,
    BatchKind.VLM: _make_vlm,
    BatchKind.T2V: _make_t2v,
    BatchKind.FILE: _make_file,
}
