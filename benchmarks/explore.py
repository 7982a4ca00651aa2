"""Speed and quality of exploring schedules by rule (FlexPipe §6, Table 5; DESIGN §6).

The rule machine over pipelines of 4 to 32 ranks against Algorithm 1 in plain Python (the tests' oracle) and the list
scheduler, in the same run; the grid that FlexPipe's Table 5 means at 32 GPUs; small pipelines against CP-SAT with input
and weight gradients apart; a shipped setup against ``semu.search`` given the same time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from _rows import Row, print_rows
from _timing import fastest, fastest_cpu
from schedule.algorithm_1 import run_algorithm_1

import semu
from semu.errors import SemuError
from semu.runfile import load_run
from semu.schedule.exploration.plain import Refusals, explore_study
from semu.schedule.exploration.space import Cut, rules_of
from semu.schedule.placement import Placement
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.rules.kernels import machine as kernels
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Depth
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy

SETUP = "vlm-m"
RULE = Priority(forward=Depth(), in_flight="2*p*v")
GPUS, BATCH, RULE_SETS = 32, 128, 58
"""Of FlexPipe's Table 5; microbatch sizes and ranks are powers of two: 33 pairs."""


def study_of(p: int, m: int, v: int = 2) -> PipelineStudy:
    return PipelineStudy.of(Placement.V_SHAPE.shape(p, m, v))


def machine_alone(study: PipelineStudy, seconds: float) -> float:
    """Processor time of the compiled machine in one call of the rule [s]."""
    run, spent = kernels.run_rule, list[float]()

    def _timed(*given: Any) -> Any:
        begin = time.thread_time()
        found = run(*given)
        spent.append(time.thread_time() - begin)
        return found

    kernels.run_rule = _timed
    try:
        fastest({"rule": lambda: RULE.on(study)}, seconds)
    finally:
        kernels.run_rule = run
    return min(spent)


