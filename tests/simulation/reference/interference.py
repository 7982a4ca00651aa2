"""What kernels lose to hidden data-parallel collectives, for the slow reference: walked through by operator."""

from __future__ import annotations

import itertools
from dataclasses import replace

from simulation.reference.costs import on_grid
from simulation.reference.expansion import Expansion, Replica, StageName

STREAMS = ("dp", "fsdp", "hsdp", "edp", "efsdp")


def lost_s(expansion: Expansion, rank: int, spans: list[tuple[float, float]], gathered_s: float | list[float]) -> float:
    """Loss [s] of a rank on the replica where most hides.

    Args:
        spans: (start, end) of the rank's gradient collectives after stages.
        gathered_s: of its overlapped gathers, of every replica or of each.
    """
    share = expansion.model.job.profile.interference
    job, model = expansion.model.job, expansion.model
    widest = max(job.parallel.tp // model.sizes[block.module].tp for block in model.blocks if block.rank == rank)
    if share == 0 or job.parallel.dp * job.parallel.cp * widest * (1 + model.blocks[-1].flow) == 1:
        return 0.0
    found, inside = [], expansion
    if job.training.launches:  # what hides inside stages is counted as if hosts were never late
        from simulation.reference.expansion import expand

        unlaunched = replace(job, training=replace(job.training, launch=False))
        inside = expand(unlaunched, orders=expansion.replicas[0].orders)
    for number, replica in enumerate(expansion.replicas):
        done = max((replica.span(stage)[1] for stage in replica.orders[rank]), default=0.0)
        hidden = max(sum(_hidden_in(inside.replicas[number], stage) for stage in replica.orders[rank]), 0.0)
        hidden += sum((end - start) - max(end - max(start, done), 0.0) for start, end in spans)
        found.append(hidden + (gathered_s if isinstance(gathered_s, float) else gathered_s[number]))
    return on_grid(share * max(found))


def _hidden_in(replica: Replica, stage: StageName) -> float:
    """Time [s] of a stage's data-parallel collectives less what kernels waited for them."""
    nodes = [replica.nodes[entry.key] for entry in replica.operators[stage]]
    if all(earlier.end_s <= later.start_s for earlier, later in itertools.pairwise(nodes)):
        return 0.0  # nothing runs beside anything
    total = waited = 0.0
    free, end = replica.span(stage)
    last = ("compute", free)
    for entry in replica.operators[stage]:
        node, name = replica.nodes[entry.key], entry.operator.stream.name
        if name in STREAMS:
            total += node.latency_s
        if name == "compute":
            if node.start_s > free and _stream_of(replica, stage, node.after, node.start_s) in STREAMS:
                waited += node.start_s - free
            free = node.end_s
        if node.end_s > last[1]:
            last = (name, node.end_s)
    if last[0] in STREAMS:
        waited += end - free
    return total - waited


def _stream_of(replica: Replica, stage: StageName, keys: list[tuple[object, ...]], moment: float) -> str:
    """Stream of the predecessor that ended at a moment."""
    names = {entry.key: entry.operator.stream.name for entry in replica.operators[stage]}
    return next((names[key] for key in keys if key in names and replica.nodes[key].end_s == moment), "compute")
