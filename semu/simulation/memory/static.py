"""What a pipeline rank keeps allocated all the time: parameters, gradients, optimizer state, libraries' workspaces."""

from __future__ import annotations

from dataclasses import replace

from semu import memo
from semu.compile.layout import Layout
from semu.hardware.kinds import OpKind
from semu.job import Optimizer
from semu.parallel.data import MIN_BUCKET_ELEMENTS, StaticBytes, static_bytes
from semu.simulation.memory.weights_on_host import host_weights
from semu.simulation.memory.workspaces import workspace_bytes


def rank_static(layout: Layout, rank: int) -> StaticBytes:
    """What a rank stores for its parameters all the time."""
    job = layout.job
    fp8 = layout.kept_fp8_elements(rank), layout.primary_fp8_elements(rank), layout.kept_fp8_scale_bytes(rank)
    static = StaticBytes(0, 0, 0)
    master, state = job.training.master_dtype, job.training.optimizer_state_dtype.size_bytes
    master_bytes = 0 if master is job.training.precision.tensor_dtype else master.size_bytes
    moments = job.training.optimizer.fewest_moments
    for number, pool in enumerate(layout.pools(rank)):
        copied, primary, scales = (0, 0, 0) if number else fp8  # of all pools: only the sum counts
        of_pool = static_bytes(
            pool.elements,
            pool.trained_elements,
            dp=pool.shards,
            zero=job.parallel.zero,
            tensor_dtype=job.training.precision.tensor_dtype,
            grad_dtype=job.training.grad_dtype,
            master_dtype=job.training.master_dtype,
            state_dtype=job.training.optimizer_state_dtype,
            fp8_elements=copied,
            fp8_copies=job.fp8_copies,
            fp8_primary=primary,
            fp8_scale_bytes=scales,
            shards_are_masters=job.shards_are_masters,
            bucket_dtype=job.bucket_dtype,
            has_two_gradients=job.sums_gradients_twice,
            moments=moments,
        )
        if job.gathers_fp8_weights:  # shards of one byte where a linear runs in fp8
            whole = pool.elements * job.training.precision.tensor_dtype.size_bytes
            saved = whole - sum(layout.weight_bytes(held) for held in pool.held)
            of_pool = replace(of_pool, parameters=of_pool.parameters - saved // pool.shards)
        if job.training.optimizer is Optimizer.MUON:
            share = layout.optimizer_share(pool)
            of_pool = replace(of_pool, optimizer=share.elements * master_bytes + share.moments * state)
        static += of_pool
    frozen, packed = job.training.frozen_weights, layout.packed_elements(rank)
    if frozen is not None and packed:
        saved = packed * job.training.precision.tensor_dtype.size_bytes - frozen.packed_bytes(packed)
        static = replace(static, parameters=static.parameters - saved)
    if job.training.offload_plan.optimizer:
        each = master_bytes + moments * state
        bucket = min(static.optimizer, MIN_BUCKET_ELEMENTS * each)  # on the device for the step
        static = replace(static, optimizer=bucket, host=static.optimizer)
    if job.training.weight_average:
        average = layout.stepped_elements(rank) * master.size_bytes
        static = replace(static, optimizer=static.optimizer + average)
    if not layout.cut.on_host:
        return static
    away = host_weights(layout, rank)
    return replace(
        static,
        parameters=static.parameters - away.parameters,
        optimizer=static.optimizer - away.masters,
        host_weights=away.parameters + away.masters,
    )


def resident_memory(layout: Layout) -> list[tuple[StaticBytes, int]]:
    """What every rank stores for its parameters all the time, and what libraries keep allocated [bytes]."""
    job = layout.job

    def _find(rank: int) -> tuple[StaticBytes, int]:
        has_experts = _runs_experts(layout, rank)
        return rank_static(layout, rank), workspace_bytes(
            job.training.workspaces, job.cluster.profile, has_experts=has_experts
        )

    def _make() -> list[tuple[StaticBytes, int]]:
        alike = layout.cut.alike
        first = {rank: _find(rank) for rank in dict.fromkeys(alike)}
        return [first[rank] for rank in alike]

    return _RESIDENT.get(layout.place, (), _make)


_RESIDENT = memo.ScopedTable[list[tuple[StaticBytes, int]]]("static memory of every rank in a place", 1)


def _runs_experts(layout: Layout, rank: int) -> bool:
    """Whether a rank runs grouped products."""
    templates = {block.template for chunk in layout.chunks_of(rank) for block in chunk.blocks}
    operators = (op for number in templates for op in layout.library.templates[number].operators)
    return any(operator.kind is OpKind.GROUPED_MATMUL for operator in operators)
