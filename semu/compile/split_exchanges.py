"""``place_exchanges``: where the transfers of parameters and gradients inside a backward stage go when it is split.

No product of W reads a parameter (its operands are the input and the output's gradient), so what a block's backward
gathers, or copies from the host, is I's and goes with the block's last operator there; of a block without I (a table of
embeddings) it is W's. Gradients are reduced in the part with the last operator that writes any of them; what I writes
of those that W reduces (of norms: some KB) counts from W's first writer on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES, StageProgram
from semu.graph.operator import Operator, Phase
from semu.graph.tensor import Role
from semu.hardware.device import HOST_COPIES

Bools = NDArray[np.bool_]
_PARAMETER = ROLES.index(Role.PARAMETER)


def storages_of(program: StageProgram) -> list[list[int]]:
    """The storages that each operator touches."""
    bounds = program.touch_ptr.tolist()
    touch = program.touch.tolist()
    return [touch[first:stop] for first, stop in itertools.pairwise(bounds)]


def exchanged_storages(program: StageProgram, operators: Sequence[Operator]) -> tuple[Bools, Bools]:
    """Gathered or copied parameters; unsharded gradients: bool[num_storages] each.

    Args:
        program: a backward stage. operators: its own, in order.
    """
    parameters = program.role == _PARAMETER
    gradients = np.zeros(len(program.storage), dtype=np.bool_)
    for number, touched in enumerate(storages_of(program)):
        if operators[number].phase is Phase.REDUCTION:
            gradients[touched] = True
    return parameters, gradients


def place_exchanges(program: StageProgram, operators: Sequence[Operator], is_weight: Bools) -> list[list[int]]:
    """Put every transfer into a part.

    Args:
        program: a backward stage. operators: its own, in order.
        is_weight: bool[num_ops], part of each operator; of the transfers, written.
    Returns:
        The storages that each operator touches, as a part of the backward.
    """
    touches = storages_of(program)
    if not len(program.is_exchange) or not (program.is_exchange.any() or (program.role == _PARAMETER).any()):
        return touches
    moves = program.is_exchange.tolist()
    users: dict[int, list[int]] = {}
    for number, touched in enumerate(touches):
        for storage in touched:
            users.setdefault(storage, []).append(number)
    parameters, gradients = exchanged_storages(program, operators)
    ends = _block_ends(program, operators, ~is_weight)
    alone = []
    for storage in np.flatnonzero(parameters).tolist():
        served = [op for op in users.get(storage, []) if not moves[op]]
        movers = [op for op in users.get(storage, []) if moves[op]]
        if not served:
            alone.append(movers)
            continue
        last = [op for block in sorted({int(program.block[op]) for op in served}) for op in ends.get(block, ())]
        is_weight[movers] = not last
        if last:
            for op in served:
                touches[op].remove(storage)
            for op in last:
                touches[op].append(storage)
    for movers in alone:  # a shard comes from the host where it is gathered: the last of them
        is_weight[movers] = is_weight[movers[-1]]
    for storage in np.flatnonzero(gradients).tolist():
        writers = [op for op in users[storage] if not moves[op]]
        late = bool(is_weight[writers].any())
        is_weight[[op for op in users[storage] if moves[op]]] = late
        for op in writers if late else ():
            if not is_weight[op]:
                touches[op].remove(storage)
    for number, touched in enumerate(touches):
        if moves[number] and not touched:  # an all-reduce of shards follows the reduction that made them
            is_weight[number] = is_weight[program.pred[program.pred_ptr[number]]]
    return touches


def _block_ends(program: StageProgram, operators: Sequence[Operator], chosen: Bools) -> dict[int, list[int]]:
    """Of every block, the last of its chosen operators on each stream but those of copies to and from the host."""
    found: dict[int, dict[int, int]] = {}
    for number in np.flatnonzero(chosen & ~program.is_exchange).tolist():
        if operators[number].stream.name not in HOST_COPIES:
            found.setdefault(int(program.block[number]), {})[int(program.stream[number])] = number
    return {block: [*own.values()] for block, own in found.items()}
