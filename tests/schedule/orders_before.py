"""The orders of all schedules as their generators gave them before they were made of rules: ``orders_before.txt``.

A line of the file per schedule and pipeline: name, pipeline, the first 16 digits of the SHA-256 of the text form. The
orders of four ranks at the size of each figure are written out. ``python tests/schedule/orders_before.py`` prints what
today's schedules give.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import numpy as np

from semu.schedule.placement import FlowModule, stage_flow
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

SIZES = [(p, m, v) for p in range(1, 9) for m in (1, 2, 3, 4, 6, 8, 12, 16) for v in range(1, 5)]
WRITTEN_OUT = {"zb-h2": (8, 1), "zb-v": (7, 2), "dualpipe-v": (8, 2), "chimera": (8, 2)}
"""Microbatches and slots of the orders written out, for four ranks, where neither (6, 1) nor (4, 2) is meant."""
MADE_FOR_COSTS = ("greedy", "hanayo", "zb-auto", "zb-auto-2p")
FROM_MODULES = ("1f1b", "interleaved", "gpipe", "looped-bfs", "greedy", "optimus", "interleaved-zb", "zb-h1")


def flows() -> Iterator[tuple[str, PipelineShape]]:
    """Modules: encoders side by side, cut microbatches, a frozen beginning, two chunks in a virtual stage."""
    for p, m in ((2, 4), (4, 8)):
        ranks = tuple(range(p))
        yield (
            f"encoders-{p}-{m}",
            stage_flow(
                p,
                m,
                [
                    FlowModule("image", ranks, sub_microbatches=2),
                    FlowModule("audio", ranks[:1], trains=False),
                    FlowModule("llm", ranks, reads=("image", "audio")),
                ],
            ),
        )
        chain = PipelineShape.chain(p, m, 2)
        yield (
            f"frozen-{p}-{m}",
            PipelineShape(
                p,
                m,
                chain.chunk_rank,
                chain.sources,
                (False,) * p + (True,) * p,
                chain.chunk_slot,
                ("image",) * p + ("llm",) * p,
            ),
        )
        group = sorted([*range(2 * p), p - 1, p])
        yield (
            f"shared-{p}-{m}",
            PipelineShape(
                p,
                m,
                tuple(g % p for g in group),
                tuple((c - 1,) if c else () for c in range(len(group))),
                (True,) * len(group),
                tuple(g // p for g in group),
                tuple("image" if c < p + 1 else "llm" for c in range(len(group))),
            ),
        )


def schedules() -> Iterator[tuple[str, str, Schedule]]:
    """Name, pipeline, order."""
    for name, family in ALL_SCHEDULES.items():
        for p, m, v in SIZES:
            if family.misfit(p, m, v) is None:
                yield name, f"{p}-{m}-{v}", family(family.shape(p, m, v))
    rng = np.random.default_rng(7)
    for p, m, v in ((2, 5, 1), (4, 8, 1), (4, 8, 2), (6, 12, 2), (8, 16, 4)):
        f, i, w = (rng.integers(1, 9, (3, p * v)) / 4).tolist()
        costs = {"forward_s": f, "input_s": i, "weight_s": w, "transfer_s": 0.125}
        for name in MADE_FOR_COSTS:
            if ALL_SCHEDULES[name].misfit(p, m, v) is None:
                study = PipelineStudy.of(
                    ALL_SCHEDULES[name].shape(p, m, v), held_bytes=rng.integers(1, 99, p * v), **costs
                )
                yield name, f"costs-{p}-{m}-{v}", ALL_SCHEDULES[name].on(study)
    for text, shape in flows():
        for name in FROM_MODULES:
            family = ALL_SCHEDULES[name]
            generate = family.generate or family
            if family.misfit(shape.num_ranks, shape.num_microbatches, shape.num_slots) is None or family.generate:
                yield name, text, generate(shape)


def lines() -> Iterator[str]:
    """The file's lines."""
    for name, pipeline, schedule in schedules():
        yield f"{name} {pipeline} {sha256(schedule.to_text().encode()).hexdigest()[:16]}"
    for name, family in ALL_SCHEDULES.items():
        m, v = WRITTEN_OUT.get(name, (6, 1) if family.misfit(4, 6, 1) is None else (4, 2))
        for rank, order in enumerate(family(family.shape(4, m, v)).to_text().splitlines()):
            yield f"{name} 4-{m}-{v} rank-{rank} {order}"


if __name__ == "__main__":
    print("\n".join(lines()))
