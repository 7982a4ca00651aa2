"""A slow second opinion on ``semu.simulate``: every operator of every replica written out, nothing shared.

The whole iteration of each data-parallel replica is one list of nodes with explicit dependencies (operators, the two
ends of each stage, sends); times are longest paths through it. Memory is a list of lifetimes
(``reference_memory``). There is no array, no template, no kernel and no cache here. Blocks are traced by
``reference_trace``, collectives timed by ``reference_network``; what is taken from semu is the description of a job,
the kernels of an operator and of its gradient with their FLOP and bytes, and the scalar roofline of one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulation.reference.costs import ATTENTION, latency_of, on_grid, symbols_of, value
from simulation.reference.memory import Curve, RankStatic, memory_of, static_of
from simulation.reference.model import Block, CutModel, holds_all, is_eager
from simulation.reference.modules import (
    busiest_port,
    card_parts,
    card_slowdown,
    gpu_shares,
    link_across,
    module_symbols,
    shares_cards,
)
from simulation.reference.network import collective_seconds
from simulation.reference.sharding import COPY, GATHER, IN, OUT, REDUCE, REPLICATE, SHARD, Sharding, Unit

from semu.graph.operator import Operator
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob

Key = tuple[object, ...]
"""Name of a node: ("begin" or "end", chunk, phase, microbatch), ("operator", chunk, phase, microbatch, i),
("link", chunk, phase, microbatch, i, "gather", "reduce", "replicate", "copy", "shard", "out" or "in", unit),
("send", from chunk, to chunk, phase, microbatch), ("launch", chunk, phase, microbatch, i)."""

StageName = tuple[int, str, int]
"""Chunk, "F" or "B" (or "I" and "W"), microbatch."""


HOST = ("offload", "reload")
"""Streams of copies between GPU and host."""


def eager_calls(operator: Operator) -> int:
    """Kernels of an operator in eager mode, as ``semu.nn.trace.eager`` tells them; ten for a collective."""
    kind = operator.kind.value
    if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"):
        return 10
    name, is_forward = operator.path.split(".")[-1], operator.phase.value in "FR"
    if name.startswith("flash_"):
        return 7
    if name.endswith("_passes"):
        counts = {"rms": (15, 7), "rope": (2, 2), "layer": (0, 0), "group": (1, 1), "modulate": (4, 1)}
        counts |= {"bias": (1, 1), "layout": (1, 1), "join": (1, 1)}
        return counts.get(name.split("_")[0], (2, 1))[is_forward]
    return {"attention_forward": 4, "attention_backward": 6, "norm": 2 - is_forward}.get(kind, 1)


@dataclass
class Node:
    """Something that takes time, after others."""

    latency_s: float = 0.0
    after: list[Key] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = -1.0
    not_before_s: float = 0.0


@dataclass
class StageOperator:
    """One operator of one stage."""

    key: Key
    block: Block | None
    operator: Operator
    flop: int
    net_bytes: int


@dataclass
class Replica:
    """One data-parallel replica, operator by operator.

    Attributes:
        nodes: by name. orders: stages of each rank in order. operators: of each stage in issue order.
        sent_bytes: of each send. memory: dynamic memory of each rank as (time, bytes) steps.
        compute_s, exposed_s: means over the ranks: kernels; waiting for the streams ``tp`` and ``pp``. Nothing where
            operators wait for parameters.
    """

    nodes: dict[Key, Node]
    orders: list[list[StageName]]
    operators: dict[StageName, list[StageOperator]]
    sent_bytes: dict[Key, int]
    memory: list[Curve]
    compute_s: float = 0.0
    exposed_s: dict[str, float] = field(default_factory=dict)

    def span(self, stage: StageName) -> tuple[float, float]:
        """Start and end of a stage [s]."""
        return self.nodes["begin", *stage].end_s, self.nodes["end", *stage].end_s

    @property
    def makespan_s(self) -> float:
        """End of the last stage [s]."""
        return max(self.span(stage)[1] for order in self.orders for stage in order)


@dataclass
class Expansion:
    """What the reference says of a job: its cut model, replicas, and what each rank stores all the time.

    Attributes:
        waited_s: per replica and rank, how much longer stages last because their parameters are gathered outside.
    """

    model: CutModel
    replicas: list[Replica]
    static: list[RankStatic]
    waited_s: list[list[float]] = field(default_factory=list)

    @property
    def peak_bytes(self) -> list[int]:
        """Highest allocation of each rank over all replicas."""
        return [
            static.total + max(replica.memory[rank].peak for replica in self.replicas)
            for rank, static in enumerate(self.static)
        ]


def expand(
    job: TrainingJob, gather_ready: dict[int, float] | None = None, orders: list[list[StageName]] | None = None
) -> Expansion:
    """Write out a job.

    Args:
        job: small. gather_ready: block -> when its parameters arrive [s]; its operators wait.
        orders: stages of every rank; None: those of the job's schedule.
    """
    model = CutModel(job)
    items = job.batch.microbatches(
        job.num_microbatches * job.parallel.dp, job.training.micro_batch, job.training.seq_len
    )
    static = [static_of(model, rank) for rank in range(job.parallel.pp)]
    if holds_all(job):
        from simulation.reference.held import ready_times, spans, timed

        gather_ready = ready_times(Expansion(model, [], static))
    replicas, symbols = [], []
    for number in range(job.parallel.dp):
        mine = items[number :: job.parallel.dp]
        own = [symbols_of(item, job.parallel.tp, job.parallel.cp) | module_symbols(job, item) for item in mine]
        replicas.append(Writer(model, number, own, gather_ready or {}, orders).write())
        symbols.append(own)
    expansion = Expansion(model, replicas, static)
    if holds_all(job):
        wholes = timed(expansion)
        for replica, own in zip(replicas, symbols, strict=True):
            replica.memory = memory_of(model, replica, own, spans(expansion, replica, wholes))
    for number, (replica, own) in enumerate(zip(replicas, symbols, strict=True)) if gather_ready else ():
        free = Writer(model, number, own, {}, orders).write()
        expansion.waited_s.append(
            [sum(_length(replica, s) - _length(free, s) for s in order) for order in replica.orders]
        )
    return expansion


def _length(replica: Replica, stage: StageName) -> float:
    start, end = replica.span(stage)
    return end - start


def stage_orders(model: CutModel, num_microbatches: int) -> list[list[StageName]]:
    """Stages of every rank under GPipe or 1F1B; the chunks of a rank's virtual stage stand together."""
    job = model.job
    if job.parallel.vpp > 1:
        return _interleaved_orders(model, num_microbatches)
    orders = []
    for rank in range(job.parallel.pp):
        held = [c for c in range(model.num_chunks) if model.chunk(c)[0].rank == rank]
        back = [c for c in reversed(held) if model.has_backward(c)]
        warm_up = min(num_microbatches, _ranks_behind(model, rank))
        if job.training.schedule == "gpipe":
            turns = [("F", i) for i in range(num_microbatches)] + [("B", i) for i in reversed(range(num_microbatches))]
        else:
            assert job.training.schedule == "1f1b"
            turns = [("F", i) for i in range(warm_up)]
            for i in range(num_microbatches - warm_up):
                turns += [("F", i + warm_up), ("B", i)]
            turns += [("B", i) for i in range(num_microbatches - warm_up, num_microbatches)]
        orders.append([(chunk, phase, i) for phase, i in turns for chunk in (held if phase == "F" else back)])
    return orders


