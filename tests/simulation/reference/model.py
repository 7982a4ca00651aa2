"""The model of a job for the slow reference: every block traced by itself, cut over the ranks by trying all cuts.

Blocks are traced by ``reference_trace``; those with selective recomputation, with recomputation that keeps outputs or
stops early, and those that are offloaded are traced by semu.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from simulation.reference.experts import ExpertRanks
from simulation.reference.layout import module_groups, stage_of_blocks
from simulation.reference.modules import block_of, group_of, has_own, sizes_of, spread_anew
from simulation.reference.split import part
from simulation.reference.trace import can_trace, trace_slowly

from semu.graph.operator import Operator
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.nn import InputSpec, MixtureOfExperts, Module, Sequential
from semu.nn.routing import ExpertPlan
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.recompute_plan import RecomputePlan
from semu.parallel.tensor import megatron_plan


@dataclass
class Block:
    """One block of the model with its trace.

    Attributes:
        number: position in the model. module: number of its modality module. path, body: what it is.
        specs: what arrives. sources: who makes it, as (block, output); None: the data loader.
        trace: its operators. again: its inputs are kept and the rest is recomputed.
        out: what it saves is copied to the host and back. comes: its weights are copied from the host.
        rank, slot, chunk: where it runs. flow: of which copy of the model it is.
    """

    number: int
    module: int
    path: str
    body: Module
    specs: list[CarrySpec]
    sources: list[tuple[int, int] | None]
    trace: TracedBlock
    again: bool = False
    out: bool = False
    comes: bool = False
    rank: int = -1
    slot: int = -1
    chunk: int = -1
    flow: int = 0

    @property
    def is_layer(self) -> bool:
        """Made of tensors, not of token ids, and no loss."""
        return self.specs[0].dtype is not DType.INT64 and all(spec.shape != () for spec in self.trace.output_specs)

    def saved(self) -> set[int]:
        """Storages that its backward pass reads of its forward pass or of its inputs."""
        graph = self.trace.graph
        made = {t for op in self.operators("F") for t in (*op.inputs, *op.outputs)} | set(self.trace.inputs)
        read = {t for op in self.operators("B") for t in (*op.inputs, *op.outputs)}
        both = {graph.tensors[t].storage for t in made} & {graph.tensors[t].storage for t in read}
        return {storage for storage in both if not graph.storages[storage].role.is_static}

    def operators(self, phase: str) -> list[Operator]:
        """Those of the forward ("F") or of the backward ("B") pass, or of a part of it ("I", "W")."""
        if phase in "IW":
            return part(self.trace, phase)
        cut = self.trace.num_forward
        return self.trace.graph.operators[:cut] if phase == "F" else self.trace.graph.operators[cut:]


def fp8_copies(job: TrainingJob) -> int:
    """Copies of an operand: one where the scale is the tensor's and products take either layout."""
    has_either = job.cluster.profile.fp8_layouts.value == 2
    return 1 if has_either and job.training.fp8_recipe.value == "tensorwise" else 2


