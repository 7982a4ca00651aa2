"""``run_assigned``: an ``AssignedSampler`` drives the executor on small layers, and every gradient is that of the whole
batch: of all samples of the iteration in one piece, with the mean loss over all their tokens.

A sample is some tokens of text, over which the loss is, and a row for every item of an encoder. The backbone has the
tokens of a microbatch's samples one behind the other, with the number of their sample, and mixes them within samples.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from semu.checks import check_integer, check_word
from semu.errors import ExecutorError
from semu.executor.assigned_sampler import AssignedSampler, MicrobatchSamples
from semu.executor.communicator import Communicator
from semu.executor.demo.model import DTYPE, gradients_of, named_parameters
from semu.executor.demo.scaled import with_fewer_layers
from semu.executor.fake_communicator import FakeWorld, run_threads
from semu.executor.model import ModuleStages, layers_of, split_model
from semu.executor.processes import Place, launch
from semu.executor.runner import Runner
from semu.executor.torch_communicator import TorchCommunicator
from semu.job import TrainingJob
from semu.plan.compile import compile_plan
from semu.plan.plan import PlanChunk
from semu.plan.verification.rules import verify
from semu.records import dataclass
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.costs import SampleCosts
from semu.searcher.assignment.deferring import item_streams
from semu.workload.samples import Samples

BACKENDS = ("gloo", "fake")
_SEED = 2
_BUILDING = threading.Lock()
"""Threads share torch's random numbers."""


