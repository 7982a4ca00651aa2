"""Transfers that share ports, slowly: exact fractions, all speeds from scratch at every moment, no event queue.

Times are in steps of the time grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Mover:
    """What lasts ``fixed`` steps and then moves ``work`` steps' worth of bytes over ports.

    Attributes:
        ports: share of each port at full speed. after: (other, steps after its start, or None: at its end).
    """

    fixed: int
    work: int
    ports: Mapping[object, Fraction] = field(default_factory=dict)
    after: Sequence[tuple[int, int | None]] = ()
    start: int | None = None
    end: int | None = None
    left: int = 0
    since: int = 0
    speed: Fraction = Fraction(0)

    @property
    def arrival(self) -> int:
        """When it ends at this speed."""
        return self.since + round(self.left / self.speed)


def fair(movers: Sequence[Mover]) -> list[Fraction]:
    """Raise what all take of their most used port together; at full speed, or at a full port, they stay behind."""
    most = [max(mover.ports.values(), default=Fraction(1)) for mover in movers]
    taken = [Fraction(0)] * len(movers)
    rising = set(range(len(movers)))
    ports = {port for mover in movers for port in mover.ports}

    def used(port: object) -> Fraction:
        return sum(
            (m.ports.get(port, Fraction(0)) * t / d for m, t, d in zip(movers, taken, most, strict=True)), Fraction(0)
        )

    while rising:
        steps = [most[i] - taken[i] for i in rising]
        for port in ports:
            slope = sum((movers[i].ports.get(port, Fraction(0)) / most[i] for i in rising), Fraction(0))
            if slope:
                steps.append((1 - used(port)) / slope)
        for i in rising:
            taken[i] += min(steps)
        full = {port for port in ports if used(port) == 1}
        rising = {i for i in rising if taken[i] < most[i] and not full & set(movers[i].ports)}
    return [t / d for t, d in zip(taken, most, strict=True)]


def share(movers: Sequence[Mover]) -> list[tuple[int, int]]:
    """Start and end of everything."""
    behind: dict[int, list[int]] = {}
    for number, mover in enumerate(movers):
        for other, _ in mover.after:
            behind.setdefault(other, []).append(number)
    due = {number: 0 for number, mover in enumerate(movers) if not mover.after}
    active: set[int] = set()
    while due or active:
        now = min([*due.values(), *(_next(movers[number]) for number in active)])
        while changed := _step(movers, now, due, active):
            for number in {after for one in changed for after in behind.get(one, ()) if movers[after].start is None}:
                begins = _begins(movers, movers[number])
                if begins is not None:
                    due[number] = begins
        moving = [movers[number] for number in sorted(active) if movers[number].speed > 0]
        for mover, speed in zip(moving, fair(moving), strict=True):
            if speed != mover.speed:
                mover.left = max(round(mover.left - (now - mover.since) * mover.speed), 0)
                mover.since, mover.speed = now, speed
    return [(mover.start or 0, mover.end or 0) for mover in movers]


def _begins(movers: Sequence[Mover], mover: Mover) -> int | None:
    """When it may start; None: not known yet."""
    latest = 0
    for other, lag in mover.after:
        begin = movers[other].start if lag is not None else movers[other].end
        if begin is None:
            return None
        latest = max(latest, begin + (lag or 0))
    return latest


def _next(mover: Mover) -> int:
    """When something happens to what has started: it begins to move, or ends."""
    assert mover.start is not None
    return mover.arrival if mover.speed > 0 else mover.start + mover.fixed


def _step(movers: Sequence[Mover], now: int, due: dict[int, int], active: set[int]) -> set[int]:
    """Everything that begins, or ends, now; who did."""
    changed: set[int] = set()
    for number in [number for number in active if _next(movers[number]) == now]:
        mover = movers[number]
        changed.add(number)
        if mover.speed > 0:
            mover.end = now
            active.remove(number)
        else:
            mover.left, mover.since, mover.speed = mover.work, now, Fraction(1)
    for number in [number for number, time in due.items() if time == now]:
        mover = movers[number]
        changed.add(number)
        mover.start = now
        del due[number]
        if mover.work:
            active.add(number)
        else:
            mover.end = now + mover.fixed
    return changed
