"""The report and the timeline, put together from the simulated pieces."""

from __future__ import annotations

from collections.abc import Mapping

from semu.graph.operator import Phase
from semu.hardware.kinds import DType, Provenance
from semu.job import Precision, Recompute, Workspaces
from semu.report import Report
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather
from semu.simulation.headline import headline
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.rank_timeline import build_timeline
from semu.simulation.reduction import RankTail
from semu.simulation.replica import ReplicaCosts
from semu.simulation.saved import SavedActivations
from semu.simulation.tables import add_outer, rank_row, top_operators


def assemble_report(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    tails: list[RankTail],
    gathers: Mapping[int, ParameterGather],
) -> Report:
    """Everything that ``simulate`` returns."""
    job = layout.job
    profile = job.profile
    head = headline(layout, evaluation, run, tails)
    found, slowest, memories, peaks, work = head.estimate, head.slowest, head.memories, head.peaks, head.work
    iteration = found.iteration_time_s
    saved = SavedActivations(layout, evaluation, run)
    parameters = job.model.num_parameters()
    gpus = job.cluster.num_gpus
    is_fp8 = job.training.precision is Precision.FP8
    costs = ReplicaCosts.of(layout, evaluation, run, slowest)
    timeline = build_timeline(layout, evaluation, run, tails, gathers, memories, slowest, costs, iteration)
    top, seconds = top_operators(layout, evaluation, costs)
    add_outer(seconds, timeline)
    everything = sum(seconds.values()) or 1.0
    provenance = {name: value / everything for name, value in sorted(seconds.items())}
    return Report(
        title=f"{job.model.name} on {job.cluster.label()}, {job.parallel.label()}, {job.training.schedule}",
        iteration_time_s=iteration,
        makespan_s=found.makespan_s,
        mfu=found.mfu,
        hfu=found.hfu,
        mfu_full_attention=work.model_flop_full_attention / head.peak_rate,
        mfu_bf16=work.model_flop / (profile.peak_flop_per_s(DType.BF16) * gpus * iteration) if is_fp8 else None,
        model_flop=work.model_flop,
        hardware_flop=work.hardware_flop,
        model_tflop_per_s_per_gpu=work.model_flop / iteration / gpus / 1e12,
        tokens_per_s_per_gpu=work.tokens / iteration / gpus,
        tokens=work.tokens,
        bubble_ratio=found.bubble_ratio,
        peak_memory_bytes=found.peak_memory_bytes,
        static_memory_bytes=found.static_memory_bytes,
        reserved_memory_bytes=found.reserved_memory_bytes,
        capacity_bytes=found.capacity_bytes,
        parameters=parameters,
        breakdown_s=found.breakdown_s,
        ranks=tuple(rank_row(layout, run, memory, peak, saved) for memory, peak in zip(memories, peaks, strict=True)),
        top_operators=top,
        provenance=provenance,
        num_microbatches=job.num_microbatches,
        num_distinct_replicas=run.num_replicas,
        slowest_replica=int(run.first[slowest]),
        job=describe_job(layout),
        warnings=tuple(_warnings(layout, parameters, run.num_replicas)),
        timeline=timeline,
    )


def describe_job(layout: Layout) -> dict[str, object]:
    """Resolved inputs, for ``result.json``."""
    job = layout.job
    training = job.training
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
        },
        "parallel": {
            name: getattr(job.parallel, name)
            for name in (*_PARALLEL_KEYS, *(_SHARDING_KEYS if job.parallel.zero == 3 else ()))
        }
        | ({"layout": job.parallel.layout.to_table()} if job.parallel.layout is not None else {})
        | ({"cp_kind": job.parallel.context_kind.value} if job.parallel.cp > 1 else {}),
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
        "training": {
            "micro_batch": training.micro_batch,
            "global_batch": training.global_batch,
            "seq_len": job.batch.context_length(training.seq_len),
            "precision": training.precision.value,
            "grad_dtype": training.grad_dtype.value,
            "optimizer": training.optimizer.value,
            "recompute": training.recompute.value
            if training.recompute_modules is None
            else list(training.recompute_modules),
            "recompute_layers": training.recompute_layers,
            "recompute_method": training.recompute_method.value if training.recompute_method else None,
            "attention": training.attention.value,
            "schedule": training.schedule,
            "software": training.software.value,
            "master_dtype": training.master_dtype.value,
            "optimizer_state_dtype": training.optimizer_state_dtype.value,
            **({"fp8_weights": job.fp8_weights.value} if training.precision is Precision.FP8 else {}),
            "gradient_clipping": training.gradient_clipping,
            "loss_scaling": training.loss_scaling,
            "overhead_s": {
                "value": training.overhead_s,
                "provenance": (Provenance.SPEC if training.overhead_s else Provenance.DEFAULT).value,
            },
            "jitter": training.jitter,
            **({"workspaces": training.workspaces.value} if training.workspaces is not Workspaces.NONE else {}),
        },
        "overlap": {
            **vars(training.overlap),
            "tensor_parallel": job.overlaps_tensor_parallel,
            "pipeline": job.overlaps_sends,
        },
        "batch": job.batch.describe(),
    }


_PARALLEL_KEYS = ("dp", "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "zero", "partition")
_SHARDING_KEYS = ("zero_group", "reshard_after_forward")


def _warnings(layout: Layout, parameters: int, num_replicas: int) -> list[str]:
    """What a reader should know before trusting the numbers."""
    job = layout.job
    notes = [
        "not modelled by this version: reserved memory (peaks are allocated bytes), CPU launch time, "
        + ("library workspaces, " if job.training.workspaces is Workspaces.NONE else "")
        + "slowdown of kernels beside communication"
    ]
    if job.parallel.zero >= 2 and num_replicas > 1:
        notes.append(
            f"ZeRO-{job.parallel.zero} with unequal microbatches: the collectives inside stages wait for no other "
            "replica, so that the iteration lasts at least as long as said"
        )
    phases = {op.phase for op in layout.library.operators}
    if job.training.recompute is Recompute.FULL and Phase.INPUT_GRADIENT in phases and Phase.RECOMPUTE not in phases:
        notes.append(
            "recompute = full changes nothing: no block between data and loss; put the layers in an nn.Sequential, or "
            "wrap them in nn.Recompute"
        )
    if (
        job.training.recompute is Recompute.SELECTIVE
        and Phase.INPUT_GRADIENT in phases
        and Phase.RECOMPUTE not in phases
    ):
        notes.append("recompute changes nothing: the model runs none of the modules that it names where gradients flow")
    if job.training.precision.tensor_dtype is DType.FP32:
        notes.append("fused attention is costed as in half precision, scaled by the peak; libraries have none in fp32")
    if job.parallel.tp > 1:
        whole = sum(
            held.elements
            for rank in range(job.parallel.pp)
            for _, _, held in layout.held_by(rank)
            if not held.is_sharded
        )
        share = whole / max(parameters, 1)
        if share > 0.01:
            notes.append(
                f"{share:.1%} of the parameters are replicated on every tensor-parallel rank: "
                "modules that no sharding plan names (see parallel.plan)"
            )
    return notes
