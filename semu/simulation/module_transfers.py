"""Transfers between modules on GPUs of their own: which GPU sends which part to which, and what ports and cards carry.

A module's tokens lie on the GPUs of a pipeline rank in parts (``ModuleSetting.parts``). Parts travel whole: every GPU
of the next module gets equally many of them, as few as that goes, and GPUs that hold the same part send it in turn to
those that want it. Gradients go back alike. Messages that cross the same network card at once share it.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from semu.compile.layout import Layout
from semu.compile.module_sharding import ModuleSetting, PortLoad, port_loads
from semu.hardware.device import Direction

Card = tuple[int, Direction]
"""A network card of the cluster, one way."""


class CardLoads(NamedTuple):
    """What a transfer between two chunks sends over network cards that GPUs share, in parts.

    Attributes:
        by_replica: per data-parallel replica, card -> parts.
        fullest: over one card, of all replicas: their equal stages send at once.
        slower: how many times longer the transfer takes than the busiest GPU would with its even share of a card; no
            GPU sends faster than its PCIe.
        share: of the fullest card, what the transfer takes of it.
    """

    by_replica: tuple[Counter[Card], ...]
    fullest: int
    slower: float
    share: float


def messages(giver: ModuleSetting, taker: ModuleSetting, *, is_gradient: bool) -> list[tuple[int, int]]:
    """(GPU that sends, GPU that gets) of every part, numbered within their pipeline ranks.

    Args:
        giver, taker: modules in the order of the data flow, also where gradients go back.
    """
    ranks = math.gcd(giver.parts, taker.width)
    each, alike, same = giver.parts // ranks, giver.width // giver.parts, taker.width // ranks
    turns: Counter[int] = Counter()
    found: list[tuple[int, int]] = []
    wanted = range(giver.width) if is_gradient else [n for t in range(taker.width) for n in _parts(t // same, each)]
    for number, item in enumerate(wanted):
        holders, receiver = (item // alike // each, item) if is_gradient else (item, number // each)
        count = same if is_gradient else alike
        found.append((holders * count + turns[holders] % count, receiver))
        turns[holders] += 1
    return found


def _parts(number: int, each: int) -> range:
    """The parts that a GPU of the taker holds."""
    return range(number * each, (number + 1) * each)


_ALIKE = PortLoad(Fraction(1), Fraction(1))


def port_load(layout: Layout, source: int, target: int, *, is_gradient: bool) -> PortLoad:
    """What a transfer between two chunks moves, in units of what one rank gets (or gives, of a gradient)."""
    if not layout.job.parallel.has_own_gpus:
        return _ALIKE
    given, taken = _modules(layout, source, target, is_gradient=is_gradient)
    if given == taken:
        return _ALIKE
    return port_loads(*(ModuleSetting.of(name, layout.mesh) for name in (given, taken)))[is_gradient]


def card_loads(layout: Layout, source: int, target: int, *, is_gradient: bool) -> CardLoads | None:
    """What a transfer sends over shared network cards; None: every GPU has its card, or no part leaves its node.

    Args:
        source, target: chunks that send and get.
    """
    job, mesh, cluster = layout.job, layout.mesh, layout.job.cluster
    if not (job.parallel.has_own_gpus and cluster.shares_cards):
        return None
    names = _modules(layout, source, target, is_gradient=is_gradient)
    sent = messages(*(ModuleSetting.of(name, mesh) for name in names), is_gradient=is_gradient)
    ports = Counter(gpu for gpu, _ in sent), Counter(gpu for _, gpu in sent)
    ranks = [layout.chunks[chunk].chunk.rank for chunk in (source, target)]
    found = []
    for dp in range(job.parallel.dp):
        first, begin = (mesh.rank(pp=rank, dp=dp) for rank in ranks)
        pairs = [(first + gpu, begin + other) for gpu, other in sent]
        away = [pair for pair in pairs if pair[0] // cluster.island != pair[1] // cluster.island]
        cards = Counter((cluster.card_of(gpu), Direction.OUT) for gpu, _ in away)
        found.append(cards + Counter((cluster.card_of(gpu), Direction.IN) for _, gpu in away))
    fullest = max(sum(found, Counter[Card]()).values(), default=0)
    if not fullest:
        return None
    busiest = max(count for own in ports for count in own.values())
    alone = float(Fraction(fullest, busiest) * cluster.card_share)
    slower = max(alone, job.profile.nic_bytes_per_s.value / job.profile.pcie_bytes_per_s.value)
    return CardLoads(tuple(found), fullest, slower, alone / slower)


def _modules(layout: Layout, source: int, target: int, *, is_gradient: bool) -> tuple[str, str]:
    """The modules of two chunks in the order of the data flow."""
    ends = (target, source) if is_gradient else (source, target)
    return layout.chunks[ends[0]].module, layout.chunks[ends[1]].module
