"""What the slow reference says of everything around the pipeline: gradients, optimizer, parameters."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from simulation.reference import muon
from simulation.reference.costs import on_grid
from simulation.reference.expansion import Expansion
from simulation.reference.interference import lost_s
from simulation.reference.memory import scales
from simulation.reference.model import CutModel, fp8_copies, holds_all
from simulation.reference.modules import block_of, group_of, has_own, most_spread, sharers
from simulation.reference.network import collective_seconds, wire_bytes

from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.nn import Parameter


@dataclass
class Slice:
    """A collective or an optimizer step of one rank."""

    kind: OpKind
    start_s: float
    end_s: float
    net_bytes: int = 0


@dataclass
class Tail:
    """What follows the pipeline.

    Attributes:
        slices: of each rank, in order. iteration_s: end of everything.
    """

    slices: list[list[Slice]] = field(default_factory=list)
    iteration_s: float = 0.0


@dataclass
class Held:
    """A trainable parameter on a rank: local elements, whether split, its first virtual stage, and when its gradient is
    complete [s]; whether it is of experts that are spread otherwise than all else; tp of its module, and whether that
    is sequence-parallel; the rank."""

    parameter: Parameter
    elements: int
    is_sharded: bool
    slot: int
    ready_s: float
    is_routed: bool = False
    tp: int = 1
    is_sp: bool = False
    rank: int = 0


def parts_of(held: list[Held]) -> list[tuple[int, list[Held]]]:
    """Parameters by tp of their modules, the largest first."""
    return [(tp, [item for item in held if item.tp == tp]) for tp in sorted({item.tp for item in held}, reverse=True)]


def tail_of(expansion: Expansion) -> Tail:
    """Reduce, step, gather."""
    model = expansion.model
    job = model.job
    overlap, parallel = job.training.overlap, job.parallel
    held = [trainable(expansion, rank) for rank in range(parallel.pp)]
    ends = [
        max((replica.span(stage)[1] for replica in expansion.replicas for stage in replica.orders[rank]), default=0.0)
        for rank in range(parallel.pp)
    ]
    if parallel.placement == "bidirectional":
        ends = [max(pair) for pair in zip(ends, reversed(ends), strict=True)]
        _pair(held)
    tail = Tail([[] for _ in range(parallel.pp)])
    grad_bytes = job.training.grad_dtype.size_bytes
    is_cut = parallel.zero > 0 and job.training.optimizer.value != "muon"
    gathered: dict[int, list[Slice]] = {}
    for rank, slices in enumerate(tail.slices):
        done = ends[rank]
        width = (parallel.zero_group or parallel.dp) * parallel.cp * copies(job)
        if holds_all(job):
            from simulation.reference.held import gather, reduce

            mine = gather(expansion)[rank]
            slices += [piece for *_, piece in reduce(expansion, rank, mine)]
            done = max([done, *(piece.end_s for piece in slices)])
            gathered[rank] = [whole.gather for whole in mine if whole.gather]
        if parallel.zero <= 1:
            now = 0.0
            routed_group = model.experts.groups("edp", 0, rank)
            for bucket in shared_buckets(model, held[rank], overlap.grad_reduce):
                ready = max(item.ready_s for item in bucket) if overlap.grad_reduce else ends[rank]
                size = sum(item.elements for item in bucket) * grad_bytes
                tp = bucket[0].tp
                peers = sharers(job, rank, tp, parallel.dp * parallel.cp * copies(job))
                own = sharers(job, rank, tp, width)
                if bucket[0].is_routed:
                    kind = OpKind.REDUCE_SCATTER if is_cut else OpKind.ALL_REDUCE
                    slices.append(collective(expansion, kind, routed_group, size, max(now, ready)))
                elif not is_cut:
                    group = worst_group(model, rank, 1, peers, tp)
                    slices.append(collective(expansion, OpKind.ALL_REDUCE, group, size, max(now, ready)))
                else:
                    inner = worst_group(model, rank, 1, own, tp)
                    slices.append(collective(expansion, OpKind.REDUCE_SCATTER, inner, size, max(now, ready)))
                    if own < peers:
                        across, share = worst_group(model, rank, own, peers // own, tp), -(-size // own)
                        slices.append(collective(expansion, OpKind.ALL_REDUCE, across, share, slices[-1].end_s))
                now = slices[-1].end_s
            done = max(done, now)
        for tp, items in parts_of(held[rank]):
            whole = sum(i.elements for i in items if not i.is_sharded and i.is_sp and not i.is_routed)
            if parallel.zero >= 2:
                whole = -(-whole // width)
            if tp > 1 and whole:
                mine = {block.module for block in model.blocks if block.rank == rank}
                sizes = next(sizes for n, sizes in enumerate(model.sizes) if sizes.tp == tp and n in mine)
                is_own = tp != parallel.tp or has_own(job)
                group = group_of(job, "tp", sizes) if is_own else model.tp_group
                slices.append(collective(expansion, OpKind.ALL_REDUCE, group, whole * grad_bytes, done))
                done = slices[-1].end_s
    _tie(expansion, held, ends, tail)
    barrier = max([*ends, *(piece.end_s for slices in tail.slices for piece in slices)])
    lost: list[Slice] = []
    is_before = parallel.zero in (1, 2) and overlap.param_gather and is_cut and expansion.waited_s
    before = gather_times(expansion) if is_before else {}
    for rank, slices in enumerate(tail.slices):
        total = sum(piece.end_s - piece.start_s for piece in gathered.get(rank, ())) if overlap.param_gather else 0.0
        total += max((before.get(block.number, 0.0) for block in model.blocks if block.rank == rank), default=0.0)
        beside = [max(total - waited[rank], 0.0) for waited in expansion.waited_s] or 0.0
        loss = lost_s(expansion, rank, [(piece.start_s, piece.end_s) for piece in slices], beside)
        begin = max([ends[rank], *(piece.end_s for piece in slices)])
        lost.append(Slice(OpKind.CUSTOM, begin, begin + loss))
    for slices, piece in zip(tail.slices, lost, strict=True):
        slices.extend([piece] if piece.end_s > piece.start_s else [])
    barrier = max([barrier, *(piece.end_s for piece in lost)])
    barrier = _check(expansion, held, barrier, tail)
    for rank, slices in enumerate(tail.slices):
        elements = sum(item.elements for item in held[rank])
        if elements:
            _step(expansion, rank, held[rank], barrier, slices)
    for rank, pieces in gathered.items():
        tail.slices[rank] += pieces
    tail.iteration_s = max([barrier, *(piece.end_s for slices in tail.slices for piece in slices)])
    tail.iteration_s += on_grid(job.training.overhead_s)
    return tail


def worst_group(model: CutModel, rank: int, step: int, size: int, tp: int = 0) -> CommGroup:
    """Of the groups of ``size`` ranks that reduce together (context ranks of all replicas) at distance ``step``, on
    every tensor-parallel peer, the most spread one; ``tp``: of a module with other groups than the job's. Where the
    model is there twice, both ranks that hold the same stages."""
    job = model.job
    if copies(job) > 1:
        both = [(r, d) for r in (rank, job.parallel.pp - 1 - rank) for d in range(size // 2)]
        lists = [[model.peer(r, d, t) for r, d in both] for t in range(job.parallel.tp)]
        return most_spread(job.cluster.place_group("dp", own) for own in lists)
    if tp and has_own(job):
        gpus = [gpu for replica in range(job.parallel.dp) for gpu in block_of(job, rank, replica)]
        return most_spread(job.cluster.place_group("dp", gpus[t::tp]) for t in range(tp))
    if tp not in (0, job.parallel.tp):
        everyone = job.parallel.dp * job.parallel.cp * job.parallel.tp
        assert size * tp == everyone
        lists = [[rank * everyone + t + tp * k for k in range(size)] for t in range(tp)]
        return most_spread(job.cluster.place_group("dp", own) for own in lists)
    peers = job.parallel.dp * job.parallel.cp
    first = [d for d in range(peers) if d // step % size == 0 and d + step * (size - 1) < peers]
    lists = [[model.peer(rank, d + step * k, t) for k in range(size)] for d in first for t in range(job.parallel.tp)]
    groups = [job.cluster.place_group("dp", own) for own in lists]
    return max(groups, key=lambda group: (group.num_nodes, group.local_port.value == "pcie", -group.ranks_per_node))


def trainable(expansion: Expansion, rank: int) -> list[Held]:
    """Trainable parameters of a rank in the order of data flow, each once."""
    found: dict[int, Held] = {}
    for block in expansion.model.held_on(rank):
        for use in block.trace.parameters:
            if not use.parameter.requires_grad:
                continue
            routed, sizes = expansion.model.experts.holds(use), expansion.model.sizes[block.module]
            new = Held(use.parameter, use.numel, use.is_sharded, block.slot, 0.0, routed, sizes.tp, sizes.sp, rank)
            item = found.setdefault(id(use.parameter), new)
            for replica in expansion.replicas:
                for operators in replica.operators.values():
                    for entry in operators:
                        if entry.block is block and use.gradient in entry.operator.outputs:
                            item.ready_s = max(item.ready_s, replica.nodes[entry.key].end_s)
    ends = [replica.span(stage)[1] for replica in expansion.replicas for stage in replica.orders[rank]]
    end = max(ends, default=0.0)
    for item in found.values():  # what gets no gradient is reduced all the same
        item.ready_s = item.ready_s or end
    return list(found.values())


def copies(job: TrainingJob) -> int:
    """How often the model is there."""
    return 2 if job.parallel.placement == "bidirectional" else 1


def _pair(held: list[list[Held]]) -> None:
    """A gradient is complete when it is on both ranks that hold the parameter."""
    for rank, mine in enumerate(held):
        other = {id(item.parameter): item for item in held[len(held) - 1 - rank]}
        for item in mine:
            item.ready_s = max(item.ready_s, other[id(item.parameter)].ready_s)


def bucket_size(job: TrainingJob, dp: int) -> int:
    """Megatron-LM: 40 million elements, or a million per replica; PyTorch's DistributedDataParallel: 25 MiB."""
    if job.training.software.value == "torch":
        return 25 * 1024 * 1024 // job.training.precision.tensor_dtype.size_bytes
    return max(40_000_000, 1_000_000 * dp)


