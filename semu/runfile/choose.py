"""``choose_layout``: a cluster and a parallelism for a model that came with neither.

Clusters of H100 are tried from 1 GPU on (``_sizes``) until some layout fits in memory, then those between the last two;
of the layouts that fit on the smallest, that with the most samples per second is taken. Layouts are: tp up to 8, powers
of two; pp up to 16; full recompute or none; experts spread over up to 8 data-parallel ranks, and over all; everything
else as in any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.hardware.cluster import DEFAULT_DEVICE, PER_NODE, Cluster
from semu.nn import MixtureOfExperts, Model
from semu.parallel.axes import AXES, MESH
from semu.parallel.config import Parallel
from semu.records import dataclass
from semu.runfile.build import VOCAB_MULTIPLE
from semu.runfile.config import RunConfig

MOST_NODES = 2048
MOST_PP = 16
EXPERT_RANKS = 8
PATIENCE = 3
"""Doublings of the GPUs for which every layout may be refused for another reason than memory."""
WEIGHT_BYTES, STATE_BYTES = 6, 12
"""Of a parameter: bf16 weight and fp32 gradient on every rank that holds it; Adam's fp32 state, sharded (ZeRO-1)."""

_OTHER_BYTES = ("precision", "grad_dtype", "master_dtype", "optimizer_state_dtype", "optimizer", "fp8_weights")


@dataclass(frozen=True)
class _Weights:
    """Parameters of a model: all but the experts', and the experts'; how many experts there are."""

    dense: int
    experts: int
    num_experts: int

    def bytes_per_rank(self, parallel: Parallel) -> float:
        """Weights, gradients and optimizer state of a rank on average: no layout can need less than that."""
        shards = parallel.tp * parallel.pp
        state = STATE_BYTES * (self.dense + self.experts) / (shards * parallel.dp)
        return WEIGHT_BYTES / shards * (self.dense + self.experts / parallel.ep) + state


