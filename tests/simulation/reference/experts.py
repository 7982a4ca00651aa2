"""Expert parallelism for the slow reference: who holds which experts, written out rank by rank, and rounded sizes."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.nn.routing import ExpertPlan, Routing
from semu.nn.trace.parameter_use import ParameterUse

Seat = tuple[int, int, int]
"""Expert data, expert and expert tensor coordinates of a GPU within its pipeline rank."""


class ExpertRanks:
    """Seats of all GPUs of a job.

    Attributes:
        seats: (pipeline rank, seat) -> GPU. edp, ep, etp: sizes.
    """

    def __init__(self, job: TrainingJob) -> None:
        p = job.parallel
        self.job, self.ep, self.etp = job, p.ep, p.etp or p.tp
        if p.etp is None and (p.zero == 3 or p.dp * p.cp % p.ep):  # of FSDP, or where no ranks are left
            self.etp = 1
        each = p.num_gpus // p.pp
        self.edp = each // (self.ep * self.etp)
        self.seats: dict[tuple[int, Seat], int] = {}
        for rank in range(p.pp):
            gpu = rank * each
            for d in range(self.edp):
                for e in range(self.ep):
                    for t in range(self.etp):
                        self.seats[rank, (d, e, t)] = gpu
                        gpu += 1

    def groups(self, name: str, axis: int, rank: int | None = None) -> CommGroup:
        """Of the groups along one axis (of one pipeline rank, or of all), the most spread one."""
        lists: dict[tuple[int, ...], list[int]] = {}
        for (pipeline, seat), gpu in self.seats.items():
            if rank is None or pipeline == rank:
                lists.setdefault((pipeline, *seat[:axis], -1, *seat[axis + 1 :]), []).append(gpu)
        if not lists:  # the job's sizes are none of its modules'
            lists[-1,] = [0]
        groups = [self.job.cluster.place_group(name, gpus) for gpus in lists.values()]
        return max(groups, key=lambda group: (group.num_nodes, group.local_port.value == "pcie", -group.ranks_per_node))

    @property
    def is_used(self) -> bool:
        """Whether experts are spread otherwise than everything else."""
        return self.ep > 1 or self.etp != self.job.parallel.tp

    def holds(self, use: ParameterUse) -> bool:
        """Whether a parameter is one of routed experts that are spread otherwise."""
        return self.is_used and "experts" in use.path.split(".")[:-1]

    def plan(self) -> ExpertPlan:
        """What tracing must know."""
        training = self.job.training
        loads = training.moe_imbalance
        factor = training.moe_capacity_factor
        return ExpertPlan(
            self.ep,
            self.etp,
            self.groups("ep", 1),
            self.groups("etp", 2),
            Routing(
                tuple(map(exact, loads)) if isinstance(loads, tuple) else exact(loads),
                None if factor is None else exact(factor),
                training.moe_pad_to_capacity,
            ),
            training.moe_grouped_gemm,
        )


def exact(number: float) -> Fraction:
    """A decimal number as it is written."""
    return Fraction(str(number))


def rounded_value(name: str, symbols: dict[str, int]) -> int:
    """Value of a rounded size on the worst rank: ``text.shard~16*5/4~1~1/1``."""
    symbol, times, step, _ = name.split("~")
    coefficient, share = times.split("*")
    return ceil(symbols[symbol] * int(coefficient) * Fraction(share) / int(step)) * int(step)
