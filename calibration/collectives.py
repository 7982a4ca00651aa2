"""Collectives under torchrun: every rank runs this, rank 0 writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from calibration.bench import DTYPES, Bench, CpuStopwatch, CudaStopwatch
from calibration.case import Case
from calibration.collective_cases import bus_factor, collective_cases, group_sizes
from calibration.table import COLLECTIVES, Table, Value, with_remarks
from calibration.timing import Call, time_calls


@dataclass(frozen=True)
class World:
    """The processes that torchrun started. rank, size, ranks_per_node: as it tells."""

    rank: int
    size: int
    ranks_per_node: int

    @classmethod
    def of_environment(cls) -> World:
        """Alone, where there is no torchrun."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        return cls(int(os.environ.get("RANK", "0")), size, int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))


class GroupStopwatch:
    """The slowest rank's time, the same number on every rank, so that all decide alike how often to repeat.

    Args:
        bench: this rank's device. group: the ranks.
    """

    def __init__(self, bench: Bench, group: Any) -> None:
        self._group = group
        self._time = torch.zeros(1, dtype=torch.float64, device=bench.device)
        self._token = torch.zeros(1, device=bench.device)
        kind = CudaStopwatch if bench.is_cuda else CpuStopwatch
        self._mine = kind(meet=lambda: dist.all_reduce(self._token, group=group))

    def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
        """See ``timing.Stopwatch``."""
        self._time.fill_(self._mine.round_s(calls, start, count))
        dist.all_reduce(self._time, op=dist.ReduceOp.MAX, group=self._group)
        return float(self._time.item())


def _build(bench: Bench, kind: str, count: int, ranks: int, dtype: str, group: Any) -> Call:
    """A call on new buffers; ``count`` elements as nccl-tests counts them (``SCHEMA.md``)."""
    whole = bench.random(count, dtype=dtype)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "send_recv":
        if dist.get_rank() == 0:
            return lambda: dist.send(whole, 1, group=group)
        return lambda: dist.recv(whole, 0, group=group)
    if kind == "alltoall":
        target = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(target, whole, group=group)
    part = bench.random(count // ranks, dtype=dtype)
    if kind == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name
        return lambda: gather(whole, part, group=group)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: scatter(part, whole, group=group)


def measure_collective(bench: Bench, case: Case, group: Any, dtype: str) -> dict[str, Value]:
    """A row of ``collectives.csv`` without ``source``; every rank of the group calls this."""
    kind, ranks = str(case.row["collective"]), int(str(case.row["ranks"]))
    count = int(str(case.row["bytes"])) // torch.empty(0, dtype=DTYPES[dtype]).element_size()
    count -= count % ranks
    calls = [_build(bench, kind, count, ranks, dtype, group) for _ in range(2)]
    timing = time_calls(GroupStopwatch(bench, group), calls, bench.policy)
    rate = int(str(case.row["bytes"])) / timing.median_s / 1e9
    return {
        "device": bench.name,
        **case.row,
        "time_us": timing.median_s * 1e6,
        "time_us_min": timing.min_s * 1e6,
        "algbw_gbps": rate,
        "busbw_gbps": rate * bus_factor(kind, ranks),
        "note": with_remarks(str(case.row["note"]), bench.policy.label, timing.note()),
    }


def measure_collectives(
    bench: Bench,
    world: World,
    table: Table | None,
    topology: str,
    progress: Callable[[str], None],
    *,
    quick: bool = False,
) -> list[str]:
    """Measure the rows that the table lacks.

    Args:
        bench: this rank's device. world: all ranks. table: rank 0's; None on the others. topology: for the column.
        progress: called with a line per row. quick: small sizes.
    Returns:
        What was skipped, with the reason.
    """
    dtype = "bf16" if bench.is_cuda else "fp32"
    groups = {size: dist.new_group(list(range(size))) for size in group_sizes(world.size, world.ranks_per_node)}
    cases = collective_cases(world.size, world.ranks_per_node, topology, dtype, quick=quick)
    todo: list[Any] = [
        case for case in cases if table is not None and not table.has({"device": bench.name, **case.row})
    ]
    count = [todo]
    dist.broadcast_object_list(count, src=0)
    skipped = []
    for number, case in enumerate(count[0], start=1):
        ranks = int(case.row["ranks"])
        if world.rank < ranks:
            try:
                row = measure_collective(bench, case, groups[ranks], dtype)
            except (RuntimeError, NotImplementedError, ValueError) as error:  # all ranks alike: nobody has it
                skipped.append(f"{COLLECTIVES.name}: {case.label()}: {str(error).splitlines()[0]}")
                progress(f"skipped {skipped[-1]}")
            else:
                if table is not None:
                    table.append(row)
                progress(f"{COLLECTIVES.name} {number}/{len(count[0])} {case.label()}: {row['time_us']:.4g} us")
        bench.clean()
        dist.barrier()
    return skipped
