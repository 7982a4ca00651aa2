"""Execution plans: how long compiling and verifying one takes, and what executing one costs beside its stages.

    python benchmarks/executor.py [--json] [--quick]

The plan is the searcher's heuristic for a batch of VLM-L (DIP Table 3) on 8 pipeline ranks, with sub-microbatches and a
memory strategy for every stage, through the public door: a schedule goes in, and the job prepared, as a planner has
them each iteration. Process CPU time, the least of several runs: other programs on the machine do not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _executor_speed import measure_executor
from _executor_verify import measure_verifier
from _rows import Row, print_rows

GOAL_MS = 150.0
"""Of compiling and verifying, together."""


def measure(quick: bool) -> Iterable[Row]:
    """All rows."""
    yield from measure_compiler(quick)
    yield from measure_executor(quick)


def measure_compiler(quick: bool) -> Iterable[Row]:
    """Compiling and verifying VLM-L's plan."""
    import semu
    from semu.plan.verification.rules import verify
    from semu.runfile import Overrides, resolve_run

    count = 16 if quick else 64
    job = resolve_run("vlm-l", Overrides([f"training.global_batch={count}"], None, None, None, 0)).job()
    found = semu.search(job, rollouts=0)
    checkpoint, report = found.problem.simulated(found.plan), found.report
    plan = semu.compile_plan(checkpoint, estimate=report)
    repeats = 3 if quick else 15
    compile_ms = least_ms(lambda: semu.compile_plan(checkpoint, estimate=report), repeats)
    verify_ms = least_ms(lambda: verify(plan), repeats)
    estimate_ms = least_ms(checkpoint.estimate, repeats)
    label = f"vlm-l, m={count}: {plan.num_stages} stages, {plan.num_actions} actions, {plan.num_ranks} ranks"
    both = compile_ms + verify_ms
    yield Row("compile and verify", both, "ms of CPU", label, f"<= {GOAL_MS:g}", both <= GOAL_MS)
    yield Row("  compile, schedule to plan", compile_ms, "ms of CPU", label)
    yield from measure_verifier(plan, verify_ms, label, least_ms)
    yield Row("  compile, per action", 1e3 * compile_ms / plan.num_actions, "us of CPU", label)
    yield Row("full simulation of the schedule, for comparison", estimate_ms, "ms of CPU", "checkpoint.estimate()")
    text = plan.to_json()
    yield Row("  write as JSON", least_ms(plan.to_json, 3), "ms of CPU", f"{len(text) / 1e6:.1f} MB")
    yield Row("  read JSON", least_ms(lambda: semu.ExecutionPlan.from_json(text), 3), "ms of CPU", "checked")


def least_ms(call: Callable[[], object], repeats: int) -> float:
    """The least process CPU time of several calls [ms]."""
    call()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return 1e3 * min(found)


if __name__ == "__main__":
    print_rows(__doc__, measure)
