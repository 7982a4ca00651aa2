"""``GpuWork``: the kernels of one iteration on one GPU, measured or simulated; ``busy_times`` adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import RankTimeline
from semu.fitting.kernel_names import FAMILY_OF_KIND, Family
from semu.validation.traces.intervals import length_s, overlap_s, union

FAMILIES = tuple(Family)
_CODES = {family: code for code, family in enumerate(FAMILIES)}


@dataclass(frozen=True)
class GpuWork:
    """Kernels, collectives and copies of one iteration.

    Attributes:
        start_s, end_s: float64[n] [s]. families: int64[n], positions in ``FAMILIES``.
        names: of each kernel; empty where they are not needed.
        iteration_s: length of the iteration [s].
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    families: NDArray[np.int64]
    iteration_s: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class FamilyTime:
    """Work of one family.

    Attributes:
        busy_s: sum of the kernels' durations [s]. count: kernels.
        exposed_s: of communication, time beside which no kernel computes [s]; None: it is no communication.
    """

    busy_s: float = 0.0
    count: int = 0
    exposed_s: float | None = None


@dataclass(frozen=True)
class BusyTimes:
    """An iteration in sums [s].

    Attributes:
        iteration_s: all of it. compute_s: some kernel computes. communication_s: some communication runs.
        overlapped_s: both. families: see ``FamilyTime``; those without kernels are left out.
    """

    iteration_s: float
    compute_s: float
    communication_s: float
    overlapped_s: float
    families: Mapping[Family, FamilyTime]

    @property
    def exposed_s(self) -> float:
        """Communication runs and no kernel computes."""
        return self.communication_s - self.overlapped_s

    @property
    def idle_s(self) -> float:
        """Neither computes nor communicates."""
        return self.iteration_s - self.compute_s - self.exposed_s


def busy_times(work: GpuWork) -> BusyTimes:
    """Add up the kernels."""
    duration = work.end_s - work.start_s
    is_compute = np.array([family.is_compute for family in FAMILIES])[work.families]
    is_communication = np.array([family.is_communication for family in FAMILIES])[work.families]
    compute = union(work.start_s[is_compute], work.end_s[is_compute])
    communication = union(work.start_s[is_communication], work.end_s[is_communication])
    families = {}
    for code in np.unique(work.families).tolist():
        mine = work.families == code
        exposed = None
        if FAMILIES[code].is_communication:
            own = union(work.start_s[mine], work.end_s[mine])
            exposed = length_s(own) - overlap_s(own, compute)
        families[FAMILIES[code]] = FamilyTime(float(duration[mine].sum()), int(mine.sum()), exposed)
    return BusyTimes(
        iteration_s=work.iteration_s,
        compute_s=length_s(compute),
        communication_s=length_s(communication),
        overlapped_s=overlap_s(communication, compute),
        families=families,
    )


def family_codes(families: list[Family]) -> NDArray[np.int64]:
    """Families as ``GpuWork`` holds them: int64[n]."""
    return np.array([_CODES[family] for family in families], dtype=np.int64)


def simulated_work(rank: RankTimeline, iteration_s: float) -> GpuWork:
    """The operators of a simulated rank, those inside and outside stages."""
    starts = [np.array([piece.start_s for piece in rank.outer])]
    ends = [np.array([piece.end_s for piece in rank.outer])]
    codes = [family_codes([FAMILY_OF_KIND[piece.kind] for piece in rank.outer])]
    known: dict[int, NDArray[np.int64]] = {}
    tables = []
    for _, operators in rank.stage_operators():
        table = operators.table
        if id(table) not in known:
            tables.append(table)  # keeps the table alive, so that no other takes its id
            known[id(table)] = family_codes([FAMILY_OF_KIND[kind] for kind in table.kinds])
        starts.append(operators.start_s)
        ends.append(operators.end_s)
        codes.append(known[id(table)])
    return GpuWork(np.concatenate(starts), np.concatenate(ends), np.concatenate(codes), iteration_s)
