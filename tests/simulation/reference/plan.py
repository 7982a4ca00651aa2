"""The slow reference under a ``StagePlan``: the model written out once for every (sub-)microbatch.

Every part of every microbatch has its own copy of its module's blocks, traced as the part's variant says; a copy's
chunk has a number of its own, and everything is microbatch 0. Where a module cuts microbatches and its neighbour does
not cut them alike, what is handed over is pieces with lifetimes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.reference.costs import on_grid, symbols_of, value
from simulation.reference.expansion import Expansion, Key, Replica, StageName, Writer, stage_orders
from simulation.reference.memory import Curve, Lives, static_of
from simulation.reference.model import Block, CutModel
from simulation.reference.network import collective_seconds

from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.schedule.stage_plan import StagePlan
from semu.workload import Microbatch

Symbols = dict[str, int]
IDLE: Symbols = {}
"""Sizes of a part that a replica does not need."""


@dataclass
class Piece:
    """What a part hands to a part of another module.

    Attributes:
        maker, taker: numbers of the last block of the one and the first of the other. output, input: which tensor.
        microbatch, given, taken: whose, and which parts. made_in: microbatch of the maker.
    """

    maker: int
    taker: int
    output: int
    input: int
    microbatch: int
    given: int
    taken: int
    made_in: int


class Unrolled(CutModel):
    """A cut model, copied for every part.

    Attributes:
        parts: per chunk here, (chunk of the job, microbatch, part within it, its number in a schedule).
        pieces: of all seams. counts: parts of every microbatch of every module.
    """

    def __init__(self, job: TrainingJob, plan: StagePlan, own: dict[str, list[list[int]]]) -> None:
        """``own``: module -> per replica, parts of every microbatch."""
        super().__init__(job)
        base = self.blocks
        m = job.num_microbatches
        names = [module.name for module in job.model.modules]
        self.counts = {name: [max(column) for column in zip(*own[name], strict=True)] for name in names}
        self.seams = {name for name in names if any(count != 1 for count in self.counts[name]) or name in plan.reads}
        self.plan = plan
        traced = {word: CutModel(_under(job, word)).blocks for own in plan.variants for v in own for word in v}
        self.blocks, self.parts, self.pieces = [], [], []
        self._same = {}
        last: dict[tuple[str, int, int], int] = {}
        before: dict[tuple[int, int, int], int] = {}
        modules = job.model.modules
        for chunk in range(base[-1].chunk + 1):
            mine = [block for block in base if block.chunk == chunk]
            name = names[mine[0].module]
            numbered = [(i, part) for i in range(m) for part in range(self.counts[name][i])]
            if not numbered:  # its parameters are there all the same
                self.blocks += [
                    replace(block, number=len(self.blocks) + k, chunk=-1, sources=[None] * len(block.sources))
                    for k, block in enumerate(mine)
                ]
            for through, (microbatch, part) in enumerate(numbered):
                words = list(_chosen(plan, chunk, through))
                for block in mine:
                    word = words.pop(0) if block.is_layer and words else None
                    trace = block.trace if word is None else traced[word][block.number].trace
                    copy = replace(block, number=len(self.blocks), trace=trace, chunk=len(self.parts))
                    first = block.sources and all(
                        source is None or base[source[0]].module != block.module for source in block.sources
                    )
                    if first:
                        copy.sources = self._first_sources(copy, block, base, modules, last, microbatch, part)
                    else:
                        previous = before[block.module, microbatch, part]
                        copy.sources = [(previous, source[1]) for source in block.sources]  # type: ignore[index]
                    self.blocks.append(copy)
                    before[block.module, microbatch, part] = copy.number
                    last[name, microbatch, part] = copy.number
                self.parts.append((chunk, microbatch, part, microbatch * max(1, *self.counts[name]) + part))
        self._by_chunk: dict[int, list[Block]] = {}
        for block in self.blocks:
            self._by_chunk.setdefault(block.chunk, []).append(block)
        for block in self.blocks:
            self._join(block)

    def _first_sources(
        self,
        copy: Block,
        block: Block,
        base: list[Block],
        modules: object,
        last: dict[tuple[str, int, int], int],
        microbatch: int,
        part: int,
    ) -> list[tuple[int, int] | None]:
        names = [module.name for module in self.job.model.modules]
        here, found = names[block.module], list[tuple[int, int] | None]()
        for k, source in enumerate(block.sources):
            if source is None:
                found.append(None)
                continue
            there = names[base[source[0]].module]
            if not {here, there} & self.seams:
                found.append((last[there, microbatch, 0], source[1]))
                continue
            found.append((-1, -1))  # joined
            own = [(microbatch, given) for given in range(self.counts[there][microbatch])]
            for made_in, given in self.plan.reads[there][microbatch] if there in self.plan.reads else own:
                maker = last[there, made_in, given]
                self.pieces.append(Piece(maker, copy.number, source[1], k, microbatch, given, part, made_in))
        return found

    def chunk(self, number: int) -> list[Block]:
        return self._by_chunk[number] if hasattr(self, "_by_chunk") else super().chunk(number)

    def consumers(self, block: Block) -> list[tuple[Block, int, int]]:
        if not hasattr(self, "_by_chunk"):
            return super().consumers(block)
        return [
            (other, k, source[1])
            for other in self.blocks
            for k, source in enumerate(other.sources)
            if source is not None and source[0] == block.number
        ]

    def chunk_sources(self, chunk: int) -> list[int]:
        first = self.chunk(chunk)[0]
        found = []
        for k, source in enumerate(first.sources):
            if source == (-1, -1):
                pieces = [p for p in self.pieces if (p.taker, p.input) == (first.number, k)]
                found += [self.blocks[p.maker].chunk for p in pieces]
            elif source is not None:
                found.append(self.blocks[source[0]].chunk)
        return list(dict.fromkeys(found))

    def _join(self, block: Block) -> None:
        if hasattr(self, "_by_chunk"):
            hidden = [None if source == (-1, -1) else source for source in block.sources]
            super()._join(replace(block, sources=hidden))
        else:
            super()._join(block)


def _under(job: TrainingJob, word: str) -> TrainingJob:
    """The job with one strategy everywhere."""
    again = "none" if word == "offload" else word
    offload = ("activations",) if word == "offload" else None
    changed = replace(job.training, recompute=again, recompute_modules=None, offload=offload)
    return replace(job, training=changed)


def _chosen(plan: StagePlan, chunk: int, part: int) -> tuple[str, ...]:
    if not plan.variants or not plan.variants[chunk]:
        return ()
    return plan.variants[chunk][plan.choice[chunk][part] if plan.choice else 0]


def share(items: int, parts: int, part: int) -> tuple[int, int]:
    """From and to which item a part goes: as even as whole items are."""
    return (items * part // parts, items * (part + 1) // parts) if part < parts else (0, 0)


class Sizes:
    """Symbols of every part, and of what two parts share, on one replica."""

    def __init__(self, model: Unrolled, items: list[Microbatch], own: dict[str, list[int]], replica: int) -> None:
        """``own``: module -> this replica's parts of every microbatch."""
        self.model, self.items, self.own, self.replica = model, items, own, replica
        self.streams = {
            module.name: module.inputs[0].stream if module.inputs else "" for module in model.job.model.modules
        }

    def _range(self, module: str, microbatch: int, part: int) -> tuple[int, int] | None:
        if module not in self.model.seams:
            return None
        if module in self.model.plan.items:
            sizes = self.model.plan.items[module][microbatch][self.replica]
            return sum(sizes[:part]), sum(sizes[: part + 1])
        count = len(self.items[microbatch].streams[self.streams[module]])
        return share(count, self.own[module][microbatch], part)

    def _read(self, module: str, microbatch: int) -> Microbatch | None:
        """What a module that reads parts of several microbatches runs; None: it reads its own."""
        plan = self.model.plan
        sources = next(own.sources for own in self.model.job.model.modules if own.name == module)
        if not any(source in plan.reads for source in sources):
            return None
        streams = {name: list(own) for name, own in self.items[microbatch].streams.items()}
        for source in plan.reads:
            stream = self.streams[source]
            for name in streams:
                if all(len(item.streams[name]) == len(item.streams[stream]) for item in self.items):
                    streams[name] = []
                    for made_in, part in plan.reads[source][microbatch]:
                        low, high = self._range(source, made_in, part) or (0, 0)
                        streams[name] += self.items[made_in].streams[name][low:high]
        return Microbatch(streams, samples=0)

    def of(self, module: str, microbatch: int, part: int) -> Symbols:
        """Of a part."""
        read = self._read(module, microbatch)
        if read is not None:
            return symbols_of(read, self.model.job.parallel.tp, self.model.job.parallel.cp)
        return self._cut(microbatch, self._range(module, microbatch, part), module)

    def shared(self, piece: Piece) -> Symbols:
        """Of what a piece holds."""
        names = [self.model.job.model.modules[self.model.blocks[n].module].name for n in (piece.maker, piece.taker)]
        if names[0] in self.model.plan.reads:
            return self._cut(piece.made_in, self._range(names[0], piece.made_in, piece.given), names[0])
        found = None, names[0]
        low, high = 0, 1 << 40
        for name, part in zip(names, (piece.given, piece.taken), strict=True):
            own = self._range(name, piece.microbatch, part)
            if own is not None:
                low, high = max(low, own[0]), min(high, own[1])
                found = (low, max(low, high)), name
        return self._cut(piece.microbatch, *found)

    def _cut(self, microbatch: int, where: tuple[int, int] | None, module: str) -> Symbols:
        item, parallel = self.items[microbatch], self.model.job.parallel
        if where is None:
            return symbols_of(item, parallel.tp, parallel.cp)
        low, high = where
        if low == high:
            return IDLE
        count = len(item.streams[self.streams[module]])
        lengths = {name: own[low:high] if len(own) == count else own for name, own in item.streams.items()}
        return symbols_of(Microbatch(lengths, samples=0), parallel.tp, parallel.cp)


