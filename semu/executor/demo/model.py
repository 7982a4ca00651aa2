"""Small modules with the plan's names, chunks and items: tensors [items, rows, width], float64, attention per item.

A module that is read gives all its rows to its reader. A reader that runs microbatches whole has one sequence, its own
rows with all the others' behind them; one that is cut adds to each of its items the mean of the others' rows that
belong to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from semu.executor.chunk import as_tuple
from semu.executor.communicator import Communicator
from semu.executor.demo.gang import HeadPart, PartialLoss, StemPart, pattern_of
from semu.executor.demo.shards import CUTS, LayerShard, part_suffix
from semu.executor.gang import RankGroup
from semu.executor.model import ModuleStages, layers_of
from semu.executor.sharded import Cut, ShardedCommunicator
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.reductions import shards_of_ranks
from semu.records import dataclass

DTYPE = torch.float64
HEADS = 4
_SEED = 1


class Layer(nn.Module):
    """Attention and a feed-forward network, both behind a norm."""

    cuts = CUTS

    def __init__(self, width: int, heads: int = HEADS) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=DTYPE)
        self.qkv = nn.Linear(width, 3 * width, dtype=DTYPE)
        self.attention = Attention(heads)
        self.out = nn.Linear(width, width, dtype=DTYPE)
        self.norm2 = nn.LayerNorm(width, dtype=DTYPE)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, dtype=DTYPE), nn.GELU(), nn.Linear(4 * width, width, dtype=DTYPE)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[items, rows, width] -> the same."""
        x = x + self.out(self.attention(self.qkv(self.norm(x))))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """The attention core, which ``selective`` recomputes."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        """[items, rows, 3 x width] -> [items, rows, width]."""
        items, rows, width = qkv.shape
        size = width // 3 // self.heads
        q, k, v = qkv.reshape(items, rows, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) / size**0.5, -1)
        return (scores @ v).transpose(1, 2).reshape(items, rows, width // 3)


class PackedStem(nn.Module):
    """A microbatch as one sequence: its own rows, then those of the sources."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=DTYPE)

    def forward(self, own: torch.Tensor, *sources: torch.Tensor | None) -> torch.Tensor:
        """[n, rows, width] each -> [1, all rows, width]."""
        given = [one for one in sources if one is not None]
        if not given:
            return self.linear(own)
        flat = [one.reshape(1, -1, own.shape[-1]) for one in (self.linear(own), *given)]
        return torch.cat(flat, dim=1)


