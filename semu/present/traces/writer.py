"""Timelines as Chrome traces in the dialect of PyTorch's profiler, for Perfetto and HolisticTraceAnalysis.

``write_trace`` puts the whole job in one file, a process per pipeline rank. ``write_rank_trace`` writes one rank, named
in ``distributedInfo``: HolisticTraceAnalysis wants a file per rank (and, unless ``HTA_DISABLE_NS_ROUNDING=1`` is in the
environment, it shrinks every kernel to whole microseconds).
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from semu.engine.sampling import sample_step_function
from semu.engine.timeline import IterationTimeline, RankTimeline
from semu.files import write_file
from semu.graph.level import Level
from semu.present.traces.annotations import (
    compact_json,
    iteration_slice,
    microbatch_slices,
    nested_stages,
    stage_slices,
    stage_ticks,
)
from semu.present.traces.columns import KernelColumns, OperatorTexts, microseconds, rank_of, ticks

_STEP_TRACK = 1
_STAGE_TRACK = 2
_COMPUTE_TRACK = 7
"""PyTorch's default stream; communicators get the numbers after it."""
_LAYER_TRACKS = 1001
"""First of the tracks for layers that overlap others; viewers show them below the stages."""
_COUNTER_BUCKETS = 2048
_LEVEL = 3
"""Of gzip: a level more takes a third longer for a few percent."""


def write_trace(
    path: str | os.PathLike[str],
    timeline: IterationTimeline,
    *,
    title: str,
    metadata: Mapping[str, object],
    is_full: bool = True,
) -> None:
    """Write every rank of the iteration into one trace, for Perfetto or chrome://tracing.

    Slices nest: stages hold their layers. Microbatches overlap, so they have a process of their own above the ranks.

    Args:
        path: the file to make, ``*.json``, or ``*.json.gz``, which viewers open too; its folder must exist. It appears
            complete or not at all.
        timeline: what to write. title: shown by viewers among the trace's information.
        metadata: anything that JSON can hold, written beside the title.
        is_full: with layers and operators; else stages, microbatches and memory of every rank alone.
    Raises:
        OSError: the file cannot be written.
    """
    events = _events(timeline, timeline.ranks, annotate_gpu=False) if is_full else _stages(timeline)
    batches = itertools.chain(_microbatches(timeline), events)
    _write_file(path, _header(title, metadata, None), batches)


