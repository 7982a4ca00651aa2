"""Settings of a mixture of experts: how they fit the model and the parallel sizes, the plan for tracing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

from semu import memo
from semu.errors import ConfigError
from semu.hardware.network import CommGroup
from semu.job.cuda_graphs import check_cuda_graphs
from semu.job.kinds import Dispatcher, Recompute
from semu.job.training import Training
from semu.nn.changes import CHANGES
from semu.nn.layers.moe import MixtureOfExperts
from semu.nn.model import ModalityModule, Model
from semu.nn.routing import ExpertPlan, Routing, rank_means
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh


def mixtures(model: Model) -> list[tuple[str, MixtureOfExperts]]:
    """Mixtures of experts of a model, by path."""
    modules, found = _MIXTURES.get(model, CHANGES.count, lambda: (model.modules, _find_mixtures(model)))
    return found if modules is model.modules else _find_mixtures(model)


_MIXTURES = memo.ScopedTable[tuple[tuple[ModalityModule, ...], list[tuple[str, MixtureOfExperts]]]](
    "modules of a model and mixtures of experts in them, by the count of changes to modules and parameters", 1
)


def _find_mixtures(model: Model) -> list[tuple[str, MixtureOfExperts]]:
    found = [(path, item) for m in model.modules for path, item in m.body.named_modules(m.name)]
    return [(path, item) for path, item in found if isinstance(item, MixtureOfExperts)]


def check_experts(model: Model, parallel: Parallel, training: Training) -> None:
    """Expert parallelism must fit the model and the other parallel sizes.

    Raises:
        ConfigError: it does not, or this version does not model the combination.
    """
    found = mixtures(model)
    where = "training.cuda_graphs"
    is_padded = training.moe_pad_to_capacity
    check_cuda_graphs(training.cuda_graphs, has_experts=bool(found), is_padded=is_padded, where=where)
    overlap = training.overlap
    if overlap.delayed_weight_gradients and not overlap.expert_parallel:  # as Megatron-LM
        raise ConfigError(
            "delayed weight gradients without exchanges that they hide",
            where="overlap.delayed_weight_gradients",
            expected="false, or overlap.expert_parallel = true",
            got="true",
            nearest="false",
        )
    if not found:
        _check_dense(parallel, training)
        return
    etp = parallel.expert_tensor_ranks
    if parallel.tp % etp:
        raise _indivisible("experts are split over part of the tensor-parallel ranks", "etp", etp, parallel.tp, "tp")
    ranks = parallel.stage_gpus // etp
    legal = math.gcd(ranks, *(item.num_experts for _, item in found))
    if ranks % parallel.ep:
        raise _indivisible("the ranks cannot be shared out", "ep", parallel.ep, ranks, "dp x cp x tp / etp", legal)
    for path, item in found:
        if item.num_experts % parallel.ep:
            raise _indivisible(
                f"the experts of {path} cannot be shared out", "ep", parallel.ep, item.num_experts, "experts", legal
            )
        if item.ffn % etp:
            raise _indivisible(f"an expert of {path} cannot be split", "etp", etp, item.ffn, "moe_ffn")
        _check_loads(path, item, parallel.ep, training)
    if parallel.tp > 1 and not parallel.sequence_parallel:  # Megatron-LM refuses it too (transformer_config)
        raise ConfigError(
            "a mixture of experts with tensor parallelism and without sequence parallelism",
            where="parallel.sequence_parallel",
            expected="true, or tp = 1",
            got="false",
            nearest="true",
        )
    if parallel.zero_group is not None and not (parallel.ep == 1 and etp == parallel.tp):
        _check_groups(parallel, parallel.zero_group)


def exposed_exchanges(model: Model, parallel: Parallel, training: Training) -> str:
    """Why ``overlap.expert_parallel`` hides nothing; "": it hides the exchanges of experts' tokens."""
    recomputed = training.recompute_modules or ()
    for is_bad, reason in (
        (not mixtures(model), "the model has no experts"),
        (parallel.ep == 1, "parallel.ep = 1 exchanges nothing"),
        (training.moe_dispatcher is Dispatcher.ALLGATHER, "Megatron-LM hides no all-gather of tokens"),
        (
            training.schedule not in COMBINED_SCHEDULES or training.schedule_file is not None,
            f"only {', '.join(COMBINED_SCHEDULES)} run forwards and backwards in one",
        ),
        (parallel.pp > 1 and parallel.vpp == 1, "pipeline ranks need several virtual stages (parallel.vpp >= 2)"),
        (parallel.spreads_vocabulary, "ranks run parts of embedding and head between the others' stages"),
        (parallel.gathers_towers, "ranks run the towers' loss between the others' stages"),
        (
            parallel.placement != COMBINED_SCHEDULES.get(training.schedule),
            "placements that are not the schedule's own have no steady phase of pairs",
        ),
        (training.recompute is Recompute.FULL or "moe" in recomputed, "exchanges that are made again stay exposed"),
    ):
        if is_bad:
            return reason
    return ""


COMBINED_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {"1f1b": "circular", "interleaved": "circular", "dualpipe-v": "v-shape"}
)
"""Schedules in whose steady phase forwards and backwards may run as one -> their placement."""


