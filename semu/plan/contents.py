"""What a plan is about, before any action: chunks, stage pairs with their items, messages with their bytes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.compile.recipe.cut_module import CutModule
from semu.distinct import sorted_distinct
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.job import Recompute, TrainingJob
from semu.plan.plan import PlanChunk, PlanMemory, PlanPairs
from semu.plan.timeline import SimulatedStages
from semu.records import dataclass
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, FORWARD, WEIGHT
from semu.simulation.memory.static import resident_memory
from semu.simulation.schedules.costs_of_pairs import stage_sizes
from semu.simulation.transfers import edge_bytes
from semu.workload.batch import Microbatch

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


def plan_chunks(layout: Layout) -> tuple[PlanChunk, ...]:
    """The chunks with the memory strategies of their layers.

    Raises:
        ConfigError: memory strategies that no word of ``STRATEGIES`` says.
    """
    told = layout.recipe.plan.variants if layout.recipe.plan is not None else ()
    before: dict[tuple[str, int], int] = {}
    found = []
    for number, chunk in enumerate(layout.chunks):
        layers = sum(block.is_layer for block in chunk.blocks)
        key = chunk.module, chunk.chunk.flow
        variants = told[number] if told and told[number] else ((_own_strategy(layout.job),) * layers,)
        found.append(
            PlanChunk(
                module=chunk.module,
                rank=chunk.chunk.rank,
                first_layer=0 if chunk.chunk.repeats else before.get(key, 0),
                num_layers=layers,
                has_backward=chunk.backward is not None,
                variants=tuple(variants),
                flow=chunk.chunk.flow,
                sources=tuple(sorted({source for source in chunk.arrivals if source >= 0})),
                gang=chunk.chunk.gang,
                repeats=chunk.chunk.repeats,
            )
        )
        before[key] = before.get(key, 0) + (0 if chunk.chunk.repeats else layers)
    return tuple(found)


def _own_strategy(job: TrainingJob) -> str:
    """The strategy of every layer that the job itself says."""
    training = job.training
    for name in ("recompute_layers", "recompute_every", "recompute_policy", "offload_layers", "offload_fraction"):
        if getattr(training, name) is not None:
            raise ConfigError(
                "a plan says one memory strategy for each layer, and none of them is this",
                where=f"training.{name}",
                expected="nothing: none, selective, full or offload for whole layers",
                got=getattr(training, name),
            )
    if training.recompute is Recompute.NONE and "activations" in (training.offload or ()):
        return "offload"
    return str(training.recompute.value)


@dataclass(frozen=True, eq=False)
class PlanContents:
    """Pairs and transfers of a simulated schedule.

    Attributes:
        stages: the schedule.
    """

    stages: SimulatedStages

    @cached_property
    def layout(self) -> Layout:
        """The job, cut into chunks."""
        return self.stages.checkpoint.layout

    @cached_property
    def _of_dp(self) -> I64:
        """int64[dp], which distinct replica each data-parallel replica is."""
        return self.stages.checkpoint.replicas.of

    @cached_property
    def _cut(self) -> list[CutModule | None]:
        """How every chunk's module cuts microbatches."""
        modules = self.layout.recipe.cutting.modules
        return [modules.get(chunk.module) for chunk in self.layout.chunks]

    @cached_property
    def _module(self) -> I64:
        """int64[num_chunks], the number of each chunk's module."""
        names = list(dict.fromkeys(chunk.module for chunk in self.layout.chunks))
        return np.array([names.index(chunk.module) for chunk in self.layout.chunks], dtype=np.int64)

    # -- pairs -------------------------------------------------------------------------------------------------------
    @cached_property
    def pairs(self) -> PlanPairs:
        """The pairs, chunk after chunk."""
        arrays = graph_of(self.stages.units.shape)
        kept = np.flatnonzero(arrays.exists)
        chunk = arrays.chunk[kept]
        part = arrays.sub_microbatch[kept]
        return PlanPairs(
            chunk=chunk,
            microbatch=arrays.microbatch[kept],
            part=part,
            variant=self._variants(chunk, arrays.part[kept]),
            items=self._items(chunk, arrays.microbatch[kept], part),
        )

    def _variants(self, chunk: I32, number: I32) -> I32:
        recipe = self.layout.recipe
        kind = recipe.kind_of(chunk, number)
        further = np.array([own[1] if len(own) > 1 else 0 for own in recipe.numbers], dtype=np.int64)
        found: I32 = np.where(kind == chunk, 0, kind - further[chunk] + 1).astype(np.int32)
        return found

    def _items(self, chunk: I32, microbatch: I32, part: I32) -> I32:
        """int32[dp, n, 2], first and one past the last item."""
        have = self._item_counts()
        parts = np.ones_like(have)
        listed: list[tuple[int, CutModule, I64]] = []  # modules whose parts have items of their own
        for number, module in enumerate(dict.fromkeys(chunk.module for chunk in self.layout.chunks)):
            cut = next((own for own in self._cut if own is not None and own.name == module), None)
            if cut is not None:
                parts[number] = cut.own
                if cut.sizes is not None:
                    listed.append((number, cut, cut.sizes))
        at = self._module[chunk]
        of, count = have[at, :, microbatch], parts[at, :, microbatch]  # [n, dp]
        low, high = (
            np.where(part[:, None] < count, (part[:, None] + k) * of // np.maximum(count, 1), 0) for k in (0, 1)
        )
        for number, cut, sizes in listed:
            mine = np.flatnonzero(at == number)
            first = np.array(cut.first, dtype=np.int64)[microbatch[mine]]
            ends = np.concatenate((np.zeros((len(sizes), 1), np.int64), np.cumsum(sizes, axis=1)), axis=1)
            low[mine] = (ends[:, first + part[mine]] - ends[:, first]).T
            high[mine] = (ends[:, first + part[mine] + 1] - ends[:, first]).T
        found: I32 = np.stack((low.T, high.T), axis=2).astype(np.int32)
        return found

    def _item_counts(self) -> I64:
        """int64[num_modules, dp, num_microbatches], items of every module in every microbatch."""
        job = self.layout.job
        dp, m = job.parallel.replicas, job.num_microbatches
        items = job.batch.microbatches(m * dp, job.training.micro_batch, job.training.seq_len)
        by_name = {module.name: module for module in job.model.modules}

        def _stream_of(name: str) -> str | None:
            module = by_name[name]
            if module.inputs:
                return module.inputs[0].stream
            return next((found for found in map(_stream_of, module.sources) if found is not None), None)

        def _count(item: Microbatch, stream: str | None) -> int:
            return len(item.lengths[stream]) if stream is not None and stream in item.lengths else 1

        names = dict.fromkeys(chunk.module for chunk in self.layout.chunks)
        counts = [[_count(item, stream) for item in items] for stream in map(_stream_of, names)]
        table: I64 = np.array(counts, dtype=np.int64).reshape(len(names), m, dp).transpose(0, 2, 1)
        return table

    def memory(self) -> PlanMemory:
        """Memory of the pairs under their variants, on the replica that needs most on their rank."""
        checkpoint, stages = self.stages.checkpoint, self.stages
        shapes = checkpoint.replicas.shape
        arrays = graph_of(stages.units.shape)
        kept = np.flatnonzero(arrays.exists)
        chunk, number = arrays.chunk[kept], arrays.part[kept]
        kind, column = self.layout.recipe.kind_of(chunk, number), self.layout.recipe.column_of(chunk, number)
        sizes = np.zeros((3, len(shapes), len(kept)), dtype=np.int64)
        for its, own in stage_sizes(checkpoint, sorted_distinct(kind).tolist()).items():
            mine = kind == its
            sizes[:, :, mine] = own[:, shapes[:, column[mine]]]
        found = sizes[:, 0].copy()
        for order in stages.orders if len(shapes) > 1 else ():
            pair, code = stages.pair[order], stages.code[order]
            held, forward, backward = sizes[:, :, pair]
            change = held * ((code == FORWARD).astype(np.int64) - ((code == BACKWARD) | (code == WEIGHT)))
            own = np.where(code == FORWARD, forward, backward)
            peaks = (np.cumsum(change, axis=1) - change + own).max(axis=1, initial=0)
            found[:, pair] = sizes[:, int(np.argmax(peaks))][:, pair]
        static = [own.total + work for own, work in resident_memory(self.layout)]
        return PlanMemory(found[0], found[1], found[2], np.array(static, dtype=np.int64))

    # -- messages ----------------------------------------------------------------------------------------------------
    @cached_property
    def is_gradient(self) -> NDArray[np.bool_]:
        """bool[num_messages], by transfer: it goes against the direction of data."""
        found: NDArray[np.bool_] = self.stages.code[self.stages.producer] != FORWARD
        return found

    @cached_property
    def _ends(self) -> tuple[I64, I64]:
        """The pairs between which data flows, whichever way the transfer goes: int64[num_messages] each."""
        source, target = self.stages.pair[self.stages.producer], self.stages.pair[self.stages.consumer]
        return np.where(self.is_gradient, target, source), np.where(self.is_gradient, source, target)

    def message_bytes(self) -> I64:
        """int64[dp, num_messages] [bytes], by transfer."""
        checkpoint = self.stages.checkpoint
        given, taken = self._ends
        chunk, count = self.pairs.chunk.astype(np.int64), len(self.layout.chunks)
        key = (chunk[given] * count + chunk[taken]) * 2 + self.is_gradient
        edges, edge = np.unique(key, return_inverse=True)
        rows = []
        for number in edges.tolist():
            source, target = divmod(number // 2, count)
            ends = (target, source, Phase.BACKWARD) if number % 2 else (source, target, Phase.FORWARD)
            rows.append(edge_bytes(checkpoint, *ends))
        if not rows:
            return np.zeros((len(self._of_dp), 0), dtype=np.int64)
        shape = checkpoint.replicas.shape[:, self._columns(given, taken)]
        by_replica: I64 = np.stack(rows)[edge[None, :], shape]
        return by_replica[self._of_dp]

    def _columns(self, given: I64, taken: I64) -> I64:
        """int64[num_messages], columns of the table of shapes of what is moved."""
        pairs, split = self.pairs, np.array(self.stages.units.shape.chunk_split, dtype=np.int64)
        number = split[pairs.chunk] * pairs.microbatch + pairs.part
        return self.layout.recipe.moved_columns(pairs.chunk[given], number[given], pairs.chunk[taken], number[taken])

    def message_items(self) -> I32:
        """int32[dp, num_messages, 2], by transfer, of the module that is cut finer."""
        given, taken = self._ends
        items, chunk = self.pairs.items, self.pairs.chunk
        is_cut = np.array([cut is not None for cut in self._cut], dtype=np.bool_)
        own, other = is_cut[chunk[given]], is_cut[chunk[taken]]
        finer = np.where(own | ~other, given, taken)
        found: I32 = items[:, finer]
        both = np.flatnonzero(own & other & (self._module[chunk[given]] != self._module[chunk[taken]]))
        if len(both):
            low = np.maximum(items[:, given[both], 0], items[:, taken[both], 0])
            high = np.minimum(items[:, given[both], 1], items[:, taken[both], 1])
            found[:, both] = np.stack((np.where(low < high, low, 0), np.where(low < high, high, 0)), axis=2)
        return found


@dataclass(frozen=True, eq=False)
class MixedContents(PlanContents):
    """Pairs and transfers of a pipeline whose ranks are costed in several jobs.

    Attributes:
        views: of each job, the same pairs and transfers. of_ranks: which of them each rank is costed in.
    """

    views: tuple[PlanContents, ...]
    of_ranks: tuple[int, ...]

    @cached_property
    def _of_pairs(self) -> I64:
        """int64[num_pairs], the view of each pair."""
        rank = np.array([chunk.chunk.rank for chunk in self.layout.chunks], dtype=np.int64)
        found: I64 = np.array(self.of_ranks, dtype=np.int64)[rank[self.pairs.chunk]]
        return found

    def memory(self) -> PlanMemory:
        """Of each pair and rank as its own view has it."""
        own = [view.memory() for view in self.views]

        def _of(name: str, views: I64) -> I64:
            found: I64 = np.stack([getattr(one, name) for one in own])[views, np.arange(len(views))]
            return found

        pairs, ranks = self._of_pairs, np.array(self.of_ranks, dtype=np.int64)
        return PlanMemory(
            held_bytes=_of("held_bytes", pairs),
            forward_peak_bytes=_of("forward_peak_bytes", pairs),
            backward_peak_bytes=_of("backward_peak_bytes", pairs),
            static_bytes=_of("static_bytes", ranks),
        )

    def message_bytes(self) -> I64:
        """As the end says whose GPUs have more of it."""
        sizes = np.stack([view.message_bytes() for view in self.views])
        given, taken = (self._of_pairs[end] for end in self._ends)
        at = np.arange(sizes.shape[2])
        found: I64 = np.maximum(sizes[given, :, at], sizes[taken, :, at]).T
        return found
