"""``Mesh``: which global rank plays which part, and where each communicator lands on the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from semu.hardware.cluster import Cluster
from semu.hardware.network import CommGroup
from semu.parallel.config import Parallel


@dataclass(frozen=True)
class Mesh:
    """Ranks in Megatron-LM's order: tensor fastest, then context, data, pipeline (``tp-cp-dp-pp``).

    Attributes:
        parallel: sizes. cluster: where ranks live; rank r is GPU r.
    """

    parallel: Parallel
    cluster: Cluster

    def gpu(self, *, pp: int, dp: int = 0, cp: int = 0, tp: int = 0) -> int:
        """Global rank (= GPU number) at these coordinates."""
        p = self.parallel
        return tp + p.tp * (cp + p.cp * (dp + p.dp * pp))

    def tp_group(self, pp: int = 0, dp: int = 0, cp: int = 0) -> CommGroup:
        """The tensor-parallel group at a pipeline rank, replica and context rank."""
        return self._place("tp", [self.gpu(pp=pp, dp=dp, cp=cp, tp=t) for t in range(self.parallel.tp)])

    def dp_group(self, pp: int) -> CommGroup:
        """The group over which a pipeline rank's gradients are reduced (data x context)."""
        p = self.parallel
        return self._place("dp", [self.gpu(pp=pp, dp=d, cp=c) for d in range(p.dp) for c in range(p.cp)])

    def pp_pair(self, source: int, target: int, dp: int = 0) -> CommGroup:
        """The pair of ranks between two pipeline ranks of one replica."""
        return self._place("pp", [self.gpu(pp=source, dp=dp), self.gpu(pp=target, dp=dp)])

    @cached_property
    def worst_tp_group(self) -> CommGroup:
        """The tensor-parallel group that spans the most nodes; all groups are timed as it."""
        p = self.parallel
        if p.tp == 1:
            return self.tp_group()
        groups = [self.tp_group(pp, dp, cp) for pp in range(p.pp) for dp in range(p.dp) for cp in range(p.cp)]
        return max(groups, key=lambda group: group.num_nodes)

    def _place(self, name: str, gpus: list[int]) -> CommGroup:
        return self.cluster.place_group(name, gpus)
