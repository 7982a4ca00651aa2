"""``GpuWork``: kernels of a GPU, measured or simulated; ``busy_times`` adds them up, ``averaged`` divides the sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import RankTimeline
from semu.fitting.kernel_names import FAMILY_OF_KIND, Family, family_of
from semu.records import dataclass
from semu.validation.traces.gpu_trace import NamedKernels
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
        exposed_s: of communication, time beside which no kernel computes [s]; None: it is no communication, or when
            the kernels ran is not known.
    """

    busy_s: float = 0.0
    count: int = 0
    exposed_s: float | None = None


@dataclass(frozen=True)
class BusyTimes:
    """An iteration in sums [s]; None: when the kernels ran is not known.

    Attributes:
        iteration_s: all of it. compute_s: some kernel computes. communication_s: some communication runs.
        overlapped_s: both. families: see ``FamilyTime``; those without kernels are left out.
    """

    iteration_s: float | None
    compute_s: float | None
    communication_s: float | None
    overlapped_s: float | None
    families: Mapping[Family, FamilyTime]

    @property
    def exposed_s(self) -> float | None:
        """Communication runs and no kernel computes."""
        if self.communication_s is None or self.overlapped_s is None:
            return None
        return self.communication_s - self.overlapped_s

    @property
    def idle_s(self) -> float | None:
        """Neither computes nor communicates."""
        if self.iteration_s is None or self.compute_s is None or self.exposed_s is None:
            return None
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


def named_times(kernels: Iterable[NamedKernels]) -> BusyTimes:
    """Add up kernels of which only counts and total times are known."""
    families: dict[Family, FamilyTime] = {}
    for named in kernels:
        family = family_of(named.name)
        known = families.get(family, FamilyTime())
        families[family] = FamilyTime(known.busy_s + named.busy_s, known.count + named.count)
    return BusyTimes(None, None, None, None, families)


def averaged(times: Sequence[BusyTimes], parts: int) -> BusyTimes:
    """Sums of all of them, divided; counts to the nearest integer.

    Args:
        times: at least one. parts: number of iterations, GPUs or ranks that they hold together.
    """
    families = {}
    for family in dict.fromkeys(family for one in times for family in one.families):
        found = [one.families[family] for one in times if family in one.families]
        families[family] = FamilyTime(
            sum(one.busy_s for one in found) / parts,
            round(sum(one.count for one in found) / parts),
            _mean([one.exposed_s for one in found], parts),
        )
    return BusyTimes(
        _mean([one.iteration_s for one in times], parts),
        _mean([one.compute_s for one in times], parts),
        _mean([one.communication_s for one in times], parts),
        _mean([one.overlapped_s for one in times], parts),
        families,
    )


def _mean(values: Sequence[float | None], parts: int) -> float | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / parts if len(known) == len(values) else None


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
