"""ZeRO-2, ZeRO-3 and weights on the host for the slow reference: which collectives and copies run in a stage, in which
order, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from simulation.reference.costs import on_grid
from simulation.reference.model import Block, CutModel, holds_all
from simulation.reference.network import collective_seconds, wire_bytes

from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup

if TYPE_CHECKING:
    from simulation.reference.expansion import Replica

GATHER, REDUCE, REPLICATE = "gather", "reduce", "replicate"
COPY, SHARD = "copy", "shard"
OUT, IN = "out", "in"
"""Copies on the device: of what was gathered, and of gradients before they are reduced."""
KINDS = {GATHER: OpKind.ALL_GATHER, REDUCE: OpKind.REDUCE_SCATTER, REPLICATE: OpKind.ALL_REDUCE}


@dataclass(eq=False)
class Unit:
    """Parameters that move together.

    Attributes:
        chunk: of it. blocks: that use it, in forward order. elements, reduced: of its parameters, and of those that get
            a gradient. parameters: their identities. gathers, keeps: whether sharded; whether it stays to the backward.
        routed: of experts that are spread otherwise than all else.
        copied: all of it comes from the host. shard_bytes: of its shard, which comes from the host before each gather.
    """

    chunk: int
    blocks: list[Block]
    elements: int
    reduced: int
    parameters: set[int]
    gathers: bool
    keeps: bool = False
    routed: bool = False
    copied: bool = False
    shard_bytes: int = 0

    def writes(self, block: Block, operator: object) -> bool:
        """Whether an operator of a block writes a gradient of the unit."""
        return any(
            use.gradient is not None and use.gradient in operator.outputs  # type: ignore[attr-defined]
            for use in block.trace.parameters
            if id(use.parameter) in self.parameters
        )


def _kernels(block: Block, phase: str) -> list[object]:
    return [o for o in block.operators(phase) if o.stream.name not in ("offload", "reload")]


def _spread(group: CommGroup) -> tuple[int, bool, int]:
    return group.num_nodes, group.local_port.value == "pcie", -group.ranks_per_node


class Sharding:
    """The units of a job; none below ZeRO-2.

    Attributes:
        units: of all chunks. shards: ranks that a parameter is split over.
    """

    def __init__(self, model: CutModel) -> None:
        self.model, self.job = model, model.job
        parallel = self.job.parallel
        self.shards = (parallel.zero_group or parallel.dp) * parallel.cp if parallel.zero >= 2 else 1
        self.ranks = {False: parallel.dp * parallel.cp, True: model.experts.edp}
        self.units: list[Unit] = []
        if parallel.zero >= 2 and not holds_all(self.job):
            for chunk in range(model.num_chunks):
                self._split(chunk)
        self._put_on_host()

    def _put_on_host(self) -> None:
        """Units that are copied, or whose shards are."""
        away, training = self.model.streamed(), self.job.training
        if self.job.parallel.zero == 3 and self.units:
            for unit in self.units:
                trained = frozen = 0
                for use in {id(u.parameter): u for b in unit.blocks for u in b.trace.parameters}.values():
                    if id(use.parameter) in away and id(use.parameter) in unit.parameters:
                        trained += use.numel if use.parameter.requires_grad else 0
                        frozen += 0 if use.parameter.requires_grad else use.numel
                size = training.precision.tensor_dtype.size_bytes
                if training.software.value == "torch" and training.master_dtype is not training.precision.tensor_dtype:
                    unit.shard_bytes = self._share(trained, unit) * training.master_dtype.size_bytes
                    unit.shard_bytes += self._share(frozen, unit) * size
                else:
                    unit.shard_bytes = self._share(trained + frozen, unit) * size
            return
        for block in self.model.blocks:
            own = {id(use.parameter) for use in block.trace.parameters} & set(away)
            if own:
                count = sum(away[key] for key in own)
                self.units.append(Unit(block.chunk, [block], count, 0, own, False, copied=True))

    def _share(self, elements: int, unit: Unit) -> int:
        return -(-elements // self.parts(unit.routed))

    def parts(self, routed: bool) -> int:
        """Ranks that a parameter is split over."""
        experts = self.model.experts
        return self.shards * self.job.parallel.tp // (experts.ep * experts.etp) if routed else self.shards

    def _split(self, chunk: int) -> None:
        blocks = self.model.chunk(chunk)
        users: dict[int, list[Block]] = {}
        is_routed: dict[int, bool] = {}
        for block in blocks:
            for use in block.trace.parameters:
                users.setdefault(id(use.parameter), []).append(block)
                is_routed[id(use.parameter)] = self.model.experts.holds(use)
        kinds = [routed for routed, ranks in self.ranks.items() if ranks > 1]
        merged: list[Unit] = []
        by_block: list[list[Unit]] = []
        for routed in kinds:
            chosen = {key for key in users if is_routed[key] is routed}
            shared = {key for key in chosen if len(users[key]) > 1}
            single = [
                self._unit(chunk, [b], {id(u.parameter) for u in b.trace.parameters} & chosen - shared, routed)
                for b in blocks
            ]
            both = self._unit(chunk, [b for b in blocks if any(b in users[key] for key in shared)], shared, routed)
            if self.job.parallel.zero == 3:
                merged.append(both)
                by_block.append(single)
            else:
                self._fill(chunk, blocks, single, both, routed)
        everything = merged + [unit for units in zip(*by_block, strict=True) for unit in units]
        for unit in everything:
            unit.gathers = self.parts(unit.routed) > 1
            if self.job.parallel.pp == 1 and (self.job.training.schedule != "gpipe" or self.job.num_microbatches == 1):
                is_last = unit.blocks[-1:] == self.model.blocks[-1:]
                unit.keeps = unit in merged or not self.job.parallel.reshard_after_forward or is_last
        self.units += [unit for unit in everything if unit.elements]

    def _fill(self, chunk: int, blocks: list[Block], single: list[Unit], both: Unit, routed: bool) -> None:
        """Buckets of ZeRO-2."""
        limit = max(40_000_000, 1_000_000 * self.job.parallel.dp * self.job.parallel.cp)
        groups: list[list[Unit]] = [[]]
        for unit in [unit for unit in reversed(single) if unit.reduced]:
            if self.job.training.overlap.grad_reduce and sum(other.reduced for other in groups[-1]) >= limit:
                groups.append([])
            groups[-1].append(unit)
        for group in [*groups, [both]]:
            owned = set().union(*(unit.parameters for unit in group))
            filled = self._unit(chunk, [b for b in blocks if any(b in unit.blocks for unit in group)], owned, routed)
            if filled.reduced:
                self.units.append(filled)

    def _unit(self, chunk: int, blocks: list[Block], owned: set[int], routed: bool) -> Unit:
        uses = {id(u.parameter): u for block in blocks for u in block.trace.parameters if id(u.parameter) in owned}
        unit = Unit(chunk, blocks, sum(u.numel for u in uses.values()), 0, owned, False, False, routed)
        written = set()
        for block in blocks:
            for use in block.trace.parameters:
                if id(use.parameter) in owned and any(use.gradient in o.outputs for o in block.operators("B")):
                    written.add(id(use.parameter))
        unit.reduced = sum(uses[key].numel for key in written)
        return unit

    def turns(self, chunk: int, phase: str) -> list[tuple[str, object]]:
        """Blocks and collectives of a stage as the host issues them; of a part of a backward, what is left of it."""
        if phase not in "IW":
            return self._turns(chunk, phase)
        whole = self._turns(chunk, "B")
        return [(what, item) for what, item in whole if isinstance(item, Block) or self.part(what, item) == phase]

    def part(self, what: str, unit: object) -> str:
        """The part of a backward in which a unit is gathered or copied (no product of W reads a parameter), or reduced
        (behind its last writer)."""
        assert isinstance(unit, Unit)
        if what in (IN, REDUCE, REPLICATE):
            return "W" if any(unit.writes(b, o) for b in unit.blocks for o in b.operators("W")) else "I"
        return "I" if any(_kernels(b, "I") for b in unit.blocks) else "W"

    def _turns(self, chunk: int, phase: str) -> list[tuple[str, object]]:
        blocks = self.model.chunk(chunk)
        turns: list[tuple[str, object]] = [("block", b) for b in (blocks if phase == "F" else blocks[::-1])]
        units = [unit for unit in self.units if unit.chunk == chunk]

        def place(block: Block) -> int:
            return turns.index(("block", block))

        def first(unit: Unit) -> Block:
            return min((b for b in unit.blocks if b.operators(phase)), key=place)

        for unit in reversed(units) if phase == "B" else ():
            if unit.reduced:
                last = max(place(b) for b in unit.blocks if b.operators("B"))
                after: list[tuple[str, object]] = [(IN, unit)] if self.copied_bytes(IN, unit) else []
                after.append((REDUCE, unit))
                if self.parts(unit.routed) < self.ranks[unit.routed]:
                    after.append((REPLICATE, unit))
                turns[last + 1 : last + 1] = after
        gathered = [u for u in units if u.gathers and any(b.operators(phase) for b in u.blocks)]
        gathered = [u for u in gathered if phase == "F" or not u.keeps]
        gathered.sort(key=lambda u: place(first(u)))
        targets = [first(u) for u in gathered]
        if self.job.training.overlap.param_gather:  # one block ahead
            alone = [first(u) for i, u in enumerate(gathered) if not self._is_beside(u, gathered[:i])]
            front = blocks[0] if phase == "F" else blocks[-1]
            ahead = iter([front, *alone])
            targets = []
            for i, unit in enumerate(gathered):
                targets.append(targets[-1] if self._is_beside(unit, gathered[:i]) else next(ahead))
        for unit, target in zip(gathered, targets, strict=True):
            turns.insert(place(target), (GATHER, unit))
            if unit.shard_bytes:
                turns.insert(place(target) - 1, (SHARD, unit))
        for unit in sorted(gathered, key=units.index):
            if self.copied_bytes(OUT, unit):
                turns.insert(place(first(unit)), (OUT, unit))
        for unit in [u for u in units if u.copied and u.blocks[0].operators(phase)]:
            turns.insert(place(unit.blocks[0]), (COPY, unit))
        return turns

    def begins_copied(self, block: Block, phase: str) -> bool:
        """Whether a unit is copied from the host before a block of this pass, in either part of it."""
        whole = "F" if phase == "F" else "B"
        return bool(block.operators(whole)) and any(u.copied and u.blocks[0] is block for u in self.units)

    def _is_beside(self, unit: Unit, before: list[Unit]) -> bool:
        """Whether it is of the experts of a block whose other parameters are gathered just before."""
        is_single = bool(before) and len(unit.blocks) == len(before[-1].blocks) == 1
        return is_single and unit.routed and not before[-1].routed and unit.blocks == before[-1].blocks

    def copied_bytes(self, what: str, unit: Unit) -> int:
        """What PyTorch's FSDP moves in memory around a gather (OUT) or before a reduction (IN)."""
        training, parts = self.job.training, self.parts(unit.routed)
        date, told = training.software_date, training.fsdp.value if training.fsdp else None
        usual = "fsdp1" if date is not None and date < "2024-10" else "fsdp2"
        version = told or (usual if training.software.value == "torch" and self.job.parallel.zero == 3 else "none")
        if version == "none" or parts == 1:
            return 0
        wide, narrow = training.master_dtype.size_bytes, training.precision.tensor_dtype.size_bytes
        if what == OUT:
            shard = 0 if wide == narrow else (unit.elements + parts - 1) // parts
            return shard * (wide + narrow) + (2 * narrow * unit.elements if version == "fsdp2" else 0)
        reduced = training.grad_dtype.size_bytes
        if version == "fsdp2":  # one kernel that reads and writes
            return unit.reduced * (narrow + reduced)
        casts = 0 if narrow == reduced else narrow + reduced
        return unit.reduced * (2 * narrow + casts + 2 * reduced)  # joined, cast, divided

    # -- what a collective costs -------------------------------------------------------------------------------------
    def group(self, across: bool, routed: bool, rank: int) -> CommGroup:
        """Consecutive replicas, or the replicas of one shard; the placement on most nodes."""
        job = self.job
        dp, tp = job.parallel.dp * job.parallel.cp, job.parallel.tp
        if routed and not across:
            return self._experts_group(rank)
        if across:
            lists = [range(first, dp, self.shards) for first in range(self.shards)]
        else:
            lists = [range(first, first + self.shards) for first in range(0, dp, self.shards)]
        groups = [
            job.cluster.place_group("dp", [self.model.peer(rank, number, t) for number in ranks])
            for ranks in lists
            for t in range(tp)
        ]
        return max(groups, key=_spread)

    def _experts_group(self, rank: int) -> CommGroup:
        """The ranks of one sharding group that hold the same experts."""
        experts, size = self.model.experts, self.parts(True)
        lists: dict[tuple[int, int, int], list[int]] = {}
        for (pipeline, (d, e, t)), gpu in experts.seats.items():
            if pipeline == rank:
                lists.setdefault((d // size, e, t), []).append(gpu)
        return max((self.job.cluster.place_group("edp", gpus) for gpus in lists.values()), key=_spread)

    def operator(self, what: str, unit: Unit) -> tuple[SimpleNamespace, float]:
        """A collective and its latency [s]."""
        training = self.job.training
        if what in (OUT, IN):
            copies, bandwidth = self.job.profile.efficiency(OpKind.COPY), self.job.profile.mem_bytes_per_s.value
            latency = on_grid(copies.t0_s + self.copied_bytes(what, unit) / (copies.mem * bandwidth))
            compute = SimpleNamespace(name="compute")
            return SimpleNamespace(
                kind=OpKind.COPY,
                stream=compute,
                flop=0,
                net_bytes=0,
                inputs=(),
                outputs=(),
                path=what,
                phase=SimpleNamespace(value="F"),
            ), latency
        if what in (COPY, SHARD):
            size = unit.shard_bytes if what == SHARD else unit.elements * training.precision.tensor_dtype.size_bytes
            host = CommGroup("reload", 2, local_port=Port.PCIE)
            latency = on_grid(collective_seconds(self.job.profile, OpKind.P2P, host, size))
            made = SimpleNamespace(
                kind=OpKind.P2P, stream=SimpleNamespace(name="reload"), flop=0, net_bytes=size, inputs=(), outputs=()
            )
            return made, latency
        rank = self.model.chunk(unit.chunk)[0].rank
        kind, group = KINDS[what], self.group(what == REPLICATE, unit.routed, rank)
        size = unit.reduced * training.grad_dtype.size_bytes
        if what == GATHER:
            size = unit.elements * training.precision.tensor_dtype.size_bytes
        if what == REPLICATE:
            size = (size + self.parts(unit.routed) - 1) // self.parts(unit.routed)
        wire = wire_bytes(kind, group.num_ranks, size)
        stream = "fsdp" if self.job.parallel.zero == 3 else "dp"
        if unit.routed:
            stream = {"fsdp": "efsdp", "dp": "edp"}[stream]
        if what == REPLICATE:
            stream = "hsdp"
        latency = on_grid(collective_seconds(self.job.profile, kind, group, wire))
        made = SimpleNamespace(
            kind=kind, stream=SimpleNamespace(name=stream), flop=0, net_bytes=wire, inputs=(), outputs=()
        )
        return made, latency

    # -- what is held ------------------------------------------------------------------------------------------------
    def held(self, replica: Replica) -> list[tuple[float, float, int, int]]:
        """(from, to, bytes, rank) of gathered and copied parameters, of shards that were copied to be gathered, and of
        unsharded gradients."""
        result: list[tuple[float, float, int, int]] = []
        microbatches = sorted({stage[2] for stage in replica.operators})
        tensor = self.job.training.precision.tensor_dtype.size_bytes
        for unit in self.units:
            rank, index = unit.blocks[0].rank, self.units.index(unit)
            for number in microbatches:
                spans: dict[str, tuple[float, float]] = {}
                for phase in "FBIW":
                    entries = replica.operators.get((unit.chunk, phase, number), [])
                    kernels = [e for e in entries if e.block in unit.blocks]
                    kernels = [e for e in kernels if e.operator.stream.name not in ("offload", "reload")]
                    inside = [replica.nodes[e.key] for e in kernels]
                    gathers = [replica.nodes[e.key] for e in entries if e.key[-2:] in ((GATHER, index), (COPY, index))]
                    shards = [replica.nodes[e.key] for e in entries if e.key[-2:] == (SHARD, index)]
                    if shards:
                        result.append((shards[0].start_s, gathers[0].end_s, unit.shard_bytes, rank))
                    here = phase in "FB" or phase == self.part(GATHER, unit)
                    if inside and here and (unit.gathers or unit.copied):
                        start = min((node.start_s for node in gathers), default=0.0)
                        spans[phase] = start, max(node.end_s for node in inside)
                    writers = [
                        replica.nodes[e.key]
                        for e in entries
                        if (phase == "B" or phase == self.part(REDUCE, unit))
                        and not unit.copied
                        and e.block in unit.blocks
                        and unit.writes(e.block, e.operator)
                    ]
                    if writers and self.parts(unit.routed) > 1:
                        done = next(e for e in entries if e.key[-2:] == (REDUCE, self.units.index(unit)))
                        size = unit.reduced * self.job.training.grad_dtype.size_bytes
                        result.append((min(n.start_s for n in writers), replica.nodes[done.key].end_s, size, rank))
                back = [spans[phase] for phase in "BIW" if phase in spans]
                if unit.keeps and back:
                    spans = {"FB": (spans["F"][0], back[0][1])}
                result += [(*span, unit.elements * tensor, rank) for span in spans.values()]
        return result
