"""A slow second opinion on ``semu.simulate``: every operator of every replica written out, nothing shared.

The whole iteration of each data-parallel replica is one list of nodes with explicit dependencies (operators, the two
ends of each stage, sends, parameter gathers); times are longest paths through it. Memory is a list of lifetimes
(``reference_memory``). There is no array, no template, no kernel and no cache here; what is taken from semu is the
description of a job, the trace of one block, and the scalar cost of one operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.reference_memory import Curve, RankStatic, memory_of, static_of
from simulation.reference_model import Block, CutModel, symbols_of, value

from semu.graph.operator import Operator
from semu.hardware.device import DeviceKind
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup, collective_latency
from semu.job import TrainingJob

ATTENTION = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)

Key = tuple[object, ...]
"""Name of a node: ("begin" or "end", chunk, phase, microbatch), ("operator", chunk, phase, microbatch, i),
("send", from chunk, to chunk, phase, microbatch), ("gather", rank, i)."""

StageName = tuple[int, str, int]
"""Chunk, "F" or "B", microbatch."""


def on_grid(latency_s: float) -> float:
    """A latency rounded to a multiple of 2^-40 s."""
    return round(latency_s * 2**40) / 2**40


@dataclass
class Node:
    """Something that takes time, after others."""

    latency_s: float = 0.0
    after: list[Key] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = -1.0


@dataclass
class StageOperator:
    """One operator of one stage."""

    key: Key
    block: Block
    operator: Operator
    flop: int
    net_bytes: int


@dataclass
class Replica:
    """One data-parallel replica, operator by operator.

    Attributes:
        nodes: by name. orders: stages of each rank in order. operators: of each stage in issue order.
        sent_bytes: of each send. memory: dynamic memory of each rank as (time, bytes) steps.
        compute_s, exposed_s: means over the ranks: kernels; waiting for the streams ``tp`` and ``pp``.
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
    """What the reference says of a job: its cut model, replicas, and what each rank stores all the time."""

    model: CutModel
    replicas: list[Replica]
    static: list[RankStatic]

    @property
    def peak_bytes(self) -> list[int]:
        """Highest allocation of each rank over all replicas."""
        return [
            static.total + max(replica.memory[rank].peak for replica in self.replicas)
            for rank, static in enumerate(self.static)
        ]


def expand(job: TrainingJob, gather_ready: dict[int, list[float]] | None = None) -> Expansion:
    """Write out a job.

    Args:
        job: small. gather_ready: block -> when each of its gathered parameters arrives [s]; its operators wait.
    """
    model = CutModel(job)
    items = job.batch.microbatches(
        job.num_microbatches * job.parallel.dp, job.training.micro_batch, job.training.seq_len
    )
    replicas = []
    for number in range(job.parallel.dp):
        own = [symbols_of(item, job.parallel.tp) for item in items[number :: job.parallel.dp]]
        replicas.append(_Writer(model, number, own, gather_ready or {}).write())
    return Expansion(model, replicas, [static_of(model, rank) for rank in range(job.parallel.pp)])


def latency_of(operator: Operator, symbols: dict[str, int], model: CutModel) -> float:
    """Latency of one operator [s]; one with nothing to do takes no time."""
    profile = model.job.cluster.profile
    flop, mem, net = (value(d, symbols) for d in (operator.flop, operator.mem_bytes, operator.net_bytes))
    if operator.kind.is_communication:
        group = model.tp_group if operator.stream.name == "tp" else CommGroup(operator.stream.name, 2)
        return on_grid(collective_latency(profile, operator.kind, group, net))
    if operator.flop != 0 and flop == 0:
        return 0.0
    peak = profile.peak_flop_per_s(operator.dtype)
    if operator.kind not in ATTENTION:
        efficiency = profile.efficiency(operator.kind, dtype=operator.dtype)
        return on_grid(efficiency.latency_s(flop, mem, peak, profile.mem_bytes_per_s.value))
    tokens, _, pairs, _, _, head_dim, _, share = (value(d, symbols) for d in operator.key)
    efficiency = profile.efficiency(operator.kind, dtype=operator.dtype, head_dim=head_dim)
    return on_grid(
        efficiency.latency_s(
            flop,
            mem,
            peak,
            profile.mem_bytes_per_s.value,
            sequence_tokens=pairs / tokens,
            is_causal=share == 2,
        )
    )


