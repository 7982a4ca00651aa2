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
    """Raise all speeds together; whoever meets a full port stays behind."""
    speed = [Fraction(0)] * len(movers)
    rising = set(range(len(movers)))
    ports = {port for mover in movers for port in mover.ports}
    while rising:
        steps = [Fraction(1) - max(speed[i] for i in rising)]
        for port in ports:
            slope = sum((movers[i].ports.get(port, Fraction(0)) for i in rising), Fraction(0))
            if slope:
                used = sum((m.ports.get(port, Fraction(0)) * s for m, s in zip(movers, speed, strict=True)), Fraction(0))
                steps.append((1 - used) / slope)
        for i in rising:
            speed[i] += min(steps)
        used_of = {
            port: sum((m.ports.get(port, Fraction(0)) * s for m, s in zip(movers, speed, strict=True)), Fraction(0))
            for port in ports
        }
        rising = {i for i in rising if speed[i] < 1 and all(used_of[port] < 1 for port in movers[i].ports)}
    return speed


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
