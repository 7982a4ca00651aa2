"""Jitter and stragglers: whole iterations with random stage latencies, for the p50 and p95 of the iteration time.

Off by default. Every stage of every data-parallel replica draws its own factor. A GPU may also be slow for a whole
iteration, and the stages of its pipeline rank with it, because its tensor- and context-parallel peers wait. Sampled
replicas are further variants of the same units, so the schedule's edges are resumed over many samples in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_integer
from semu.engine.unit_graph import Edges, Slots, UnitGraph
from semu.simulation.context import TimedJob
from semu.simulation.iteration import time_iteration
from semu.units import TIME_GRID_PER_S

_TOGETHER = 1 << 23
"""So many unit latencies are drawn and timed at once; results do not depend on it."""


def check_samples(samples: int, seed: int) -> None:
    """Refuse what is no number of samples, or no seed."""
    for name, value in (("samples", samples), ("seed", seed)):
        check_integer(value, name, least=0)


def stage_factors(rng: np.random.Generator, shape: tuple[int, ...], jitter: float) -> NDArray[np.float64]:
    """Log-normal factors of mean 1 and relative standard deviation ``jitter``; exactly 1 without jitter.

    sigma^2 = ln(1 + jitter^2), mu = -sigma^2 / 2 (moments of the log-normal distribution).
    """
    variance = math.log1p(jitter * jitter)
    factors: NDArray[np.float64] = np.exp(math.sqrt(variance) * rng.standard_normal(shape) - variance / 2)
    return factors


def straggler_factors(
    rng: np.random.Generator, shape: tuple[int, ...], gpus: Sequence[int], share: float, slowdown: float
) -> NDArray[np.float64]:
    """``slowdown`` where at least one of the GPUs of a pipeline rank is a straggler, else 1.

    Args:
        shape: of the result, one number per pipeline rank in the last axis. gpus: of each of them; each GPU is a
            straggler with probability ``share``, so that the rank is slow with 1 - (1 - share)^gpus.
    """
    is_slow = rng.random(shape) < 1.0 - (1.0 - share) ** np.array(gpus)
    return np.where(is_slow, slowdown, 1.0)


def sample_iterations(timed: TimedJob, samples: int, seed: int) -> NDArray[np.float64]:
    """Iteration times of drawn iterations.

    Args:
        timed: the job under a schedule, without jitter. samples: how many. seed: of the draws.
    Returns:
        float64[samples] [s], on the time grid. What a stage waits for its parameters and for launches stays as it is
        without jitter; inside a stage, operators keep their distance from its end.
    """
    job, dp, stages = timed.job, len(timed.replicas.of), _stages(timed)
    rng, slow = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    training, gpus = job.training, job.parallel.rank_widths
    stage_rank = timed.units.stream[stages]
    result = np.empty(samples)
    step = max(1, _TOGETHER // (dp * timed.units.num_units))
    for first in range(0, samples, step):
        count = min(step, samples - first)
        factors = stage_factors(rng, (count, dp, len(stages)), training.jitter)
        if training.straggler_share:
            share, slowdown = training.straggler_share, training.straggler_slowdown
            ranks = straggler_factors(slow, (count, dp, job.parallel.pp), gpus, share, slowdown)
            factors *= ranks[:, :, stage_rank]
        result[first : first + count] = _with_factors(timed, factors)
    return result


def slowed_iteration(timed: TimedJob, slowdown: NDArray[np.float64]) -> float:
    """Iteration time where replicas are not equally fast [s], on the time grid.

    Args:
        timed: as ``sample_iterations``. slowdown: float64[dp], what latencies of a replica's stages are multiplied by.
    """
    factors = np.broadcast_to(slowdown[None, :, None], (1, len(slowdown), len(_stages(timed))))
    return float(_with_factors(timed, factors)[0])


def _stages(timed: TimedJob) -> NDArray[np.int64]:
    """Units of a replica that are stages."""
    units = timed.units
    return np.flatnonzero(np.arange(units.num_units) % units.size < units.num_stages)


def _with_factors(timed: TimedJob, factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Iterations whose stages take other times: float64[count] [s]. ``factors``: float64[count, dp, num_stages]."""
    job, run, nodes, of = timed.job, timed.run, timed.nodes, timed.replicas.of
    count, dp, _ = factors.shape
    node_unit, stages = run.problem.unit_of_nodes, _stages(timed)
    plain = nodes.latency[of]
    waits = np.zeros_like(plain)
    waits[:, node_unit] = (run.latency - run.plain)[of]
    order = run.problem.unit_edges(overlapped_sends=job.overlaps_sends)
    latency = np.tile(plain, (count, 1, 1))
    latency[:, :, stages] = np.rint(plain[:, stages] * factors * TIME_GRID_PER_S) / TIME_GRID_PER_S
    latency += waits
    times = _variants(nodes, latency.reshape(count * dp, -1)).resume(Edges.between(order, count * dp))
    end = times.end[:, node_unit].reshape(count, dp, -1)
    start = times.start[:, node_unit].reshape(count, dp, -1)
    return np.array([_iteration_time(timed, start[number], end[number]) for number in range(count)])


def _variants(nodes: UnitGraph, latency: NDArray[np.float64]) -> UnitGraph:
    """The units with other latencies, float64[num_variants, num_units] [s], and no operator waiting inside a stage."""
    count = len(latency)
    return replace(
        nodes,
        latency=np.ascontiguousarray(latency),
        edges=replace(nodes.edges, lag=np.zeros((count, 0))),
        slots=Slots.none(nodes.num_units, count),
    )


def _iteration_time(timed: TimedJob, start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Iteration time [s] of one sample; ``start``, ``end``: float64[dp, num_nodes] [s]."""
    run, replicas = timed.run, timed.replicas
    usual = run.latency[replicas.of]
    held = run.release.items()
    sample = replace(
        run,
        shape=run.shape[replicas.of],
        count=np.ones(len(replicas.of), dtype=np.int64),
        first=np.arange(len(replicas.of)),
        plain=run.plain[replicas.of],
        latency=end - start,
        start=end - usual,
        end=end,
        release={
            (number, node): late
            for number, distinct in enumerate(replicas.of)
            for (of, node), late in held
            if of == distinct
        },
        launched=None if run.launched is None else run.launched[replicas.of],
    )
    return time_iteration(replace(timed, run=sample)).time_s