def stage_orders(model: CutModel, num_microbatches: int) -> list[list[StageName]]:
    """Stages of every rank under GPipe or 1F1B; a rank's chunks stand together."""
    job = model.job
    orders = []
    for rank in range(job.parallel.pp):
        held = [c for c in range(model.num_chunks) if model.chunk(c)[0].rank == rank]
        back = [c for c in reversed(held) if model.has_backward(c)]
        warm_up = min(num_microbatches, job.parallel.pp - 1 - rank)
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


class _Writer:
    """Writes down one replica."""

    def __init__(
        self, model: CutModel, number: int, symbols: list[dict[str, int]], gather_ready: dict[int, list[float]]
    ) -> None:
        self.model, self.number, self.symbols, self.gather_ready = model, number, symbols, gather_ready
        self.nodes: dict[Key, Node] = {}
        self.operators: dict[StageName, list[StageOperator]] = {}
        self.sent: dict[Key, int] = {}
        self.orders = stage_orders(model, len(symbols))

    def write(self) -> Replica:
        last_send: dict[tuple[int, int], Key] = {}
        for rank, order in enumerate(self.orders):
            before: list[Key] = []
            for stage in order:
                self._stage(stage, before)
                before = [("end", *stage)]
                for send in self._sends(stage):
                    target = self.model.chunk(int(str(send[2])))[0].rank
                    previous = last_send.get((rank, target))
                    self.nodes[send].after = [("end", *stage)] + ([previous] if previous else [])
                    last_send[rank, target] = send
                    if not self.model.job.training.overlap.pipeline:
                        before.append(send)
        self._run()
        replica = Replica(self.nodes, self.orders, self.operators, self.sent, [])
        replica.memory = memory_of(self.model, replica, self.symbols)
        self._attribute(replica)
        return replica

    # -- nodes -----------------------------------------------------------------------------------------------------
    def _stage(self, stage: StageName, before: list[Key]) -> None:
        chunk, phase, microbatch = stage
        blocks = self.model.chunk(chunk)
        self.nodes["begin", *stage] = Node(after=[*before, *self._waits_for(stage)])
        self.nodes["end", *stage] = Node(after=[("begin", *stage)])
        written: list[StageOperator] = []
        last_on: dict[str, Key] = {}
        for block in blocks if phase == "F" else blocks[::-1]:
            writer: dict[int, Key] = {}
            tensors = block.trace.graph.tensors
            for operator in block.operators(phase):
                key = ("operator", *stage, len(written))
                node = Node(latency_of(operator, self.symbols[microbatch], self.model), [("begin", *stage)])
                if operator.stream.name in last_on:
                    node.after.append(last_on[operator.stream.name])
                if written and not self.model.job.training.overlap.tensor_parallel:
                    node.after.append(written[-1].key)  # compute waits for every collective, and they for it
                reads = [tensors[t].storage for t in operator.inputs]
                node.after += [writer[storage] for storage in reads if storage in writer]
                node.after += [("gather", t) for t in self._gathers(block, phase, microbatch)]
                for tensor in operator.outputs:
                    writer[tensors[tensor].storage] = key
                self.nodes[key] = node
                self.nodes["end", *stage].after.append(key)
                last_on[operator.stream.name] = key
                flop = value(operator.flop, self.symbols[microbatch])
                net = value(operator.net_bytes, self.symbols[microbatch])
                written.append(StageOperator(key, block, operator, flop, net))
            self._cross_blocks(written, stage)
        self.operators[stage] = written