class PlanWriter(Writer):
    """Writes down one replica."""

    model: Unrolled

    def __init__(self, model: Unrolled, number: int, sizes: Sizes, orders: list[list[StageName]]) -> None:
        self.sizes = sizes
        names = [module.name for module in model.job.model.modules]
        self.of_chunk = [
            sizes.of(names[model.chunk(number)[0].module], microbatch, part)
            for number, (_, microbatch, part, _) in enumerate(model.parts)
        ]
        super().__init__(model, number, [IDLE], {}, orders)

    def _symbols_of(self, chunk: int, microbatch: int) -> Symbols:
        return self.of_chunk[chunk]

    def _memory_of(self, replica: Replica) -> list[Curve]:
        lives = PlanLives(self.model, replica, self.of_chunk, self.sizes)
        return [lives.curve(rank) for rank in range(self.model.job.parallel.pp)]

    def _send_latency(self, send: Key, source: int, target: int) -> float:
        _, maker, taker, phase, _ = send
        head = self.model.chunk(taker if phase == "F" else maker)[0]  # type: ignore[arg-type]
        tail = maker if phase == "F" else taker
        graph, size = head.trace.graph, 0
        for k, origin in enumerate(head.sources):
            tensor = head.trace.inputs[k] if phase == "F" else head.trace.input_gradients[k]
            if origin is None or tensor is None:
                continue
            storage = graph.storages[graph.tensors[tensor].storage]
            if origin == (-1, -1):
                for piece in self.model.pieces:
                    if (piece.taker, piece.input, self.model.blocks[piece.maker].chunk) == (head.number, k, tail):
                        size += sized(storage.size_bytes, self.sizes.shared(piece))
            elif self.model.blocks[origin[0]].chunk == tail:
                size += sized(storage.size_bytes, self.of_chunk[head.chunk])
        self.sent[send] = size
        gpus = [self.model.gpu(rank, self.number) for rank in (source, target)]
        group = self.model.job.cluster.place_group("pp", gpus)
        return on_grid(collective_seconds(self.model.job.profile, OpKind.P2P, group, size))