class Rows(nn.Module):
    """Rows on their own; rows of one sample mixed where they come with its number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=DTYPE)
        self.core = nn.Sequential(nn.Linear(width, 2 * width, dtype=DTYPE), nn.GELU())
        self.out = nn.Linear(2 * width, width, dtype=DTYPE)

    def forward(self, x: torch.Tensor, *owner: torch.Tensor) -> Any:
        """float[rows, width] and int64[rows], or no numbers -> the same."""
        y = self.out(self.core(self.norm(x)))
        if not owner:
            return x + y
        return x + y + sample_means(y, owner[0], int(owner[0].shape[0]))[owner[0]], *owner


class Stem(nn.Module):
    """A projection; of the backbone's text with the mean of each sample's items added to its tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=DTYPE)

    def forward(
        self, x: torch.Tensor, owner: torch.Tensor | None = None, count: int = 0, *items: torch.Tensor | None
    ) -> Any:
        """``owner``: int64[rows]. ``count``: of samples. ``items``: whose the rows of every encoder are, then what it
        made or None."""
        x = self.linear(x)
        if owner is None:
            return x
        for whose, made in zip(items[: len(items) // 2], items[len(items) // 2 :], strict=True):
            if made is not None and whose is not None:
                x = x + sample_means(made, whose, count)[owner]
        return x, owner


class Head(nn.Module):
    """A norm and a projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=DTYPE)
        self.linear = nn.Linear(width, width, dtype=DTYPE)

    def forward(self, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        """float[rows, width] -> the same."""
        return self.linear(self.norm(x))


def sample_means(rows: torch.Tensor, owner: torch.Tensor, most: int) -> torch.Tensor:
    """Means over the rows of each sample: float[most, width], 0 of samples without any. ``owner``: int64[rows]."""
    total = rows.new_zeros(most, rows.shape[1]).index_add(0, owner, rows)
    count = rows.new_zeros(most).index_add(0, owner, torch.ones_like(owner, dtype=rows.dtype))
    return total / count.clamp(min=1.0)[:, None]


@dataclass
class SampleStages:
    """The small model on what a sampler handed out.

    Attributes:
        samples: of the file. streams: encoder -> its stream. chunks: of the plan. width: of rows.
        handed: a replica's microbatches of the iteration that runs.
    """

    samples: Samples
    streams: Mapping[str, str]
    chunks: Sequence[PlanChunk]
    width: int
    handed: list[MicrobatchSamples] = field(default_factory=list)

    @property
    def tokens(self) -> Any:
        """int64[num_samples], over which the loss is."""
        text = self.samples.text_tokens
        return text if text.any() else self.samples.lengths

    def modules(self) -> dict[str, ModuleStages]:
        """The modules, with the same parameters every time, frozen where the plan has no backward."""
        torch.manual_seed(_SEED)
        found = {}
        for name in dict.fromkeys(chunk.module for chunk in self.chunks):
            chunks = [chunk for chunk in self.chunks if chunk.module == name]
            is_encoder = name in self.streams
            load = partial(self._items, name) if is_encoder else self._text
            module = found[name] = ModuleStages(
                sources=() if is_encoder else tuple(self.streams),
                load=load,
                loss=None if is_encoder else self._loss,
                layers=[Rows(self.width) for chunk in chunks for _ in range(chunk.num_layers)],
                stem=Stem(self.width),
                head=Head(self.width),
                selective=("core",),
            )
            for chunk in chunks:
                if not chunk.has_backward:
                    ends = chunk is chunks[0], chunk is chunks[-1]
                    layers_of(module, chunk.first_layer, chunk.num_layers, *ends).requires_grad_(False)
        return found

    def encoded(self, microbatch: int) -> list[int]:
        """Samples whose items the encoders run in a microbatch."""
        return list(self.handed[microbatch])

    def read(self, microbatch: int) -> list[int]:
        """Samples that the backbone reads in a microbatch."""
        own = self.handed[microbatch]
        before = self.handed[microbatch - 1] if microbatch else None
        late = before[len(before) - before.num_deferred :] if before is not None else []
        return [*late, *own[: len(own) - own.num_deferred]]

    def _items(self, name: str, microbatch: int, first: int, last: int) -> torch.Tensor:
        return self.items_of(name, self.encoded(microbatch))[first:last]

    def items_of(self, name: str, positions: Sequence[int]) -> torch.Tensor:
        """float[items, width], the items of some samples."""
        counts = self.samples.items[self.streams[name]].counts
        at = 1 + list(self.streams).index(name)
        return torch.cat([self._noise(position, at, int(counts[position])) for position in positions])

    def _text(self, microbatch: int, _first: int, _last: int) -> tuple[Any, ...]:
        return self.text_of(self.read(microbatch))

    def text_of(self, positions: Sequence[int]) -> tuple[Any, ...]:
        """Text of some samples, whose each token is, how many samples, and whose the items of every encoder are; those
        with text have the lowest numbers, below that of tokens."""
        text = torch.cat([self._noise(position, 0, int(self.tokens[position])) for position in positions])
        own = list(positions)
        number = torch.from_numpy(np.argsort(np.argsort(self.tokens[own] == 0, kind="stable")))
        items = [self.samples.items[stream].counts for stream in self.streams.values()]
        owner, *whose = (number.repeat_interleave(torch.from_numpy(counts[own])) for counts in (self.tokens, *items))
        return text, owner, len(own), *whose

    def _noise(self, position: int, kind: int, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(position * 8 + kind)
        return torch.randn(count, self.width, dtype=DTYPE, generator=generator)

    def _loss(self, output: torch.Tensor, microbatch: int, _first: int, _last: int) -> torch.Tensor:
        """The mean over the tokens of a microbatch, weighted."""
        weight = self.handed[microbatch].loss_weight
        return weight * self.errors(output, self.read(microbatch)).sum() / max(output.shape[0], 1)

    def errors(self, output: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """float[tokens], distance of each token's row from a pattern of its sample."""
        goal = torch.cat([self._noise(position, 7, int(self.tokens[position])) for position in positions])
        return (output - goal).square().mean(dim=1)

    def whole_batch(self, positions: Sequence[int]) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradients of all samples in one piece, by name."""
        modules = self.modules()
        made: dict[str, torch.Tensor] = {}
        for name, module in modules.items():
            assert module.stem is not None and module.head is not None
            if name in self.streams:
                values: Any = (module.stem(self.items_of(name, positions)),)
            else:
                values = module.stem(*self.text_of(positions), *(made[source] for source in module.sources))
            for layer in module.layers:
                values = layer(*values) if isinstance(values, tuple) and len(values) > 1 else (layer(values[0]),)
            made[name] = module.head(*values)
        loss = self.errors(made[name], positions).mean()
        loss.backward()
        grads = {key: one.grad for key, one in named_parameters(modules).items() if one.grad is not None}
        return loss.item(), grads


@dataclass(frozen=True)
class AssignedReport:
    """What iterations of an assignment showed, each against the whole batch in one piece.

    Attributes:
        loss, reference_loss: per iteration. gradients: how many were compared. worst_gradient: the largest difference
            over the largest gradient's number, per iteration.
        microbatches, deferred: per iteration, of a replica, and samples of all replicas that were deferred.
    """

    loss: tuple[float, ...]
    reference_loss: tuple[float, ...]
    gradients: int
    worst_gradient: tuple[float, ...]
    microbatches: tuple[int, ...]
    deferred: tuple[int, ...]


def run_assigned(
    job: TrainingJob,
    samples: str | os.PathLike[str],
    *,
    method: str = "entrain",
    per_iteration: int | None = None,
    iterations: int = 2,
    backend: str = "gloo",
    width: int = 8,
    fewer_layers: int = 8,
    timeout_s: float = 120.0,
) -> AssignedReport:
    """Train some iterations of assigned samples on small layers on this machine; every rank assigns for itself, plans
    for itself, and loads what its sampler hands out.

    Args:
        job: its pipeline is run, without tensor parallelism. samples: metadata file. method, per_iteration: as
            ``Assigner`` and ``SampleSource.read``.
        iterations: at most those of the file. backend: ``gloo``, a process per rank, or ``fake``, threads.
        width: of rows. fewer_layers: how many layers one small layer stands for. timeout_s: for other ranks [s].
    Raises:
        ConfigError: as ``Assigner``; an unknown backend. ExecutorError: a rank failed, or loss or gradients are not
            those of the whole batch.
    """
    check_word(backend, BACKENDS, "backend", "backend")
    source = SampleSource.read(job, samples, per_iteration)
    check_integer(iterations, "iterations", "a number of iterations", most=source.num_iterations)
    given = (job, os.fspath(samples), method, per_iteration, iterations, width, fewer_layers, timeout_s)
    size = job.parallel.pp * job.parallel.replicas
    if backend == "gloo":
        found = launch(_process, size, given, timeout_s=timeout_s)
    else:
        costs = Assigner(job, method, samples=source.samples).costs(source.samples)
        world = FakeWorld(job.parallel.pp, job.parallel.replicas)
        found = run_threads(world, lambda communicator: _work(communicator, *given, costs=costs))
    return _compared(job, source, found, width)


def _process(place: Place, job: TrainingJob, *given: Any) -> list[dict[str, Any]]:
    """What every process does."""
    torch.set_num_threads(1)
    return _work(TorchCommunicator(job.parallel.replicas, timeout_s=place.timeout_s), job, *given)


def _work(
    communicator: Communicator,
    job: TrainingJob,
    path: str,
    method: str,
    per_iteration: int | None,
    iterations: int,
    width: int,
    fewer_layers: int,
    timeout_s: float,
    costs: SampleCosts | None = None,
) -> list[dict[str, Any]]:
    """All iterations of a rank."""
    source = SampleSource.read(job, path, per_iteration)
    sampler = AssignedSampler(
        Assigner(job, method, samples=None if costs else source.samples, costs=costs), source, communicator.replica
    )
    stages: SampleStages | None = None
    runner: Runner | None = None
    found = []
    for handed in islice(_iterations(sampler), iterations):
        assert sampler.assignment is not None
        plan = with_fewer_layers(compile_plan(sampler.assignment.checkpoint), fewer_layers)
        verify(plan)
        if stages is None or runner is None:
            stages = SampleStages(source.samples, item_streams(job), plan.chunks, width)
            with _BUILDING:
                modules = stages.modules()
            part = split_model(plan, modules, communicator.rank)
            runner = Runner(part, communicator, timeout_s=timeout_s)
            communicator.gather(None, timeout_s)  # recomputing sets the random numbers that other threads build from
        stages.handed = handed
        for parameter in runner.model.parameters():
            parameter.grad = None
        loss = runner.run(plan).loss()
        gradients = {name: one.numpy().copy() for name, one in gradients_of(plan, runner.model.chunks).items()}
        deferred = int(sampler.assignment.dealt.is_deferred.sum())
        found.append({"loss": loss, "gradients": gradients, "handed": handed, "chunks": plan.chunks, "late": deferred})
    return found


def _iterations(sampler: AssignedSampler) -> Iterator[list[MicrobatchSamples]]:
    """What a sampler hands out, iteration after iteration."""
    handed: list[MicrobatchSamples] = []
    for microbatch in sampler:
        assert isinstance(microbatch, MicrobatchSamples) and sampler.assignment is not None
        handed.append(microbatch)
        if len(handed) == sampler.assignment.num_microbatches:
            yield handed
            handed = []


def _compared(
    job: TrainingJob, source: SampleSource, found: Sequence[Sequence[dict[str, Any]]], width: int
) -> AssignedReport:
    """What the ranks made beside the whole batch. ``found``: by world rank, pipeline rank x replicas + replica."""
    dp = job.parallel.replicas
    rows: list[tuple[float, float, int, float, int, int]] = []
    for number, ranks in enumerate(zip(*found, strict=True)):
        positions = sorted(p for own in ranks[:dp] for microbatch in own["handed"] for p in microbatch)
        if len(set(positions)) < len(positions):
            raise ExecutorError("a sample that was handed out twice", where=f"iteration {number}")
        whole = SampleStages(source.samples, item_streams(job), ranks[0]["chunks"], width)
        loss, gradients = whole.whole_batch(positions)
        made = sum(own["loss"] for own in ranks) / dp  # gradients are averaged over replicas, and so is the loss
        scale = max(float(one.abs().max()) for one in gradients.values())
        given = [pair for own in ranks for pair in own["gradients"].items()]
        worst = max(float(np.abs(one - gradients[name].numpy()).max()) / scale for name, one in given)
        missing = gradients.keys() - {name for name, _ in given}
        if missing or worst > 1e-9 or abs(loss - made) > 1e-9 * max(1.0, abs(loss)):
            raise ExecutorError(
                "loss or gradients are not those of the whole batch",
                where=f"iteration {number}",
                expected=f"loss {loss:.12g}, {len(gradients)} gradients",
                got=f"loss {made:.12g}, {len(missing)} missing, largest difference {worst:.1e} of the largest gradient",
            )
        rows.append((made, loss, len(gradients), worst, len(ranks[0]["handed"]), ranks[0]["late"]))
    made_all, losses, counts, worsts, microbatches, late = zip(*rows, strict=True)
    return AssignedReport(made_all, losses, min(counts), worsts, microbatches, late)