def measure_machine(quick: bool) -> Iterator[Row]:
    """Time of an instruction: of the machine, and with all that Python does around it."""
    seconds, per = 0.5 if quick else 3.0, dict[int, float]()
    for p in (4, 8, 16, 32):
        study = study_of(p, 2048 // p)  # as many instructions for each: 8192
        count = 4 * p * (2048 // p)
        times = fastest_cpu(
            {"rule": lambda study=study: RULE.on(study), "list": lambda s=study: EarliestStart().on(s)}, seconds
        )
        per[p] = machine_alone(study, seconds) / count * 1e9
        around = (
            f"with Python {times['rule'] / count * 1e9:.0f} ns; the list scheduler {times['list'] / count * 1e9:.0f}"
        )
        yield Row(f"an instruction of the machine, {p} ranks", per[p], "ns", around, "<= 100", per[p] <= 100)
    yield Row("32 ranks over 4", per[32] / per[4], "x", "the same instructions", "<= 1.5", per[32] <= 1.5 * per[4])
    small = study_of(8, 16)
    slow = fastest({"python": lambda: run_algorithm_1(small, Priority(forward=Depth()), [10**9] * 8)}, seconds)[
        "python"
    ]
    quickly = fastest({"rule": lambda: Priority(forward=Depth()).on(small)}, seconds)["rule"]
    yield Row(
        "Algorithm 1 in Python over the machine, 8 ranks",
        slow / quickly,
        "x",
        "512 stages",
        ">= 100",
        slow >= 100 * quickly,
    )
    check = Priority(forward=Depth(), checks=(lambda step, stage: True,))
    asked = fastest({"check": lambda: check.on(small)}, seconds)["check"]
    yield Row("a check in Python over none, 8 ranks", asked / quickly, "x", "512 stages")


def table_5() -> list[tuple[Cut, PipelineStudy, list[Any]]]:
    """Pipelines and rules at 32 GPUs."""
    found = []
    for p in (1, 2, 4, 8, 16, 32):
        per_replica, m = BATCH * p // GPUS, BATCH * p // GPUS
        while m >= 1:
            cuts = [Cut(Placement.ONE_TO_ONE, 1)] + (
                [Cut(Placement.V_SHAPE, 2), Cut(Placement.CIRCULAR, 2)] if p > 1 else []
            )
            rules = list(
                islice(chain.from_iterable(((cut, rule) for rule in rules_of(cut)) for cut in cuts), RULE_SETS)
            )
            for cut in dict.fromkeys(cut for cut, _ in rules):
                study = PipelineStudy.of(cut.placement.shape(p, m, cut.num_slots))
                found.append((cut, study, [rule for own, rule in rules if own == cut]))
            m //= 2
        assert per_replica >= 1
    return found


def measure_table_5() -> Iterator[Row]:
    """The grid of Table 5: orders, then times and memory."""
    grid = table_5()
    orders: list[tuple[PipelineStudy, Schedule]] = []

    def _generate() -> None:
        orders.clear()
        for _, study, rules in grid:
            for rule in rules:
                try:
                    orders.append((study, Schedule("rule", rule.on(study))))
                except SemuError:
                    continue

    _generate()
    begin = time.perf_counter()
    _generate()
    made = time.perf_counter() - begin
    count = sum(len(order.columns.chunk) for _, order in orders)
    begin = time.perf_counter()
    for study, order in orders:
        study.evaluate(order)
    spent = time.perf_counter() - begin
    said = f"{len(orders)} orders of {count:,} instructions"
    yield Row("Table 5 at 32 GPUs, orders", made, "s", said, "<= 1", made <= 1)
    yield Row(
        "Table 5 at 32 GPUs, times and memory", spent, "s", "FlexPipe prints 534.78 s for all", "<= 10", spent <= 10
    )


def exact_makespan(study: PipelineStudy, held: int, seconds: float) -> tuple[float, bool]:
    """The shortest makespan by CP-SAT with input and weight gradients apart [s], and whether that is proven; infinite
    where it has found none in its time.

    Args:
        held: stages whose activations a rank may hold, from F to W.
    """
    from ortools.sat.python import cp_model

    graph, cost = study.arrays, study.costs.latency_s
    model = cp_model.CpModel()
    horizon = int(cost.reshape(-1, 4)[:, [0, 2, 3]].sum())
    start, end, tasks, lives = {}, {}, dict[int, list[Any]](), dict[int, list[Any]]()
    for pair in range(graph.num_pairs):
        rank = int(graph.rank[pair])
        for code in (0, 2, 3):
            stage = 4 * pair + code
            start[stage] = model.new_int_var(0, horizon, "")
            end[stage] = start[stage] + int(cost[stage])
            tasks.setdefault(rank, []).append(model.new_fixed_size_interval_var(start[stage], int(cost[stage]), ""))
        life = model.new_int_var(0, horizon, "")
        lives.setdefault(rank, []).append(model.new_interval_var(start[4 * pair], life, end[4 * pair + 3], ""))
        model.add(start[4 * pair + 3] >= end[4 * pair + 2])
    for stage in start:
        for e in range(graph.pred_ptr[stage], graph.pred_ptr[stage + 1]) if stage % 4 != 3 else ():
            before = int(graph.pred[e])
            model.add(start[stage] >= end[before + (1 if before % 4 == 1 else 0)])
    for rank, own in tasks.items():
        model.add_no_overlap(own)
        model.add_cumulative(lives[rank], [1] * len(lives[rank]), held)
    last = model.new_int_var(0, horizon, "")
    for stage in start:
        model.add(last >= end[stage])
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 2
    status = solver.solve(model)
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return float(solver.objective_value) if is_found else math.inf, status == cp_model.OPTIMAL


def measure_gap(quick: bool) -> Iterator[Row]:
    """Explored rules, separated, against the optimum, within p microbatches' activations."""
    gaps, proven, unsolved = [], 0, 0
    sizes = [(2, 2), (2, 4), (3, 3), (4, 4)] if quick else [(p, m) for p in (2, 3, 4) for m in (2, 3, 4)]
    for p, m in sizes:
        for cut in (Cut(Placement.ONE_TO_ONE, 1), Cut(Placement.V_SHAPE, 2)):
            for f, i, w in ((1, 1, 1), (2, 3, 1)):
                shape = cut.placement.shape(p, m, cut.num_slots)
                study = PipelineStudy.of(shape, forward_s=f, input_s=i, weight_s=w)
                held = p * cut.num_slots
                best, is_proven = exact_makespan(study, held, 2.0 if quick else 10.0)
                found = explore_study(study, cut, Refusals(), split=True, limit_bytes=held)
                proven += is_proven
                if math.isinf(best):
                    unsolved += 1
                else:
                    gaps.append(found[0].time_s / best - 1)
    said = f"CP-SAT on {len(gaps)} pipelines of 2 to 4 ranks and microbatches, {proven} proven"
    if unsolved:
        said += f"; it solved no more: {unsolved} left out"
    if not gaps:
        return
    yield Row("gap to the optimum, median", 100 * median(gaps), "%", said)
    yield Row("gap to the optimum, worst", 100 * max(gaps), "%", said)


def measure_search(quick: bool) -> Iterator[Row]:
    """A shipped setup explored, and searched for as long."""
    job = load_run(SETUP)
    semu.evaluate(job)
    begin = time.perf_counter()
    explored = semu.explore_schedules(job, top=3 if quick else 10, split=True)
    spent = time.perf_counter() - begin
    searched = semu.search(job, time_s=spent, seed=0)
    assert explored.best is not None
    ratio = searched.report.iteration_time_s / explored.best.estimate.iteration_time_s
    shipped = explored.best_shipped
    assert shipped is not None
    gain = shipped.estimate.iteration_time_s / explored.best.estimate.iteration_time_s
    yield Row(f"{SETUP}: exploration", spent, "s", f"{explored.num_rules} rules, {explored.num_orders} orders")
    yield Row(f"{SETUP}: best shipped schedule over the best rule", gain, "x", shipped.name, ">= 1", gain >= 1)
    yield Row(
        f"{SETUP}: search given the same time over exploration", ratio, "x", "iteration times; above 1: rules win"
    )


def measure(quick: bool) -> Iterator[Row]:
    yield from measure_machine(quick)
    yield from measure_table_5()
    yield from measure_gap(quick)
    yield from measure_search(quick)


if __name__ == "__main__":
    print_rows(__doc__, measure)
