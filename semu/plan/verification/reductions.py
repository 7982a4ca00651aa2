"""Checks of pipelines that share a batch: which microbatches they run, what their gradients weigh, how they are summed.

Reductions cannot deadlock: every rank takes part in its own behind its actions, in the order of the plan's list, and
waits for nothing else then.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from semu.errors import PlanError
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault

_TOLERANCE = 1e-12
"""Of weights, which are quotients of whole numbers."""


def holders_of(plan: ExecutionPlan) -> dict[tuple[str, int], tuple[int, ...]]:
    """(module, layer) -> chunks that hold it and train, pipeline after pipeline; in the order of backwards.

    Layer -1 is what runs before the module's first layer, one past the last is what runs behind it.
    """
    chains: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, chunk in enumerate(plan.chunks):
        if not chunk.repeats:
            chains[chunk.module, chunk.flow].append(number)
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for (module, _), chain in sorted(chains.items(), key=lambda item: item[0][1]):
        last = plan.chunks[chain[-1]]
        held = [(-1, chain[0]), (last.first_layer + last.num_layers, chain[-1])]
        for number in chain:
            first = plan.chunks[number].first_layer
            held += [(layer, number) for layer in range(first, first + plan.chunks[number].num_layers)]
        for layer, number in held:
            if plan.chunks[number].has_backward:
                found[module, layer].append(number)
    order = {module: place for place, module in enumerate(dict.fromkeys(chunk.module for chunk in plan.chunks))}
    keys = sorted(found, key=lambda key: (-order[key[0]], -key[1]))
    return {key: tuple(found[key]) for key in keys}


def check_reductions(plan: ExecutionPlan) -> None:
    """Pipelines that share a batch run microbatches of their own, weigh by their number, and sum every layer once.

    Raises:
        PlanError: the first that do not.
    """
    if not plan.weights and not plan.reductions:
        return
    _check_weights(plan)
    where, wanted = f"{plan.name}: reductions", holders_of(plan)
    seen = set()
    for number, one in enumerate(plan.reductions):
        key, ranks = (one.module, one.layer), [plan.chunks[chunk].rank for chunk in one.chunks]
        if key in seen or key not in wanted or set(one.chunks) != set(wanted[key]) or len(set(ranks)) < len(ranks):
            got = "once more" if key in seen else f"chunks {list(one.chunks)}"
            raise PlanError(
                f"gradients of {_name(*key)} are not summed once among all pipelines",
                fault=Fault.REDUCTION,
                where=f"{where}[{number}]",
                expected=f"chunks {list(wanted[key])}, once" if key in wanted else "a layer that is trained",
                got=got,
            )
        seen.add(key)
    _check_shards(plan, where)
    missing = [key for key in wanted if key not in seen]
    if missing:
        raise PlanError(
            f"gradients of {_name(*missing[0])} are never summed",
            fault=Fault.REDUCTION,
            where=where,
            expected=f"chunks {list(wanted[missing[0]])}",
        )


def shards_of_ranks(plan: ExecutionPlan) -> tuple[int, ...]:
    """Per pipeline rank, into how many shards it cuts its layers; 1 where nothing says it."""
    found = [1] * plan.num_ranks
    for one in plan.reductions:
        for chunk, count in zip(one.chunks, one.shards, strict=True):
            found[plan.chunks[chunk].rank] = count
    return tuple(found)


def _check_shards(plan: ExecutionPlan, where: str) -> None:
    """A stage cuts all its layers into as many shards."""
    cut: dict[int, int] = {}
    for number, one in enumerate(plan.reductions):
        for chunk, count in zip(one.chunks, one.shards, strict=True):
            rank = plan.chunks[chunk].rank
            if cut.setdefault(rank, count) != count:
                raise PlanError(
                    f"a stage cuts {_name(one.module, one.layer)} otherwise than its other layers",
                    fault=Fault.REDUCTION,
                    where=f"{where}[{number}].shards",
                    expected=f"{cut[rank]} for chunk {chunk}, on rank {rank}",
                    got=count,
                )


def _check_weights(plan: ExecutionPlan) -> None:
    flow = np.array([chunk.flow for chunk in plan.chunks])[plan.pairs.chunk]
    run = np.unique(np.stack((flow, plan.pairs.microbatch.astype(np.int64)), axis=1), axis=0)
    times = np.bincount(run[:, 1], minlength=plan.num_microbatches)
    if np.any(times > 1):
        number = int(np.argmax(times > 1))
        raise PlanError(
            f"two pipelines run microbatch {number}",
            fault=Fault.WEIGHTS,
            where="pairs.microbatch",
            expected="one",
            got=run[run[:, 1] == number, 0].tolist(),
        )
    shares = np.bincount(run[:, 0], minlength=len(plan.weights)) / plan.num_microbatches
    wrong = np.flatnonzero(np.abs(shares - np.array(plan.weights)) > _TOLERANCE) if plan.weights else np.arange(1)
    if len(wrong):
        at = int(wrong[0])
        raise PlanError(
            "a weight that is not the pipeline's share of the samples",
            fault=Fault.WEIGHTS,
            where=f"weights[{at}]",
            expected=f"{shares[at]:.12g}",
            got=plan.weights[at] if plan.weights else "none",
        )


def _name(module: str, layer: int) -> str:
    return f"what runs before {module}'s layers" if layer < 0 else f"{module}, layer {layer}"
