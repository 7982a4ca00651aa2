"""``Mesh``: which global rank plays which part, and where each communicator lands on the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from semu.hardware.cluster import Cluster
from semu.hardware.kinds import Port
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
        """The group over which a pipeline rank's gradients are reduced (data x context); of the tensor-parallel peers'
        groups the one on the most nodes, because the slowest peer decides."""
        p = self.parallel
        ranks = [(d, c) for d in range(p.dp) for c in range(p.cp)]
        groups = [self._place("dp", [self.gpu(pp=pp, dp=d, cp=c, tp=t) for d, c in ranks]) for t in range(p.tp)]
        return max(groups, key=_spread)

    def pp_pair(self, source: int, target: int, dp: int = 0) -> CommGroup:
        """The pair of ranks between two pipeline ranks of one replica; of the tensor-parallel peers' pairs the one
        that crosses nodes, if any does."""
        pairs = [(self.gpu(pp=source, dp=dp, tp=t), self.gpu(pp=target, dp=dp, tp=t)) for t in range(self.parallel.tp)]
        node, island = self.cluster.gpus_per_node, int(self.cluster.profile.nvlink_gpus.value)

        def apart(pair: tuple[int, int]) -> tuple[bool, bool]:
            a, b = pair
            return a // node != b // node, a % node // island != b % node // island

        farthest = max(pairs, key=apart)
        distance = apart(farthest)
        if distance not in self._pairs:
            self._pairs[distance] = self._place("pp", list(farthest))
        return self._pairs[distance]

    @cached_property
    def _pairs(self) -> dict[tuple[bool, bool], CommGroup]:
        return {}

    @cached_property
    def worst_tp_group(self) -> CommGroup:
        """The tensor-parallel group that spans the most nodes; all groups are timed as it."""
        p = self.parallel
        if p.tp == 1:
            return self.tp_group()
        groups = [self.tp_group(pp, dp, cp) for pp in range(p.pp) for dp in range(p.dp) for cp in range(p.cp)]
        return max(groups, key=_spread)

    def _place(self, name: str, gpus: list[int]) -> CommGroup:
        return self.cluster.place_group(name, gpus)


def _spread(group: CommGroup) -> tuple[int, bool, int]:
    """How far apart a group's ranks are: nodes, PCIe instead of NVLink, fewest ranks on a node."""
    return group.num_nodes, group.local_port is Port.PCIE, -group.ranks_per_node
