"""Execution plans over time: ``plan_timeline``, for tables and pictures of timelines, and a picture with messages."""

from __future__ import annotations

import os
from typing import NoReturn

from semu.engine.timeline import IterationTimeline, RankTimeline, StageSlice
from semu.errors import ConfigError
from semu.plan.action import KINDS
from semu.plan.plan import ExecutionPlan, PlanEstimates
from semu.plan.text import stage_words
from semu.units import MIB, format_time


def plan_timeline(plan: ExecutionPlan) -> IterationTimeline:
    """The stages of a plan at their estimated times; without operators and memory.

    Raises:
        ConfigError: the plan has no estimates.
    """
    estimates = _estimates(plan)
    words = stage_words(plan)
    ranks = []
    for rank, own in enumerate(plan.actions):
        spans = estimates.start_s[rank].tolist(), estimates.end_s[rank].tolist()
        stages = []
        for code, pair, begin, end in zip(own.kind.tolist(), own.target.tolist(), *spans, strict=True):
            kind = KINDS[code]
            if kind.is_stage:
                phase, chunk = kind.phase, int(plan.pairs.chunk[pair])
                label = words[pair].format(phase.value)
                number = int(words[pair].partition("{}")[2])
                stages.append(StageSlice(rank, label, plan.chunks[chunk].module, chunk, number, phase, begin, end))
        parts = tuple(stages), (), _nothing, _nothing, _nothing
        ranks.append(RankTimeline(rank, rank, estimates.replica, *parts, is_bare=True))
    return IterationTimeline(tuple(ranks), estimates.iteration_time_s, estimates.makespan_s)


def draw(path: str | os.PathLike[str], plan: ExecutionPlan) -> None:
    """Draw a plan as a PNG.

    Args:
        path: the file to make.
    Raises:
        ConfigError: the plan has no estimates. OSError: the file cannot be written.
    """
    from semu.present.plots.plan import draw_plan

    estimates, messages = _estimates(plan), plan.messages
    ends = messages.source_rank.tolist(), messages.target_rank.tolist()
    times = estimates.transfer_start_s.tolist(), estimates.transfer_end_s.tolist()
    is_gradient = (messages.source % 2 == 1).tolist()
    sent = list(zip(*ends, *times, is_gradient, strict=True)) if len(times[0]) == len(messages) else []
    moved = float(messages.num_bytes[estimates.replica].sum()) / MIB
    draw_plan(
        path,
        plan_timeline(plan),
        sent,
        title=f"Execution plan {plan.name}: {plan.num_stages} stages on {plan.num_ranks} ranks",
        subtitle=f"pipeline {format_time(estimates.makespan_s)}  ·  {len(messages)} messages, {moved:.0f} MiB",
    )


def _estimates(plan: ExecutionPlan) -> PlanEstimates:
    if plan.estimates is None:
        raise ConfigError("a plan without estimates has no times", where="plan.estimates", expected="estimates")
    return plan.estimates


def _nothing(*_: object) -> NoReturn:
    raise ConfigError("a plan knows of no operators and no memory", where="timeline", expected="semu.simulate")
