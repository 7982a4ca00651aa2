"""The report and the timeline, put together from the simulated pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from semu.compile.layout import Layout
from semu.compile.recipe.applied import described_plan
from semu.graph.operator import Phase
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.job import Precision, Recompute, TrainingJob, Workspaces
from semu.job.description import describe_training
from semu.job.experts import mixtures, worst_load
from semu.parallel.axes import COUNTS, GPU_AXES, PEERS
from semu.parallel.config import Parallel
from semu.parallel.context import Balance
from semu.present.report import Report
from semu.simulation.contexts.notes import context_notes
from semu.simulation.iteration import Iteration
from semu.simulation.memory.host import host_memory, host_notes
from semu.simulation.memory.peaks import RankPeak
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.memory.saved import SavedActivations
from semu.simulation.results.estimated import estimate_iteration
from semu.simulation.results.layers import layer_rows
from semu.simulation.results.lived import LivedIteration
from semu.simulation.results.tables import add_outer, rank_row, top_operators


def assemble_report(iteration: Iteration) -> Report:
    """Everything that ``simulate`` returns."""
    layout, job, run = iteration.layout, iteration.job, iteration.run
    profile = job.profile
    head = estimate_iteration(iteration)
    estimate, slowest, memories, peaks, work = head.estimate, head.slowest, head.memories, head.peaks, head.work
    time_s = estimate.iteration_time_s
    saved = SavedActivations(iteration)
    parameters = job.model.num_parameters()
    active = parameters - sum(item.idle_parameters for _, item in mixtures(job.model))
    gpus = job.cluster.num_gpus
    is_fp8 = job.training.precision is Precision.FP8
    lived = LivedIteration(iteration, head)
    timeline, launched = lived.timeline, lived.launched_s
    top, seconds = top_operators(lived.costs)
    add_outer(seconds, timeline)
    if launched:
        name = job.launch[1].provenance.value
        seconds[name] = seconds.get(name, 0.0) + launched
    everything = sum(seconds.values()) or 1.0
    provenance = {name: value / everything for name, value in sorted(seconds.items())}
    hosts = host_memory(iteration)
    return Report(
        title=f"{job.model.name} on {job.cluster.label()}, {parallel_label(job)}, {run.problem.schedule.name}",
        iteration_time_s=time_s,
        makespan_s=estimate.makespan_s,
        mfu=estimate.mfu,
        hfu=estimate.hfu,
        mfu_full_attention=work.model_flop_full_attention / head.peak_rate,
        mfu_bf16=work.model_flop / (profile.peak_flop_per_s(DType.BF16) * gpus * time_s) if is_fp8 else None,
        model_flop=work.model_flop,
        hardware_flop=work.hardware_flop,
        model_tflop_per_s_per_gpu=work.model_flop / time_s / gpus / 1e12,
        tokens_per_s_per_gpu=work.tokens / time_s / gpus,
        tokens=work.tokens,
        bubble_ratio=estimate.bubble_ratio,
        peak_memory_bytes=estimate.peak_memory_bytes,
        static_memory_bytes=estimate.static_memory_bytes,
        capacity_bytes=estimate.capacity_bytes,
        other_memory_bytes=estimate.other_memory_bytes,
        memory_margin_bytes=estimate.memory_margin_bytes,
        parameters=parameters,
        active_parameters=active,
        breakdown_s=dict(estimate.breakdown_s),
        ranks=tuple(rank_row(iteration, memory, peak, saved) for memory, peak in zip(memories, peaks, strict=True)),
        top_operators=top,
        provenance=provenance,
        num_microbatches=job.num_microbatches,
        num_distinct_replicas=run.num_replicas,
        slowest_replica=int(run.first[slowest]),
        job=describe_job(layout),
        warnings=(
            *_warnings(layout, parameters, run.num_replicas, has_launches=run.launched is not None),
            *host_notes(layout, hosts),
            *context_notes(iteration, time_s),
        ),
        timeline=timeline,
        host_memory_bytes=hosts,
        reserve=estimate.reserve,
        split_peak=partial(_split_peak, memories, peaks),
        find_layer_times=partial(layer_rows, iteration),
        find_uncertainty=lived.uncertainty,
    )


def _split_peak(memories: Sequence[RankMemory], peaks: Sequence[RankPeak], rank: int) -> tuple[int, ...]:
    """What is allocated at the peak of a pipeline rank, in the order of ``Role`` [bytes]."""
    return memories[rank].at_peak(peaks[rank])


def parallel_label(job: TrainingJob) -> str:
    """``dp8-tp2-pp4``, and the sizes of modality modules that differ: ``dp8-tp2-pp4 (vit: tp1)``."""
    labels = []
    for module in job.model.modules:
        if module.name in job.parallel.modules:
            sizes = job.parallel.of_module(module.name)
            axes = (*PEERS, "pp") if job.parallel.has_own_gpus else PEERS
            different = [name for name in axes if getattr(sizes, name) != getattr(job.parallel, name)]
            words = "-".join(f"{name}{getattr(sizes, name)}" for name in different)
            gpus = job.parallel.modules[module.name].gpus
            words = ", ".join([*([words] if words else []), *([f"{gpus} GPUs"] if gpus is not None else [])])
            if sizes.tp > 1 and sizes.sequence_parallel != job.parallel.sequence_parallel:
                words = " ".join([*([words] if words else []), "with sp" if sizes.sequence_parallel else "without sp"])
            labels += [f"{module.name}: {words}"] if words else []
    return job.parallel.label() + (f" ({', '.join(labels)})" if labels else "")


def describe_job(layout: Layout) -> dict[str, object]:
    """Resolved inputs, for ``result.json``."""
    job = layout.job
    return {
        "model": {
            "name": job.model.name,
            "modules": [
                {
                    "name": module.name,
                    "role": module.role.value,
                    "parameters": module.body.num_parameters(),
                    "trainable_parameters": module.body.num_parameters(trainable_only=True),
                }
                for module in job.model.modules
            ],
        },
        "cluster": {
            "device": job.profile.name,
            "nodes": job.cluster.nodes,
            "gpus_per_node": job.cluster.gpus_per_node,
            **({"oversubscription": job.cluster.oversubscription} if job.cluster.oversubscription != 1 else {}),
            **{name: value for name in _NETWORK_KEYS if (value := getattr(job.cluster, name)) is not None},
        },
        "parallel": {
            name: getattr(job.parallel, name)
            for name in (*_PARALLEL_KEYS, *(_SHARDING_KEYS if job.parallel.zero == 3 else ()))
        }
        | _describe_experts(job)
        | ({"layout": job.parallel.layout.to_table()} if job.parallel.layout is not None else {})
        | ({"modules": module_sizes(layout)} if job.parallel.modules else {})
        | ({"cp_kind": job.parallel.context_kind.value} if job.parallel.cp > 1 else {})
        | ({"cp_inner": job.parallel.cp_inner} if job.parallel.has_context_levels else {})
        | _describe_context(job)
        | ({"placement": job.parallel.placement} if job.parallel.placement != "circular" else {})
        | ({"segments": job.parallel.segments} if job.parallel.segments != "mixed" else {})
        | ({"shares": dict(job.parallel.shares)} if job.parallel.shares else {}),
        "chunks": [
            {
                "chunk": c.chunk.index,
                "rank": c.chunk.rank,
                "virtual_stage": c.chunk.slot,
                "module": c.module,
                "blocks": [c.chunk.first, c.chunk.last],
            }
            for c in layout.chunks
        ],
        "training": describe_training(job),
        "overlap": {
            **vars(job.training.overlap),
            "tensor_parallel": job.overlaps_tensor_parallel,
            "pipeline": job.overlaps_sends,
        },
        "batch": job.batch.describe(),
        **({"plan": described_plan(layout)} if layout.recipe.plan is not None else {}),
    }


def _describe_context(job: TrainingJob) -> dict[str, object]:
    """How context ranks share the text, where that is not by chunks of its sequences."""
    plain = Parallel()
    names = ("cp_balance", "cp_block", "cp_slack", "attention_split", "cp_overlap", "cp_gather_heads")
    found = {name: getattr(job.parallel, name) for name in names if getattr(job.parallel, name) != getattr(plain, name)}
    return {name: value.value if isinstance(value, Balance) else value for name, value in found.items()}


def module_sizes(layout: Layout) -> dict[str, dict[str, object]]:
    """Every modality module's parallelism, with the groups of ranks over which it spreads a microbatch's items."""
    job = layout.job
    result: dict[str, dict[str, object]] = {}
    for module in job.model.modules:
        parallel = job.parallel.of_module(module.name)
        sizes: dict[str, object] = {name: getattr(parallel, name) for name in GPU_AXES}
        sizes["sequence_parallel"] = parallel.sequence_parallel and parallel.tp > 1
        if job.parallel.has_own_gpus:
            own = job.parallel.modules[module.name]
            sizes |= {"gpus": own.gpus, "first_rank": own.first_rank}
        result[module.name] = sizes | {"item_groups": parallel.replicas // job.parallel.replicas}
    return result


def _describe_experts(job: TrainingJob) -> dict[str, object]:
    """Expert parallelism and routing, where the model has experts."""
    if not mixtures(job.model):
        return {}
    training = job.training
    loads = training.moe_imbalance
    return {
        "etp": job.parallel.expert_tensor_ranks,
        "expert_dp": job.parallel.expert_data_ranks,
        "moe_imbalance": worst_load(loads, job.parallel.ep) if isinstance(loads, tuple) else loads,
        "moe_capacity_factor": training.moe_capacity_factor,
        "moe_pad_to_capacity": training.moe_pad_to_capacity,
        "moe_grouped_gemm": training.moe_grouped_gemm,
    }


_NETWORK_KEYS = ("fabric", "nics_per_node", "nic_gbit", "leaf_nodes", "nvlink_domain")
_PARALLEL_KEYS = (*COUNTS, "sequence_parallel", "zero", "partition")
_SHARDING_KEYS = ("zero_group", "reshard_after_forward")


def _warnings(layout: Layout, parameters: int, num_replicas: int, *, has_launches: bool) -> list[str]:
    """What a reader should know before trusting the numbers."""
    job = layout.job
    absent = [] if has_launches else ["CPU launch time"]
    if job.training.workspaces is Workspaces.NONE:
        absent.append("library workspaces in allocated memory (reserved memory is an estimate that counts cuBLAS's)")
    notes = ["not modelled by this version: " + ", ".join(absent)] if absent else []
    if job.parallel.zero >= 2 and num_replicas > 1 and not job.gathers_once:
        notes.append(
            f"ZeRO-{job.parallel.zero} with unequal microbatches: the collectives inside stages wait for no other "
            "replica, so that the iteration lasts at least as long as said"
        )
    if job.training.overlap.expert_parallel and job.exposed_exchanges:
        notes.append(f"overlap.expert_parallel hides nothing: {job.exposed_exchanges}")
    for module in job.model.modules if job.parallel.modules else ():
        groups = job.parallel.item_groups(module.name)
        if groups > 1:
            notes.append(
                f"{module.name}: the sequences of a microbatch are spread over {groups} groups of ranks, the longest "
                "one that is left to the group with the fewest tokens; times and memory are those of the busiest group"
            )
    if job.parallel.ep > 1 and num_replicas > 1:
        notes.append(
            "experts with unequal microbatches: a rank gets as many rows as its own tokens make, and the all-to-alls "
            "wait for no other replica, so that the iteration lasts at least as long as said"
        )
    if "replicas" in layout.streams:
        notes.append(
            f"the contrastive loss compares {job.training.micro_batch * job.parallel.replicas} samples, those of one "
            "microbatch of every replica; replicas are taken to reach its collectives together"
        )
    phases = {op.phase for op in layout.library.operators}
    if Phase.INPUT_GRADIENT in phases and Phase.RECOMPUTE not in phases:
        if job.training.recompute is Recompute.FULL:
            notes.append(
                "recompute = full changes nothing: no block between data and loss; put the layers in an nn.Sequential, "
                "or wrap them in nn.Recompute"
            )
        if job.training.recompute is Recompute.SELECTIVE:
            notes.append(
                "recompute changes nothing: the model runs none of the modules that it names where gradients flow"
            )
    if job.training.precision.tensor_dtype is DType.FP32:
        notes.append("fused attention is costed as in half precision, scaled by the peak; libraries have none in fp32")
    recipe = job.training.fp8_recipe
    if recipe is not Fp8Recipe.TENSORWISE and not any(key is recipe for _, key in job.cluster.profile.variants):
        notes.append(
            f"the device has no efficiency of {recipe.value} fp8: products and casts are costed as with tensor scales"
        )
    if recipe is Fp8Recipe.MXFP8 and job.cluster.profile.fp8_layouts.value != 2:
        notes.append("the device has no MXFP8 products: they are costed at its fp8 rate")
    if job.parallel.tp > 1:
        whole = sum(
            held.elements
            for rank in range(job.parallel.pp)
            for pool in layout.pools(rank)
            if not pool.is_expert and pool.mesh.parallel.tp == job.parallel.tp
            for held in pool.held
            if not held.is_sharded
        )
        share = whole / max(parameters, 1)
        if share > 0.01:
            notes.append(
                f"{share:.1%} of the parameters are replicated on every tensor-parallel rank: "
                "modules that no sharding plan names (see parallel.plan)"
            )
    return notes
