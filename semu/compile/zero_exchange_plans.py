"""Which collectives of ZeRO-2 and ZeRO-3, and copies of weights from the host, run inside the stages; what they move.

ZeRO-2: gradients are reduce-scattered bucket by bucket in every microbatch's backward and only the shard is kept, as
DeepSpeed does (1910.02054 §5.2; its engine reduces at every accumulation step from stage 2 on). A bucket closes at the
end of the block that fills it.

ZeRO-3: torch FSDP (Zhao et al. 2304.11277). A unit is a block; parameters that several blocks share are a unit of their
own that stays gathered from its first forward to its last backward, as FSDP's root unit does. Gathers and reductions of
a group are one communicator's, so they share a stream (§3.3.2). Prefetching does not reach across modality modules.

Routed experts that are spread otherwise than all else are sharded over the ranks that hold the same ones: of a block
they are a unit of their own, over a communicator of its own, gathered when the block's other parameters are, as
torchtitan shards DeepSeek-V3 and Llama-4.

Where other microbatches come between a microbatch's forward and its backward (pipelines), a stage leaves nothing
gathered behind: every unit is gathered in each forward and again in each backward stage, whose gradients are reduced.
With ``reshard_after_forward`` off nothing is exchanged inside those stages: see ``unsharded``.

Weights on the host (``host_copies``): a chosen layer is a unit that is copied; with ZeRO-3 its unit's shard is,
before each gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from semu.compile.parameter_pools import weight_bytes
from semu.compile.tracer import Block, HeldParameter, parameters_on_host
from semu.compile.zero_exchange import Exchange, ExchangeCosts, ExchangePlan, HostCopyCosts
from semu.hardware.device import RELOAD
from semu.job import TrainingJob
from semu.nn.module import Parameter
from semu.nn.trace.offload import HOST_LINK
from semu.parallel.data import gradient_buckets
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk

FSDP_STREAM = "fsdp"
EXPERT_STREAMS = {FSDP_STREAM: "efsdp", "dp": "edp"}
"""Stream of the experts' collectives beside each other one (torchtitan's and Megatron-LM's names of these groups)."""

Costs = ExchangeCosts | HostCopyCosts

Members = list[tuple[int, HeldParameter]]
"""(position of a block in its chunk, a parameter that it uses)."""


def plan_exchanges(
    job: TrainingJob,
    mesh: Mesh,
    blocks: Sequence[Sequence[Block]],
    chunks: Sequence[Chunk],
    first_template: int,
) -> tuple[tuple[Costs, ...], list[ExchangePlan | None]]:
    """The collectives and copies of parameters inside all stages of a job.

    Args:
        job: what is trained. mesh: its groups. blocks: of every modality module. chunks: in order of data flow.
        first_template: number, in the library, of the first template of an exchange.
    Returns:
        What they move, each once, in the order of the templates; the units of every chunk, None without any.
    """
    on_host = parameters_on_host(block for own in blocks for block in own)
    if not is_sharded_inside(job) and not on_host:
        return (), [None] * len(chunks)
    planner = _Planner(job, mesh, first_template, on_host)
    plans: list[ExchangePlan | None] = [
        planner.plan(blocks[chunk.module][chunk.first : chunk.last], chunk.rank, is_last=chunk.index == len(chunks) - 1)
        for chunk in chunks
    ]
    return tuple(planner.templates), plans


def is_sharded_inside(job: TrainingJob) -> bool:
    """Whether gradients are reduced, or parameters gathered, inside the stages."""
    parallel = job.parallel
    is_shared = max(parallel.gradient_ranks, parallel.expert_data_ranks) > 1
    return parallel.zero >= 2 and is_shared and not job.gathers_once