def sized(dim: object, symbols: Symbols) -> int:
    """A size; nothing where there is nothing."""
    return 0 if symbols is IDLE else value(dim, symbols)  # type: ignore[arg-type]


class PlanLives(Lives):
    """Lifetimes of storages and of pieces."""

    model: Unrolled

    def __init__(self, model: Unrolled, replica: Replica, of_chunk: list[Symbols], sizes: Sizes) -> None:
        self.of_chunk, self.sizes = of_chunk, sizes
        super().__init__(model, replica, [], [])
        for piece in model.pieces:
            self._piece(piece, "F")
            self._piece(piece, "B")

    def _size(self, block: Block, storage: int, microbatch: int) -> int:
        return sized(block.trace.graph.storages[storage].size_bytes, self.of_chunk[block.chunk])

    def _arrivals(self, stage: tuple[int, str, int]) -> None:
        chunk, phase, _ = stage
        first, last = self.model.chunk(chunk)[0], self.model.chunk(chunk)[-1]
        start, end = self.replica.span(stage)
        if phase == "F":
            for k, source in enumerate(first.sources):
                if source is None or source == (-1, -1):  # whole, from the stage's beginning
                    self._use(first, first.trace.inputs[k], 0, (start, start))
                    self._keep_unread(first, first.trace.inputs[k], stage)
                else:
                    maker = self.model.blocks[source[0]]
                    self._transfer(maker, maker.trace.outputs[source[1]], first, first.trace.inputs[k], stage)
            for output in {p.output for p in self.model.pieces if p.maker == last.number}:
                self._use(last, last.trace.outputs[output], 0, (end, end))
        else:
            for consumer, k, output in self.model.consumers(last):
                given, taken = consumer.trace.input_gradients[k], last.trace.output_gradients[output]
                self._transfer(consumer, given, last, taken, stage)
            for output in {p.output for p in self.model.pieces if p.maker == last.number}:
                taken = last.trace.output_gradients[output]
                if taken is not None:
                    self._use(last, taken, 0, (start, start))
                    self._keep_unread(last, taken, stage)
            for k, source in enumerate(first.sources):
                if source == (-1, -1):
                    self._use(first, first.trace.input_gradients[k], 0, (end, end))

    def _piece(self, piece: Piece, phase: str) -> None:
        maker, taker = self.model.blocks[piece.maker], self.model.blocks[piece.taker]
        giver, getter, tensor = maker, taker, maker.trace.outputs[piece.output]
        if phase == "B":
            gradient = taker.trace.input_gradients[piece.input]
            if gradient is None or maker.trace.output_gradients[piece.output] is None:
                return
            if not self.model.has_backward(maker.chunk):
                return
            giver, getter, tensor = taker, maker, gradient
        storage = giver.trace.graph.storages[giver.trace.graph.tensors[tensor].storage]
        size = sized(storage.size_bytes, self.sizes.shared(piece))
        made, used = self.replica.span((giver.chunk, phase, 0))[1], self.replica.span((getter.chunk, phase, 0))[0]
        is_kept = phase == "F" and self._is_kept(giver, storage.index)
        if giver.rank == getter.rank:
            if not is_kept:
                self.held.append((made, used, size, giver.rank))
            return
        send = self.replica.nodes["send", giver.chunk, getter.chunk, phase, 0]
        if not is_kept:
            self.held.append((made, send.end_s, size, giver.rank))
        self.held.append((send.start_s, used, size, getter.rank))

    def _is_kept(self, block: Block, storage: int) -> bool:
        """Whether the backward of its chunk reads what the forward returns."""
        home = self.model.home(block, storage)
        for entry in self.replica.operators.get((block.chunk, "B", 0), []):
            for tensor in (*entry.operator.inputs, *entry.operator.outputs):
                assert entry.block is not None
                if self.model.home(entry.block, entry.block.trace.graph.tensors[tensor].storage) == home:
                    return True
        return False