def write_rank_trace(
    path: str | os.PathLike[str],
    timeline: IterationTimeline,
    rank: int,
    *,
    title: str = "",
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write one rank as a separate trace, for HolisticTraceAnalysis.

    Its ``TraceAnalysis(trace_dir=...)`` takes a folder with one such file per rank and nothing else. Stages are written
    a second time, as ``gpu_user_annotation`` on the compute stream, where it looks for them.

    Args:
        timeline: what to write from. rank: pipeline rank. path, title, metadata: as ``write_trace``.
    Raises:
        ConfigError: the timeline has no such rank.
        OSError: the file cannot be written.
    """
    chosen = [rank_of(timeline, rank)]
    world = {"rank": rank, "world_size": len(timeline.ranks)}
    _write_file(path, _header(title, metadata or {}, world), _events(timeline, chosen, annotate_gpu=True))


def _header(title: str, metadata: Mapping[str, object], world: Mapping[str, int] | None) -> str:
    """Everything before the events; readers look for ``"rank": N`` (with a blank) on the first line that has it."""
    lines = ["{", '"schemaVersion": 1,', '"displayTimeUnit": "ms",']
    if world is not None:
        lines.append(f'"distributedInfo": {json.dumps(world)},')
    other = {"title": title, **metadata}
    lines.append(f'"otherData": {json.dumps(other, separators=(",", ":"), default=str, allow_nan=False)},')
    lines.append('"traceEvents": [\n')
    return "\n".join(lines)


def _write_file(path: str | os.PathLike[str], header: str, batches: Iterable[list[str]]) -> None:
    """Stream the batches of events into a file."""

    def _fill(temporary: Path) -> None:
        with _opened(temporary) as file:
            file.write(header)
            separator = ""
            for batch in batches:
                if batch:
                    file.write(separator)
                    file.write(",\n".join(batch))
                    separator = ",\n"
            file.write("\n]}\n")

    write_file(Path(path), _fill)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """A file for text, packed where its name ends in ``.gz``, always into the same bytes."""
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="\n", buffering=1 << 20) as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
    ):
        yield file


def _microbatches(timeline: IterationTimeline) -> Iterator[list[str]]:
    """A process for the microbatches, a batch per track."""
    spans = [span for span in timeline.root.children() if span.level is Level.MICROBATCH]
    pid = max((rank.rank for rank in timeline.ranks), default=-1) + 1
    lanes = microbatch_slices(spans, pid)
    yield from lanes
    names = {number: _lane_name("microbatches", number - 1) for number in range(1, len(lanes) + 1)}
    yield _names(pid, "microbatches", -1, names)


def _events(timeline: IterationTimeline, ranks: Sequence[RankTimeline], *, annotate_gpu: bool) -> Iterator[list[str]]:
    """The events of ranks as JSON texts, a batch per track: within a track in order of start, outer slices first."""
    tracks = {("compute", 0): _COMPUTE_TRACK}  # (stream, lane) -> its number, the same on every rank
    texts = OperatorTexts()
    for rank in ranks:
        names = {_STEP_TRACK: "iteration"}
        yield iteration_slice(rank, timeline.iteration_time_s, _STEP_TRACK)
        stages = [operators for _, operators in rank.stage_operators()]
        for lane, (number, slices) in enumerate(nested_stages(rank, stages, _STAGE_TRACK, _LAYER_TRACKS).items()):
            names[number] = _lane_name("stages", lane)
            yield slices
        columns = KernelColumns(texts, stages, rank.outer)
        for stream in columns.streams():
            for lane, rows in enumerate(columns.lanes(stream)):
                number = tracks.setdefault((stream, lane), _COMPUTE_TRACK + len(tracks))
                names[number] = f"stream {number} ({_lane_name(stream, lane)})"
                kernels = columns.kernels(rows, rank.rank, number)
                if annotate_gpu and number == _COMPUTE_TRACK:
                    annotations = stage_slices(rank, _COMPUTE_TRACK, "gpu_user_annotation")
                    starts = np.concatenate((stage_ticks(rank)[0], columns.start_ticks[rows]))
                    both = annotations + kernels
                    kernels = [both[position] for position in np.argsort(starts, kind="stable").tolist()]
                yield kernels
        yield _counters(rank)
        yield _names(rank.rank, f"rank {rank.rank} (gpu {rank.gpu})", rank.rank, names)


def _stages(timeline: IterationTimeline) -> Iterator[list[str]]:
    """The stages of all ranks and their memory, without what runs inside stages."""
    for rank in timeline.ranks:
        yield iteration_slice(rank, timeline.iteration_time_s, _STEP_TRACK)
        yield stage_slices(rank, _STAGE_TRACK)
        yield _counters(rank)
        yield _names(
            rank.rank,
            f"rank {rank.rank} (gpu {rank.gpu})",
            rank.rank,
            {_STEP_TRACK: "iteration", _STAGE_TRACK: "stages"},
        )


def _lane_name(name: str, lane: int) -> str:
    return name if lane == 0 else f"{name}, lane {lane + 1}"


def _counters(rank: RankTimeline) -> list[str]:
    """Allocated bytes by role at a few thousand points at most, every peak among them."""
    memory = rank.memory
    kept = sample_step_function(memory.times_s, memory.total, _COUNTER_BUCKETS)
    names = [role.value for role in memory.roles]
    times_us = microseconds(ticks(memory.times_s[kept]))
    event = {"ph": "C", "name": "HBM bytes", "pid": rank.rank}
    return [
        compact_json({**event, "ts": time_us, "args": dict(zip(names, sizes, strict=True))})
        for time_us, sizes in zip(times_us, memory.by_role[:, kept].T.tolist(), strict=True)
    ]


def _names(pid: int, name: str, position: int, tracks: Mapping[int, str]) -> list[str]:
    """Names and positions of a process and its tracks."""
    rows: list[tuple[str, int, dict[str, object]]] = [
        ("process_name", 0, {"name": name}),
        ("process_sort_index", 0, {"sort_index": position}),
    ]
    for number, track in sorted(tracks.items()):
        rows.append(("thread_name", number, {"name": track}))
        place = number if number < _LAYER_TRACKS else _STAGE_TRACK
        rows.append(("thread_sort_index", number, {"sort_index": place}))
    return [
        compact_json({"ph": "M", "name": kind, "pid": pid, "tid": track, "args": arguments})
        for kind, track, arguments in rows
    ]
