"""What the picture of an assignment shows."""

from __future__ import annotations

import numpy as np

from semu.present.plots.assignment import AssignmentPicture
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.methods.in_order import deal_in_order


def assignment_picture(found: Assignment) -> AssignmentPicture:
    """Loads of all microbatches, by module, as assigned and in the order of the file."""
    plain = deal_in_order(found.problem)
    names = found.costs.modules
    before = np.stack([found.module_loads(name, plain) for name in names])
    after = np.stack([found.module_loads(name, found.dealt) for name in names])
    balance = ", ".join(f"{name} {value:.3f}" for name, value in found.balance.items())
    return AssignmentPicture(
        title=f"{len(found.ids):,} samples to {found.dp} replicas x {found.num_microbatches} microbatches",
        subtitle=f"{found.method}: {found.iteration_s:.4f} s an iteration; max/mean {balance}",
        modules=names,
        before=before,
        after=after,
        method=found.method,
    )