def _ranks_behind(model: CutModel, rank: int) -> int:
    """Ranks on the longest way from a rank to the end of the data flow."""
    ranks = {chunk: model.chunk(chunk)[0].rank for chunk in range(model.num_chunks)}
    after = {ranks[c] for c in ranks if any(ranks[s] == rank for s in model.chunk_sources(c))} - {rank}
    return max((1 + _ranks_behind(model, other) for other in after), default=0)


def _interleaved_orders(model: CutModel, num_microbatches: int) -> list[list[StageName]]:
    """Several virtual stages per rank: breadth first under GPipe, else in Megatron's turns.

    Forwards go by groups of pp microbatches, within a group by virtual stage, within that by microbatch; backwards
    alike, from the last virtual stage to the first. A backward begins when all forwards but those that lie between are
    issued: 2 for every rank behind this one, pp for every virtual stage but one.
    """
    job = model.job
    pp, vpp = job.parallel.pp, job.parallel.vpp
    everything = [(slot, i) for slot in range(vpp) for i in range(num_microbatches)]
    orders = []
    for rank in range(pp):
        if job.training.schedule == "gpipe":
            turns = [("F", *turn) for turn in everything] + [("B", *turn) for turn in reversed(everything)]
        else:
            assert job.training.schedule in ("1f1b", "interleaved")
            forwards = sorted(everything, key=lambda turn: (turn[1] // pp, turn[0], turn[1]))
            backwards = sorted(everything, key=lambda turn: (turn[1] // pp, -turn[0], turn[1]))
            ahead = min(len(forwards), 2 * (pp - 1 - rank) + pp * (vpp - 1))
            turns = [("F", *turn) for turn in forwards[:ahead]]
            for forward, backward in zip(forwards[ahead:], backwards, strict=False):
                turns += [("F", *forward), ("B", *backward)]
            turns += [("B", *turn) for turn in backwards[len(backwards) - ahead :]]
        order: list[StageName] = []
        for phase, slot, i in turns:
            held = [
                c for c in range(model.num_chunks) if (model.chunk(c)[0].rank, model.chunk(c)[0].slot) == (rank, slot)
            ]
            if phase == "B":
                held = [c for c in reversed(held) if model.has_backward(c)]
            order += [(chunk, phase, i) for chunk in held]
        orders.append(order)
    return orders


def overlaps_sends(job: TrainingJob) -> bool:
    """Sends run beside the sender's compute if asked for, and by default where ranks have several virtual stages or
    the schedule is none of Megatron-LM's."""
    chosen = job.training.overlap.pipeline
    usual = job.parallel.vpp == 1 and job.training.schedule in ("1f1b", "gpipe", "interleaved")
    return not usual if chosen is None else chosen


class Writer:
    """Writes down one replica."""

    def __init__(
        self,
        model: CutModel,
        number: int,
        symbols: list[dict[str, int]],
        gather_ready: dict[int, float],
        orders: list[list[StageName]] | None = None,
    ) -> None:
        self.model, self.number, self.symbols, self.gather_ready = model, number, symbols, gather_ready
        self.nodes: dict[Key, Node] = {}
        self.operators: dict[StageName, list[StageOperator]] = {}
        self.sent: dict[Key, int] = {}
        self.writer: dict[tuple[tuple[int, int], int], Key] = {}
        self.launched: dict[int, Key] = {}
        self.orders = orders if orders is not None else stage_orders(model, len(symbols))
        self.planned = {stage for order in self.orders for stage in order}
        self.sharding = Sharding(model)

    def write(self) -> Replica:
        last_send: dict[tuple[int, int], Key] = {}
        for rank, order in enumerate(self.orders):
            before: list[Key] = []
            for stage in order:
                self._stage(stage, before)
                before = [("end", *stage)]
                for target in self._targets(stage):
                    send = ("send", stage[0], target, *stage[1:])
                    pair = (rank, self._rank(target))
                    previous = [last_send[pair]] if pair in last_send else []
                    self.nodes[send] = Node(self._send_latency(send, *pair), [("end", *stage), *previous])
                    last_send[pair] = send
                    if not overlaps_sends(self.model.job):
                        before.append(send)
        self._take_longest_paths()
        replica = Replica(self.nodes, self.orders, self.operators, self.sent, [])
        replica.memory = self._memory_of(replica)
        if not self.gather_ready and not self.model.job.training.offload and not self.model.job.training.launches:
            several = bool(self.sharding.units) or self.model.job.parallel.cp > 1
            inside = "experts" if self.model.has_experts else "tp"
            inside = "links" if several else "replicas" if self.model.job.model.reads_replicas else inside
            attribute(replica, "modules" if self.model.job.parallel.modules else inside, gpu_shares(self.model.job))
        return replica

    def _memory_of(self, replica: Replica) -> list[Curve]:
        return memory_of(self.model, replica, self.symbols, self.sharding.held(replica))

    def _symbols_of(self, chunk: int, microbatch: int) -> dict[str, int]:
        """Sizes of a chunk's microbatch."""
        return self.symbols[microbatch]

    def _rank(self, chunk: int) -> int:
        return self.model.chunk(chunk)[0].rank

    # -- stages ----------------------------------------------------------------------------------------------------
    def _stage(self, stage: StageName, before: list[Key]) -> None:
        chunk, phase, microbatch = stage
        symbols, overlaps = self._symbols_of(chunk, microbatch), self.model.job.overlaps_tensor_parallel
        self.nodes["begin", *stage] = Node(after=[*before, *self._waits_for(stage)])
        end = self.nodes["end", *stage] = Node(after=[("begin", *stage)])
        written: list[StageOperator] = []
        last_on: dict[str, Key] = {}
        links: dict[str, Key] = {}
        ready: dict[int, Key] = {}
        barrier: list[Key] = []
        latest: list[Key] = []
        done: list[list[Key]] = []
        fronts: dict[int, list[Key]] = {}
        copied: list[Block] = []
        shard: list[Key] = []
        for what, item in self.sharding.turns(chunk, phase):
            if isinstance(item, Unit):
                number = self.sharding.units.index(item)
                key = ("link", *stage, len(written), what, number)
                operator, latency = self.sharding.operator(what, item)
                name = operator.stream.name
                if what in (OUT, IN):  # kernels, in the order of the compute stream
                    before = [ready[number]] if what == OUT else [*latest, *barrier]
                    before += [last_on[n] for n in ("compute", OUT) if n in last_on]
                    self.nodes[key] = Node(latency, [("begin", *stage), *before])
                    last_on[OUT] = key
                    if what == OUT:
                        ready[number] = key
                    end.after.append(key)
                    written.append(StageOperator(key, None, operator, 0, 0))  # type: ignore[arg-type]
                    continue
                node = Node(latency, [("begin", *stage), *([links[name]] if name in links else [])])
                if what == COPY:  # as soon as the block of the copy before begins
                    node.after += fronts[copied[-1].number] if copied else []
                elif what == GATHER and shard:
                    node.after += [shard.pop()]
                elif what == REDUCE and self.sharding.copied_bytes(IN, item):
                    node.after += [last_on[OUT]]
                else:
                    node.after += [links["reduced"]] if what == REPLICATE else [*latest, *barrier]
                if name in HOST:
                    node.after += [last_on[name]] if name in last_on else []
                    last_on[name] = key
                if what == SHARD:
                    shard.append(key)
                elif what in (GATHER, COPY):
                    ready[number] = key
                elif not self.model.job.training.overlap.grad_reduce:
                    barrier.append(key)
                links[name] = links["reduced"] = key
                self.nodes[key] = node
                end.after.append(key)
                written.append(StageOperator(key, None, operator, 0, operator.net_bytes))  # type: ignore[arg-type]
                continue
            assert isinstance(item, Block)
            copied += [item] if self.sharding.begins_copied(item, phase) else []
            waits = [ready[n] for n in ready if item in self.sharding.units[n].blocks] + barrier
            kernels: list[tuple[OpKind, Key]] = []
            fronts[item.number] = latest
            if item.operators(phase):
                latest = []
            for operator in item.operators(phase):
                key = ("operator", *stage, len(written))
                node = Node(
                    latency_of(operator, symbols, self.model.job.profile, self.model.groups_for(item)),
                    [("begin", *stage), *([] if operator.stream.name in HOST else waits)],
                )
                mine = operator.stream.name
                in_ring = operator.kind is OpKind.P2P and mine not in HOST
                if mine in HOST:
                    node.after += [last_on[mine]] if mine in last_on else []
                    node.after += done[-2] if phase != "F" and len(done) > 1 else []  # one block ahead of its readers
                elif in_ring:
                    node.after += [last_on["ring"]] if "ring" in last_on else []
                    node.after += _before_last_attention(kernels)
                else:
                    apart = (*HOST, "ring", OUT)
                    node.after += [last_on[n] for n in last_on if n == mine or (not overlaps and n not in apart)]
                    if mine == "compute":
                        kernels.append((operator.kind, key))
                        node.after += [last_on[OUT]] if OUT in last_on else []
                place = "ring" if in_ring else mine
                node.after += self._writers(item, operator, microbatch, key)
                if phase == "F":
                    node.not_before_s = self.gather_ready.get(item.number, 0.0)
                self.nodes[key] = node
                end.after.append(key)
                last_on[place] = key
                latest += [] if mine in HOST else [key]
                flop, net = (value(d, symbols) if symbols else 0 for d in (operator.flop, operator.net_bytes))
                written.append(StageOperator(key, item, operator, flop, net))
            if any(o.stream.name not in HOST for o in item.operators("F" if phase == "F" else "B")):
                own = [e.key for e in written if e.block is not None and e.operator.stream.name not in HOST]
                done.append(own[-1:])  # of a part of a backward, what it has until here
        self.operators[stage] = written
        if self.model.job.training.launches:
            self._launch(stage, written)

    def _launch(self, stage: StageName, written: list[StageOperator]) -> None:
        """The rank's host issues every kernel behind the one before; behind a transfer that it waited for, not before
        the stage can begin."""
        job, rank = self.model.job, self._rank(stage[0])
        latest = [self.launched[rank]] if rank in self.launched else []
        blocks = job.training.launch_blocking
        is_behind_a_send = any(key[0] == "send" for key in self.nodes["begin", *stage].after)
        if is_behind_a_send and (blocks or not overlaps_sends(job)):
            latest.append(("begin", *stage))
        for number, entry in enumerate(written):
            node, key = self.nodes[entry.key], ("launch", *stage, number)
            host, calls = job.profile.host, 1
            lasts = host.launch_s.value
            if job.training.software.value == "torch" and is_eager(job):
                calls = eager_calls(entry.operator)
                lasts = host.eager_launch_s.value * self._eager_slowdown(rank)
            if blocks:
                calls, lasts = eager_calls(entry.operator), host.blocking_launch_s.value
            lasts = on_grid(lasts) * calls if node.latency_s else 0.0
            self.nodes[key] = Node(lasts, latest)
            node.after.append(key)
            latest = [key, entry.key] if blocks else [key]
        self.launched[rank] = ("launch", *stage, "done")
        self.nodes[self.launched[rank]] = Node(0.0, latest)

    def _eager_slowdown(self, rank: int) -> float:
        """Factor on the launches of a rank with a neighbour on another node."""
        job, gpus = self.model.job, self.model.job.cluster.gpus_per_node
        for other in (rank - 1, rank + 1):
            if 0 <= other < job.parallel.pp:
                peers = range(job.parallel.tp)
                pairs = [[self.model.gpu(place, 0) + peer for place in (rank, other)] for peer in peers]
                if any(one // gpus != two // gpus for one, two in pairs):
                    return 1 + job.profile.host.transfer_stall.value * (job.parallel.tp - 1)
        return 1.0

    def _writers(self, block: Block, operator: Operator, microbatch: int, key: Key) -> list[Key]:
        """Who wrote last what the operator reads; the operator becomes the last writer of what it writes."""

        def home(tensor: int) -> tuple[tuple[int, int], int]:
            return self.model.home(block, block.trace.graph.tensors[tensor].storage), microbatch

        found = [self.writer[home(tensor)] for tensor in operator.inputs if home(tensor) in self.writer]
        self.writer.update({home(tensor): key for tensor in operator.outputs})
        return found

    def _waits_for(self, stage: StageName) -> list[Key]:
        """Ends of the stages, or of the transfers, that bring what a stage needs."""
        chunk, phase, microbatch = stage
        if phase == "W":
            return [("end", chunk, "I", microbatch)]
        chunks, sources, has_backward = range(self.model.num_chunks), self.model.chunk_sources, self.model.has_backward
        others = sources(chunk) if phase == "F" else [c for c in chunks if chunk in sources(c) and has_backward(c)]
        waits: list[Key] = [("end", chunk, "F", microbatch)] if phase != "F" else []
        for other in others:
            theirs = phase if phase == "F" else "B" if (other, "B", microbatch) in self.planned else "I"
            if self._rank(other) == self._rank(chunk):
                waits.append(("end", other, theirs, microbatch))
            else:
                waits.append(("send", other, chunk, theirs, microbatch))
        return waits

    def _targets(self, stage: StageName) -> list[int]:
        """Chunks on other ranks that get what a stage makes."""
        chunk, phase, _ = stage
        if phase == "W":
            return []
        if phase == "F":
            others = [c for c in range(self.model.num_chunks) if chunk in self.model.chunk_sources(c)]
        else:
            others = [c for c in self.model.chunk_sources(chunk) if self.model.has_backward(c)]
        return [other for other in others if self._rank(other) != self._rank(chunk)]

    # -- sends -----------------------------------------------------------------------------------------------------
    def _send_latency(self, send: Key, source: int, target: int) -> float:
        """Latency [s] of a send, and a note of its bytes."""
        _, maker, taker, phase, microbatch = send
        head = self.model.chunk(taker if phase == "F" else maker)[0]  # type: ignore[arg-type]
        tail = maker if phase == "F" else taker
        graph, size = head.trace.graph, 0
        for k, origin in enumerate(head.sources):
            tensor = head.trace.inputs[k] if phase == "F" else head.trace.input_gradients[k]
            if origin is not None and self.model.blocks[origin[0]].chunk == tail and tensor is not None:
                storage = graph.storages[graph.tensors[tensor].storage]
                size += value(storage.size_bytes, self.symbols[microbatch])  # type: ignore[index]
        job = self.model.job
        if any(own.gpus is not None for own in job.parallel.modules.values()):
            return self._send_across(send, size, source, target)
        self.sent[send] = size
        gpus = [self.model.gpu(rank, self.number) for rank in (source, target)]
        group = job.cluster.place_group("pp", gpus)
        is_whole = job.parallel.tp == 1 or job.parallel.sequence_parallel
        if is_whole or job.training.software.value != "megatron-deepspeed":
            return on_grid(collective_seconds(job.profile, OpKind.P2P, group, size))
        share = -(-size // job.parallel.tp)
        self.sent[send] = share
        peers = job.cluster.place_group("tp", [self.model.gpu(target, self.number) + i for i in range(job.parallel.tp)])
        gathered = collective_seconds(job.profile, OpKind.ALL_GATHER, peers, size - share)
        return on_grid(collective_seconds(job.profile, OpKind.P2P, group, share)) + on_grid(gathered)

    def _send_across(self, send: Key, size: int, source: int, target: int) -> float:
        """The same between ranks of different width: what the busiest port sends or gets, over the longest link."""
        _, maker, taker, phase, _ = send
        ends = [self.model.chunk(chunk)[0].module for chunk in (maker, taker)]  # type: ignore[arg-type]
        giver, getter = (self.model.sizes[end] for end in (ends if phase == "F" else ends[::-1]))
        most, held = busiest_port(giver, getter, str(phase))
        if ends[0] != ends[1]:
            size = -(-size * most // held)
        self.sent[send] = size
        job = self.model.job
        group = link_across(job, source, target, self.number)
        if shares_cards(job) and group.num_nodes > 1:
            counts = card_parts(job, giver, getter, str(phase), (source, target))
            fullest = max((sum(c.get(card, 0) for c in counts) for own in counts for card in own), default=0)
            if fullest:
                group = replace(group, nic_slowdown=card_slowdown(job, fullest, most)[0])
        return on_grid(collective_seconds(job.profile, OpKind.P2P, group, size))

    # -- times -----------------------------------------------------------------------------------------------------
    def _take_longest_paths(self) -> None:
        """A node starts when all that it comes after has ended."""
        for first in self.nodes:
            path = [first]
            while path:
                node = self.nodes[path[-1]]
                missing = next((key for key in node.after if self.nodes[key].end_s < 0), None)
                if missing is not None:
                    path.append(missing)
                    assert len(path) <= len(self.nodes), "nodes wait for each other in a circle"
                    continue
                node.start_s = max([node.not_before_s, *(self.nodes[key].end_s for key in node.after)])
                node.end_s = node.start_s + node.latency_s
                path.pop()


def _before_last_attention(kernels: list[tuple[OpKind, Key]]) -> list[Key]:
    """A transfer of the ring begins with the attention kernel beside which it runs: after the kernel before that."""
    number = max(i for i, (kind, _) in enumerate(kernels) if kind in ATTENTION)
    return [kernels[number - 1][1]] if number else []


def attribute(replica: Replica, inside: str, shares: list[float]) -> None:
    """Means over all GPUs of the time in kernels, of that lost to links inside stages, and of that lost to ``pp``.

    Args:
        inside: ``tp``, or ``links`` where data-parallel collectives run in stages too, or ``experts`` (tp, ep, etp), or
            ``modules`` where modules of different parallelism exchange their tensors.
        shares: of a replica's GPUs, how many are on every pipeline rank.
    """
    replica.exposed_s = {inside: 0.0, "pp": 0.0}
    for order, share in zip(replica.orders, shares, strict=True):
        free = 0.0
        for stage in order:
            begin, end = replica.span(stage)
            kernels = [replica.nodes[o.key] for o in replica.operators[stage] if not o.operator.kind.is_communication]
            busy = sum(node.latency_s for node in kernels)
            replica.compute_s += busy * share
            replica.exposed_s[inside] += (end - begin - busy) * share
            sends = [replica.nodes[key] for key in replica.nodes["begin", *stage].after if key[0] == "send"]
            lasted = [node.latency_s for node in sends if node.end_s == begin]
            replica.exposed_s["pp"] += max([min(begin - free, latency) for latency in lasted], default=0.0) * share
            free = end