class ItemStem(nn.Module):
    """Items one by one, each with the mean of what belongs to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=DTYPE)

    def forward(self, own: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        """``others``: for every source a matrix [items, its items], then its output or None."""
        x = self.linear(own)
        half = len(others) // 2
        for whose, source in zip(others[:half], others[half:], strict=True):
            if source is not None and whose is not None:
                x = x + (whose @ source.mean(1))[:, None]
        return x


class Head(nn.Module):
    """A norm and a projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=DTYPE)
        self.linear = nn.Linear(width, width, dtype=DTYPE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[items, rows, width] -> the same."""
        return self.linear(self.norm(x))


def item_counts(plan: ExecutionPlan) -> dict[str, NDArray[np.int64]]:
    """Module -> int64[num_replicas, num_microbatches], its items."""
    pairs = plan.pairs
    module = np.array([chunk.module for chunk in plan.chunks])[pairs.chunk]
    found = {}
    for name in dict.fromkeys(chunk.module for chunk in plan.chunks):
        most = np.zeros((plan.num_replicas, plan.num_microbatches), dtype=np.int64)
        np.maximum.at(most.T, pairs.microbatch[module == name], pairs.items[:, module == name, 1].T)
        found[name] = most
    return found


@dataclass(frozen=True)
class DemoModel:
    """The small model of a plan.

    Attributes:
        plan: names, chunks and items. width: of all tensors. rows: of an item.
        may_cut: modules that other plans of the same model may cut, besides those that this one does.
    """

    plan: ExecutionPlan
    width: int = 32
    rows: int = 4
    may_cut: frozenset[str] = frozenset()

    @property
    def heads(self) -> int:
        """Of every layer: as many as all numbers of shards divide."""
        return math.lcm(HEADS, *shards_of_ranks(self.plan))

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """Module -> modules that it reads: as the chunks say; else by the messages, and where there are none, the
        module before it."""
        plan = self.plan
        found: dict[str, dict[str, None]] = {chunk.module: {} for chunk in plan.chunks}
        if all(chunk.sources is not None for chunk in plan.chunks):
            ends = [(source, number) for number, chunk in enumerate(plan.chunks) for source in chunk.sources or ()]
        else:
            messages, chunks = plan.messages, plan.pairs.chunk.tolist()
            pairs = zip(messages.source.tolist(), messages.target.tolist(), strict=True)
            ends = [(chunks[source // 2], chunks[target // 2]) for source, target in pairs if source % 2 == 0]
        for source, target in ends:
            if plan.chunks[source].module != plan.chunks[target].module:
                found[plan.chunks[target].module].setdefault(plan.chunks[source].module)
        if any(chunk.sources is None for chunk in plan.chunks):
            for before, name in pairwise(found):
                if not any(before in sources for sources in found.values()):
                    found[name].setdefault(before)
        return {name: tuple(sources) for name, sources in found.items()}

    @cached_property
    def counts(self) -> dict[str, list[list[int]]]:
        """Module -> per replica, items of every microbatch."""
        return {name: counts.tolist() for name, counts in item_counts(self.plan).items()}

    @cached_property
    def cut(self) -> frozenset[str]:
        """Modules whose items run one by one."""
        pairs = self.plan.pairs
        return self.may_cut | frozenset(
            self.plan.chunks[chunk].module for chunk in pairs.chunk[pairs.part > 0].tolist()
        )

    def read(
        self, made: Mapping[tuple[str, int], torch.Tensor | None], source: str, microbatch: int, replica: int
    ) -> torch.Tensor | None:
        """What a reader's microbatch reads of a module in one piece: of one whose parts are deferred the items that
        belong to the parts. ``made``: outputs by module and microbatch, a row an item."""
        if source not in self.plan.reads:
            return made[source, microbatch]
        pairs = self.plan.pairs
        first = next(number for number, chunk in enumerate(self.plan.chunks) if chunk.module == source)
        found = []
        for whose, part in self.plan.reads[source][microbatch]:
            is_it = (pairs.chunk == first) & (pairs.microbatch == whose) & (pairs.part == part)
            begin, end = pairs.items[replica, np.flatnonzero(is_it)[0]].tolist()
            output = made[source, whose]
            if output is not None and begin < end:
                found.append(output[begin:end])
        return torch.cat(found) if found else None

    def modules(self, replica: int, communicator: Communicator | None = None) -> dict[str, ModuleStages]:
        """The modules with the same parameters every time, frozen where the plan has no backward.

        Args:
            replica: whose data. communicator: of a rank that runs its parts of gangs, its shards of layers; None: the
                model in one piece.
        """
        torch.manual_seed(_SEED)
        found = {}
        for name, sources in self.sources.items():
            every = [chunk for chunk in self.plan.chunks if chunk.module == name and chunk.flow == 0]
            chunks = [chunk for chunk in every if not chunk.repeats]
            stem = ItemStem(self.width) if name in self.cut else PackedStem(self.width)
            is_read = any(name in others for others in self.sources.values())
            module = found[name] = ModuleStages(
                sources=sources,
                load=_Load(self, name, replica),
                loss=None if is_read else _MeanLoss(self.plan) if self.plan.weights else pattern_loss,
                rows=_Rows(self, name, replica),
                layers=[Layer(self.width, self.heads) for _ in range(sum(chunk.num_layers for chunk in chunks))],
                stem=stem,
                head=Head(self.width),
                selective=("attention",),
            )
            is_split = not sources and any(chunk.gang >= 0 for chunk in chunks)  # towers' losses run whole
            if communicator is not None and is_split:
                group = RankGroup(communicator)
                assert module.stem is not None and module.head is not None
                stem_part, head_part = StemPart(module.stem, group), HeadPart(module.head, group)
                loss = PartialLoss(group, self.width) if module.loss is not None else None
                module = found[name] = replace(module, stem=stem_part, head=head_part, loss=loss)
            if isinstance(communicator, ShardedCommunicator) and communicator.shards[communicator.rank] > 1:
                shards = [LayerShard(layer, communicator.group) for layer in module.layers]
                module = found[name] = replace(module, layers=shards)
            for chunk in chunks:
                if not chunk.has_backward:
                    ends = chunk is chunks[0], chunk is chunks[-1]
                    layers_of(module, chunk.first_layer, chunk.num_layers, *ends).requires_grad_(False)
        return found


@dataclass(frozen=True)
class _Rows:
    """Where in a module's items those begin that belong to an item of its reader: in proportion."""

    model: DemoModel
    module: str
    replica: int

    def __call__(self, reader: str, microbatch: int, item: int) -> int:
        mine = self.model.counts[self.module][self.replica][microbatch]
        theirs = self.model.counts[reader][self.replica][microbatch]
        return item if mine == theirs else mine * item // max(theirs, 1)


@dataclass(frozen=True)
class _Load:
    """The data of items: noise that is the same every time."""

    model: DemoModel
    module: str
    replica: int

    def __call__(self, microbatch: int, first: int, last: int) -> Any:
        model = self.model
        number = list(model.sources).index(self.module)
        rows = [
            torch.randn(
                model.rows,
                model.width,
                dtype=DTYPE,
                generator=torch.Generator().manual_seed(((number * 64 + self.replica) * 4096 + microbatch) * 4096 + i),
            )
            for i in range(first, last)
        ]
        own = torch.stack(rows) if rows else torch.zeros(1, model.rows, model.width, dtype=DTYPE)
        if self.module not in model.cut:
            reads = bool(model.sources[self.module])
            return own.reshape(1, -1, model.width) if reads else own
        whose = [self._whose(source, microbatch, first, last) for source in model.sources[self.module]]
        return (own, *whose)

    def _whose(self, source: str, microbatch: int, first: int, last: int) -> torch.Tensor:
        """float64[items, items of the source that are read]: means."""
        begin = _Rows(self.model, source, self.replica)
        bounds = [begin(self.module, microbatch, item) for item in range(first, last + 1)]
        found = torch.zeros(last - first, bounds[-1] - bounds[0], dtype=DTYPE)
        for item, (a, b) in enumerate(pairwise(bounds)):
            found[item, a - bounds[0] : b - bounds[0]] = 1 / max(b - a, 1)
        return found


def pattern_loss(output: torch.Tensor, microbatch: int, first: int, _last: int) -> torch.Tensor:
    """The mean square of the distance from a pattern, summed over items."""
    items, rows, width = output.shape
    return ((output - pattern_of(items, rows, width, microbatch, first, output)) ** 2).mean((1, 2)).sum()


class _MeanLoss:
    """The demo's loss in pipelines that share a batch: the mean over the pipeline's own microbatches."""

    def __init__(self, plan: ExecutionPlan) -> None:
        counts = microbatches_by_flow(plan)
        self._scale = {microbatch: 1.0 / len(own) for own in counts for microbatch in own}

    def __call__(self, output: torch.Tensor, microbatch: int, first: int, last: int) -> torch.Tensor:
        """As ``semu.executor.model.Loss``."""
        return pattern_loss(output, microbatch, first, last) * self._scale[microbatch]


def microbatches_by_flow(plan: ExecutionPlan) -> list[list[int]]:
    """Microbatches that each copy of the model runs."""
    flow = np.array([chunk.flow for chunk in plan.chunks])[plan.pairs.chunk]
    return [np.unique(plan.pairs.microbatch[flow == own]).tolist() for own in range(int(flow.max()) + 1)]


@dataclass(frozen=True)
class Reference:
    """Loss and gradients of the model in one piece. ``gradients``, ``parameters``: by name."""

    loss: float
    gradients: Mapping[str, torch.Tensor]
    parameters: Mapping[str, torch.Tensor]


def run_unpipelined(model: DemoModel, trained: Mapping[str, torch.Tensor] | None = None) -> Reference:
    """Every microbatch of every replica through the whole model, in this process; gradients averaged over replicas, in
    pipelines that share a batch over its microbatches.

    Args:
        model: the model. trained: other parameters than those that it begins with, by name.
    """
    parameters: dict[str, torch.Tensor] = {}
    total = 0.0
    sums: dict[str, torch.Tensor] = {}
    plan = model.plan
    for replica in range(plan.num_replicas):
        modules = model.modules(replica)
        own = named_parameters(modules)
        parameters = {name: parameter.detach() for name, parameter in own.items()}
        for name, value in (trained or {}).items():
            parameters[name].copy_(value)
        made: dict[tuple[str, int], torch.Tensor | None] = {}
        losses = []
        for name, module in modules.items():
            for microbatch in range(plan.num_microbatches):
                count = model.counts[name][replica][microbatch]
                if count == 0 and any(any(own) for own in model.counts[name]):
                    made[name, microbatch] = None
                    continue
                assert module.load is not None and module.stem is not None and module.head is not None
                values = as_tuple(module.load(microbatch, 0, count))
                x = module.stem(*values, *(model.read(made, source, microbatch, replica) for source in module.sources))
                for layer in module.layers:
                    x = layer(x)
                made[name, microbatch] = x = module.head(x)
                if module.loss is not None and plan.weights:
                    losses.append(pattern_loss(x, microbatch, 0, count) / plan.num_microbatches)
                elif module.loss is not None:
                    losses.append(module.loss(x, microbatch, 0, count))
        if losses:
            loss = torch.stack(losses).sum()
            total += loss.item()
            loss.backward()
        for name, parameter in own.items():
            if parameter.requires_grad and parameter.grad is not None:
                sums[name] = sums.get(name, 0.0) + parameter.grad / plan.num_replicas
    return Reference(total, sums, parameters)


def named_parameters(modules: Mapping[str, ModuleStages]) -> dict[str, nn.Parameter]:
    """``llm.3.mlp.0.weight``: module, layer (or ``stem``, ``head``), name within it."""
    found = {}
    for name, module in modules.items():
        for place, part in (("stem", module.stem), ("head", module.head), *enumerate(module.layers)):
            if part is not None:
                found.update({f"{name}.{place}.{key}": one for key, one in part.named_parameters()})
    return found


def gradients_of(plan: ExecutionPlan, chunks: Mapping[int, nn.Module]) -> dict[str, torch.Tensor]:
    """The gradients of a rank's chunks by the same names; behind those of parts of a parameter its axis and the part's
    bounds, ``llm.head.linear.weight|0:8:16``, behind those of shards ``part_suffix``."""
    found = {}
    for number, chunk in chunks.items():
        place = plan.chunks[number]
        for key, parameter in chunk.named_parameters():
            if parameter.grad is None:
                continue
            head, _, rest = key.partition(".")
            owner = getattr(chunk, head, None)
            if head == "layers":
                at, _, rest = rest.partition(".")
                head, owner = str(place.first_layer + int(at)), chunk.get_submodule(f"layers.{at}")
            bounds = getattr(owner, "bounds", {}).get(rest) if place.gang >= 0 else None
            part = part_suffix(owner, rest) if bounds is None else f"|{bounds[0]}:{bounds[1]}:{bounds[2]}"
            found[f"{place.module}.{head}.{rest}{part}"] = parameter.grad
    return found


def part_named(whole: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """What is behind a name of ``gradients_of`` among whole gradients; None: there is none."""
    base, _, part = name.partition("|")
    found = whole.get(base)
    if found is None or not part:
        return found
    axis, first, last, *count = map(int, part.split(":"))
    if count:
        return Cut(axis, blocks=first).part(found, last, *count).flatten(axis, axis + 1)
    return found.narrow(axis, first, last - first)