class CutModel:
    """All blocks of a job in order, on their ranks and in chunks.

    Attributes:
        blocks: the blocks. tp_group, cp_group: the tensor- and context-parallel groups that span most nodes.
        experts: who holds which. groups: of streams inside stages, by name.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        tp, pp, dp, cp = job.parallel.tp, job.parallel.pp, job.parallel.dp, job.parallel.cp
        if has_own(job):
            tp = cp = 1  # every module has groups of its own
        groups = [
            job.cluster.place_group("tp", [self.gpu(rank, replica, t, c) for t in range(tp)])
            for rank in range(pp)
            for replica in range(dp)
            for c in range(cp)
        ]
        around = [
            job.cluster.place_group("cp", [self.gpu(rank, replica, t, c) for c in range(cp)])
            for rank in range(pp)
            for replica in range(dp)
            for t in range(tp)
        ]
        self.cp_group: CommGroup = max(around, key=lambda group: (group.num_nodes, -group.ranks_per_node))
        self.tp_group: CommGroup = max(groups, key=lambda group: group.num_nodes)
        self.experts = ExpertRanks(job)
        self.has_experts = any(_has_experts(module.body) for module in job.model.modules)
        expert_plan = self.experts.plan() if self.has_experts else ExpertPlan()
        self.groups = {
            "tp": self.tp_group,
            "cp": self.cp_group,
            "ep": expert_plan.ep_group,
            "etp": expert_plan.etp_group,
            "replicas": self._replicas(),
        }
        levels = self._levels()
        if levels is not None:
            self.groups |= {"cp_group": levels[0], "cp_ring": levels[1]}
        self._options = TraceOptions(
            plan=megatron_plan(job.model, job.parallel),
            tp_group=self.tp_group,
            compute_dtype=job.training.precision.compute_dtype,
            tensor_dtype=job.training.precision.tensor_dtype,
            grad_dtype=job.training.grad_dtype,
            overlap_tp=job.overlaps_tensor_parallel,
            fused_attention=job.training.attention.value == "fused",
            recompute=_plan(job),
            cast_weights=job.fp8_weights.value == "microbatch",
            experts=expert_plan,
            cp_group=self.cp_group,
            cp_kind=job.parallel.context_kind,
            cp_levels=self._levels(),
            replica_group=self.groups["replicas"] if _reads_replicas(job) else CommGroup("replicas", 1, 1),
            keep_products=job.training.recompute_policy is not None,
            stop_early=job.stops_recomputation_early,
            cross_entropy=job.training.cross_entropy.value,
            fused_accumulation=job.training.gradient_accumulation_fusion
            and not (job.training.software.value == "torch" and (job.parallel.zero < 3 or holds_all(job)))
            and job.training.software.value != "megatron-deepspeed",
            sums_gradients_twice=job.training.software.value == "megatron-deepspeed"
            and job.training.grad_dtype is not job.training.precision.tensor_dtype,
            eager_modules=is_eager(job),
            eager_kernels=job.training.eager_kernels,
            channels_first=is_eager(job) if job.training.channels_last is None else not job.training.channels_last,
            convolves_patches=job.training.software.value == "torch"
            if job.training.patch_convolution is None
            else job.training.patch_convolution,
            separate_softmax=job.training.software.value == "torch",
            bias_kernels=job.training.eager_modules and job.training.software.value == "megatron",
            autocast=job.training.autocast,
            casts_parameters=job.training.autocast is not None
            and not (job.training.software.value == "torch" and job.parallel.zero == 3),
            head_dims=_HEAD_DIMS.get(job.attention_kernel.value, ()) if job.attention_kernel is not None else (),
            has_dtensor=job.training.software.value == "torch" and job.parallel.zero > 1,
            keeps_gathered=(
                job.training.software.value == "torch"
                if job.training.gathered_inputs is None
                else job.training.gathered_inputs.value == "kept"
            ),
            fp8_recipe=job.training.fp8_recipe,
            fp8_copies=fp8_copies(job),
            frozen_weights=job.training.frozen_weights,
        )
        self.sizes = [sizes_of(job, module.name) for module in job.model.modules]
        self._own = [
            replace(
                self._options,
                plan=megatron_plan(
                    job.model, replace(job.parallel, tp=s.tp, cp=s.cp, sequence_parallel=s.sp, modules={})
                ),
                tp_group=group_of(job, "tp", s),
                cp_group=group_of(job, "cp", s),
            )
            if job.parallel.modules
            else self._options
            for s in self.sizes
        ]
        self.blocks: list[Block] = []
        again = job.training.recompute.value == "full"
        self._trace_all([[(path, body, again) for path, body in module.blocks()] for module in job.model.modules])
        self._cut()
        if job.parallel.segments == "replicated":
            self._repeat()
        if job.training.recompute_layers is not None:
            self._trace_by_layers(job.training.recompute_layers)
        if job.parallel.placement == "bidirectional":
            self._double()
        self._same: dict[tuple[int, int], tuple[int, int]] = {}
        for block in self.blocks:
            self._join(block)

    def _is_in_bf16(self, module: int, path: str) -> bool:
        """Whether a layer of an fp8 job is one of those at the ends that run in bf16."""
        training = self.job.training
        found = re.search(r"\.layers\.(\d+)$", path)
        if found is None or training.precision.value != "fp8":
            return False
        layers = sum(".layers." in name for name, _ in self.job.model.modules[module].blocks())
        number = int(found[1])
        return number < (training.bf16_first_layers or 0) or number >= layers - (training.bf16_last_layers or 0)

    def gpu(self, rank: int, replica: int, tensor: int = 0, context: int = 0) -> int:
        """Number of a rank's GPU: tensor parallel fastest, then context, then data, then pipeline."""
        return block_of(self.job, rank, replica)[tensor + self.job.parallel.tp * context]

    def groups_for(self, block: Block) -> dict[str, CommGroup]:
        """Communicators of the block's operators, by the names of their streams."""
        if not self.job.parallel.modules:
            return self.groups
        own = self._own[block.module]
        groups = {"tp": own.tp_group, "cp": own.cp_group}
        groups["replicas"] = self.groups["replicas"]
        for spec in block.specs:
            for side in (spec.reshard.source, spec.reshard.target) if spec.reshard is not None else ():
                if side.group is not None and side.group.name != "tp":
                    groups[side.group.name] = side.group
        return groups

    def _levels(self) -> tuple[CommGroup, CommGroup] | None:
        """Groups of neighbouring context ranks, and rings through them; the most spread of each."""
        p, place = self.job.parallel, self.job.cluster.place_group
        if not 1 < p.cp_inner < p.cp:
            return None
        around = [
            [self.gpu(rank, r, t, c) for c in range(p.cp)]
            for rank in range(p.pp)
            for r in range(p.dp)
            for t in range(p.tp)
        ]
        firsts = range(0, p.cp, p.cp_inner)
        groups = [place("cp_group", gpus[first : first + p.cp_inner]) for gpus in around for first in firsts]
        rings = [place("cp_ring", gpus[number :: p.cp_inner]) for gpus in around for number in range(p.cp_inner)]

        def most_spread(found: list[CommGroup]) -> CommGroup:
            return max(found, key=lambda g: (g.num_nodes, g.local_port.value == "pcie", -g.ranks_per_node))

        return most_spread(groups), most_spread(rings)

    def _replicas(self) -> CommGroup:
        """The replicas of one rank of the others; of all such groups the most spread one."""
        p = self.job.parallel
        groups = [
            self.job.cluster.place_group("replicas", [block_of(self.job, rank, r)[peer] for r in range(p.dp)])
            for rank in range(p.pp)
            for peer in range(len(block_of(self.job, rank, 0)))
        ]
        return max(groups, key=lambda g: (g.num_nodes, g.local_port.value == "pcie", -g.ranks_per_node))

    def peer(self, rank: int, number: int, tensor: int = 0) -> int:
        """GPU of one of the ranks that sum their gradients: every context rank of every replica."""
        replica, context = divmod(number, self.job.parallel.cp)
        return self.gpu(rank, replica, tensor, context)

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

    def streamed(self) -> dict[int, int]:
        """Parameters that live on the host, by identity: local elements; none that several blocks use."""
        users: dict[int, list[tuple[Block, int]]] = {}
        for block in self.blocks if not self.blocks[-1].flow else self.blocks[: len(self.blocks) // 2]:
            for use in block.trace.parameters:
                users.setdefault(id(use.parameter), []).append((block, use.numel))
        return {key: own[0][1] for key, own in users.items() if len(own) == 1 and own[0][0].comes}

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

    def _trace_by_layers(self, count: int) -> None:
        """Trace once more with what is recomputed in every chunk: its first layers, or groups of all its layers."""
        cut = self.blocks
        pieces: list[list[tuple[str, Module, bool]]] = [[] for _ in self.job.model.modules]
        places: list[tuple[int, int]] = []
        for chunk in range(self.num_chunks):
            own = [block for block in cut if block.chunk == chunk]
            layers = [block for block in own if block.is_layer]
            by_block = self.job.training.recompute_method.value == "block"  # type: ignore[union-attr]
            for block in own:
                if by_block or not block.is_layer:
                    parts = [(block.path, block.body, block in layers[:count])]
                else:
                    turn = layers.index(block)
                    members = layers[turn : turn + count] if turn % count == 0 else []
                    name = self.job.model.modules[block.module].name
                    parts = [(block.path, block.body, True)] if len(members) == 1 else []
                    if len(members) > 1:
                        group = Sequential({member.path[len(name) + 1 :]: member.body for member in members})
                        parts = [(name, group, True)]
                pieces[block.module] += parts
                places += [(block.rank, chunk)] * len(parts)
        self.blocks = []
        self._trace_all(pieces)
        for block, (rank, chunk) in zip(self.blocks, places, strict=True):
            block.rank, block.chunk = rank, chunk

    def _trace_all(self, pieces: list[list[tuple[str, Module, bool]]]) -> None:
        last: dict[str, Block] = {}
        for number, module in enumerate(self.job.model.modules):
            specs = [self._data(spec, number) for spec in module.inputs]
            sources: list[tuple[int, int] | None] = [None] * len(specs)
            for name in module.sources:
                maker = self.sizes[last[name].module]
                specs += spread_anew(self.job, list(last[name].trace.output_specs), maker, self.sizes[number])
                sources += [(last[name].number, k) for k in range(len(last[name].trace.outputs))]
            layers = 0
            for path, body, again in pieces[number]:
                trace = self._trace(number, body, specs, path, None, again)
                block = last[module.name] = Block(len(self.blocks), number, path, body, specs, sources, trace, again)
                self.blocks.append(block)
                if block.is_layer and job_every(self.job, layers):
                    block.again = False
                    block.trace = self._trace(number, body, specs, path, None, False)
                if block.is_layer:
                    named, offloaded = self._is_named(path, layers), self.job.training.offload or ()
                    block.out = named and "activations" in offloaded
                    block.comes = named and "weights" in offloaded
                    layers += 1
                specs = list(trace.output_specs)
                sources = [(len(self.blocks) - 1, k) for k in range(len(specs))]
        for block in reversed(self.blocks):
            self._trace_again(block)

    def _data(self, spec: InputSpec, module: int) -> CarrySpec:
        packing = self.sizes[module].packing(spec.stream)
        rows = packing.count if spec.per_sequence else packing.tokens
        shape = (rows,) if spec.features is None else (rows, spec.features)
        dtype = spec.dtype(self._options.tensor_dtype)
        return CarrySpec(shape, (1,) * len(shape), dtype, False, None if spec.per_sequence else packing)

    def _is_named(self, path: str, number: int) -> bool:
        """Whether what is offloaded of layers is of this one: by name, or every so-manieth layer of a module."""
        training = self.job.training
        if training.offload_layers is not None:
            return path in training.offload_layers
        share = 1.0 if training.offload_fraction is None else training.offload_fraction
        return int(share * (number + 1)) != int(share * number)

    def _trace(
        self,
        module: int,
        body: Module,
        specs: list[CarrySpec],
        path: str,
        gradients: list[bool] | None,
        again: bool,
        out: bool = False,
    ) -> TracedBlock:
        options = self._own[module]
        if self._is_in_bf16(module, path):
            options = replace(options, compute_dtype=options.tensor_dtype)
        if can_trace(options, out, again):
            return trace_slowly(body, specs, options, root=path, full_recompute=again, gradients=gradients)
        return trace_block(body, specs, options, root=path, full_recompute=again, gradients=gradients, offload=out)

    def _trace_again(self, block: Block) -> None:
        """A gradient arrives only for what somebody downstream differentiates."""
        consumers = self.consumers(block)
        if not consumers and block.out:
            block.trace = self._trace(block.module, block.body, block.specs, block.path, None, block.again, block.out)
        if consumers:
            arrives = [False] * len(block.trace.outputs)
            for consumer, k, output in consumers:
                arrives[output] |= consumer.trace.input_gradients[k] is not None
            block.trace = self._trace(
                block.module, block.body, block.specs, block.path, arrives, block.again, block.out
            )

    def _cut(self) -> None:
        """Lightest heaviest group, then smallest sum of squares, then the first cut; groups are dealt to the ranks."""
        weights = [sum(use.parameter.numel for use in block.trace.parameters) for block in self.blocks]

        def score(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            parts = [sum(weights[a:b]) for a, b in pairwise((0, *cuts, len(weights)))]
            return max(parts), sum(part**2 for part in parts), cuts

        pp, vpp = self.job.parallel.pp, self.job.parallel.vpp
        places = [(slot, rank) for slot in range(vpp) for rank in range(pp)]
        if self.job.parallel.placement == "v-shape":
            places = [(slot, pp - 1 - rank if slot % 2 else rank) for slot, rank in places]
        if self.job.parallel.layout is not None or self.job.parallel.partition == "layers":
            groups = stage_of_blocks(self.job, [(block.module, block.path) for block in self.blocks])
        elif self.job.parallel.segments == "replicated":
            groups = self._others_cut(weights)
        elif self.job.parallel.segments != "mixed":
            groups = module_groups(self.job, [block.module for block in self.blocks], weights)
        else:
            cuts = min(combinations(range(1, len(weights)), len(places) - 1), key=score)
            groups = [sum(block.number >= cut for cut in cuts) for block in self.blocks]
        chunk, previous = -1, (-1, -1)
        for block in self.blocks:
            group = groups[block.number]
            block.slot, block.rank = places[group]
            if (group, block.module) != previous:
                chunk, previous = chunk + 1, (group, block.module)
            block.chunk = chunk

    def _others_cut(self, weights: list[int]) -> list[int]:
        """Ranks of the blocks of the one module that is no encoder, by trying all cuts; encoders are on the first."""
        roles = [module.role.value for module in self.job.model.modules]
        assert roles.count("encoder") == len(roles) - 1
        own = [w for w, block in zip(weights, self.blocks, strict=True) if roles[block.module] != "encoder"]

        def score(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            parts = [sum(own[a:b]) for a, b in pairwise((0, *cuts, len(own)))]
            return max(parts), sum(part**2 for part in parts), cuts

        cuts = min(combinations(range(1, len(own)), self.job.parallel.pp - 1), key=score)
        first = len(self.blocks) - len(own)
        return [sum(block.number - first >= cut for cut in cuts) for block in self.blocks]

    def _repeat(self) -> None:
        """All encoders on every rank, forwards alone behind the first one, module by module."""
        old, self.blocks = self.blocks, []
        chunk, place = -1, {}  # (old block, rank) -> new block
        for number, module in enumerate(self.job.model.modules):
            is_encoder = module.role.value == "encoder"
            own = [block for block in old if block.module == number]
            ranks = range(self.job.parallel.pp) if is_encoder else [-1]
            for rank in ranks:
                chunk, held = chunk + 1, own[0].rank
                for block in own:
                    chunk += not is_encoder and block.rank != held
                    held, at = block.rank, rank if is_encoder else block.rank
                    sources = [
                        None if s is None else (place.get((s[0], at), place.get((s[0], -1), 0)), s[1])
                        for s in block.sources
                    ]
                    trace = block.trace
                    if is_encoder and rank:
                        silent = [False] * len(trace.outputs)
                        trace = self._trace(number, block.body, block.specs, block.path, silent, block.again)
                    new = replace(block, number=len(self.blocks), sources=sources, rank=at, chunk=chunk, trace=trace)
                    place[block.number, rank] = new.number
                    self.blocks.append(new)

    def _double(self) -> None:
        """The whole model once more, from the last rank to the first."""
        n, chunks, last = len(self.blocks), self.blocks[-1].chunk + 1, self.job.parallel.pp - 1
        self.blocks += [
            replace(
                block,
                number=block.number + n,
                sources=[None if s is None else (s[0] + n, s[1]) for s in block.sources],
                rank=last - block.rank,
                slot=1,
                chunk=block.chunk + chunks,
                flow=1,
            )
            for block in self.blocks
        ]

    def held_on(self, rank: int) -> list[Block]:
        """Blocks of a rank by their places in the model, whichever copy they are of."""
        places = len(self.blocks) // (self.blocks[-1].flow + 1)
        return sorted((b for b in self.blocks if b.rank == rank), key=lambda block: block.number % places)

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


def holds_all(job: TrainingJob) -> bool:
    """Whether ZeRO-3 keeps parameters gathered for the whole iteration, while several microbatches are under way."""
    several = job.parallel.pp > 1 or (job.training.schedule == "gpipe" and job.num_microbatches > 1)
    return several and job.parallel.zero == 3 and not job.parallel.reshard_after_forward


def _reads_replicas(job: TrainingJob) -> bool:
    return any(item.reads_replicas for module in job.model.modules for _, item in module.body.named_modules())


def _has_experts(body: Module) -> bool:
    return any(isinstance(module, MixtureOfExperts) for _, module in body.named_modules())


def job_every(job: TrainingJob, number: int) -> bool:
    """Whether it is not this layer's turn to be recomputed."""
    every = job.training.recompute_every
    return every is not None and number % every != every - 1


_HEAD_DIMS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("fa2", "sdpa", "flex"), tuple(range(32, 257, 32))),
    "fa1": (32, 64, 128),
    "triton-fa1": tuple(2**power for power in range(4, 9)),
    "fa3": (64, 96, 128, 192, 256),
}
"""Sizes that attention kernels are compiled for."""


def is_eager(job: TrainingJob) -> bool:
    """Whether modules are many kernels: as told, and under PyTorch before its 2.0."""
    training = job.training
    date = training.software_date or "9999-12"
    return training.eager_modules or (training.software.value == "torch" and date < "2023-03")


def _plan(job: TrainingJob) -> RecomputePlan:
    """What selective recomputation names."""
    training = job.training
    names = training.recompute_modules or ("core_attn",)
    return RecomputePlan.of(tuple(names)) if training.recompute.value == "selective" else RecomputePlan()