class _Planner:
    """Makes units, and one template for units of equal costs."""

    def __init__(self, job: TrainingJob, mesh: Mesh, first_template: int, on_host: frozenset[Parameter]) -> None:
        self.job, self.mesh, self.first_template, self.on_host = job, mesh, first_template, on_host
        self.templates: dict[Costs, int] = {}

    def plan(self, blocks: Sequence[Block], rank: int, *, is_last: bool) -> ExchangePlan:
        """The units of a chunk; ``is_last``: it ends the model."""
        overlap = self.job.training.overlap
        units: list[Exchange] = []
        if is_sharded_inside(self.job):
            is_gathered = self.job.parallel.zero == 3
            units = self._units(blocks, rank, is_last=is_last) if is_gathered else self._buckets(blocks, rank)
        if not any(unit.gathers for unit in units):
            units += self._copies(blocks)
        return ExchangePlan(tuple(units), prefetch=overlap.param_gather, overlap_reduce=overlap.grad_reduce)

    def _buckets(self, blocks: Sequence[Block], rank: int) -> list[Exchange]:
        """Blocks from the last to the first, until a bucket is full; what blocks share is a bucket of its own."""
        found = []
        overlapped = self.job.training.overlap.grad_reduce
        for is_expert in self._kinds:
            shared, own = _split(blocks, is_expert)
            filled = {position: _elements(members, written=True) for position, members in own.items()}
            order = [position for position in sorted(own, reverse=True) if filled[position]]
            buckets = gradient_buckets(
                [filled[position] for position in order], self.job.parallel.gradient_ranks, overlapped=overlapped
            )
            contents = [[entry for turn in bucket.members for entry in own[order[turn]]] for bucket in buckets]
            if _elements(shared, written=True):
                contents.append(shared)
            found += [self._exchange(members, rank, is_expert, gathers=False, keeps=False) for members in contents]
        return found

    def _units(self, blocks: Sequence[Block], rank: int, *, is_last: bool) -> list[Exchange]:
        """One unit for what several blocks share, and one for every block with parameters; experts apart."""
        split = {is_expert: _split(blocks, is_expert) for is_expert in self._kinds}
        is_kept, reshards = not self.job.is_interlaced, self.job.parallel.reshard_after_forward
        units = [
            self._exchange(shared, rank, is_expert, gathers=True, keeps=is_kept)
            for is_expert, (shared, _) in split.items()
            if shared
        ]
        for position in range(len(blocks)):
            keeps = is_kept and (not reshards or (is_last and position == len(blocks) - 1))
            first = len(units)
            for is_expert, (_, own) in split.items():
                if position in own:
                    unit = self._exchange(own[position], rank, is_expert, gathers=True, keeps=keeps)
                    units.append(replace(unit, beside=len(units) > first))
        return units

    @cached_property
    def _kinds(self) -> list[bool]:
        """Whether experts, of what several ranks hold: all else and experts."""
        return [is_expert for is_expert in (False, True) if self._ranks(is_expert) > 1]

    def _ranks(self, is_expert: bool) -> int:
        parallel = self.job.parallel
        return parallel.expert_data_ranks if is_expert else parallel.gradient_ranks

    def _exchange(self, members: Members, rank: int, is_expert: bool, *, gathers: bool, keeps: bool) -> Exchange:
        training, parallel = self.job.training, self.job.parallel
        blocks = tuple(sorted({position for position, _ in members}))
        is_grouped = parallel.is_sharded_in_groups
        group = self.mesh.expert_shard_group(rank) if is_expert else self.mesh.shard_group(rank)
        stream = FSDP_STREAM if gathers else "dp"
        gathers = gathers and group.num_ranks > 1
        shard = self._shard_bytes(members, group.num_ranks) if gathers else 0
        elements, trained, dtype = _elements(members), _elements(members, written=True), training.precision.tensor_dtype
        is_copied = group.num_ranks > 1
        costs = ExchangeCosts(
            parameter_bytes=self._gathered_bytes(members) if gathers else 0,
            gradient_bytes=trained * training.grad_dtype.size_bytes,
            gather_copies=self.job.fsdp.gather_bytes(elements, dtype, training.master_dtype, group.num_ranks)
            if is_copied
            else 0,
            reduce_copies=self.job.fsdp.reduce_bytes(trained, dtype, training.grad_dtype) if is_copied else 0,
            stream=EXPERT_STREAMS[stream] if is_expert else stream,
            group=group,
            replicas=self.mesh.replica_group(rank) if is_grouped else None,
        )
        return Exchange(
            template=self._template(costs),
            blocks=blocks,
            gathers=gathers,
            keeps=keeps,
            writers=tuple(
                tuple(sorted({w for position, held in members if position == block for w in held.writers}))
                for block in blocks
            ),
            replicates=is_grouped,
            copies_out=gathers and costs.gather_copies > 0,
            copies_in=costs.reduce_copies > 0,
            shard=self._template(HostCopyCosts(shard, HOST_LINK[RELOAD])) if shard else -1,
        )

    def _gathered_bytes(self, members: Members) -> int:
        own = {held.parameter: held for _, held in members}.values()
        return sum(weight_bytes(self.job, held) for held in own)

    def _template(self, costs: Costs) -> int:
        """Number of a unit's template in the library."""
        return self.first_template + self.templates.setdefault(costs, len(self.templates))

    def _copies(self, blocks: Sequence[Block]) -> list[Exchange]:
        """One unit for every block whose weights live whole on the host."""
        size = self.job.training.precision.tensor_dtype.size_bytes
        units = []
        for position, block in enumerate(blocks):
            own = {held.parameter: held.elements for held in block.parameters if held.parameter in self.on_host}
            if own:
                template = self._template(HostCopyCosts(sum(own.values()) * size, HOST_LINK[RELOAD]))
                units.append(Exchange(template, (position,), True, False, ((),), is_copied=True))
        return units

    def _shard_bytes(self, members: Members, ranks: int) -> int:
        """What a rank copies of a sharded unit from the host before each gather; shards are rounded up."""
        training = self.job.training
        away = {held.parameter: held for _, held in members if held.parameter in self.on_host}
        size = training.precision.tensor_dtype.size_bytes
        if not self.job.shards_are_masters:
            return -(-sum(held.elements for held in away.values()) // ranks) * size
        trained = sum(held.elements for held in away.values() if held.parameter.requires_grad)
        frozen = sum(held.elements for held in away.values()) - trained
        return -(-trained // ranks) * training.master_dtype.size_bytes + -(-frozen // ranks) * size


def _split(blocks: Sequence[Block], is_expert: bool) -> tuple[Members, dict[int, Members]]:
    """The parameters that several blocks use, and by position those that one block uses, in forward order."""
    uses: dict[Parameter, Members] = {}
    for position, block in enumerate(blocks):
        for held in block.parameters:
            if held.is_expert is not is_expert:
                continue
            uses.setdefault(held.parameter, []).append((position, held))
    shared: Members = []
    own: dict[int, Members] = {}
    for members in uses.values():
        is_shared = len({position for position, _ in members}) > 1
        (shared if is_shared else own.setdefault(members[0][0], [])).extend(members)
    return shared, own


def _elements(members: Members, *, written: bool = False) -> int:
    """Elements of the distinct parameters; ``written``: of those whose gradient somebody writes."""
    chosen = {held.parameter: held.elements for _, held in members if held.writers or not written}
    return sum(chosen.values())
