"""Memory of the slow reference: every storage of every microbatch as a lifetime, summed up."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from simulation.reference import muon
from simulation.reference.costs import value
from simulation.reference.model import Block, CutModel, fp8_copies
from simulation.reference.modules import sharers

from semu.job import TrainingJob
from semu.nn.trace.parameter_use import ParameterUse

if TYPE_CHECKING:
    from simulation.reference.expansion import Replica

Interval = tuple[float, float]


@dataclass
class Curve:
    """A step function: ``sizes[i]`` bytes from ``times[i]`` on; before the first, none."""

    times: list[float]
    sizes: list[int]

    @property
    def peak(self) -> int:
        """Highest size."""
        return max(self.sizes, default=0)

    def at(self, time: float) -> int:
        """Size at a time."""
        known = [size for moment, size in zip(self.times, self.sizes, strict=True) if moment <= time]
        return known[-1] if known else 0


@dataclass
class RankStatic:
    """What a rank stores all the time: local elements, and bytes under mixed-precision Adam."""

    elements: int
    trainable: int
    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.parameters + self.gradients + self.optimizer


def static_of(model: CutModel, rank: int) -> RankStatic:
    """Parameters, gradient buffers, master weights and two moments; ZeRO-1 shares the last two groups out.

    Weights of fp8 linears that are cast once an iteration stand there twice more, with one byte each and their scales.
    """
    job = model.job
    uses = {id(use.parameter): use for block in model.blocks if block.rank == rank for use in block.trace.parameters}
    elements = sum(use.numel for use in uses.values())
    trainable = sum(use.numel for use in uses.values() if use.parameter.requires_grad)
    tensor_bytes = job.training.precision.tensor_dtype.size_bytes
    training = job.training
    zero, shards = job.parallel.zero, (job.parallel.zero_group or job.parallel.dp) * job.parallel.cp
    shards *= 2 if job.parallel.placement == "bidirectional" else 1
    by_tp: dict[int, dict[int, int]] = {}
    for block in model.blocks:
        for use in block.trace.parameters if block.rank == rank else ():
            if use.parameter.requires_grad and not model.experts.holds(use):
                by_tp.setdefault(model.sizes[block.module].tp, {})[id(use.parameter)] = use.numel
    routed = sum(use.numel for use in uses.values() if use.parameter.requires_grad and model.experts.holds(use))
    own = trainable
    if zero:  # a module with smaller tensor-parallel groups shares its optimizer out to more ranks
        own = sum(-(-sum(part.values()) // sharers(job, rank, tp, shards)) for tp, part in by_tp.items())
        edp = shards * job.parallel.tp // (model.experts.ep * model.experts.etp) if zero == 3 else model.experts.edp
        own += -(-routed // edp) if routed else 0
    state = {"adam": 2, "sgd": 1, "lion": 1, "muon": 0}[training.optimizer.value]
    state *= training.optimizer_state_dtype.size_bytes
    if training.master_dtype is not training.precision.tensor_dtype:
        state += training.master_dtype.size_bytes
    average = own * training.master_dtype.size_bytes * training.weight_average
    gradients = (own if zero >= 2 else trainable) * training.grad_dtype.size_bytes
    if training.software.value == "megatron-deepspeed" and training.grad_dtype is not training.precision.tensor_dtype:
        gradients += trainable * tensor_bytes  # of the parameters' type, beside them
    if zero < 2 and training.software.value == "torch" and not training.gradient_as_bucket_view:  # DDP's buckets
        copied = sum(sum(p.values()) for tp, p in by_tp.items() if sharers(job, rank, tp, shards) > 1)
        copied += routed if model.experts.edp > 1 else 0
        gradients += copied * (training.grad_dtype.size_bytes if training.autocast is not None else tensor_bytes)
    cast = sum(use.numel for use in uses.values() if use.is_fp8) if job.fp8_weights.value != "microbatch" else 0
    whole = elements - (cast if job.fp8_weights.value == "primary" else 0)
    parameters = whole * tensor_bytes + fp8_copies(job) * cast
    if cast:
        parameters += fp8_copies(job) * sum(scales(job, use.numel) for use in uses.values() if use.is_fp8)
    packed = sum(use.numel for use in uses.values() if use.is_packed)
    if packed:  # four bits, a byte for 64 elements, four for 256 of these
        parameters += (packed + 1) // 2 + (packed + 63) // 64 + 4 * ((packed + 16383) // 16384) - packed * tensor_bytes
    away = {key: count for key, count in model.streamed().items() if key in uses}
    if training.optimizer.value == "muon":
        master = 0 if training.master_dtype is training.precision.tensor_dtype else training.master_dtype.size_bytes
        shares, each = muon.shares_of(model, rank), training.optimizer_state_dtype.size_bytes
        optimizer = sum((s.in_matrices + s.others) * master + s.moments * each for s in shares)
        return RankStatic(elements, trainable, parameters, gradients, optimizer + average)
    if zero < 3:
        parameters -= sum(away.values()) * tensor_bytes
        return RankStatic(elements, trainable, parameters, gradients, _on_device(job, own) * state + average)
    left = {key: use for key, use in uses.items() if key not in away}

    def shared(some: list[ParameterUse]) -> int:
        spread = sum(use.numel for use in some if model.experts.holds(use))
        return -(-(sum(use.numel for use in some) - spread) // shards) + -(-spread // edp)

    kept = shared([*left.values()])
    stepped = shared([use for use in left.values() if use.parameter.requires_grad])
    masters = own
    if training.software.value == "torch" and training.master_dtype is not training.precision.tensor_dtype:
        kept -= stepped
        masters = stepped
    parameters = kept * tensor_bytes
    if "optimizer" in (training.offload or ()):
        return RankStatic(elements, trainable, parameters, gradients, _on_device(job, own) * state + average)
    optimizer = own * state - (own - masters) * training.master_dtype.size_bytes + average
    return RankStatic(elements, trainable, parameters, gradients, optimizer)


def _on_device(job: TrainingJob, stepped: int) -> int:
    """Elements whose optimizer state is on the device."""
    return min(stepped, 40_000_000) if "optimizer" in (job.training.offload or ()) else stepped


def scales(job: TrainingJob, elements: int) -> int:
    """Bytes of the scales of one fp8 copy of a weight: four for every 128 x 128 block, or one for every 32 elements."""
    if job.training.fp8_recipe.value == "mxfp8":
        return (elements + 31) // 32
    return 4 * ((elements + 16383) // 16384) if job.training.fp8_recipe.value == "blockwise" else 0


def memory_of(
    model: CutModel, replica: Replica, symbols: list[dict[str, int]], held: list[tuple[float, float, int, int]]
) -> list[Curve]:
    """Dynamic memory of every rank; ``held``: further (from, to, bytes, rank)."""
    lives = Lives(model, replica, symbols, held)
    return [lives.curve(rank) for rank in range(model.job.parallel.pp)]


class Lives:
    """When every storage is used: (home, microbatch) -> intervals; it lives from the first start to the last end."""

    def __init__(
        self,
        model: CutModel,
        replica: Replica,
        symbols: list[dict[str, int]],
        held: list[tuple[float, float, int, int]],
    ) -> None:
        self.model, self.replica, self.symbols, self.held = model, replica, symbols, held
        self.uses: dict[tuple[tuple[int, int], int], list[Interval]] = {}
        for stage, operators in replica.operators.items():
            for entry in operators:
                if entry.block is None:
                    continue
                node = replica.nodes[entry.key]
                for tensor in {*entry.operator.inputs, *entry.operator.outputs}:
                    self._use(entry.block, tensor, stage[2], (node.start_s, node.end_s))
        self.read = set(self.uses)
        for stage in replica.operators:
            self._arrivals(stage)

    def _use(self, block: Block, tensor: int | None, microbatch: int, interval: Interval) -> None:
        if tensor is None:
            return
        storage = block.trace.graph.storages[block.trace.graph.tensors[tensor].storage]
        if not storage.role.is_static:
            self.uses.setdefault((self.model.home(block, storage.index), microbatch), []).append(interval)

    def _arrivals(self, stage: tuple[int, str, int]) -> None:
        """Tensors that come from the data loader (with the stage) or from another rank (with the transfer).

        One that no operator reads lives to the end of the stage that it was given to.
        """
        chunk, phase, microbatch = stage
        start, _ = self.replica.span(stage)
        if phase == "F":
            first = self.model.chunk(chunk)[0]
            for k, source in enumerate(first.sources):
                if source is None:
                    self._use(first, first.trace.inputs[k], microbatch, (start, start))
                    self._keep_unread(first, first.trace.inputs[k], stage)
                else:
                    maker = self.model.blocks[source[0]]
                    self._transfer(maker, maker.trace.outputs[source[1]], first, first.trace.inputs[k], stage)
        elif phase != "W":
            last = self.model.chunk(chunk)[-1]
            for consumer, k, output in self.model.consumers(last):
                given, taken = consumer.trace.input_gradients[k], last.trace.output_gradients[output]
                self._transfer(consumer, given, last, taken, stage)

    def _transfer(
        self, maker: Block, given: int | None, taker: Block, taken: int | None, stage: tuple[int, str, int]
    ) -> None:
        """Both ends hold the tensor during the transfer: the sender at least so long, the receiver from then on."""
        if maker.rank == taker.rank or given is None or taken is None:
            return
        phases = stage[1] if stage[1] == "F" else "BI"
        sends = [("send", maker.chunk, taker.chunk, phase, stage[2]) for phase in phases]
        node = next(self.replica.nodes[send] for send in sends if send in self.replica.nodes)
        self._use(maker, given, stage[2], (node.start_s, node.end_s))
        self._use(taker, taken, stage[2], (node.start_s, node.end_s))
        self._keep_unread(taker, taken, stage)

    def _keep_unread(self, block: Block, tensor: int, stage: tuple[int, str, int]) -> None:
        home = self.model.home(block, block.trace.graph.tensors[tensor].storage)
        if (home, stage[2]) not in self.read:
            self._use(block, tensor, stage[2], self.replica.span(stage))

    def _size(self, block: Block, storage: int, microbatch: int) -> int:
        return value(block.trace.graph.storages[storage].size_bytes, self.symbols[microbatch])

    def curve(self, rank: int) -> Curve:
        """Sum of all lifetimes on a rank; at equal times frees come first, so only the sum counts."""
        change: dict[float, int] = {}
        for ((number, storage), microbatch), intervals in self.uses.items():
            block = self.model.blocks[number]
            if block.rank == rank:
                size = self._size(block, storage, microbatch)
                first, last = min(start for start, _ in intervals), max(end for _, end in intervals)
                change[first] = change.get(first, 0) + size
                change[last] = change.get(last, 0) - size
        for start, end, size, owner in self.held:
            if owner == rank:
                change[start] = change.get(start, 0) + size
                change[end] = change.get(end, 0) - size
        times = sorted(change)
        return Curve(times, list(accumulate(change[time] for time in times)))
