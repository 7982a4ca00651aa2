"""The model of a job for the slow reference: every block traced by itself, cut over the ranks by trying all cuts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

from semu.graph.operator import Operator
from semu.hardware.network import CommGroup
from semu.job import Recompute, TrainingJob
from semu.nn import InputSpec, Module, Sequences
from semu.nn.block import CarrySpec, TracedBlock, trace_block
from semu.nn.tracing import TraceOptions
from semu.parallel.tensor import megatron_plan


@dataclass
class Block:
    """One block of the model with its trace.

    Attributes:
        number: position in the model. module: number of its modality module. path, body: what it is.
        specs: what arrives. sources: who makes it, as (block, output); None: the data loader.
        trace: its operators. rank, chunk: where it runs.
    """

    number: int
    module: int
    path: str
    body: Module
    specs: list[CarrySpec]
    sources: list[tuple[int, int] | None]
    trace: TracedBlock
    rank: int = -1
    chunk: int = -1

    def operators(self, phase: str) -> list[Operator]:
        """Those of the forward ("F") or of the backward ("B") pass."""
        cut = self.trace.num_forward
        return self.trace.graph.operators[:cut] if phase == "F" else self.trace.graph.operators[cut:]


class CutModel:
    """All blocks of a job in order, on their ranks and in chunks.

    Attributes:
        blocks: the blocks. tp_group: the tensor-parallel group that spans most nodes.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        tp, pp, dp = job.parallel.tp, job.parallel.pp, job.parallel.dp
        groups = [
            job.cluster.place_group("tp", [self.gpu(rank, replica, t) for t in range(tp)])
            for rank in range(pp)
            for replica in range(dp)
        ]
        self.tp_group: CommGroup = max(groups, key=lambda group: group.num_nodes)
        self._options = TraceOptions(
            plan=megatron_plan(job.model, job.parallel),
            tp_group=self.tp_group,
            compute_dtype=job.training.precision.compute_dtype,
            tensor_dtype=job.training.precision.tensor_dtype,
            grad_dtype=job.training.grad_dtype,
            overlap_tp=job.training.overlap.tensor_parallel,
            cast_weights=job.training.fp8_weights.value == "microbatch",
        )
        self.blocks: list[Block] = []
        self._trace_all()
        for block in reversed(self.blocks):
            self._trace_again(block)
        self._cut()
        self._same: dict[tuple[int, int], tuple[int, int]] = {}
        for block in self.blocks:
            self._join(block)

    def gpu(self, rank: int, replica: int, tensor: int = 0) -> int:
        """Number of a rank's GPU: tensor parallel fastest, then data, then pipeline."""
        return tensor + self.job.parallel.tp * (replica + self.job.parallel.dp * rank)

    @property
    def num_chunks(self) -> int:
        """Number of model chunks."""
        return self.blocks[-1].chunk + 1

    def chunk(self, number: int) -> list[Block]:
        """Blocks of a chunk."""
        return [block for block in self.blocks if block.chunk == number]

    def has_backward(self, chunk: int) -> bool:
        """Whether any block of the chunk computes gradients."""
        return any(block.operators("B") for block in self.chunk(chunk))

    def home(self, block: Block, storage: int) -> tuple[int, int]:
        """A name for a storage that is the same in all blocks of a rank that hand it to one another."""
        name = (block.number, storage)
        while name in self._same:
            name = self._same[name]
        return name

    def consumers(self, block: Block) -> list[tuple[Block, int, int]]:
        """(consumer, position of its input, position of this block's output) of everything that the block returns."""
        return [
            (other, k, source[1])
            for other in self.blocks
            for k, source in enumerate(other.sources)
            if source is not None and source[0] == block.number
        ]

    def chunk_sources(self, chunk: int) -> list[int]:
        """Chunks whose results a chunk reads, each once, in order of its inputs."""
        first = self.chunk(chunk)[0]
        return list(dict.fromkeys(self.blocks[source[0]].chunk for source in first.sources if source is not None))

    def _trace_all(self) -> None:
        last: dict[str, Block] = {}
        for number, module in enumerate(self.job.model.modules):
            specs = [self._data(spec) for spec in module.inputs]
            sources: list[tuple[int, int] | None] = [None] * len(specs)
            for name in module.sources:
                specs += last[name].trace.output_specs
                sources += [(last[name].number, k) for k in range(len(last[name].trace.outputs))]
            for path, body in module.blocks():
                trace = self._trace(body, specs, path, None)
                last[module.name] = Block(len(self.blocks), number, path, body, specs, sources, trace)
                self.blocks.append(last[module.name])
                specs = list(trace.output_specs)
                sources = [(len(self.blocks) - 1, k) for k in range(len(specs))]

    def _data(self, spec: InputSpec) -> CarrySpec:
        packing = Sequences.of_stream(spec.stream, self.job.parallel.tp)
        rows = packing.count if spec.per_sequence else packing.tokens
        shape = (rows,) if spec.features is None else (rows, spec.features)
        dtype = spec.dtype(self._options.tensor_dtype)
        return CarrySpec(shape, (1,) * len(shape), dtype, False, None if spec.per_sequence else packing)

    def _trace(self, body: Module, specs: list[CarrySpec], path: str, gradients: list[bool] | None) -> TracedBlock:
        full = self.job.training.recompute is Recompute.FULL
        return trace_block(body, specs, self._options, root=path, full_recompute=full, gradients=gradients)

    def _trace_again(self, block: Block) -> None:
        """A gradient arrives only for what somebody downstream differentiates."""
        consumers = self.consumers(block)
        if consumers:
            arrives = [False] * len(block.trace.outputs)
            for consumer, k, output in consumers:
                arrives[output] |= consumer.trace.input_gradients[k] is not None
            block.trace = self._trace(block.body, block.specs, block.path, arrives)

    def _cut(self) -> None:
        """Lightest heaviest rank, then smallest sum of squares, then the first cut."""
        weights = [sum(use.parameter.numel for use in block.trace.parameters) for block in self.blocks]

        def score(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            parts = [sum(weights[a:b]) for a, b in pairwise((0, *cuts, len(weights)))]
            return max(parts), sum(part**2 for part in parts), cuts

        cuts = min(combinations(range(1, len(weights)), self.job.parallel.pp - 1), key=score)
        chunk, previous = -1, (-1, -1)
        for block in self.blocks:
            block.rank = sum(block.number >= cut for cut in cuts)
            if (block.rank, block.module) != previous:
                chunk, previous = chunk + 1, (block.rank, block.module)
            block.chunk = chunk

    def _join(self, block: Block) -> None:
        """What the block gets from, and its gradients give to, a block of the same rank is the same storage there."""
        for k, source in enumerate(block.sources):
            if source is None or self.blocks[source[0]].rank != block.rank:
                continue
            maker = self.blocks[source[0]]
            pairs = [(block.trace.inputs[k], maker.trace.outputs[source[1]])]
            given, taken = block.trace.input_gradients[k], maker.trace.output_gradients[source[1]]
            if given is not None and taken is not None:
                pairs.append((given, taken))
            for here, there in pairs:
                own = self.home(block, block.trace.graph.tensors[here].storage)
                other = self.home(maker, maker.trace.graph.tensors[there].storage)
                if own != other:
                    self._same[own] = other
