"""``Mesh``: which global rank plays which part, and where each communicator lands on the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property

from semu import memo
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import Port
from semu.hardware.network import CommGroup
from semu.parallel.axes import DATA, MESH
from semu.parallel.config import PIPELINE_FIRST, Parallel
from semu.parallel.context import Balance, group_widths
from semu.records import dataclass


@dataclass(frozen=True)
class Mesh:
    """Ranks in the order of ``semu.parallel.axes.MESH``: tensor fastest, then context, data, pipeline.

    Rank r is GPU r, unless ``parallel.rank_order`` has the pipeline before data: then replicas, not pipeline ranks, are
    blocks of neighbouring GPUs.

    Where modality modules have GPUs of their own, their pipeline ranks lie one behind the other, and each module has a
    mesh of its own; the job's mesh knows where a replica of a pipeline rank begins.

    Attributes:
        parallel: sizes. cluster: where ranks live.
        first_gpu, first_rank: of a module that has GPUs of its own: where it begins, its first pipeline rank.
    """

    parallel: Parallel
    cluster: Cluster
    first_gpu: int = 0
    first_rank: int = 0
    _groups: dict[tuple[str, int, int, int], CommGroup] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _modules: dict[str, Mesh] = field(default_factory=dict, init=False, repr=False, compare=False)
    _pair_groups: dict[int, CommGroup] = field(default_factory=dict, init=False, repr=False, compare=False)
    _dp_groups: dict[tuple[str, int], CommGroup] = field(default_factory=dict, init=False, repr=False, compare=False)
    _pairs: dict[tuple[int, int], CommGroup] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rank(self, **place: int) -> int:
        """Number in the order of ``MESH`` at these coordinates, by axis; 0 on the others."""
        if self.parallel.has_own_gpus:
            own = self.parallel.rank_places[place.get("pp", 0)]
            return own.first_gpu + own.width * place.get("dp", 0)
        begin = self.first_gpu - (self._strides["pp"] * self.first_rank if "pp" in place else 0)
        return begin + sum([self._strides[axis] * number for axis, number in place.items()])

    def gpu(self, **place: int) -> int:
        """GPU at these coordinates, by axis; 0 on the others."""
        return self.gpu_of(self.rank(**place))

    def gpu_of(self, rank: int) -> int:
        """GPU of a rank."""
        if not self.is_reordered:
            return rank
        p = self.parallel
        block, peer = divmod(rank, p.replica_gpus)
        stage, replica = divmod(block, p.replicas)
        return peer + p.replica_gpus * (stage + p.pp * replica)

    def stage_of_gpu(self, gpu: int) -> int:
        """Pipeline rank that runs on a GPU; >= pp: the mesh has no such GPU."""
        p = self.parallel
        if p.has_own_gpus:
            ends = [place.first_gpu + place.width * p.dp for place in p.rank_places]
            return sum(gpu >= end for end in ends)
        block = gpu // p.replica_gpus
        return block % p.pp if self.is_reordered and block < p.pp * p.replicas else block // p.replicas

    @cached_property
    def is_reordered(self) -> bool:
        """Whether some rank is not the GPU of its number."""
        p = self.parallel
        return p.rank_order == PIPELINE_FIRST and p.pp > 1 and p.replicas > 1

    def tp_group(self, pp: int = 0, dp: int = 0, cp: int = 0) -> CommGroup:
        """The tensor-parallel group at a pipeline rank, replica and context rank."""
        return self._place("tp", self.rank(pp=pp, dp=dp, cp=cp), 1, self.parallel.tp)

    def dp_group(self, pp: int) -> CommGroup:
        """The group over which a pipeline rank's gradients are reduced (data x context); of the tensor-parallel peers'
        groups the one on the most nodes, because the slowest peer decides."""
        p = self.parallel
        if p.copies > 1:
            return self._copies_group(min(pp, p.pp - 1 - pp))
        return self._worst_of_rank("dp", pp, self._data_stride, p.data_ranks)

    def _worst_of_rank(self, name: str, pp: int, width: int, ranks: int) -> CommGroup:
        """Of the groups of ``ranks`` ranks of a pipeline rank, ``width`` apart, one on the most nodes."""
        first = self.rank(pp=pp)
        key = name, self._spot(first)  # pipeline ranks whole nodes apart have equal groups
        if key not in self._dp_groups:
            groups = (self._place(name, peer, width, ranks) for peer in self._different(first, 1, width))
            self._dp_groups[key] = max(groups, key=_spread)
        return self._dp_groups[key]

    def _copies_group(self, pp: int) -> CommGroup:
        """The same where the model is there twice: ranks pp and p - 1 - pp hold the same two groups of layers."""
        p = self.parallel
        if pp not in self._pair_groups:
            ends = (pp, p.pp - 1 - pp)
            places = [
                self.rank(pp=rank) + number * self._data_stride for rank in ends for number in range(p.data_ranks)
            ]
            lists = [[place + peer for place in places] for peer in range(self._data_stride)]
            groups = (self.cluster.place_group("dp", [self.gpu_of(rank) for rank in ranks]) for ranks in lists)
            self._pair_groups[pp] = max(groups, key=_spread)
        return self._pair_groups[pp]

    def shard_group(self, pp: int) -> CommGroup:
        """The group over which ZeRO-3 shards a pipeline rank's parameters: ``dp_group``, or its worst sharding group of
        consecutive replicas (HSDP)."""
        p = self.parallel
        if p.zero_group is None:
            return self.dp_group(pp)
        firsts = [self.rank(pp=pp, dp=dp, tp=tp) for dp in range(0, p.replicas, p.zero_group) for tp in range(p.tp)]
        places = {self._spot(first): first for first in reversed(firsts)}
        return max((self._place("dp", first, p.tp, p.shard_ranks) for first in places.values()), key=_spread)

    def replica_group(self, pp: int) -> CommGroup:
        """The ranks that hold the same shard in all sharding groups (HSDP); the group that spans most nodes."""
        p = self.parallel
        width = p.tp * p.shard_ranks
        first = self.rank(pp=pp)
        peers = self._different(first, 1, width)
        return max((self._place("dp", peer, width, p.data_ranks // p.shard_ranks) for peer in peers), key=_spread)

    def expert_dp_group(self, pp: int) -> CommGroup:
        """The group over which gradients of a pipeline rank's experts are reduced: the ranks that hold the same part of
        the same experts; the one on the most nodes."""
        p = self.parallel
        return self._worst_of_rank("edp", pp, p.ep * p.expert_tensor_ranks, p.expert_data_ranks)

    def expert_shard_group(self, pp: int) -> CommGroup:
        """The group over which ZeRO shards a pipeline rank's experts: ``expert_dp_group``, or the part of it that lies
        in one sharding group; the one on the most nodes."""
        p = self.parallel
        if not p.is_sharded_in_groups:
            return self.expert_dp_group(pp)
        width, together = p.ep * p.expert_tensor_ranks, p.shard_ranks * p.tp
        bases = self._different(self.rank(pp=pp), together, p.data_ranks // p.shard_ranks)
        peers = (peer for base in bases for peer in self._different(base, 1, width))
        return max((self._place("edp", peer, width, p.expert_shard_ranks) for peer in peers), key=_spread)

    @cached_property
    def worst_ep_group(self) -> CommGroup:
        """The expert-parallel group that spans the most nodes; all are timed as it. Expert tensor parallelism is
        fastest, then expert parallelism, then data (Megatron-LM, ``parallel_state.RankGenerator``)."""
        p = self.parallel
        etp = p.expert_tensor_ranks
        bases = self._different(0, p.ep * etp, p.pp * p.expert_data_ranks)
        return max((self._place("ep", base + t, etp, p.ep) for base in bases for t in range(etp)), key=_spread)

    @cached_property
    def worst_etp_group(self) -> CommGroup:
        """The expert-tensor-parallel group that spans the most nodes."""
        p = self.parallel
        etp = p.expert_tensor_ranks
        firsts = self._different(0, etp, p.num_gpus // etp)
        return max((self._place("etp", first, 1, etp) for first in firsts), key=_spread)

    @cached_property
    def worst_expert_group(self) -> CommGroup:
        """The ranks that hold all experts together, ep x etp of them; the group that spans the most nodes."""
        p = self.parallel
        width = p.ep * p.expert_tensor_ranks
        bases = self._different(0, width, p.num_gpus // width)
        return max((self._place("experts", base, 1, width) for base in bases), key=_spread)

    def pp_pair(self, source: int, target: int, dp: int = 0) -> CommGroup:
        """The pair of ranks between two pipeline ranks of one replica; of its tensor- and context-parallel peers'
        pairs the one that crosses nodes, if any does. Ranks of different width: neighbours send to neighbours."""
        if self.parallel.has_own_gpus:
            return self._pair_of_widths(source, target, dp)
        first, distance = self.rank(pp=source, dp=dp), self.rank(pp=target) - self.rank(pp=source)
        key = (self._spot(first), distance)
        if key not in self._pairs:
            peers = self._different(first, 1, self.parallel.replica_gpus)
            pairs = [self._shared("pp", peer, distance, 2) for peer in peers]
            self._pairs[key] = max(pairs, key=_spread)
        return self._pairs[key]

    def _pair_of_widths(self, source: int, target: int, dp: int) -> CommGroup:
        ends = [(self.rank(pp=rank, dp=dp), self.parallel.rank_places[rank].width) for rank in (source, target)]
        count = max(width for _, width in ends)
        pairs = [[first + number * width // count for first, width in ends] for number in range(count)]
        return max((self.cluster.place_group("pp", pair) for pair in pairs), key=_spread)

    @cached_property
    def worst_tp_group(self) -> CommGroup:
        """The tensor-parallel group that spans the most nodes; all groups are timed as it."""
        return self.worst_group("tp")

    @cached_property
    def worst_cp_group(self) -> CommGroup:
        """The context-parallel group that spans the most nodes; all groups are timed as it."""
        return self.worst_group("cp")

    @cached_property
    def worst_context_levels(self) -> tuple[CommGroup, CommGroup] | None:
        """Of a ring between groups of context ranks (``cp_inner``): neighbours that form a group, and those in the same
        place of all groups, each on the most nodes; None: there is one ring."""
        p, step = self.parallel, self._strides["cp"]
        if not p.has_context_levels:
            return None
        inner, outer = p.cp_inner, p.cp // p.cp_inner
        rings = (
            self._place("cp_ring", base + i * step, inner * step, outer)
            for base in self._context_bases
            for i in range(inner)
        )
        return self._worst_neighbours("cp_group", inner), max(rings, key=_spread)

    @cached_property
    def worst_context_parts(self) -> tuple[CommGroup, ...]:
        """Groups of neighbouring context ranks that share a stretch of text (``Balance.HYBRID``), of every size, each
        on the most nodes; empty: all context ranks share all."""
        widths = group_widths(self.parallel.cp, Balance(self.parallel.cp_balance))
        return tuple(self._worst_neighbours(f"cp_part{width}", width) for width in widths)

    @property
    def _context_bases(self) -> list[int]:
        """The first GPU of every context group that may lie differently."""
        p, step = self.parallel, self._strides["cp"]
        bases = self._different(self.first_gpu, p.cp * step, p.num_gpus // (p.cp * step))
        return [base + t for base in bases for t in range(step)]

    def _worst_neighbours(self, name: str, ranks: int) -> CommGroup:
        """Of the groups of so many neighbouring context ranks one on the most nodes."""
        step, count = self._strides["cp"], self.parallel.cp // ranks
        firsts = (base + i * ranks * step for base in self._context_bases for i in range(count))
        return max((self._place(name, first, step, ranks) for first in firsts), key=_spread)

    def worst_group(self, axis: str) -> CommGroup:
        """The group of one axis that spans the most nodes; of modules on GPUs of their own, of any module."""
        if self.parallel.has_own_gpus:
            return max((self.of_module(name).worst_group(axis) for name in self.parallel.modules), key=_spread)
        cluster, size, stride = self.cluster, getattr(self.parallel, axis), self._strides[axis]
        nodes = cluster.places
        count = self.parallel.num_gpus // (size * stride)

        def _find() -> CommGroup:
            begin = self.first_gpu
            bases = self._different(begin, size * stride, count) if size > 1 else range(begin, begin + 1)
            firsts = (base + peer for base in bases for peer in range(stride if size > 1 else 1))
            return max((self._place(axis, first, stride, size) for first in firsts), key=_spread)

        return _find() if self.is_reordered or self.first_gpu else _WORST.get((axis, size, stride, count, nodes), _find)

    @cached_property
    def worst_vocabulary_group(self) -> CommGroup:
        """The tp x pp ranks of a replica that share a table's rows; the group that spans the most nodes."""
        p = self.parallel
        return self._worst_across("vocabulary", [(tp, pp) for pp in range(p.pp) for tp in range(p.tp)])

    @cached_property
    def worst_pipeline_group(self) -> CommGroup:
        """The pipeline ranks of one replica, tensor- and context-parallel rank; the group that spans the most nodes."""
        return self._worst_across("vocabulary", [(0, pp) for pp in range(self.parallel.pp)])

    def worst_tower_group(self, ranks: Sequence[int]) -> CommGroup:
        """The pipeline ranks of one replica on which towers end; the group that spans the most nodes."""
        return self._worst_across("towers", [(0, pp) for pp in ranks])

    def _worst_across(self, name: str, members: list[tuple[int, int]]) -> CommGroup:
        """Of the groups with members at these (tensor, pipeline) ranks the one on the most nodes."""
        p = self.parallel
        firsts = {self._spot(first): first for first in reversed(range(self.rank(pp=1)))}.values()
        chosen = [first for first in firsts if first % p.tp == 0] if len(members) > p.pp else [*firsts]
        places = ([self.gpu_of(first + self.rank(tp=tp, pp=pp)) for tp, pp in members] for first in chosen)
        return max((self.cluster.place_group(name, gpus) for gpus in places), key=_spread)

    @cached_property
    def worst_replica_group(self) -> CommGroup:
        """The replicas of one tensor-, context- and pipeline-parallel rank, as modules read one another's; the group
        that spans the most nodes."""
        p = self.parallel
        width = p.replica_gpus
        firsts = [self.rank(pp=pp) + peer for pp in range(p.pp) for peer in range(width)] if p.replicas > 1 else [0]
        places = {self._spot(first): first for first in reversed(firsts)}
        return max((self._place("replicas", first, width, p.replicas) for first in places.values()), key=_spread)

    def of_module(self, name: str) -> Mesh:
        """The same GPUs in the sizes of one modality module."""
        if name not in self._modules:
            parallel = self.parallel.of_module(name)
            is_other = parallel is not self.parallel and parallel != replace(self.parallel, modules={})
            own = self.parallel.modules.get(name)
            if own is not None and own.first_rank is not None:
                first = self.parallel.rank_places[own.first_rank].first_gpu
                self._modules[name] = Mesh(parallel, self.cluster, first, own.first_rank)
            else:
                self._modules[name] = Mesh(parallel, self.cluster) if is_other else self
        return self._modules[name]

    def exchange_group(self, parts: int, width: int) -> CommGroup | None:
        """Ranks that hold different parts of a tensor spread over the GPUs of a replica's pipeline rank, where
        neighbours hold the same part if there are fewer parts than GPUs; the group on most nodes. None: one part.

        Args:
            parts: a divisor of the width. width: GPUs of a replica's pipeline rank.
        """
        if parts == 1:
            return None
        name = "reshard" if parts == width else f"reshard{parts}"
        blocks = self._different(self.first_gpu, width, self.parallel.num_gpus // width)
        firsts = [f + i for f in blocks for i in range(width // parts)]
        return max((self._place(name, first, width // parts, parts) for first in firsts), key=_spread)

    def _different(self, first: int, step: int, count: int) -> range:
        """Of the ranks first, first + step, ... (``count`` of them), those that stand differently in their nodes."""
        if self.is_reordered:
            return range(first, first + step * count, step)
        node = self.cluster.period_gpus
        return range(first, first + step * min(count, node // math.gcd(step, node)), step)

    def _place(self, name: str, first: int, step: int, count: int) -> CommGroup:
        """The communicator of ranks first, first + step, ...; groups that are whole nodes apart are placed alike."""
        last = first + step * (count - 1)
        key = (name, self._spot(first), step, count)
        if key not in self._groups or last >= self.cluster.num_gpus:
            self._groups[key] = self._shared(name, first, step, count)
        return self._groups[key]

    def _shared(self, name: str, first: int, step: int, count: int) -> CommGroup:
        """As ``_place``; meshes on clusters with equal nodes share the result."""
        cluster = self.cluster
        gpus = range(first, first + step * count, step)
        if self.is_reordered:
            return cluster.place_group(name, [self.gpu_of(rank) for rank in gpus])
        if gpus[0] < 0 or gpus[-1] < 0 or max(gpus[0], gpus[-1]) >= cluster.num_gpus:
            return cluster.place_group(name, gpus)  # refuses a GPU that is not there
        key = (name, first % cluster.period_gpus, step, count, cluster.places[1:])
        return _PLACED.get(key, lambda: cluster.place_group(name, gpus))

    def _spot(self, rank: int) -> int:
        """What tells how a rank stands in its node."""
        return rank if self.is_reordered else rank % self.cluster.period_gpus

    @cached_property
    def _strides(self) -> dict[str, int]:
        return {axis: self.parallel.stride(axis) for axis in MESH}

    @property
    def _data_stride(self) -> int:
        """How far apart the ranks are over which gradients are reduced."""
        return self._strides[DATA[0]]


_WORST = memo.Table[CommGroup]("groups of an axis on the most nodes, by size, step, number of groups and nodes", 1024)
_PLACED = memo.Table[CommGroup](
    "groups by name, first GPU in its node, step, number of ranks, GPUs per node and reach of NVLink", 4096
)


def _spread(group: CommGroup) -> tuple[float, int, bool, int, int]:
    """How far apart a group's ranks are: upper tiers, nodes, PCIe and not NVLink, sockets, fewest ranks on a node."""
    is_pcie = group.local_port is Port.PCIE
    return group.nic_slowdown, group.num_nodes, is_pcie, group.socket_groups, -group.ranks_per_node
