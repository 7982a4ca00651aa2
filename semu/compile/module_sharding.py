"""Modality modules of different parallelism: how each is traced, what it spreads, what this version refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.job.experts import mixtures
from semu.nn.module import Parameter
from semu.nn.rules.reshard import Resharding, TokenLayout
from semu.nn.streams import changes_of
from semu.nn.trace.block import CarrySpec
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.tensor import Sequences
from semu.parallel.axes import PEERS
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.parallel.tensor import megatron_plan
from semu.records import dataclass
from semu.workload.spread import Spread


@dataclass(frozen=True)
class ModuleSetting:
    """One modality module's parallelism, for tracing.

    Attributes:
        name: of the module; empty where its streams are cut as the job's. parallel, mesh: its own.
        groups: of ranks in a replica, each with some of the items.
    """

    name: str
    parallel: Parallel
    mesh: Mesh
    groups: int = 1

    @classmethod
    def of(cls, name: str, mesh: Mesh) -> ModuleSetting:
        """A module of a job."""
        own = mesh.of_module(name)
        groups = own.parallel.replicas // mesh.parallel.replicas
        return cls(name if is_cut_anew(mesh.parallel, own.parallel) else "", own.parallel, own, groups)

    @property
    def width(self) -> int:
        """GPUs of a replica's pipeline rank of the module."""
        return self.parallel.replica_gpus * self.groups

    @property
    def parts(self) -> int:
        """Different parts of a tensor's tokens on these GPUs."""
        return self.groups * self.parallel.cp * self.token_shards

    @property
    def token_shards(self) -> int:
        """Into how many parts the tokens between split regions are cut."""
        return self.parallel.tp if self.parallel.sequence_parallel else 1

    def sequences(self, stream: str) -> Sequences:
        """Packing of a data stream in the module."""
        return Sequences.of_stream(stream, self.parallel.token_divisor, self.parallel.cp, self.name)

    def options(self, job: TrainingJob, base: TraceOptions) -> TraceOptions:
        """The job's options for tracing in the module's sizes."""
        plan = megatron_plan(job.model, self.parallel)
        return replace(base, plan=plan, tp_group=self.mesh.worst_tp_group, cp_group=self.mesh.worst_cp_group)

    def layout(self, stream: str) -> TokenLayout:
        """How a stream's tokens are spread over the module's GPUs."""
        group = self.mesh.exchange_group(self.parts, self.width)
        return TokenLayout(self.sequences(stream), self.groups * self.parallel.cp, self.token_shards, group)

    def shards_only(self, stream: str, mesh: Mesh) -> TokenLayout:
        """The same beside a module that differs in sequence parallelism only. ``mesh``: where tokens are gathered."""
        group = mesh.worst_tp_group if self.token_shards > 1 else None
        return TokenLayout(self.sequences(stream), 1, self.token_shards, group)


def is_cut_anew(job: Parallel, own: Parallel) -> bool:
    """Whether a module pads and shares out streams in another way than the job. ``own``: the module's parallelism."""
    return own.replicas > job.replicas or (own.token_divisor, own.cp) != (job.token_divisor, job.cp)


