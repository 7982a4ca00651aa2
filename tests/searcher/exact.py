"""The whole problem and the choice of candidates as models for OR-Tools' CP-SAT, for small instances."""

from __future__ import annotations

import dataclasses

import numpy as np
from ortools.sat.python import cp_model

from semu.searcher import NO_LIMIT, SearchProblem


def whole(problem: SearchProblem, per_second: float = 4.0) -> SearchProblem:
    """The problem with times in whole seconds."""
    forward, backward = np.rint(problem.forward_s * per_second) + 1, np.rint(problem.backward_s * per_second)
    total = np.minimum.accumulate(forward + backward, axis=1)
    backward = np.where(problem.has_backward[:, None], total - forward, 0.0)
    sent = np.rint(problem.transfer_s * per_second)
    return dataclasses.replace(problem, forward_s=forward, backward_s=backward, transfer_s=sent)


def optimum(problem: SearchProblem, seconds: float = 20.0) -> float | None:
    """The least makespan; None where there is none, or none was proven in time. Sends of a link do not overlap, but
    need not keep the order of their producers: at most what the searcher's rule gives."""
    model = cp_model.CpModel()
    horizon = int(problem.forward_s.sum() + problem.backward_s.sum() + problem.transfer_s.sum())
    makespan = model.new_int_var(0, horizon, "")
    start = [model.new_int_var(0, horizon, "") for _ in range(problem.num_stages)]
    end = [model.new_int_var(0, horizon, "") for _ in range(problem.num_stages)]
    machines: list[list[cp_model.IntervalVar]] = [[] for _ in range(problem.num_ranks)]
    uses: list[list[tuple[cp_model.IntervalVar, int]]] = [[] for _ in range(problem.num_ranks)]
    for i in range(problem.num_pairs):
        r = int(problem.rank[i])
        picks = [model.new_bool_var("") for _ in range(problem.num_candidates[i])]
        model.add_exactly_one(picks)
        last = 2 * i + 1 if problem.has_backward[i] else 2 * i
        for j, pick in enumerate(picks):
            held = int(problem.held_bytes[i, j])
            peaks = (int(problem.forward_peak_bytes[i, j]) - held, int(problem.backward_peak_bytes[i, j]))
            for stage, time, peak in (
                (2 * i, problem.forward_s[i, j], peaks[0]),
                (2 * i + 1, problem.backward_s[i, j], peaks[1]),
            ):
                if stage <= last:
                    span = model.new_optional_interval_var(start[stage], int(time), end[stage], pick, "")
                    machines[r].append(span)
                    uses[r].append((span, peak))
            size = model.new_int_var(0, horizon, "")
            uses[r].append((model.new_optional_interval_var(start[2 * i], size, end[last], pick, ""), held))
        model.add(makespan >= end[last])
    links: dict[tuple[int, int], list[cp_model.IntervalVar]] = {}
    for before, after, sent in zip(*problem.edges, problem.transfer_s.tolist(), strict=True):
        a, b = int(problem.stage_rank[before]), int(problem.stage_rank[after])
        if a == b:
            model.add(start[after] >= end[before])
            continue
        begin = model.new_int_var(0, horizon, "")
        model.add(begin >= end[before])
        model.add(start[after] >= begin + int(sent))
        links.setdefault((a, b), []).append(model.new_fixed_size_interval_var(begin, int(sent), ""))
    for spans in [*machines, *links.values()]:
        model.add_no_overlap(spans)
    for r, each in enumerate(uses):
        room = int(problem.limit_bytes[r] - problem.static_bytes[r])
        if room < NO_LIMIT // 2:
            model.add_cumulative([span for span, _ in each], [size for _, size in each], room)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    return solver.objective_value if status == cp_model.OPTIMAL else None


def best_choice(
    problem: SearchProblem, order: list[int], room: int, seconds: float = 20.0, gap: float = 0.0
) -> float | None:
    """The least time in sum of one rank's pairs in an order under its room; None where nothing fits."""
    model = cp_model.CpModel()
    position = {stage: t for t, stage in enumerate(order)}
    terms: list[list[cp_model.LinearExprT]] = [[] for _ in order]
    cost: list[cp_model.LinearExprT] = []
    scale = 2.0**20
    for stage in order:
        if stage % 2:
            continue
        i = stage // 2
        a = position[stage]
        z = position.get(stage + 1)
        picks = [model.new_bool_var("") for _ in range(problem.num_candidates[i])]
        model.add_exactly_one(picks)
        for j, pick in enumerate(picks):
            held = int(problem.held_bytes[i, j])
            cost.append(round((problem.forward_s[i, j] + problem.backward_s[i, j]) * scale) * pick)
            terms[a].append(int(problem.forward_peak_bytes[i, j]) * pick)
            if z is not None:
                for t in range(a + 1, z):
                    terms[t].append(held * pick)
                terms[z].append((held + int(problem.backward_peak_bytes[i, j])) * pick)
    for each in terms:
        model.add(sum(each) <= room)
    model.minimize(sum(cost))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.relative_gap_limit = gap
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    assert status == cp_model.OPTIMAL
    return solver.objective_value / scale
