"""``fastest_exchanges``: which exchange of keys suits every microbatch best (``ContextKind.AUTO``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from semu.compile.layout import Layout
from semu.costs.evaluation import BatchShapes, evaluate
from semu.costs.roofline import CostModel
from semu.nn.trace.sharding import EXCHANGES, ContextKind


def fastest_exchanges(
    layout: Layout,
    model: CostModel,
    shapes_of: Callable[[Sequence[ContextKind]], BatchShapes],
    microbatches: int,
) -> list[ContextKind]:
    """The exchange under which the stages of each microbatch take least time together; of equal ones the first.

    Args:
        layout: traced with all of them. model: of its library. shapes_of: exchange of every microbatch -> shapes.
        microbatches: how many, of all replicas.
    """
    seconds = []
    for kind in EXCHANGES:
        shapes = shapes_of([kind] * microbatches)
        chunks = evaluate(layout, shapes, model).chunks
        stages = [stage.latency for chunk in chunks for stage in (chunk.forward, chunk.backward) if stage is not None]
        of_shape = np.sum(stages, axis=0)
        seconds.append(of_shape[shapes.index.T.ravel()])
    return [EXCHANGES[best] for best in np.argmin(seconds, axis=0)]
