"""``split_stage_program``: a backward stage as two, the input gradients (I) and the weight gradients (W).

To W belong the operators whose phase is weight gradient (products with a fused bias gradient or accumulation, tables of
embeddings, accumulation kernels), and collectives that fetch what only those read (sequence parallelism's second gather
of a linear's input, as the implementation of 2401.10241 does). Everything else is I: recomputation, and kernels that
make an input gradient and a parameter gradient at once (norms). What W reads stays allocated from I to W.
Transfers of parameters and gradients: ``split_exchanges``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.split_exchanges import exchanged_storages, place_exchanges
from semu.compile.stage import StageProgram, csr
from semu.graph.operator import Operator, Phase
from semu.hardware.kinds import OpKind
from semu.records import dataclass

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SplitStage:
    """The two parts of a backward stage; one of them may have no operators.

    Attributes:
        inputs, weights: I and W.
        is_weight: bool[num_ops], in which part each operator of the whole stage runs.
        place: int64[num_ops], its position there.
    """

    inputs: StageProgram
    weights: StageProgram
    is_weight: Bools
    place: NDArray[np.int64]


def split_stage_program(program: StageProgram, operators: Sequence[Operator], *, serial: bool) -> SplitStage:
    """Split a backward stage.

    Args:
        program: the stage. operators: those of the library, by row.
        serial: communication does not overlap: operators run one after another, whatever their streams.
    """
    own = [operators[row] for row in program.rows.tolist()]
    is_weight = _weight_operators(program, own)
    touches = place_exchanges(program, own, is_weight)
    aside = np.array([op.kind is OpKind.P2P for op in own], dtype=np.bool_)
    if len(program.is_exchange):
        aside |= program.is_exchange
    touched = _touched(program, touches, ~is_weight), _touched(program, touches, is_weight)
    known = program.alive_before | touched[0]
    left = np.zeros(len(program.storage), dtype=np.bool_)
    left[np.isin(program.storage, [s for s in program.leaving_storage if s >= 0])] = True
    kept = set(program.storage[left & touched[1]].tolist())
    unread = program.alive_before & ~touched[0] & ~touched[1] & ~program.alive_after
    inputs = _part(
        program,
        _predecessors(program, ~is_weight, aside, serial=serial),
        ~is_weight,
        touches,
        used=touched[0] | unread,
        before=program.alive_before,
        after=known & (program.alive_after | touched[1]),
        kept=kept,
        carries=True,
    )
    weights = _part(
        program,
        _predecessors(program, is_weight, aside, serial=serial),
        is_weight,
        touches,
        used=touched[1],
        before=known,
        after=program.alive_after & ~left,
        kept=set(),
        carries=False,
    )
    place = np.where(is_weight, np.cumsum(is_weight), np.cumsum(~is_weight)) - 1
    return SplitStage(inputs, weights, is_weight, place.astype(np.int64))


def _touched(program: StageProgram, touches: Sequence[Sequence[int]], chosen: Bools) -> Bools:
    """Storages that any of the chosen operators touches."""
    result = np.zeros(len(program.storage), dtype=np.bool_)
    result[[storage for op in np.flatnonzero(chosen).tolist() for storage in touches[op]]] = True
    return result


def _weight_operators(program: StageProgram, operators: Sequence[Operator]) -> Bools:
    """Which operators belong to W."""
    chosen = np.array([op.phase is Phase.WEIGHT_GRADIENT for op in operators], dtype=np.bool_)
    if not chosen.any():
        return chosen
    of_touch = np.repeat(np.arange(program.num_ops), np.diff(program.touch_ptr))
    first = np.full(len(program.storage), program.num_ops)
    np.minimum.at(first, program.touch, of_touch)
    made = ~program.alive_before & (first < program.num_ops)
    for moved in exchanged_storages(program, operators) if len(program.is_exchange) else ():
        made &= ~moved
    for number in range(program.num_ops - 1, -1, -1):  # who made what a kernel of I reads is of I
        mine = made & (first == number)
        if not mine.any():
            continue
        others = of_touch[mine[program.touch]]
        others = others[others != number]
        if chosen[number]:
            chosen[number] = bool(chosen[others].all())
        elif operators[number].kind.is_communication and operators[number].phase is Phase.INPUT_GRADIENT:
            survives = bool((mine & program.alive_after).any())
            chosen[number] = len(others) > 0 and bool(chosen[others].all()) and not survives
    return chosen


def _predecessors(program: StageProgram, chosen: Bools, aside: Bools, *, serial: bool) -> list[list[int]]:
    """Of each chosen operator, the chosen ones that it waits for beside the one before it on its stream.

    An operator beside the others (a transfer of a ring, of parameters or gradients) that waited for a kernel of the
    other part waits for the kernel before that.
    """
    result: list[list[int]] = []
    latest = -1
    last_on: list[int] = []
    on_stream: dict[int, int] = {}
    for number in range(program.num_ops):
        stream = int(program.stream[number])
        if chosen[number]:
            explicit = program.pred[program.pred_ptr[number] : program.pred_ptr[number + 1]].tolist()
            found = [p for p in explicit if chosen[p]]
            if aside[number]:
                found += [last_on[p] for p in explicit if not chosen[p] and last_on[p] >= 0]
            elif serial and latest >= 0 and program.stream[latest] != stream:
                found.append(latest)
            result.append(list(dict.fromkeys(found)))
            if not aside[number]:
                latest = on_stream[stream] = number
        last_on.append(on_stream.get(stream, -1))
    return result


def _part(
    program: StageProgram,
    preds: Sequence[Sequence[int]],
    chosen: Bools,
    touches: Sequence[Sequence[int]],
    *,
    used: Bools,
    before: Bools,
    after: Bools,
    kept: set[int],
    carries: bool,
) -> StageProgram:
    """Some operators of a stage as a stage.

    Args:
        preds: of each chosen operator, in the numbers of the whole stage. touches: of every operator.
        used: storages of the part.
        before, after: storages that exist before it, and survive it. kept: leaving storages that survive sending.
        carries: gradients arrive and leave.
    """
    number = np.cumsum(chosen) - 1
    local = np.cumsum(used) - 1
    pred_ptr, pred = csr(preds)
    touch_ptr, touch = csr([touches[op] for op in np.flatnonzero(chosen).tolist()])
    return StageProgram(
        rows=program.rows[chosen],
        block=program.block[chosen],
        pred_ptr=pred_ptr,
        pred=number[pred].astype(np.int32),
        stream=program.stream[chosen],
        touch_ptr=touch_ptr,
        touch=local[touch].astype(np.int32),
        size_row=program.size_row[used],
        role=program.role[used],
        alive_before=before[used],
        alive_after=after[used],
        arriving=program.arriving if carries else (),
        leaving=program.leaving if carries else (),
        leaving_kept=tuple(s in kept for s in program.leaving_storage) if carries else (),
        num_streams=program.num_streams,
        storage=program.storage[used],
        arriving_storage=program.arriving_storage if carries else (),
        leaving_storage=program.leaving_storage if carries else (),
        is_exchange=program.is_exchange[chosen] if len(program.is_exchange) else program.is_exchange,
    )


def empty_stage(num_streams: int) -> StageProgram:
    """A stage in which nothing happens."""
    none = np.zeros(0, dtype=np.int32)
    no = np.zeros(0, dtype=np.bool_)
    zero = np.zeros(1, dtype=np.int32)
    return StageProgram(
        rows=none,
        block=none,
        pred_ptr=zero,
        pred=none,
        stream=none,
        touch_ptr=zero,
        touch=none,
        size_row=none,
        role=none,
        alive_before=no,
        alive_after=no,
        num_streams=num_streams,
    )
