"""Which schedule a job runs: a generator by name, one made for the job's own stage costs, or a file.

``pipeline_study`` is the job as plain numbers: what its stages take, and what their forwards leave behind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.costs.phases import check_split, costs_of, split_of
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.nn.model import ModalityRole
from semu.schedule import SCHEDULES
from semu.schedule.family import ScheduleFamily
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES, schedule_family
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy
from semu.schedule.units import units_of
from semu.simulation.context import SimulatedJob
from semu.simulation.pipeline import send_latency
from semu.simulation.schedules.costs_of_pairs import saved_bytes
from semu.simulation.schedules.woven import woven_schedule
from semu.simulation.transfers import edge_bytes


def check_schedule_options(job: TrainingJob) -> None:
    """Say no to a schedule that cannot run this job, as far as its name tells.

    Raises:
        ConfigError: an unknown name, a placement, a limit or a number of microbatches that does not go with it.
    """
    name, limit = job.training.schedule, job.training.activation_limit
    _check_apart(job)
    is_usual = name in SCHEDULES and limit is None and job.parallel.placement == "circular"
    if is_usual and not job.training.optimizer_post_validation:
        return
    family = schedule_family(name, "training.schedule")
    if limit is not None and (family.activation_limit is None or job.training.schedule_file):
        automatic = (each.name for each in ALL_SCHEDULES.values() if each.activation_limit is not None)
        raise ConfigError(
            "a limit of activations is for an automatic schedule",
            where="training.activation_limit",
            expected="no limit, or training.schedule = " + " or ".join(automatic),
            got=job.training.schedule_file or name,
            nearest="zb-auto",
        )
    _check_post_validation(job)
    _check_flows(job)
    if job.training.schedule_file:
        return
    if family.needs_encoder and not any(module.role is ModalityRole.ENCODER for module in job.model.modules):
        raise ConfigError(
            f"the schedule {name!r} moves encoders out of the way of what reads them, and the model has none",
            where="training.schedule",
            expected="another schedule, or a model with encoders",
            got=name,
            nearest="1f1b",
        )
    _check_copies(family, job.parallel.copies, "parallel.placement")
    if job.parallel.copies > 1:
        return
    placement = job.parallel.placement
    wants = family.placement.value if family.placement is Placement.V_SHAPE else "circular"
    is_free = not family.is_placed or (family.adapt is not None and wants == "circular")
    if placement != wants and job.parallel.vpp > 1 and not is_free:
        raise _misplaced(family, wants, placement)
    misfit = family.misfit(job.parallel.pp, job.num_microbatches, job.parallel.vpp)
    if misfit is not None and family.generate is None:
        is_slots = misfit.got == job.parallel.vpp and misfit.got != job.num_microbatches
        raise ConfigError(
            f"{name}: {misfit.rule}",
            where="parallel.vpp" if is_slots else "training.global_batch",
            expected=misfit.expected,
            got=misfit.got,
            nearest=misfit.nearest,
        )


def _check_apart(job: TrainingJob) -> None:
    """1F1B, interleaved, turns over one row of chunks; unequal modules on ranks of their own would wait in a circle."""
    parallel, training = job.parallel, job.training
    if parallel.segments != "apart" or parallel.vpp == 1 or parallel.gathers_towers or training.schedule_file:
        return
    if schedule_family(training.schedule, "training.schedule").alternates:
        raise ConfigError(
            f"the schedule {training.schedule!r} does not order virtual stages of modules on ranks of their own",
            where="parallel.vpp",
            expected='1, or training.schedule = "greedy", "gpipe" or a rule such as "priority in-flight=p*v"',
            got=parallel.vpp,
            nearest=1,
        )


def _misplaced(family: ScheduleFamily, wanted: str, placement: str) -> ConfigError:
    return ConfigError(
        f"the schedule {family.name!r} needs the groups of layers in another placement",
        where="parallel.placement",
        expected=wanted,
        got=placement,
        nearest=wanted,
    )


def _check_copies(family: ScheduleFamily, copies: int, where: str) -> None:
    """Chimera needs two copies of the model, and few others can run them."""
    if copies > 1 and not family.runs_two_copies:
        able = sorted(each.name for each in ALL_SCHEDULES.values() if each.runs_two_copies)
        raise ConfigError(
            f"the schedule {family.name!r} does not run a pipeline in both directions",
            where=where,
            expected="circular or v-shape, or the schedule " + " or ".join(able),
            got="bidirectional",
            nearest="chimera",
        )
    if copies == 1 and family.placement is Placement.BIDIRECTIONAL:
        raise ConfigError(
            f"the schedule {family.name!r} needs the model twice, in opposite directions",
            where=where,
            expected="bidirectional",
            got="one copy",
            nearest="bidirectional",
        )


def _check_flows(job: TrainingJob) -> None:
    """Either copy of the model gets half the microbatches; both end an iteration with the same weights."""
    if job.parallel.copies == 1:
        return
    if job.num_microbatches % 2:
        per_step = job.parallel.replicas * job.training.micro_batch
        raise ConfigError(
            f"{job.num_microbatches} microbatches do not divide between the two directions of the pipeline",
            where="training.global_batch",
            expected=f"a multiple of (dp x micro_batch) x 2 = {per_step} x 2",
            got=job.training.global_batch,
            nearest=(job.num_microbatches + 1) * per_step,
        )
    if job.training.optimizer_post_validation:
        raise ConfigError(
            "ranks of a bidirectional pipeline reduce their gradients in pairs and do not step apart",
            where="training.optimizer_post_validation",
            expected="false, or another placement",
            got="true",
            nearest="false",
        )


def _check_post_validation(job: TrainingJob) -> None:
    parallel, training = job.parallel, job.training
    gathers = parallel.zero >= 2 or (parallel.zero == 1 and job.hides_gathers)
    if training.optimizer_post_validation and gathers and parallel.data_ranks > 1:
        raise ConfigError(
            "ranks that step apart, with parameters gathered before the first forwards, are not modelled by this "
            "version",
            where="training.optimizer_post_validation",
            expected="false, or parallel.zero = 0, or overlap.param_gather = false with parallel.zero = 1",
            got="true",
            nearest="false",
        )


def splits_backward(job: TrainingJob) -> bool:
    """Whether the job's schedule is a named one that splits backwards."""
    family = ALL_SCHEDULES.get(job.training.schedule)
    return job.training.schedule_file is None and family is not None and family.splits_backward