def buckets(held: list[Held], size: int, several: bool) -> list[list[Held]]:
    """Gradients in order of readiness, at least so many elements together, of one virtual stage."""
    found: list[list[Held]] = []
    for slot in {item.slot for item in held}:
        groups: list[list[Held]] = [[]]
        for item in sorted((item for item in held if item.slot == slot), key=lambda item: item.ready_s):
            if several and sum(other.elements for other in groups[-1]) >= size:
                groups.append([])
            groups[-1].append(item)
        found += groups
    return found


def shared_buckets(model: CutModel, held: list[Held], several: bool) -> list[list[Held]]:
    """Buckets of what several ranks hold, routed experts apart, in the order in which the buckets are full."""
    parallel, edp = model.job.parallel, model.experts.edp
    order = sorted(held, key=lambda item: item.ready_s)
    found: list[list[Held]] = []
    for tp, items in parts_of(held):
        dp = sharers(model.job, items[0].rank, tp, parallel.dp * parallel.cp * copies(model.job))
        dense = [item for item in items if not item.is_routed] if dp > 1 else []
        routed = [item for item in items if item.is_routed] if edp > 1 else []
        size = bucket_size(model.job, dp)
        found += buckets(dense, size, several) + buckets(routed, size, several)
    return sorted(found, key=lambda bucket: next(i for i, item in enumerate(order) if item is bucket[-1]))


