"""``layer_rows``: what every layer of a model costs, forward, backward and recomputed: what its stages were cut by."""

from __future__ import annotations

from dataclasses import field
from itertools import groupby

from semu.compile.tracer import Block
from semu.costs.evaluation import CostedJob
from semu.costs.layer_times import recompute_times, template_times
from semu.present.report_data import LayerRow
from semu.records import dataclass


@dataclass
class _Place:
    """A layer of the model: its modality module, its block, and the ranks that hold it."""

    module: str
    block: Block
    ranks: list[int] = field(default_factory=list)


def layer_rows(costed: CostedJob) -> tuple[LayerRow, ...]:
    """A row for every run of equal layers, in the order of data flow."""
    layout, evaluation = costed.layout, costed.evaluation
    places: dict[str, _Place] = {}
    for chunk in layout.chunks:
        for block in chunk.blocks:
            place = places.setdefault(block.path, _Place(chunk.module, block))
            place.ranks.append(chunk.chunk.rank)
    of = layout.library, evaluation.shapes, evaluation.by_shape
    used = sorted({place.block.template for place in places.values()})
    times = template_times(*of, serial=not costed.job.overlaps_tensor_parallel, numbers=used)
    again = recompute_times(*of, times)
    rows = []
    for (module, template, state), group in groupby(places.values(), _kind):
        alike = list(group)
        rows.append(
            LayerRow(
                module=module,
                first=alike[0].block.path,
                last=alike[-1].block.path,
                layers=len(alike),
                ranks=tuple(sorted({rank for place in alike for rank in place.ranks})),
                state=state,
                forward_s=float(times.forward[template]),
                backward_s=float(times.backward[template]),
                recompute_s=float(again[template]),
            )
        )
    return tuple(rows)


def _kind(place: _Place) -> tuple[str, int, str]:
    return place.module, place.block.template, _state(place.block)


def _state(block: Block) -> str:
    """Whether the parameters of a layer are trained."""
    trained = {held.parameter.requires_grad for held in block.parameters}
    return {0: "no parameters", 1: "trained" if True in trained else "frozen", 2: "partly trained"}[len(trained)]
