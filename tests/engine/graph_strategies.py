"""Random nested graphs, and random edges and priorities for them.

A graph is a few *bodies* (what a stage does), each instantiated several times on changing tensors, so that equal
structures occur, with lone operators between them. Every decision is a number from ``choose``: hypothesis draws it
(and shrinks it), or a seeded ``Random`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random

from engine.graph_reference import Edge, Reference, Refused, Side
from hypothesis import strategies as st

from semu.graph.graph import Graph
from semu.graph.operator import Operator
from semu.graph.subgraph import Level, Replication, Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, OpKind, Port

Choose = Callable[[int, int], int]
"""A number between two bounds, both included; the lower one is the simple choice."""

KINDS = (OpKind.CUSTOM, OpKind.ALL_REDUCE, OpKind.P2P)
LATENCIES = 16
"""An operator takes (its bytes) mod this many grid steps."""


def latency_steps(operator: Operator) -> int:
    """Grid steps of an operator; one without any work takes no time."""
    amount = operator.net_bytes or operator.mem_bytes
    assert isinstance(amount, int)
    return amount % LATENCIES


def compute(rank: int, name: str = "compute") -> Stream:
    return Stream(Device(DeviceKind.COMPUTE, rank), name)


def link(rank: int, name: str) -> Stream:
    """The stream of a communicator: tp over NVLink, others over the NIC."""
    port = Port.NVLINK if name == "tp" else Port.NIC
    return Stream(Device(DeviceKind.LINK, rank, port, Direction.OUT), name)


@dataclass(frozen=True)
class Options:
    """What a random graph may contain.

    Attributes:
        peers, chains: replicas. zero: operators that take no time. stages: False: the graph is one unit.
    """

    peers: bool = True
    chains: bool = True
    zero: bool = True
    stages: bool = True


@dataclass
class Step:
    """One operator of a body, by relative choices."""

    place: int
    side_stream: int
    reads: list[int]
    num_outputs: int
    long: bool
    in_place: int
    view: int
    after: int
    latency: int
    size: int


@dataclass
class Group:
    """A subgraph of a body."""

    level: Level | None
    replicas: int
    replication: Replication
    steps: list[Step | Group]
    feeds: list[tuple[int, int]]
    mirror: int


Body = list[Step | Group]


@dataclass
class Plan:
    """What is added to a graph after it was built."""

    edges: list[Edge] = field(default_factory=list)
    priority: dict[Side, int] = field(default_factory=dict)


@dataclass
class Builder:
    """Builds one graph; see the module."""

    choose: Choose
    options: Options
    graph: Graph = field(default_factory=Graph)
    tensors: list[int] = field(default_factory=list)
    chains: list[Subgraph] = field(default_factory=list)
    peers_of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    names: int = 0
    prefix: str = ""

    # -- choosing ------------------------------------------------------------------------------------------------
    def happens(self, percent: int) -> bool:
        return self.choose(0, 99) >= 100 - percent

    def step(self) -> Step:
        low = 0 if self.options.zero else 1
        return Step(
            place=self.choose(0, 5),
            side_stream=self.choose(0, 5),
            reads=[self.choose(0, 60) for _ in range(self.choose(0, 2))],
            num_outputs=self.choose(0, 2),
            long=self.happens(40),
            in_place=self.choose(-4, 3),
            view=self.choose(-4, 2),
            after=self.choose(-12, 6),
            latency=self.choose(low, 4) if self.happens(60) else self.choose(low, LATENCIES - 1),
            size=self.choose(1, 3),
        )

    def body(self, depth: int, level: Level) -> Body:
        steps: Body = []
        for _ in range(self.choose(1 if depth == 2 else 0, 4 if depth else 3)):
            if depth and self.happens(35):
                steps.append(self.group(depth, level))
            else:
                steps.append(self.step())
        return steps

    def group(self, depth: int, level: Level) -> Group:
        levels = [inner for inner in (Level.LAYER, Level.CHUNK) if inner.is_inside(level)]
        own = levels[self.choose(0, len(levels) - 1)] if levels and self.happens(60) else None
        is_chain = self.options.chains and self.happens(50)
        return Group(
            level=own,
            replicas=self.choose(1, 3) if is_chain else 1,
            replication=Replication.CHAIN if is_chain else Replication.PEERS,
            steps=self.body(depth - 1, own or level),
            feeds=[(self.choose(0, 30), self.choose(0, 30)) for _ in range(self.choose(0, 2))],
            mirror=self.choose(-1, 3),
        )

    # -- building ------------------------------------------------------------------------------------------------
    @contextmanager
    def opened(
        self, prefix: str, level: Level | None = None, peers: int = 1, chain: int = 0, mirrors: Subgraph | None = None
    ) -> Iterator[Subgraph]:
        self.names += 1
        with self.graph.subgraph(
            f"{self.prefix}{prefix}{self.names}",
            level=level,
            replicas=chain or peers,
            replication=Replication.CHAIN if chain else Replication.PEERS,
            mirrors=mirrors,
        ) as opened:
            yield opened

    def stream(self, step: Step, ranks: Sequence[int]) -> Stream:
        """Mostly the stage's own compute stream and tp link, sometimes another rank's or a pp link."""
        rank = ranks[step.place % len(ranks)]
        if step.side_stream < 3:
            return compute(rank)
        return (link(rank, "tp"), compute(rank, "side"), link(rank, "pp"))[step.side_stream - 3]

    def new_tensor(self, *, long: bool, role: Role, rank: int) -> int:
        pool = f"gpu{rank}" if rank else "hbm"
        return self.graph.add_tensor((5 if long else 2,), DType.UINT8, role, pool=pool)

    def operate(self, step: Step, ranks: Sequence[int], known: list[int]) -> None:
        """Append one operator, inside peers where its rank has some."""
        stream = self.stream(step, ranks)
        rank = stream.device.rank
        with ExitStack() as stack:
            for count in self.missing(rank):
                stack.enter_context(self.opened("peers", peers=count))
            reads = [known[pick % len(known)] for pick in step.reads if known]
            if step.view >= 0 and reads and self.may_change(reads[0]):
                base = self.graph.tensors[reads[0]]
                reads[0] = self.graph.add_view(reads[0], base.shape)
                known.append(reads[0])
            roles = (Role.ACTIVATION, Role.WORKSPACE, Role.COMMUNICATION)
            made = [
                self.new_tensor(long=step.long, role=roles[number], rank=rank) for number in range(step.num_outputs)
            ]
            if step.in_place >= 2 and reads and self.may_change(reads[0]):
                changed = [reads[0]]
            elif step.in_place == 1:
                changed = [self.new_tensor(long=True, role=Role.GRADIENT, rank=rank)]
            else:
                changed = []
            count = len(self.graph.operators)
            after = [step.after * count // 7] if step.after >= 0 and count else []
            producers = {self.graph.producer(tensor) for tensor in reads}
            amount = LATENCIES * step.size + step.latency
            is_link = stream.device.kind is DeviceKind.LINK
            self.graph.add_operator(
                (OpKind.ALL_REDUCE if stream.name == "tp" else OpKind.P2P) if is_link else OpKind.CUSTOM,
                stream,
                inputs=reads,
                outputs=[*made, *changed],
                flop=0 if is_link else step.size,
                mem_bytes=step.size if is_link else amount,
                net_bytes=amount if is_link else 0,
                key=(2, 1) if is_link else (),
                after=[before for before in after if before not in producers],
                path=f"{self.prefix}o{count}",
            )
            known += made

    def open_peers(self) -> list[int]:
        return [group.replicas for group in self.graph.subgraphs if group.has_peers and group.last is None]

    def missing(self, rank: int) -> tuple[int, ...]:
        """The peers of a rank that are not open yet, outermost first."""
        return self.peers_of.get(rank, ())[len(self.open_peers()) :]

    def may_change(self, tensor: int | None) -> bool:
        """Whether an operator here may view or change a tensor in place: each of its peers has a copy of its own."""
        here = self.open_peers()
        while tensor is not None:
            if here != [g.replicas for g in self.graph.subgraphs if g.has_peers and g.made(tensor)]:
                return False
            tensor = self.graph.tensors[tensor].base
        return True

    def instantiate(self, body: Body, ranks: Sequence[int], known: list[int]) -> None:
        for item in body:
            if isinstance(item, Step):
                self.operate(item, ranks, known)
            elif item.replication is Replication.CHAIN:
                self.chain(item, ranks, known)
            else:
                with self.opened("g", item.level):
                    self.instantiate(item.steps, ranks, known)

    def chain(self, group: Group, ranks: Sequence[int], known: list[int]) -> None:
        mirrored = self.chains[group.mirror % len(self.chains)] if group.mirror >= 0 and self.chains else None
        replicas = mirrored.replicas if mirrored is not None else group.replicas
        outside = list(known)
        if mirrored is not None:  # a backward mostly reads what its forward made
            known.extend(t for t in range(mirrored.first_tensor, mirrored.last_tensor or 0) if self.is_written(t))
        with self.opened("c", group.level, chain=replicas, mirrors=mirrored) as opened:
            if self.happens(30):
                known.append(self.graph.add_tensor((2,), DType.UINT8, Role.PARAMETER))
            first = len(self.graph.tensors)
            self.instantiate(group.steps, ranks, known)
            own = [t for t in known if t >= first]
            taken = {given for given, _ in mirrored.feeds} if mirrored is not None else set()
            for output, input_ in group.feeds:
                if own and outside:
                    y, x = own[output % len(own)], outside[input_ % len(outside)]
                    if x not in taken and self.graph.tensors[x].shape == self.graph.tensors[y].shape:
                        self.graph.feed(y, x)
                        taken.add(x)
        if replicas > 1:
            self.chains.append(self.graph.subgraphs[opened.index])

    def is_written(self, tensor: int) -> bool:
        return self.graph.producer(tensor) is not None

    # -- whole graphs --------------------------------------------------------------------------------------------
    def stage(self, body: Body, ranks: Sequence[int], known: list[int]) -> None:
        """One stage; its peers are around it, or in it around everything, or around each operator."""
        missing = {self.missing(rank) for rank in ranks}
        shared = missing.pop() if len(missing) == 1 else ()
        outside = self.choose(0, len(shared))
        inside = self.choose(outside, len(shared))
        level = Level.STAGE if self.options.stages else None
        with ExitStack() as stack:
            for count in shared[:outside]:
                stack.enter_context(self.opened("replicas", peers=count))
            stack.enter_context(self.opened("s", level))
            for count in shared[outside:inside]:
                stack.enter_context(self.opened("tp", peers=count))
            self.instantiate(body, ranks, known)

    def build(self) -> Graph:
        num_ranks = self.choose(1, 3)
        if self.options.peers:
            counts: tuple[tuple[int, ...], ...] = ((), (2,), (3,), (2, 2), (3, 2))
            self.peers_of = {rank: counts[self.choose(0, 4)] for rank in range(num_ranks)}
        inputs = [self.graph.add_input((2,), DType.UINT8, name=f"x{n}") for n in range(self.choose(0, 3))]
        weights = [self.new_tensor(long=n > 0, role=Role.PARAMETER, rank=n) for n in range(self.choose(0, num_ranks))]
        self.tensors = [*inputs, *weights]
        stages = [
            (self.body(2, Level.STAGE), sorted({self.choose(0, num_ranks - 1) for _ in range(1 + self.happens(25))}))
            for _ in range(self.choose(1, 3))
        ]
        lone = [self.step() for _ in range(self.choose(0, 2))]
        layout = [self.choose(0, len(stages) + len(lone) - 1) for _ in range(self.choose(2, 5))]
        num_microbatches = self.choose(1, 4)
        with ExitStack() as stack:
            if self.happens(30):
                stack.enter_context(self.opened("iteration", Level.ITERATION))
            for _ in range(num_microbatches):
                self.microbatch(stages, lone, layout, num_ranks)
        for _ in range(self.choose(0, 2) if self.tensors else 0):
            self.graph.mark_output(self.tensors[self.choose(0, len(self.tensors) - 1)])
        return self.graph

    def microbatch(
        self, stages: Sequence[tuple[Body, list[int]]], lone: Sequence[Step], layout: Sequence[int], num_ranks: int
    ) -> None:
        known = list(self.tensors)
        self.chains = []
        first = {counts[:1] for counts in self.peers_of.values()}
        with ExitStack() as stack:
            if self.happens(80):
                shared = first.pop() if len(first) == 1 and self.happens(40) else ()
                level = Level.MICROBATCH if self.happens(70) else None
                stack.enter_context(self.opened("mb", level, peers=shared[0] if shared else 1))
            for number in layout:
                if number < len(stages):
                    self.stage(*stages[number], known)
                else:
                    self.operate(lone[number - len(stages)], range(num_ranks), known)
        if self.happens(25):
            self.tensors = known[-6:]


# -- edges and priorities ----------------------------------------------------------------------------------------
def random_side(choose: Choose, graph: Graph) -> tuple[int, Side]:
    """An operator or a subgraph, as an object or by path, and about where it stands; every other time a stage."""
    stages = [group for group in graph.subgraphs if group.level is Level.STAGE]
    if stages and choose(0, 1):
        group = stages[choose(0, len(stages) - 1)]
        return group.first, group
    number = choose(0, len(graph.operators) + 2 * len(graph.subgraphs) - 1)
    if number < len(graph.operators):
        return number, number
    group = graph.subgraphs[(number - len(graph.operators)) // 2]
    return group.first, group if number % 2 else group.path


def random_edge(choose: Choose, graph: Graph) -> Edge:
    """Every other time from what stands earlier to what stands later."""
    one, other = random_side(choose, graph), random_side(choose, graph)
    if one[0] > other[0] and choose(0, 1):
        one, other = other, one
    return one[1], other[1]


def random_plan(choose: Choose, graph: Graph, *, most: int = 8) -> Plan:
    """Edges that can hold together, and priorities of units that do not contradict each other."""
    reference = Reference(graph, latency_steps)
    plan = Plan()
    if not graph.operators:
        return plan
    for _ in range(choose(0, most)):
        edge = random_edge(choose, graph)
        try:
            reference.run([*plan.edges, edge])
        except Refused:
            continue
        plan.edges.append(edge)
    ranked: set[int] = set()
    for _ in range(choose(0, 3)):
        _, side = random_side(choose, graph)
        points = reference.points(side)
        units = {point.unit for point in points}
        is_whole = all(len(reference.written.units[p.unit].nodes) == 1 or p.node is None for p in points)
        if is_whole and not units & ranked:
            plan.priority[side] = choose(-2, 2)
            ranked |= units
    return plan


def by_hypothesis(draw: st.DrawFn) -> Choose:
    return lambda low, high: low + draw(st.integers(0, high - low))


@st.composite
def graphs(draw: st.DrawFn, options: Options | None = None) -> Graph:
    """Random graphs."""
    return Builder(by_hypothesis(draw), options or Options()).build()


@st.composite
def plans(draw: st.DrawFn, graph: Graph) -> Plan:
    """Random edges and priorities for a graph."""
    return random_plan(by_hypothesis(draw), graph)


def seeded_graph(seed: int, options: Options | None = None) -> Graph:
    """The random graph of a seed."""
    return Builder(Random(seed).randint, options or Options()).build()