def stepped(model: CutModel, held: list[Held]) -> int:
    """Elements that a rank steps: all of its own, or a share of each kind."""
    if not model.job.parallel.zero:
        return sum(item.elements for item in held)
    if model.job.training.optimizer.value == "muon" and held:
        return sum(share.in_matrices + share.others for share in muon.shares_of(model, held[0].rank))
    total = 0
    for tp, items in parts_of(held):
        routed = sum(item.elements for item in items if item.is_routed)
        dense = sum(item.elements for item in items) - routed
        shards = (model.job.parallel.zero_group or model.job.parallel.dp) * model.job.parallel.cp * copies(model.job)
        total += -(-dense // sharers(model.job, items[0].rank, tp, shards))
        edp = model.experts.edp
        if model.job.parallel.zero_group:
            edp = shards * model.job.parallel.tp // (model.experts.ep * model.experts.etp)
        total += -(-routed // edp) if routed else 0
    return total


def collective(expansion: Expansion, kind: OpKind, group: CommGroup, size: int, start_s: float) -> Slice:
    """One collective over a buffer of ``size`` bytes."""
    wire = wire_bytes(kind, group.num_ranks, size)
    latency = on_grid(collective_seconds(expansion.model.job.profile, kind, group, wire))
    return Slice(kind, start_s, start_s + latency, wire)


def _tie(expansion: Expansion, held: list[list[Held]], ends: list[float], tail: Tail) -> None:
    """Gradients of a parameter that several ranks hold are summed over those ranks."""
    model = expansion.model
    half = held[: len(held) // copies(model.job)]
    found = []
    for item in {id(item.parameter): item for items in half for item in items}.values():
        ranks = [r for r, items in enumerate(half) if any(other.parameter is item.parameter for other in items)]
        found.append((item, ranks))
    if len(half) < len(held):
        found += [(item, [len(held) - 1 - rank for rank in ranks]) for item, ranks in found]
    for item, ranks in found:
        if len(ranks) > 1:
            start = max(max([ends[rank], *(piece.end_s for piece in tail.slices[rank])]) for rank in ranks)
            group = model.job.cluster.place_group("pp", [model.gpu(rank, 0) for rank in ranks])
            parallel = model.job.parallel
            shards = (parallel.zero_group or parallel.dp) * parallel.cp if parallel.zero >= 2 else 1
            size = -(-item.elements // shards) * model.job.training.grad_dtype.size_bytes
            for rank in ranks:
                tail.slices[rank].append(collective(expansion, OpKind.ALL_REDUCE, group, size, start))


def _check(expansion: Expansion, held: list[list[Held]], begin_s: float, tail: Tail) -> float:
    """Loss scale, norm and clipping, one after the other on all ranks together; returns when they are done [s]."""
    model = expansion.model
    job = model.job
    parallel, training = job.parallel, job.training
    passes: list[int | None] = []  # how often every gradient is moved; None: an all-reduce of four bytes
    if training.loss_scaling:
        passes += [2, None]
    if training.gradient_clipping:
        passes += [1, None, 2]
    now = begin_s
    width = (parallel.zero_group or parallel.dp) * parallel.cp if parallel.zero else 1
    stages = parallel.pp // (1 if parallel.zero else copies(job))
    if not parallel.zero and any(item.is_routed for items in held for item in items):
        width = -(-model.experts.ep * model.experts.etp // parallel.tp)
    together = stages * parallel.tp * width
    for times in passes:
        ends = [now]
        for rank, slices in enumerate(tail.slices):
            own = stepped(model, held[rank])
            if times is not None and own:
                size = times * own * training.grad_dtype.size_bytes
                slices.append(_kernel(expansion, OpKind.OPTIMIZER, size, now))
                ends.append(slices[-1].end_s)
            elif times is None and (together > 1 or has_own(job)):
                places = itertools.product(range(stages), range(width), range(parallel.tp))
                gpus = [model.peer(p, d, t) for p, d, t in places] if not has_own(job) else _everyone(job)
                group = job.cluster.place_group("world", gpus)
                slices.append(collective(expansion, OpKind.ALL_REDUCE, group, 4, now))
                ends.append(slices[-1].end_s)
        now = max(ends)
    return now


def _everyone(job: TrainingJob) -> list[int]:
    """GPUs of all replicas, or of one where each has all gradients."""
    replicas = range(job.parallel.dp if job.parallel.zero else 1)
    return [gpu for rank in range(job.parallel.pp) for replica in replicas for gpu in block_of(job, rank, replica)]


def _kernel(expansion: Expansion, kind: OpKind, size: int, start_s: float) -> Slice:
    """One memory-bound kernel."""
    profile = expansion.model.job.profile
    latency = profile.efficiency(kind).latency_s(0, size, 1.0, profile.mem_bytes_per_s.value)
    return Slice(kind, start_s, start_s + on_grid(latency))


def _step(expansion: Expansion, rank: int, held: list[Held], barrier: float, slices: list[Slice]) -> None:
    """Adam on the rank's share, then the gather of the parameters where it does not hide."""
    model = expansion.model
    job = model.job
    tensor_bytes, grad_bytes = job.training.precision.tensor_dtype.size_bytes, job.training.grad_dtype.size_bytes
    shards = (job.parallel.zero_group or job.parallel.dp) * job.parallel.cp * copies(job)
    master, state = job.training.master_dtype.size_bytes, job.training.optimizer_state_dtype.size_bytes
    # gradient read, two moments and the master read and written, parameter written (or, without master, both)
    weight = (
        2 * tensor_bytes
        if job.training.master_dtype is job.training.precision.tensor_dtype
        else 2 * master + tensor_bytes
    )
    found = {id(u.parameter): u for block in model.blocks if block.rank == rank for u in block.trace.parameters}
    is_moved = job.fp8_weights.value == "primary" and job.training.fp8_recipe.value != "mxfp8"
    primary = [u for u in found.values() if u.is_fp8 and is_moved]
    is_written = job.training.autocast is None and not (
        job.parallel.zero == 3 and job.training.software.value == "torch"
    )
    if weight > 2 * tensor_bytes and not is_written:
        weight = 2 * master
    moments, products_s = {"adam": 2, "sgd": 1, "lion": 1, "muon": 2}[job.training.optimizer.value], 0.0
    traffic = stepped(model, held) * (grad_bytes + 2 * moments * state + weight)
    if job.training.optimizer_kernels.value == "foreach":
        copy = weight - 2 * master if weight > 2 * master else 0
        each = {2: 4 * master + 2 * grad_bytes + 14 * state, 1: 2 * master + grad_bytes + 5 * state}[moments]
        traffic = stepped(model, held) * (each + (master + copy if copy else 0))
    if job.training.weight_average:
        traffic += stepped(model, held) * 8 * master
    if job.training.optimizer.value == "muon":
        shares = muon.shares_of(model, rank)
        copied = 0 if job.training.master_dtype is job.training.precision.tensor_dtype else master + tensor_bytes
        kept = master if copied else tensor_bytes
        # decay (2 weights), momentum (gradient, 2 momenta), update (gradient, momentum, itself), step (itself, 2
        # weights), copy
        each = 2 * kept + grad_bytes + 2 * state + grad_bytes + state + 4 + 4 + 2 * kept + copied
        traffic = sum(s.in_matrices * each + s.others * (grad_bytes + 4 * state + weight) for s in shares)
        products_s = sum(share.products_s for share in shares)
    gathered, counted, away = [], [], model.streamed()
    kinds = [(tp, items, False) for tp, items in parts_of(held)] + [(job.parallel.tp, held, True)]
    for tp, items, is_routed in kinds:
        own = [item for item in items if item.is_routed is is_routed]
        if not own:
            continue
        elements = sum(item.elements for item in own)
        mine = [u for u in primary if any(u.parameter is item.parameter for item in own)]
        narrow = sum(u.numel - scales(job, u.numel) for u in mine)
        ranks = sharers(job, rank, tp, job.parallel.dp * job.parallel.cp * copies(job))
        group = worst_group(model, rank, 1, sharers(job, rank, tp, shards), tp)
        if is_routed:
            group, ranks = model.experts.groups("edp", 0, rank), model.experts.edp
        if elements:
            traffic -= narrow * stepped(model, own) // elements
        if elements and ranks > 1:
            gathered.append((group, elements * tensor_bytes - narrow))
            counted.append(sum(item.elements for item in own if id(item.parameter) in away))
    lives_on_host = "optimizer" in (job.training.offload or ())
    copied = 2 * state + (0 if job.training.master_dtype is job.training.precision.tensor_dtype else master)
    copied *= stepped(model, held)
    host = CommGroup("host", 2, local_port=Port.PCIE)
    if lives_on_host:
        slices.append(collective(expansion, OpKind.P2P, host, copied, barrier))
        barrier = slices[-1].end_s
    read, written = _streamed(expansion, held)
    if read:
        slices.append(collective(expansion, OpKind.P2P, host, read, barrier))
        barrier = slices[-1].end_s
    slices.append(_kernel(expansion, OpKind.OPTIMIZER, traffic, barrier))
    slices[-1].end_s += products_s
    if lives_on_host:
        slices.append(collective(expansion, OpKind.P2P, host, copied, slices[-1].end_s))
    if job.parallel.zero in (1, 2):
        for (group, size), elements in zip(gathered, counted, strict=True):
            size = elements * tensor_bytes if job.training.overlap.param_gather else size
            if size:
                slices.append(collective(expansion, OpKind.ALL_GATHER, group, size, slices[-1].end_s))
    if written:
        slices.append(collective(expansion, OpKind.P2P, host, written, slices[-1].end_s))
    uses = {id(use.parameter): use for block in model.blocks if block.rank == rank for use in block.trace.parameters}
    cast = sum(use.numel for use in uses.values() if use.is_fp8)
    if cast and job.fp8_weights.value != "microbatch":
        copy = cast + sum(scales(job, use.numel) for use in uses.values() if use.is_fp8)
        moved = fp8_copies(job) * copy + (0 if is_moved else cast * tensor_bytes)
        if not is_moved or fp8_copies(job) == 2:
            slices.append(_kernel(expansion, OpKind.CAST, moved, slices[-1].end_s))


def _streamed(expansion: Expansion, held: list[Held]) -> tuple[int, int]:
    """What a step reads, and writes, of a rank's weights that live on the host [bytes]."""
    model, job = expansion.model, expansion.model.job
    training, away = job.training, expansion.model.streamed()
    moved = [item for item in held if id(item.parameter) in away]
    kept = [item for item in held if id(item.parameter) not in away]
    size, whole = training.precision.tensor_dtype.size_bytes, sum(item.elements for item in moved)
    has_master = training.master_dtype is not training.precision.tensor_dtype
    if job.parallel.zero == 3:
        share = stepped(model, held) - stepped(model, kept)
        if training.software.value == "torch" and has_master:
            moves = 0 if "optimizer" in (training.offload or ()) else share * training.master_dtype.size_bytes
            return moves, moves
        return 0 if has_master else share * size, share * size
    return 0 if has_master else stepped(model, moved) * size, whole * size


def gather_times(expansion: Expansion) -> dict[int, float]:
    """When the parameters of every block are there: buckets in the order of the forward pass, one after the other."""
    job = expansion.model.job
    ready: dict[int, float] = {}
    for rank in range(job.parallel.pp):
        width = (job.parallel.zero_group or job.parallel.dp) * job.parallel.cp * copies(job)
        held = [i for i in trainable(expansion, rank) if id(i.parameter) not in expansion.model.streamed()]
        for item in held:
            item.ready_s = 0.0
        now = 0.0
        for bucket in shared_buckets(expansion.model, held, several=True):
            tp = bucket[0].tp
            group = worst_group(expansion.model, rank, 1, sharers(job, rank, tp, width), tp)
            own = expansion.model.experts.groups("edp", 0, rank) if bucket[0].is_routed else group
            size = job.training.precision.tensor_dtype.size_bytes * sum(h.elements for h in bucket)
            now = collective(expansion, OpKind.ALL_GATHER, own, size, now).end_s
            for block in expansion.model.blocks:
                used = {id(use.parameter) for use in block.trace.parameters}
                if block.rank == rank and used & {id(item.parameter) for item in bucket}:
                    ready[block.number] = now
    return ready