def expand_plan(job: TrainingJob, plan: StagePlan) -> Expansion:
    """Write out a job under a plan.

    Args:
        job: small, already with the plan's chunks. plan: counts, variants, orders (its own, or those of the job's
            schedule with all parts of a microbatch one after another).
    """
    dp, m = job.parallel.dp, job.num_microbatches
    items = job.batch.microbatches(m * dp, job.training.micro_batch, job.training.seq_len)
    by_replica = [items[r::dp] for r in range(dp)]
    own: dict[str, list[list[int]]] = {}
    for module in job.model.modules:
        own[module.name] = [[1] * m for _ in range(dp)]
        for i, count in enumerate(plan.parts.get(module.name, ())):
            for r in range(dp):
                have = len(by_replica[r][i].streams[module.inputs[0].stream])
                listed = module.name in plan.items
                own[module.name][r][i] = count[r] if isinstance(count, tuple) else count if listed else min(count, have)
    model = Unrolled(job, plan, own)
    number = {(chunk, through): here for here, (chunk, _, _, through) in enumerate(model.parts)}
    if plan.orders is not None:
        orders = [[(number[s.chunk, s.microbatch], s.phase.value, 0) for s in order] for order in plan.orders.orders]
    else:
        plain = stage_orders(CutModel(job), m)
        orders = [
            [
                (here, phase, 0)
                for chunk, phase, i in order
                for here, (c, microbatch, _, _) in enumerate(model.parts)
                if (c, microbatch) == (chunk, i)
            ]
            for order in plain
        ]
    static = [static_of(model, rank) for rank in range(job.parallel.pp)]
    replicas = []
    for r in range(dp):
        sizes = Sizes(model, by_replica[r], {name: counts[r] for name, counts in own.items()}, r)
        replica = PlanWriter(model, r, sizes, orders).write()
        if any("offload" in words for variants in plan.variants for words in variants):
            replica.exposed_s = {}  # copies from the host are exposed too
        replica.parts = model.parts  # type: ignore[attr-defined]
        replicas.append(replica)
    return Expansion(model, replicas, static)
