"""``content_hash``: tells jobs apart by all that they are made of, in any process; values of the axes are left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from semu import __version__
from semu.job import TrainingJob
from semu.searcher.grid.space import SPLIT, Axis, Point

_AXES = frozenset(axis.value for axis in Axis if axis not in SPLIT)  # their empty words are what the job has


def content_hash(job: TrainingJob) -> str:
    """Of a job without the values of the axes: its model, cluster with all coefficients, other settings, the batch with
    what is in it, and semu's version.

    Returns:
        64 hexadecimal digits.
    """
    count = job.training.global_batch
    items = job.batch.microbatches(count, 1, job.training.seq_len)
    lengths = _lengths(items)
    parallel = {item.name: getattr(job.parallel, item.name) for item in fields(job.parallel)}
    whole = {
        "semu": __version__,
        "model": job.model,
        "cluster": (job.cluster.places, job.cluster.profile),
        "parallel": _without_axes(parallel),
        "training": _without_axes(vars(job.training)),
        "batch": (job.batch.describe(), lengths),
    }
    digest = hashlib.sha256()
    _feed(digest, whole, {})
    return digest.hexdigest()


def _without_axes(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name not in _AXES}


def point_hash(job_hash: str, point: Point) -> str:
    """Of a configuration of the job with that hash."""
    return hashlib.sha256(f"{job_hash} {tuple(point)!r}".encode()).hexdigest()


def _lengths(items: list[Any]) -> list[tuple[str, bytes]]:
    """Lengths of all sequences of a batch, by stream; microbatches that are one object count once."""
    distinct = {id(item): item for item in items}
    return [(name, array.tobytes()) for item in distinct.values() for name, array in sorted(item.lengths.items())]


def _feed(digest: Any, value: Any, seen: dict[int, tuple[int, Any]]) -> None:
    """Hash a value by its content; an object that comes again is hashed as its number."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if isinstance(value, Enum):
        digest.update(f"{type(value).__qualname__}.{value.name};".encode())
        return
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}:".encode() + value.tobytes())
        return
    if isinstance(value, tuple | list):
        digest.update(f"[{len(value)}:".encode())
        for item in value:
            _feed(digest, item, seen)
        return
    if isinstance(value, set | frozenset):
        digest.update(f"{{{sorted(map(repr, value))!r}}}".encode())
        return
    if id(value) in seen:
        digest.update(f"again {seen[id(value)][0]};".encode())
        return
    seen[id(value)] = len(seen), value  # kept alive: the next object must not get its identity
    if isinstance(value, Mapping):
        digest.update(f"{{{len(value)}:".encode())
        for key, item in value.items():
            _feed(digest, key, seen)
            _feed(digest, item, seen)
        return
    kind = type(value)
    digest.update(f"<{kind.__module__}.{kind.__qualname__}:".encode())
    if is_dataclass(value):
        _feed(digest, {item.name: getattr(value, item.name) for item in fields(value)}, seen)
    elif hasattr(value, "__dict__"):
        _feed(digest, vars(value), seen)
    else:
        digest.update(getattr(value, "__qualname__", repr(value)).encode())