def named_schedule(name: str, sim: SimulatedJob) -> Schedule:
    """The schedule of a name for a job.

    Raises:
        ConfigError: an unknown name, or another placement. ScheduleError: it does not fit the pipeline.
        MemoryLimitError: a rank has no room for a microbatch within its limit.
    """
    shape, family = sim.units.shape, schedule_family(name)
    _check_copies(family, _copies(shape), "schedule")
    is_planned, is_circular = sim.layout.recipe.plan is not None, sim.job.parallel.placement == "circular"
    if is_planned and family.alternates and not is_circular:
        raise _misplaced(family, "circular", sim.job.parallel.placement)
    if shape.chunk_gang:
        study = pipeline_study(sim, splits=family.splits_backward)
        apart = sim.job.training.optimizer_post_validation
        return woven_schedule(family, study, sim.job.training.activation_limit, ends_apart=apart)
    if family.generate is not None:
        return family.generate(shape)
    if family.adapt is None:
        return family(shape)
    if is_planned:
        raise ConfigError(
            ("" if is_circular else f"the schedule {name!r}: ")
            + "a schedule made for the job's own costs is not modelled under a plan by this version",
            where="training.schedule",
            expected=", ".join(SCHEDULES) if is_circular else "no plan, or a plan with orders",
            got=name,
            nearest="1f1b" if is_circular else None,
        )
    if family.splits_backward:
        check_split(sim.layout)
    study, training = pipeline_study(sim, splits=family.splits_backward), sim.job.training
    return family.on_job(study, training.activation_limit, ends_apart=training.optimizer_post_validation)


def _copies(shape: PipelineShape) -> int:
    return max(shape.chunk_flow, default=0) + 1


def pipeline_study(sim: SimulatedJob, *, splits: bool = True) -> PipelineStudy:
    """The job on plain numbers: the mean of all replicas' stages, microbatch by microbatch.

    A forward holds what its backward reads; an I leaves what W reads, gradients of outputs too (2401.10241: M_B, M_W).

    Args:
        sim: the job. splits: with the parts of backwards; else they take no time.
    """
    shape, replicas = sim.units.shape, sim.replicas
    weights = replicas.count / replicas.count.sum()
    num_chunks, m = shape.num_chunks, shape.num_microbatches
    seconds = {code: np.zeros((num_chunks, m)) for code in (FORWARD, BACKWARD, INPUT, WEIGHT)}
    held, kept = np.zeros((num_chunks, m)), np.zeros((num_chunks, m))

    def _mean(by_shape: NDArray[np.floating] | NDArray[np.int64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = weights @ by_shape[replicas.shape]
        return result

    parts = split_of(sim.layout)[:num_chunks] if splits else (None,) * num_chunks
    for chunk, (stages, split) in enumerate(zip(sim.layout.chunks, parts, strict=True)):
        seconds[FORWARD][chunk] = _mean(costs_of(sim, chunk, FORWARD).latency)
        if stages.backward is None:
            continue
        for code in (BACKWARD, INPUT, WEIGHT) if split is not None else (BACKWARD,):
            seconds[code][chunk] = _mean(costs_of(sim, chunk, code).latency)
        held[chunk] = _mean(saved_bytes(sim, stages))
        if split is not None:
            late = split.weights.size_row[split.weights.alive_before]
            kept[chunk] = _mean(sim.evaluation.by_shape.sizes_of_rows(late.tolist()).sum(axis=0))
    there, back = _transfers(sim)
    return PipelineStudy.of(
        shape,
        forward_s=seconds[FORWARD].ravel(),
        backward_s=seconds[BACKWARD].ravel(),
        input_s=seconds[INPUT].ravel(),
        weight_s=seconds[WEIGHT].ravel(),
        held_bytes=held.ravel(),
        kept_bytes=kept.ravel(),
        transfer_s=there.ravel(),
        transfer_back_s=back.ravel(),
    )


def _transfers(sim: SimulatedJob) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How long every chunk's result and its gradient are on their way, the longest where several take them:
    float64[num_chunks, num_microbatches] [s]."""
    units, shape = units_of(sim.units.shape, None), sim.units.shape
    transfer_s = np.zeros((2, shape.num_chunks, shape.num_microbatches))
    links, shapes = sim.replicas.links[0], sim.replicas.shape[0]
    for chunk, pairs in zip(units.chunk.tolist(), units.pair.tolist(), strict=True):
        for producer, consumer, pair in zip(units.producer.tolist(), units.consumer.tolist(), pairs, strict=True):
            source, target = chunk[producer], chunk[consumer]
            way = int(units.phase[producer] > 0)
            phase = Phase.BACKWARD if way else Phase.FORWARD
            sizes = edge_bytes(sim, source, target, phase)
            lasts = send_latency(sim, links[pair], sizes)[shapes]
            np.maximum(transfer_s[way, source], lasts, out=transfer_s[way, source])
    return transfer_s[0], transfer_s[1]