def _check_groups(parallel: Parallel, zero_group: int) -> None:
    """Every sharding group has all experts, and so the same number of ranks for each."""
    width = parallel.ep * parallel.expert_tensor_ranks
    legal = [
        size
        for size in range(2, parallel.dp + 1)
        if parallel.dp % size == 0 and size * parallel.cp * parallel.tp % width == 0
    ]
    if zero_group not in legal:
        raise ConfigError(
            f"a sharding group of {zero_group * parallel.cp * parallel.tp} ranks does not hold whole sets of experts, "
            f"ep x etp = {width} ranks each",
            where="parallel.zero_group",
            expected=f"a divisor of dp = {parallel.dp} with zero_group x cp x tp a multiple of {width}",
            got=zero_group,
            nearest=min(legal, key=lambda size: abs(size - zero_group)),
        )


def _check_dense(parallel: Parallel, training: Training) -> None:
    given = {
        "parallel.ep": (parallel.ep, 1),
        "parallel.etp": (parallel.etp, None),
        "training.moe_imbalance": (training.moe_imbalance, 1.0),
        "training.moe_capacity_factor": (training.moe_capacity_factor, None),
        "training.moe_grouped_gemm": (training.moe_grouped_gemm, True),
    }
    for where, (value, off) in given.items():
        if value != off:
            raise ConfigError(
                "the model has no experts",
                where=where,
                expected="a model with experts, or nothing" if off is None else f"a model with experts, or {off}",
                got=value,
                nearest=off,
            )


def _check_loads(path: str, item: MixtureOfExperts, ep: int, training: Training) -> None:
    where, loads = "training.moe_imbalance", training.moe_imbalance
    if isinstance(loads, tuple):
        if len(loads) != item.num_experts:
            raise ConfigError(
                f"loads of {len(loads)} experts for {path}",
                where=where,
                expected=f"{item.num_experts} numbers",
                got=len(loads),
            )
        total = sum(loads)
        if max(loads) > total / item.top_k:
            raise ConfigError(
                f"an expert of {path} with more tokens than there are",
                where=where,
                expected=f"no load above 1/{item.top_k} of the sum (every token uses {item.top_k} experts)",
                got=max(loads),
                nearest=total / item.top_k,
            )
        return
    most = min(ep, item.num_experts / item.top_k)
    if loads > most:
        raise ConfigError(
            f"no rank can get so much of {path}: ep = {ep}, {item.top_k} of {item.num_experts} experts a token",
            where=where,
            expected=f"at most {most:g}",
            got=loads,
            nearest=most,
        )


def _indivisible(what: str, name: str, value: int, total: int, of: str, legal: int = 0) -> ConfigError:
    """``legal``: what the size must divide to be fully legal; 0: total."""
    return ConfigError(
        f"{what}: {name} = {value} does not divide {of} = {total}",
        where=f"parallel.{name}",
        expected=f"a divisor of {total}",
        got=value,
        nearest=max(n for n in range(1, min(total, value) + 1) if (legal or total) % n == 0),
    )


def expert_plan(model: Model, parallel: Parallel, training: Training, mesh: Mesh) -> ExpertPlan:
    """How a job's experts are spread; the default plan for a dense model."""
    if not mixtures(model):
        return ExpertPlan()
    loads, factor = training.moe_imbalance, training.moe_capacity_factor
    routing = Routing(
        imbalance=tuple(_exact(load) for load in loads) if isinstance(loads, Sequence) else _exact(loads),
        capacity_factor=None if factor is None else _exact(factor),
        is_padded=training.moe_pad_to_capacity,
    )
    is_gathered = training.moe_dispatcher is Dispatcher.ALLGATHER
    return ExpertPlan(
        parallel.ep,
        parallel.expert_tensor_ranks,
        dispatch_group(mesh.worst_ep_group, min(item.top_k for _, item in mixtures(model)), training.moe_dispatcher),
        mesh.worst_etp_group,
        routing,
        training.moe_grouped_gemm,
        mesh.worst_expert_group if is_gathered and parallel.ep * parallel.expert_tensor_ranks > 1 else None,
        training.moe_dispatcher is Dispatcher.DEEPEP,
    )


def dispatch_group(group: CommGroup, top_k: int, dispatcher: Dispatcher) -> CommGroup:
    """The group as dispatch uses it: with DeepEP a token with k experts, drawn evenly from m nodes or ranks, is wanted
    on m (1 - (1 - 1/m)^k) of them, and sent once to each."""
    if dispatcher is not Dispatcher.DEEPEP:
        return group
    nodes, ranks = (count * (1 - (1 - 1 / count) ** top_k) / top_k for count in (group.num_nodes, group.num_ranks))
    return replace(group, nic_share=nodes if group.num_nodes > 1 else 1.0, rank_share=ranks)


def worst_load(loads: Sequence[float], ep: int) -> float:
    """Rows of the worst rank / mean rows that expert loads mean."""
    exact = [_exact(load) for load in loads]
    return float(max(rank_means(exact, ep)) * len(exact) / sum(exact))


def _exact(value: float) -> Fraction:
    """The decimal number that was written."""
    return Fraction(repr(value))