def choose_layout(
    config: dict[str, Any],
    resolve: Callable[[Mapping[str, Any]], RunConfig],
    model: Model,
    vocab: int | None,
    *,
    is_any_size: bool,
) -> list[str]:
    """Write a cluster, sizes of the parallelism and a recompute setting where the tables hold none.

    Args:
        config: tables. resolve: tables -> run. model, vocab: of the tables; rows of its token table, None: none.
        is_any_size: the command line names a device and no number of GPUs; a run file that does so means one node.
    Returns:
        What was decided, a sentence each.
    Raises:
        MemoryLimitError: nothing fits on the cluster that is given, or on ``MOST_NODES`` nodes.
        ConfigError, ScheduleError: what is wrong with the run, where it is not the memory of any layout.
    """
    cluster, parallel = config.setdefault("cluster", {}), config.setdefault("parallel", {})
    says_gpus = "nodes" in cluster or "gpus_per_node" in cluster
    has_cluster, has_sizes = (
        says_gpus or ("device" in cluster and not is_any_size),
        any(key in parallel for key in AXES),
    )
    missing = "cluster.nodes" if "device" in cluster else "cluster"
    notes = [f"cluster.device: not given, taken as {DEFAULT_DEVICE}"] if says_gpus and "device" not in cluster else []
    if has_cluster:
        cluster.setdefault("device", DEFAULT_DEVICE)
    if has_cluster and has_sizes:
        return notes
    if has_sizes:
        gpus = math.prod(parallel.get(key, 1) for key in MESH)
        nodes, per_node = (gpus // PER_NODE, PER_NODE) if gpus % PER_NODE == 0 else (1, gpus)
        config["cluster"] = {"device": DEFAULT_DEVICE, "nodes": nodes, "gpus_per_node": per_node, **cluster}
        size = f"{config['cluster']['device']}:{nodes}x{per_node}"
        return [f"{missing}: not given, taken as {size}, which the parallelism needs"]
    asked = None if not has_cluster else (cluster.get("nodes", 1), cluster.get("gpus_per_node", PER_NODE))
    weights = _weights(model)
    refusals: list[ConfigError | ScheduleError] = []
    refused: ConfigError | ScheduleError | None = None
    smaller = ""
    for nodes, per_node in [asked] if asked is not None else _sizes():
        tried = _tried(config, (nodes, per_node), weights, vocab, resolve)
        if (best := _fastest(tried)) is not None:
            first = int(smaller.partition("x")[0] or nodes) + 1
            for between in range(first, nodes if asked is None and nodes > PER_NODE else 0):
                if (less := _fastest(_tried(config, (between, per_node), weights, vocab, resolve))) is not None:
                    best = less
                    break
                smaller = f"{between}x{per_node}"
            config.update(best)
            return [*notes, _sentence(config, smaller, "parallel" if has_cluster else missing)]
        smaller = f"{nodes}x{per_node}"
        if asked is None and nodes & (nodes - 1):  # refusals count where the GPUs have doubled
            continue
        others = [found for found, _ in tried if not isinstance(found, float)]
        refused = others[0] if others else refused
        refusals = [] if len(others) < len(tried) else refusals + others[:1]
        if len(refusals) == (1 if asked is not None else PATIENCE):
            raise refusals[0]
    size = f"{asked[0]}x{asked[1]}" if asked is not None else f"{MOST_NODES}x{PER_NODE}"
    device = cluster.get("device", DEFAULT_DEVICE)
    cause = f"; others cannot be: {refused.where}: {refused.message}" if refused is not None else ""
    raise MemoryLimitError(
        f"no layout with tp <= 8 and pp <= {MOST_PP} fits in the memory of {device}:{size}" + cause,
        where="--cluster" if has_cluster else "--parallel",
        expected="a larger cluster, or --parallel" if has_cluster else "--cluster and --parallel",
        got=f"{model.num_parameters():,} parameters" + _least(config, weights),
    )


def _least(config: Mapping[str, Any], weights: _Weights) -> str:
    """On how many GPUs weights, gradients and Adam's state have room at the least; empty: the run may keep others."""
    if not _is_usual(config):
        return ""
    memory = _memory_bytes(config)
    total = (WEIGHT_BYTES + STATE_BYTES) * (weights.dense + weights.experts)
    return f", whose weights, gradients and optimizer state alone fill {math.ceil(total / memory):,} GPUs"


def _memory_bytes(config: Mapping[str, Any]) -> float:
    """Of a GPU."""
    cluster = config["cluster"]
    profile = Cluster(cluster.get("device", DEFAULT_DEVICE), 1, 1, cluster.get("override", {})).profile
    return float(profile.memory_bytes.value)


def _is_usual(config: Mapping[str, Any]) -> bool:
    """Whether ranks hold bf16 weights, fp32 gradients and Adam's fp32 state of every parameter, sharded as ZeRO-1."""
    is_changed = "zero" in config["parallel"] or any(key in config["training"] for key in _OTHER_BYTES)
    return not is_changed and not any(config["model"].get(key) for key in ("frozen", "lora"))


_Tried = list[tuple[float | ConfigError | ScheduleError, dict[str, Any]]]


def _tried(
    config: Mapping[str, Any],
    size: tuple[int, int],
    weights: _Weights,
    vocab: int | None,
    resolve: Callable[[Mapping[str, Any]], RunConfig],
) -> _Tried:
    """What became of every layout on so many nodes with so many GPUs, and its tables."""
    return [(_seconds(tables, resolve), tables) for tables in _layouts(config, *size, weights, vocab)]


def _fastest(tried: _Tried) -> dict[str, Any] | None:
    """Tables of the fastest layout that fits."""
    timed = [(found, tables) for found, tables in tried if isinstance(found, float) and found < math.inf]
    return min(timed, key=lambda item: item[0])[1] if timed else None


def _layouts(
    config: Mapping[str, Any], nodes: int, per_node: int, weights: _Weights, vocab: int | None
) -> Iterator[dict[str, Any]]:
    """Tables of the layouts to try; those that cannot fit are left out."""
    gpus = nodes * per_node
    device, memory = config["cluster"].get("device", DEFAULT_DEVICE), _memory_bytes(config)
    is_usual = _is_usual(config)
    settings = [config["training"]["recompute"]] if "recompute" in config["training"] else ["none", "full"]
    sizes = [(tp, pp) for tp in _powers(min(8, per_node)) for pp in range(1, MOST_PP + 1) if gpus % (tp * pp) == 0]
    sizes.sort(key=lambda item: (item[0] * item[1], item[1]))
    for tp, pp in sizes:
        for recompute in settings:
            dp = gpus // (tp * pp)
            for ep in _expert_ranks(dp, weights.num_experts):
                parallel = Parallel(dp=dp, tp=tp, pp=pp, ep=ep)
                if is_usual and weights.bytes_per_rank(parallel) > memory:
                    continue
                tables = deepcopy({name: dict(config[name]) for name in ("model", "cluster", "parallel", "training")})
                tables |= {name: table for name, table in config.items() if name not in tables}
                tables["cluster"] |= {"device": device, "nodes": nodes, "gpus_per_node": per_node}
                tables["parallel"] |= {"dp": dp, "tp": tp, "pp": pp} | ({"ep": ep} if ep > 1 else {})
                tables["training"]["recompute"] = recompute
                if vocab is not None and vocab % tp:
                    tables["model"].setdefault("vocab_multiple", VOCAB_MULTIPLE)
                yield tables


def _sizes() -> Iterator[tuple[int, int]]:
    """Nodes and GPUs of a node to try, fewest first: up to one node powers of two, then three sizes between a number of
    nodes and twice as many, where so many are."""
    yield from ((1, gpus) for gpus in _powers(PER_NODE))
    for nodes in _powers(MOST_NODES // 2):
        yield from ((nodes + nodes * quarters // 4, PER_NODE) for quarters in range(1, 5) if nodes * quarters % 4 == 0)


def _powers(most: int) -> list[int]:
    """Powers of two up to a number."""
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]


def _expert_ranks(dp: int, experts: int) -> list[int]:
    """Expert-parallel sizes to try: up to ``EXPERT_RANKS``, then the largest."""
    if experts == 0:
        return [1]
    most = math.gcd(dp, experts)
    return list(dict.fromkeys((math.gcd(most, EXPERT_RANKS), most)))


def _weights(model: Model) -> _Weights:
    mixtures = [item for m in model.modules for item in m.body.modules() if isinstance(item, MixtureOfExperts)]
    experts = sum(item.experts.num_parameters() for item in mixtures)
    return _Weights(
        model.num_parameters() - experts, experts, math.gcd(*(item.num_experts for item in mixtures)) if mixtures else 0
    )


def _seconds(
    tables: Mapping[str, Any], resolve: Callable[[Mapping[str, Any]], RunConfig]
) -> float | ConfigError | ScheduleError:
    """Time of a sample [s], infinite where the layout does not fit; or why it cannot be."""
    from semu.simulation.estimate import evaluate

    try:
        job = resolve(tables).job()
        found = evaluate(job)
    except (ConfigError, ScheduleError) as error:
        return error
    return found.iteration_time_s / job.training.global_batch if found.fits else math.inf


def _sentence(config: Mapping[str, Any], smaller: str, missing: str) -> str:
    """What was decided.

    Args:
        smaller: the next smaller cluster, on which nothing fits; empty: there is none. missing: what was not given.
    """
    cluster, parallel = config["cluster"], config["parallel"]
    sizes = "-".join(f"{key}{parallel[key]}" for key in AXES if key in parallel)
    size = f"{cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}"
    taken = sizes if missing == "parallel" else f"{size} with {sizes}"
    how = "the fastest of the layouts tried"
    if smaller:
        how += f"; none fits on {smaller}, the next smaller cluster tried"
    return f"{missing}: not given, taken as {taken} and recompute {config['training']['recompute']}: {how}"
