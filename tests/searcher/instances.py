"""Random instances like a vision-language model's: sub-microbatches of images, candidates, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semu.schedule.study import PipelineStudy
from semu.searcher import NO_LIMIT, SearchProblem


def vlm(
    ranks: int,
    microbatches: int,
    *,
    seed: int = 0,
    images: tuple[int, int] = (0, 3),
    vision_slots: int = 1,
    language_slots: int = 2,
    candidates: int = 1,
    transfer_s: tuple[float, float] = (0.0, 0.0),
    frozen: bool = False,
    audio: bool = False,
    limit_bytes: Any = NO_LIMIT,
    static_bytes: Any = 0,
    peaks: bool = False,
) -> SearchProblem:
    """A vision encoder, cut into one sub-microbatch per image, whose last chunk feeds the language model's first.

    Args:
        images: least and most per microbatch. vision_slots, language_slots: chunks per rank of each module.
        candidates: per pair with a backward. transfer_s: least and most. frozen: the encoder has no backward.
        audio: a second encoder, that goes over the ranks the other way.
        peaks: transient memory of stages.
    """
    rng = np.random.default_rng(seed)
    column: dict[str, list[Any]] = {name: [] for name in LABELS}
    number: dict[tuple[int, int, int, int], int] = {}
    sources: list[list[int]] = []
    segments: dict[tuple[int, int, int, int], int] = {}
    costs: list[tuple[Any, ...]] = []
    counts = [int(rng.integers(images[0], images[1] + 1)) for _ in range(microbatches)]
    modules = [(vision_slots, not frozen, 0), *([(1, True, 2)] if audio else []), (language_slots, True, 1)]
    first_chunk = (0, vision_slots * ranks, (vision_slots + language_slots) * ranks)
    kinds: dict[Any, Any] = {}
    for microbatch in range(microbatches):
        for slots, backward, module in modules:
            parts = counts[microbatch] if module == 0 else 1
            for part in range(parts):
                size = float(rng.uniform(0.5, 1.5))
                for chunk in range(slots * ranks):
                    slot, rank = divmod(chunk, ranks)
                    rank = ranks - 1 - rank if module == 2 else rank
                    i = len(sources)
                    number[module, microbatch, part, chunk] = i
                    before = [number[module, microbatch, part, chunk - 1]] if chunk else []
                    if module == 1 and chunk == 0:
                        last = vision_slots * ranks - 1
                        before = [number[0, microbatch, p, last] for p in range(counts[microbatch] * (last >= 0))]
                        before += [number[2, microbatch, 0, ranks - 1]] if audio else []
                    sources.append(before)
                    key = (module, microbatch, part, slot)
                    values = (rank, backward, module, microbatch, part, slot, chunk + first_chunk[module])
                    group = microbatch * 3 + module
                    segment = segments.setdefault(key, len(segments))
                    for name, value in zip(LABELS, (*values, group, segment), strict=True):
                        column[name].append(value)
                    kind = (module, microbatch, part)
                    if kind not in kinds:
                        kinds[kind] = _costs(rng, size, candidates, backward, peaks)
                    costs.append(kinds[kind])
    _, column["group"] = np.unique(column["group"], return_inverse=True)  # type: ignore[assignment]
    edges = []
    for i, before in enumerate(sources):
        edges += [(2 * i, 2 * b) for b in before]
        if column["has_backward"][i]:
            edges.append((2 * i + 1, 2 * i))
            edges += [(2 * b + 1, 2 * i + 1) for b in before if column["has_backward"][b]]
    edges.sort()
    rank = column["rank"]
    sent = [0.0 if rank[a // 2] == rank[b // 2] else float(rng.uniform(*transfer_s)) for a, b in edges]
    count = np.bincount([a for a, _ in edges], minlength=2 * len(sources))
    return SearchProblem.of(
        **column,
        num_candidates=np.array([len(c[0]) if h else 1 for c, h in zip(costs, column["has_backward"], strict=True)]),
        **{name: np.array([c[k] for c in costs]) for k, name in enumerate(COSTS)},
        pred_ptr=np.concatenate(([0], np.cumsum(count))),
        pred=[b for _, b in edges],
        transfer_s=sent,
        static_bytes=np.broadcast_to(np.asarray(static_bytes), ranks),
        limit_bytes=np.broadcast_to(np.asarray(limit_bytes), ranks),
        module_names=("vision", "language", "audio"),
    )


LABELS = ("rank", "has_backward", "module", "microbatch", "part", "slot", "chunk", "group", "segment")
COSTS = ("forward_s", "backward_s", "held_bytes", "forward_peak_bytes", "backward_peak_bytes")


def _costs(rng: np.random.Generator, size: float, count: int, backward: bool, peaks: bool) -> tuple[Any, ...]:
    """Candidates of a pair: the more is held, the less is computed again."""
    forward = np.full(count, size)
    if not backward:
        zero = np.zeros(count)
        peak = np.full(count, int(100 * size)) if peaks else zero
        return forward, zero, zero, peak, zero
    held = np.sort(rng.choice(np.arange(5, 100), size=count, replace=False)) * size if count > 1 else [50 * size]
    held = np.floor(np.asarray(held)).astype(np.int64) + np.arange(count)
    saved = np.sort(rng.uniform(0, size, count)) if count > 1 else np.zeros(1)
    transient = rng.integers(0, 30, (2, count)) if peaks else np.zeros((2, count), dtype=np.int64)
    return forward, 3 * size - saved, held, held + transient[0], transient[1]


def problem_of_study(
    study: PipelineStudy, *, limit_bytes: ArrayLike = NO_LIMIT, static_bytes: ArrayLike = 0
) -> SearchProblem:
    """A pipeline on plain numbers, whose stages have one candidate each; backwards are whole."""
    graph, costs, num_ranks = study.arrays, study.costs, study.shape.num_ranks
    pairs = np.flatnonzero(graph.exists)
    backward = np.where(graph.has_backward[pairs], 4 * pairs + 1, -1)
    return SearchProblem.on(
        graph,
        num_candidates=np.ones(len(pairs), dtype=np.int16),
        forward_s=costs.latency_s[4 * pairs],
        backward_s=np.where(backward >= 0, costs.latency_s[backward], 0.0),
        held_bytes=costs.delta_bytes[4 * pairs],
        forward_peak_bytes=costs.internal_bytes[4 * pairs],
        backward_peak_bytes=np.where(backward >= 0, costs.internal_bytes[backward], 0),
        transfer_s=study.delay_s[graph.pair_edges.place],
        static_bytes=np.broadcast_to(np.asarray(static_bytes), num_ranks),
        limit_bytes=np.broadcast_to(np.asarray(limit_bytes), num_ranks),
    )
