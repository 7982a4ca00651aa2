"""ZeRO-3 that gathers once an iteration, for the slow reference: what is gathered and reduced when, how long held."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.reference.expansion import Expansion, Replica
from simulation.reference.model import Block, CutModel
from simulation.reference.tail import Held, Slice, collective, trainable, worst_group

from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.nn.trace.parameter_use import ParameterUse


@dataclass(eq=False)
class Whole:
    """Parameters of a block that no earlier block of the rank uses; routed experts are another one.

    Attributes:
        block: whose. routed: of experts that are spread otherwise. uses: the parameters. gather, scatter: when.
    """

    block: Block
    routed: bool
    uses: list[ParameterUse] = field(default_factory=list)
    gather: Slice | None = None
    scatter: Slice | None = None

    @property
    def keys(self) -> set[int]:
        """Identities of the parameters."""
        return {id(use.parameter) for use in self.uses}


def parts(model: CutModel, routed: bool) -> int:
    """Ranks that share a parameter out."""
    p = model.job.parallel
    together = (p.zero_group or p.dp) * p.cp
    return together * p.tp // (model.experts.ep * model.experts.etp) if routed else together


def wholes(model: CutModel, rank: int) -> list[Whole]:
    """Of a rank, in forward order."""
    p = model.job.parallel
    seen: set[int] = set()
    found = []
    for block in model.blocks:
        for routed, ranks in ((False, p.dp * p.cp), (True, model.experts.edp)):
            whole = Whole(block, routed)
            for use in block.trace.parameters if block.rank == rank and ranks > 1 else ():
                if model.experts.holds(use) is routed and id(use.parameter) not in seen:
                    seen.add(id(use.parameter))
                    whole.uses.append(use)
            found += [whole] if whole.uses else []
    return found


def gather(expansion: Expansion) -> list[list[Whole]]:
    """Everything of every rank, gathered one after another from time 0."""
    model = expansion.model
    result = []
    size = model.job.training.precision.tensor_dtype.size_bytes
    for rank in range(model.job.parallel.pp):
        mine, now = wholes(model, rank), 0.0
        for whole in mine:
            if parts(model, whole.routed) > 1:
                group = sharing(expansion, rank, whole.routed)
                own = size * sum(use.numel for use in whole.uses)
                whole.gather = collective(expansion, OpKind.ALL_GATHER, group, own, now)
                now = whole.gather.end_s
        result.append(mine)
    return result


def sharing(expansion: Expansion, rank: int, routed: bool) -> CommGroup:
    """The ranks that share a parameter out; the group on most nodes."""
    model = expansion.model
    if not routed:
        return worst_group(model, rank, 1, parts(model, False), model.job.parallel.tp)
    lists: dict[tuple[int, int, int], list[int]] = {}
    for (pipeline, (d, e, t)), gpu in model.experts.seats.items():
        if pipeline == rank:
            lists.setdefault((d // parts(model, True), e, t), []).append(gpu)
    groups = [model.job.cluster.place_group("edp", gpus) for gpus in lists.values()]
    return max(groups, key=lambda group: (group.num_nodes, group.local_port.value == "pcie", -group.ranks_per_node))


def ready_times(expansion: Expansion) -> dict[int, float]:
    """Block -> when what it waits for is there [s]: its own parameters, or all of the rank."""
    overlap = expansion.model.job.training.overlap
    ready: dict[int, float] = {}
    for rank, mine in enumerate(gather(expansion)):
        ends = {whole.block.number: whole.gather.end_s for whole in mine if whole.gather}
        if not overlap.param_gather:
            last = max(ends.values(), default=0.0)
            ends = {block.number: last for block in expansion.model.blocks if block.rank == rank}
        ready |= ends
    return ready


def reduce(expansion: Expansion, rank: int, mine: list[Whole]) -> list[tuple[Whole, OpKind, CommGroup, int, Slice]]:
    """Reductions of a rank; each waits for the last gradient of its unit, or for the end of the rank's last stage."""
    model = expansion.model
    p, overlap = model.job.parallel, model.job.training.overlap
    end = max(replica.span(stage)[1] for replica in expansion.replicas for stage in replica.orders[rank])
    held = [item for item in sorted(trainable(expansion, rank), key=lambda item: item.ready_s) if item.ready_s > 0]
    found: list[tuple[Whole, OpKind, CommGroup, int, Slice]] = []

    def items(whole: Whole) -> list[Held]:
        return [item for item in held if id(item.parameter) in whole.keys]

    for whole in sorted((w for w in mine if items(w)), key=lambda w: held.index(items(w)[-1])):
        begin = found[-1][-1].end_s if found else 0.0
        begin = max(begin, items(whole)[-1].ready_s if overlap.grad_reduce else end)
        size = sum(item.elements for item in items(whole)) * model.job.training.grad_dtype.size_bytes
        count = parts(model, whole.routed)
        if count > 1:
            group = sharing(expansion, rank, whole.routed)
            whole.scatter = collective(expansion, OpKind.REDUCE_SCATTER, group, size, begin)
            found.append((whole, OpKind.REDUCE_SCATTER, group, size, whole.scatter))
            begin = whole.scatter.end_s
        width = parts(model, False)
        if width < p.dp * p.cp:
            across = worst_group(model, rank, width, p.dp * p.cp // width, p.tp)
            share = -(-size // count)
            piece = collective(expansion, OpKind.ALL_REDUCE, across, share, begin)
            found.append((whole, OpKind.ALL_REDUCE, across, share, piece))
    return found


def timed(expansion: Expansion) -> list[list[Whole]]:
    """Everything of every rank with its gather and its reduction."""
    found = gather(expansion)
    for rank, mine in enumerate(found):
        reduce(expansion, rank, mine)
    return found


def spans(expansion: Expansion, replica: Replica, by_rank: list[list[Whole]]) -> list[tuple[float, float, int, int]]:
    """(from, to, bytes, rank) of whole parameters and of whole gradients."""
    training = expansion.model.job.training
    found: list[tuple[float, float, int, int]] = []
    for rank, mine in enumerate(by_rank):
        for whole in mine:
            if whole.gather is None:
                continue
            used = {b.chunk for b in expansion.model.blocks if b.rank == rank and whole.keys & _keys(b)}
            last = max(replica.span(stage)[1] for stage in replica.operators if stage[0] in used and stage[1] != "W")
            size = sum(use.numel for use in whole.uses)
            found.append((whole.gather.start_s, last, size * training.precision.tensor_dtype.size_bytes, rank))
            written: dict[int, int] = {}
            begin = []
            for entries in replica.operators.values():
                for entry in entries:
                    for use in entry.block.trace.parameters if entry.block and entry.block.rank == rank else ():
                        if id(use.parameter) in whole.keys and use.gradient in entry.operator.outputs:
                            written[id(use.parameter)] = use.numel
                            begin.append(replica.nodes[entry.key].start_s)
            if begin:
                assert whole.scatter is not None
                size = sum(written.values()) * training.grad_dtype.size_bytes
                found.append((min(begin), whole.scatter.end_s, size, rank))
    return found


def _keys(block: Block) -> set[int]:
    return {id(use.parameter) for use in block.trace.parameters}
