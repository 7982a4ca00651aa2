"""``DrawnFailures``: failures of nodes, drawn; ``draw_events``."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.resilience.events import US_PER_S, NodeChange, NodeEvents, to_us


@dataclass(frozen=True)
class DrawnFailures:
    """Failures of nodes that are alike.

    Attributes:
        node_mtbf_s: mean time between failures of a node [s]. shape: of Weibull's distribution of the times between a
            node's failures; 1: Poisson's process.
        rack_nodes: consecutive nodes that share a rack; 0: none do. rack_share: of the events, those that take all the
            nodes of a rack, at a rate that leaves a node's mean time as it is.
        repair_s: until a node is back [s]; None: never. notice_s: said before [s].
    """

    node_mtbf_s: float
    shape: float = 1.0
    rack_nodes: int = 0
    rack_share: float = 0.0
    repair_s: float | None = 0.0
    notice_s: float = 0.0


def draw_events(source: DrawnFailures, nodes: int, end_s: float, seed: int) -> NodeEvents:
    """Failures and repairs of nodes until a time.

    Args:
        source: what is drawn. nodes: how many. end_s: no event is later [s]. seed: same seed, same events.
    Returns:
        The events, in order of time. A failure of a node that is down is left out, as a node that is down cannot fail.
    """
    random = np.random.default_rng(np.random.SeedSequence((seed, nodes)))
    members = max(1, min(source.rack_nodes, nodes))
    share = source.rack_share if members > 1 else 0.0
    # a node fails by itself or with its rack: rate = rate_alone + rate_of_its_rack, of whose events a share are racks'
    alone = (1.0 - share) / (1.0 - share + share * members) / source.node_mtbf_s
    times, who = _renewals(random, nodes, 1.0 / alone if alone > 0 else math.inf, source.shape, end_s)
    if share > 0:
        racks = -(-nodes // members)
        at, rack = _renewals(random, racks, 1.0 / (1.0 / source.node_mtbf_s - alone), source.shape, end_s)
        within = (rack[:, None] * members + np.arange(members)).ravel()
        repeated = np.repeat(at, members)
        times, who = np.concatenate((times, repeated[within < nodes])), np.concatenate((who, within[within < nodes]))
    order = np.lexsort((who, times))
    return _with_repairs(times[order], who[order], source, to_us(end_s))


def _renewals(
    random: np.random.Generator, count: int, mean_s: float, shape: float, end_s: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Times [us] before the end, and numbers, of what many equal processes that renew themselves bring about."""
    if not math.isfinite(mean_s):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if shape == 1.0:  # all processes together are one of Poisson
        number = random.poisson(count * end_s / mean_s)
        times = np.sort(random.random(number)) * end_s
        return (times * US_PER_S).astype(np.int64), random.integers(0, count, number)
    scale = mean_s / math.gamma(1.0 + 1.0 / shape)
    now = np.zeros(count)
    # a process begins at a random moment of its life, long after it was new: it is let run in for ten lives
    now -= 10.0 * mean_s * (1.0 + random.random(count))
    alive = np.arange(count)
    found_times, found = [], []
    while len(alive):
        now[alive] += scale * random.weibull(shape, len(alive))
        alive = alive[now[alive] < end_s]
        seen = alive[now[alive] >= 0.0]
        found_times.append(now[seen].copy())
        found.append(seen)
    return (np.concatenate(found_times) * US_PER_S).astype(np.int64), np.concatenate(found).astype(np.int64)


def _with_repairs(times: NDArray[np.int64], nodes: NDArray[np.int64], source: DrawnFailures, end_us: int) -> NodeEvents:
    """Failures with the notice and the repair of each; those of nodes that are down are left out."""
    notice = to_us(source.notice_s)
    count = len(times)
    failures = np.stack((times, nodes, np.full(count, NodeChange.FAIL.value), np.full(count, notice)), axis=1).astype(
        np.int64
    )
    if source.repair_s == 0.0:
        rows = np.repeat(failures, 2, axis=0)
        rows[1::2, 2], rows[1::2, 3] = NodeChange.JOIN.value, 0
        if len(times) > 1 and (times[1:] == times[:-1]).any():  # a rack's nodes go together, then come
            rows = rows[np.lexsort((rows[:, 2], rows[:, 0]))]
        return NodeEvents(rows)
    repair = end_us + 1 if source.repair_s is None else to_us(source.repair_s)
    back: dict[int, int] = {}
    kept = np.zeros(count, dtype=bool)
    for k, (time, node) in enumerate(zip(times.tolist(), nodes.tolist(), strict=True)):
        if back.get(node, -1) <= time:
            kept[k] = True
            back[node] = time + repair
    failures = failures[kept]
    joins = failures.copy()
    joins[:, 0] += repair
    joins[:, 2], joins[:, 3] = NodeChange.JOIN.value, 0
    rows = np.concatenate((failures, joins[joins[:, 0] < end_us]))
    return NodeEvents(rows[np.lexsort((rows[:, 1], 1 - rows[:, 2], rows[:, 0]))])