def landing(giver: ModuleSetting, taker: ModuleSetting, stream: str) -> TokenLayout:
    """How what a module hands over lies on the GPUs of the next one before these gather it: every GPU gets equally many
    whole parts, and where there are fewer parts than GPUs, neighbours get the same one."""
    ranks = math.gcd(giver.parts, taker.width)
    each = giver.parts // ranks
    shards = math.gcd(each, giver.token_shards)
    group = taker.mesh.exchange_group(ranks, taker.width)
    parts = giver.groups * giver.parallel.cp
    return TokenLayout(giver.sequences(stream), parts, giver.token_shards // shards, group, each // shards)


class PortLoad(NamedTuple):
    """What a transfer between modules on GPUs of their own moves, in units of what one GPU of the taker has as
    ``landing`` says.

    Attributes:
        busiest: through the port that sends or gets most. received: by one GPU.
    """

    busiest: Fraction
    received: Fraction


def port_loads(giver: ModuleSetting, taker: ModuleSetting) -> tuple[PortLoad, PortLoad]:
    """Where a module hands tokens to another one, and where it gets their gradients back.

    Parts travel whole. GPUs that hold the same part send it in turn to those that want it, and so do gradients.
    """
    ranks = math.gcd(giver.parts, taker.width)
    each, alike = giver.parts // ranks, giver.width // giver.parts
    forward = max(each, -(-(taker.width // ranks) // alike))
    backward = max(1, -(-giver.width // taker.width))
    return PortLoad(Fraction(forward, each), Fraction(1)), PortLoad(Fraction(backward, each), Fraction(1, each))


def vocabulary_options(job: TrainingJob, mesh: Mesh, base: TraceOptions) -> TraceOptions:
    """The options of blocks that all pipeline ranks run together, split over the vocabulary among tp x pp ranks; the
    tokens between are whole on every rank."""
    parallel = job.parallel
    wide = replace(parallel, tp=parallel.tp * parallel.pp, sequence_parallel=False, vocabulary="ends", etp=None)
    return replace(
        base,
        plan=megatron_plan(job.model, wide),
        tp_group=mesh.worst_vocabulary_group,
        gang_group=mesh.worst_pipeline_group,
    )


def to_whole(specs: Sequence[CarrySpec], mesh: Mesh) -> tuple[CarrySpec, ...]:
    """What enters blocks that have the whole tokens on every rank."""
    return tuple(_spread_tokens(spec, spec.shards[0], 1, mesh) for spec in specs)


def to_shards(specs: Sequence[CarrySpec], parallel: Parallel, mesh: Mesh) -> tuple[CarrySpec, ...]:
    """What leaves such blocks for others, whose tokens are sharded under sequence parallelism."""
    shards = parallel.tp if parallel.sequence_parallel else 1
    return tuple(_spread_tokens(spec, 1, shards, mesh) for spec in specs)


def _spread_tokens(spec: CarrySpec, source: int, target: int, mesh: Mesh) -> CarrySpec:
    if source == target or spec.sequences is None:
        return spec
    group = mesh.worst_tp_group
    before, after = (TokenLayout(spec.sequences, 1, n, group if n > 1 else None) for n in (source, target))
    return replace(spec, reshard=Resharding(before, after))


def resharded(
    specs: Sequence[CarrySpec], source: str, target: str, giver: ModuleSetting, taker: ModuleSetting
) -> tuple[CarrySpec, ...]:
    """What a module hands to another, spread anew where they differ.

    Args:
        specs: what the giver returns. source, target: names of giver and taker.
    Raises:
        ConfigError: tensors that are not tokens of a data stream.
    """
    alone = (_peers(giver.parallel), giver.groups) == (_peers(taker.parallel), taker.groups)
    if alone and giver.token_shards == taker.token_shards:
        return tuple(specs)
    result = []
    for spec in specs:
        stream = spec.sequences.stream if spec.sequences is not None else ""
        own = giver.sequences(stream)
        expected = (own.tokens, giver.token_shards, (1,) * (len(spec.shape) - 1))
        if spec.sequences is None or (spec.shape[0], spec.shards[0], spec.shards[1:]) != expected:
            raise ConfigError(
                f"{source} hands {target} a tensor that is not the tokens of a data stream, so that it cannot be "
                "spread anew",
                where=f"parallel.modules.{source}",
                expected=f"the same tp, cp and sequence_parallel as {target}",
                got=f"{source}: {_said(giver)}, {target}: {_said(taker)}",
                nearest=_said(taker),
            )
        if alone:
            change = Resharding(giver.shards_only(stream, taker.mesh), taker.shards_only(stream, taker.mesh))
            result.append(replace(spec, reshard=change))
            continue
        change = Resharding(landing(giver, taker, stream), taker.layout(stream))
        shape, shards = (change.source.tokens, *spec.shape[1:]), (change.source.shards, *spec.shards[1:])
        result.append(replace(spec, shape=shape, shards=shards, reshard=change))
    return tuple(result)


def _said(setting: ModuleSetting) -> str:
    return f"{_peers(setting.parallel)}, sequence_parallel = {str(setting.parallel.sequence_parallel).lower()}"


def _peers(parallel: Parallel) -> str:
    """How one replica's pipeline rank is spread: ``tp = 2, cp = 1``."""
    return ", ".join(f"{name} = {parallel.sizes[name]}" for name in PEERS)


def spreads(job: TrainingJob) -> tuple[Spread, ...]:
    """How the modules of a job that share streams out in their own way spread the microbatches."""
    result = []
    for module in job.model.modules if job.parallel.modules else ():
        groups, own = job.parallel.item_groups(module.name), job.parallel.of_module(module.name)
        if is_cut_anew(job.parallel, own):
            stream = module.inputs[0].stream
            result.append(Spread(module.name, stream, groups, own.token_divisor, own.sequence_parts))
    return tuple(result)


def check_spread(job: TrainingJob, modules: Mapping[str, Sequence[str]], columns: Mapping[str, object]) -> None:
    """Every stream that a spread module reads must have as many sequences as the one that is dealt out.

    Args:
        modules: spread module -> streams that it reads. columns: of the batch.
    Raises:
        ConfigError: a stream of which nobody knows which sequences belong to which item.
    """
    for name, streams in modules.items():
        first = next(module for module in job.model.modules if module.name == name).inputs[0].stream
        for stream in streams if job.parallel.item_groups(name) > 1 else ():
            if f"{changes_of(stream)[0]}.{name}.shard" not in columns:
                raise ConfigError(
                    f"{name} reads streams with different numbers of sequences, {first!r} and {stream!r}, so that its "
                    "items cannot be spread over groups of ranks",
                    where=f"parallel.modules.{name}",
                    expected=f"{_peers(job.parallel)} as the job",
                    got=_peers(job.parallel.of_module(name)),
                    nearest=f"tp = {job.parallel.tp}",
                )


def refuse_modules(job: TrainingJob) -> None:
    """What this version would get wrong.

    Raises:
        ConfigError: ZeRO-2 and ZeRO-3, experts, sharding groups, modules without data of their own, shared parameters.
    """
    if not job.parallel.modules:
        return
    if job.parallel.zero >= 2:
        raise ConfigError(
            f"ZeRO-{job.parallel.zero} with a parallelism per module is not modelled by this version",
            where="parallel.zero",
            expected="0 or 1, or no [parallel.modules]",
            got=job.parallel.zero,
            nearest=1,
        )
    if mixtures(job.model):
        raise ConfigError(
            "a parallelism per module for a model with experts is not modelled by this version",
            where="parallel.modules",
            expected="no [parallel.modules], or a model without experts",
            got=", ".join(job.parallel.modules),
        )
    if job.parallel.zero_group is not None:
        raise ConfigError(
            "sharding groups with a parallelism per module are not modelled by this version",
            where="parallel.zero_group",
            expected="no zero_group, or no [parallel.modules]",
            got=job.parallel.zero_group,
        )
    has_own = job.parallel.has_own_gpus
    if has_own and job.model.reads_replicas:
        raise ConfigError(
            "modules on GPUs of their own of which one reads other replicas (a contrastive loss) are not modelled yet",
            where="parallel.modules",
            expected="no gpus for any module",
            got=", ".join(job.parallel.modules),
        )
    own = {module.name: job.parallel.of_module(module.name) for module in job.model.modules}
    owner: dict[Parameter, str] = {}
    for module in job.model.modules:
        if is_cut_anew(job.parallel, own[module.name]) and not module.inputs:
            raise ConfigError(
                f"{module.name} gets nothing from the data loader: there are no items to spread over groups of ranks",
                where=f"parallel.modules.{module.name}",
                expected=f"{_peers(job.parallel)} as the job",
                got=f"tp = {own[module.name].tp}",
                nearest=f"tp = {job.parallel.tp}",
            )
        for path, parameter in module.body.named_parameters(module.name):
            other = owner.setdefault(parameter, module.name)
            if other == module.name:
                continue
            places = [job.parallel.modules[name].first_rank for name in (other, module.name)] if has_own else []
            if len({*places}) > 1:
                raise ConfigError(
                    f"{path} is shared by {other} and {module.name}, which have GPUs of their own",
                    where=f"parallel.modules.{module.name}.gpus",
                    expected="no gpus for any module, or a model whose modules share no parameter",
                    got=f"{other} and {module.name} on different GPUs",
                    nearest="parallel.segments = mixed",
                )
            if own[other] != own[module.name]:
                raise ConfigError(
                    f"{path} is shared by {other} and {module.name}, which have different parallelism",
                    where=f"parallel.modules.{module.name if module.name in job.parallel.modules else other}",
                    expected="the same sizes for both",
                    got="different ones",
                )
