"""Checks of a plan's tables, before those of its actions: chunks, pairs and their items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.errors import PlanError
from semu.plan.action import ActionKind
from semu.plan.columns import ActionColumns, stage_name
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault

I64 = NDArray[np.int64]


def check_pairs(plan: ExecutionPlan) -> None:
    """Every part of a microbatch runs every layer of its module once (and those of each encoder that is repeated), and
    its items belong to no other part.

    Raises:
        PlanError: layers or items that are run twice, or not at all.
    """
    pairs, chunks = plan.pairs, plan.chunks
    if not len(pairs.chunk):
        raise PlanError("a plan without stages", fault=Fault.STAGE_MISSING, where="pairs", expected="stage pairs")
    runs = [(c.module, number if c.repeats else -1) for number, c in enumerate(chunks)]
    names = {run: number for number, run in enumerate(dict.fromkeys(runs))}
    module_of = np.array([names[run] for run in runs])
    first_of, count_of = (np.array([getattr(c, name) for c in chunks]) for name in ("first_layer", "num_layers"))
    module, first = module_of[pairs.chunk], first_of[pairs.chunk]
    end = first + count_of[pairs.chunk]
    there = sorted_distinct(pairs.microbatch)
    if len(there) < plan.num_microbatches:
        missing = int(np.argmax(np.append(there, -1) != np.arange(len(there) + 1)))
        raise PlanError(
            f"nothing runs microbatch {missing}", fault=Fault.STAGE_MISSING, where="pairs", expected="its stages"
        )
    order = np.lexsort((pairs.chunk, first, pairs.part, pairs.microbatch, module))
    key = np.stack((module, pairs.microbatch, pairs.part), 1)[order]
    begins = np.append(True, np.any(key[1:] != key[:-1], axis=1))
    ends = np.append(begins[1:], True)
    first, end = first[order], end[order]
    bottom, top = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), dtype=np.int64)
    np.minimum.at(bottom, module_of, first_of)
    np.maximum.at(top, module_of, first_of + count_of)
    before = np.where(begins, bottom[key[:, 0]], np.append(0, end[:-1]))
    wrong = np.flatnonzero((first != before) | (ends & (end != top[key[:, 0]])))
    if len(wrong):
        at = int(wrong[0])
        name, pair = list(names)[key[at, 0]][0], int(order[at])
        late = first[at] == before[at]
        raise PlanError(
            f"microbatch {key[at, 1]}, part {key[at, 2]} does not run every layer of {name} once",
            fault=Fault.LAYERS,
            where=f"pairs[{pair}], {stage_name(plan, pair, ActionKind.FORWARD_STAGE)}",
            expected=f"layers up to {top[key[at, 0]]}" if late else f"layers from {before[at]} on",
            got=f"layers {first[at]} to {end[at]}",
        )
    _check_items(plan, order, key, begins, [name for name, _ in names])


def _check_items(plan: ExecutionPlan, order: I64, key: I64, begins: NDArray[np.bool_], names: Sequence[str]) -> None:
    """``order``: pairs by module, microbatch, part and layers; ``key``: int64[n, 3], these; ``begins``: of parts."""
    items = plan.pairs.items[:, order].astype(np.int64)
    owner = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    differs = np.any(items != items[:, owner], axis=2)
    own, parts = items[:, begins], key[begins]
    heads = np.append(True, np.any(parts[1:, :2] != parts[:-1, :2], axis=1))
    number = np.cumsum(heads) - 1
    place = np.arange(len(parts)) - np.flatnonzero(heads)[number]
    if np.any(place != parts[:, 2]):
        at = int(np.flatnonzero(place != parts[:, 2])[0])
        raise PlanError(
            f"parts of microbatch {parts[at, 1]} of {names[parts[at, 0]]} are not numbered from 0 on",
            fault=Fault.ITEMS,
            where="pairs.part",
            expected=str(place[at]),
            got=int(parts[at, 2]),
        )
    length = own[:, :, 1] - own[:, :, 0]
    total = np.cumsum(length, axis=1) - length
    expected = total - total[:, np.flatnonzero(heads)[number]]
    wrong = np.zeros(items.shape[:2], dtype=np.bool_)
    nothing = (length == 0) & (own[:, :, 0] == 0)
    wrong[:, begins] = (length < 0) | ((own[:, :, 0] != expected) & ~nothing)
    for bad, words in ((wrong, "items that no part has, or two"), (differs, "chunks of a module with other items")):
        if np.any(bad):
            replica, at = (int(number[0]) for number in np.nonzero(bad))
            pair = int(order[at])
            spot = expected[replica, np.cumsum(begins)[at] - 1]
            raise PlanError(
                f"{words}: microbatch {key[at, 1]} of {names[key[at, 0]]}, replica {replica}",
                fault=Fault.ITEMS,
                where=f"pairs[{pair}], {stage_name(plan, pair, ActionKind.FORWARD_STAGE)}",
                expected=f"items from {spot} on" if bad is wrong else str(tuple(items[replica, owner[at]].tolist())),
                got=tuple(items[replica, at].tolist()),
            )


def refuse_actions(
    columns: ActionColumns, bad: NDArray[np.integer], fault: Fault, message: str, expected: str | None = None
) -> None:
    """Refuse the first bad action, where there is one.

    Args:
        bad: int64[any], places of bad actions among all. message: what is wrong with it. expected: instead.
    Raises:
        PlanError: rank, action and its words are named.
    """
    if not len(bad):
        return
    action = int(bad.min())
    rank, place = columns.locate(action)
    raise PlanError(
        message,
        fault=fault,
        rank=rank,
        action=place,
        where=f"{columns.plan.name}: rank {rank}, action {place}",
        expected=expected,
        got=columns.words(action),
    )


def repeated(keys: I64) -> NDArray[np.bool_]:
    """bool[n], keys that were there before."""
    again = np.ones(len(keys), dtype=np.bool_)
    again[np.unique(keys, return_index=True)[1]] = False
    return again
