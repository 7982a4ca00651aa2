"""``train``: a training loop whose iterations are simulated and whose planning is real.

Planning takes the time that it takes on this machine; an iteration takes its simulated time. The loop waits for the
plan of the next iteration at most as long as the current one trains; what is left of an iteration once that plan is
there is skipped, or slept through. Either way a search that is not done by then is cut short; where not even the
heuristic's plan is there, the loop waits for it, because the fallback costs more. A speed above 1 makes
iterations shorter, one below 1 longer, as if planning had a slower or a faster machine than this one. Between
iterations the loop simulates Megatron-LM's schedule and the heuristic's for comparison; no planning runs then, and no
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from semu.baselines import Baseline, megatron, megatron_1f1b
from semu.errors import ConfigError, SemuError
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.searcher.planner.planned_iteration import Outcome, PlannedIteration
from semu.searcher.planner.planner import Planner
from semu.simulation import prepare

_OF_STEP = ("index", "outcome", "latency_s", "prepare_s", "cpu_s", "rollouts", "moves", "ended_by")


@dataclass(frozen=True)
class IterationRow:
    """An iteration as it was trained.

    Attributes:
        index: from 0. microbatches: of a replica. items: stream -> sequences in it, of all microbatches.
        outcome, latency_s, prepare_s, cpu_s, rollouts, moves, ended_by, error: as ``PlannedIteration``.
        planned_s, heuristic_s, megatron_s: iteration time with the plan, with the heuristic's schedule and with
            Megatron-LM's [s]; None: it cannot run. alike_s: with Megatron-LM's cut and order and the recomputation of
            those that a plan may use that fits best [s]; None: it cannot run, or none fits.
        fits: the plan keeps to the memory of every rank. peak_memory_bytes: the highest of its ranks.
        trained_s: how long this iteration takes on the loop's clock [s]. stall_s: how long it began late because its
            plan was not there [s]; of the first iteration, the whole time to its plan.
    """

    index: int
    microbatches: int
    items: dict[str, int]
    outcome: Outcome
    planned_s: float | None
    heuristic_s: float | None
    megatron_s: float | None
    fits: bool | None
    peak_memory_bytes: int | None
    latency_s: float
    prepare_s: float
    cpu_s: float
    trained_s: float
    stall_s: float
    rollouts: int
    moves: int
    ended_by: str
    error: str | None
    alike_s: float | None = None

    @property
    def gain(self) -> float | None:
        """Megatron-LM's time over the plan's."""
        return _ratio(self.megatron_s, self.planned_s)

    @property
    def gain_alike(self) -> float | None:
        """The time of Megatron-LM's order with the recomputation that fits best over the plan's."""
        return _ratio(self.alike_s, self.planned_s)


def train(
    planner: Planner,
    iterations: int,
    *,
    speed: float = 1.0,
    sleeps: bool = False,
    has_deadline: bool = True,
    tell: Callable[[IterationRow], None] | None = None,
    keep: Callable[[IterationRow, PlannedIteration], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Train with a planner's plans; ``tell`` gets every iteration as soon as it begins.

    Args:
        planner: from its first iteration on. iterations: at most; fewer where the stream ends.
        speed: simulated seconds in a second of planning. sleeps: also through time that planning does not need.
        has_deadline: an iteration begins when the one before it ends, whatever its plan has come to from the
            heuristic's on; False: it waits for its plan. What waiting costs counts as ``stall_s``.
        tell: called with every iteration. keep: the same, with its plan. sleep, clock: of real time.
    Raises:
        ConfigError: of the stream, at its place. KeyboardInterrupt: as it comes.
    """
    trained: float | None = None
    for _ in range(iterations):
        began = clock()
        step = planner.take(trained if has_deadline else None, hold=True, is_simulated=True)
        if step is None:
            return
        waited = clock() - began
        stall = waited if trained is None else max(waited - trained, 0.0)
        if sleeps and trained is not None and waited < trained:
            sleep(trained - waited)
        row = _row(planner, step, stall, speed)
        if keep is not None:
            keep(row, step)
        if tell is not None:
            tell(row)
        trained = row.trained_s
        planner.go_on(trained if has_deadline else None)


def _row(planner: Planner, step: PlannedIteration, stall_s: float, speed: float) -> IterationRow:
    """A step beside the schedules that it is compared with."""
    errors = [] if step.error is None else [step.error]
    own: Estimate | None = None
    heuristic_s: float | None = None
    try:
        if step.problem is not None and step.outcome is not Outcome.FALLBACK:
            own = step.problem.simulated(step.plan).estimate()
        else:
            own = prepare(step.job, plan=step.plan).estimate()
    except SemuError as error:
        errors.append(f"{error.kind}: {error}")
    try:
        if step.problem is None or step.heuristic is None:
            begun, default, _ = planner.batches.heuristic(planner.batches.prepared(step.job, step.assigned))
            plan = begun.plan_of(default, "heuristic")
        else:
            begun, plan = step.problem, step.heuristic
        heuristic_s = begun.simulated(plan).estimate().iteration_time_s
    except SemuError:  # told where planning met it
        pass
    baseline, megatron_s = megatron_of(step.given)
    planned_s = None if own is None else own.iteration_time_s
    known = next((value for value in (planned_s, heuristic_s, megatron_s) if value is not None), 0.0)
    training = step.job.training
    microbatches = step.job.batch.microbatches(
        step.job.num_microbatches * step.job.parallel.replicas, training.micro_batch, training.seq_len
    )
    return IterationRow(
        **{name: getattr(step, name) for name in _OF_STEP},
        microbatches=step.job.num_microbatches,
        items={name: sum(len(item.lengths[name]) for item in microbatches) for name in microbatches[0].lengths},
        planned_s=planned_s,
        heuristic_s=heuristic_s,
        megatron_s=megatron_s,
        alike_s=None if baseline is None else planner.batches.alike_s(step.given, baseline),
        fits=None if own is None else own.fits,
        peak_memory_bytes=None if own is None else max(own.peak_memory_bytes),
        trained_s=known / speed,
        stall_s=stall_s,
        error="; ".join(dict.fromkeys(errors)) or None,
    )


def megatron_of(job: TrainingJob) -> tuple[Baseline | None, float | None]:
    """Megatron-LM on a job, interleaved where it can be, and its iteration time [s]; None: it cannot run the job."""
    for make in (megatron, megatron_1f1b):
        try:
            made = make(job)
            return made, made.evaluate().iteration_time_s
        except ConfigError:
            continue
    return None, None


def _ratio(other: float | None, own: float | None) -> float | None:
    return other / own if other is not None and own else None
