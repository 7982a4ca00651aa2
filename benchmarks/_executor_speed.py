"""What the executor itself costs: CPU time per action of empty stages, and how long a message takes between threads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

from _rows import Row

if TYPE_CHECKING:
    from semu.plan.plan import ExecutionPlan

GOAL_US = 25.0
"""Process CPU time per action, the median of iterations."""


def measure_executor(quick: bool) -> Iterable[Row]:
    """Rows of the executor; none where torch is missing."""
    try:
        import torch
    except ImportError:
        yield Row("execute, per action", None, "us of CPU", "torch is not installed (pip install '.[executor]')")
        return
    torch.set_num_threads(1)
    plan = plan_of_gpt(8 if quick else 64)
    us, idle_us = per_action_us(plan, 5 if quick else 21)
    label = f"1f1b, {plan.num_ranks} ranks, {plan.num_actions} actions, empty stages, one thread per rank"
    yield Row("execute, per action", us, "us of CPU", label, f"<= {GOAL_US:g}", us <= GOAL_US)
    yield Row("  the same stages alone", idle_us, "us of CPU", "per action: identity and its backward in plain torch")
    yield Row(
        "  hand-over, thread to thread", hand_over_us(200 if quick else 2000), "us", "a number there and back, / 2"
    )


def plan_of_gpt(count: int) -> ExecutionPlan:
    """1F1B of a language model on 4 ranks; ``count``: microbatches."""
    import semu
    from semu.runfile import Overrides, resolve_run

    settings = [f"training.global_batch={count}", "training.schedule=1f1b"]
    run = resolve_run("lm-7b", Overrides(settings, "h800:1x4", "pp4", None, 0))
    return semu.compile_plan(run.job())


def per_action_us(plan: ExecutionPlan, repeats: int) -> tuple[float, float]:
    """Median process CPU time per action [us]: of the executor, and of plain torch with the same stages."""
    import torch

    from semu.executor import FakeWorld, ModuleStages, PipelineModel, Runner, run_threads

    one = torch.ones(1)
    world = FakeWorld(plan.num_ranks)
    found: list[float] = []

    def load(_microbatch: int, _first: int, _last: int) -> Any:
        return one.detach().requires_grad_()

    def loss(output: Any, _microbatch: int, _first: int, _last: int) -> Any:
        return output.sum()

    def work(communicator: Any) -> None:
        """Iterations of one rank; rank 0 takes the times."""
        modules = {plan.chunks[0].module: ModuleStages(load=load, loss=loss)}
        chunks = {n: torch.nn.Identity() for n, c in enumerate(plan.chunks) if c.rank == communicator.rank}
        model = PipelineModel(modules, chunks, lambda *_: (((1,), torch.float32),))
        runner = Runner(model, communicator)
        program = runner.prepare(plan)
        for _ in range(repeats + 2):
            communicator.gather(None, 60.0)
            began = time.process_time()
            runner.run(program)
            communicator.gather(None, 60.0)
            if communicator.rank == 0:
                found.append(1e6 * (time.process_time() - began) / plan.num_actions)

    run_threads(world, work)
    alone = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(plan.num_stages // 2):
            leaf = one.detach().requires_grad_()
            torch.nn.Identity()(leaf).sum().backward()
        alone.append(1e6 * (time.process_time() - began) / plan.num_actions)
    return median(found[2:]), median(alone)


def hand_over_us(count: int) -> float:
    """Wall time of a message between two threads [us], the median."""
    import torch

    from semu.executor import FakeWorld, Operation, run_threads

    found: list[float] = []

    def work(communicator: Any) -> None:
        """One end of a ping-pong."""
        peer = 1 - communicator.rank
        buffer = torch.zeros(1)
        for number in range(count):
            began = time.perf_counter()
            for is_send in (communicator.rank == 0, communicator.rank == 1):
                (handle,) = communicator.launch([Operation(is_send, peer, number, (buffer,))])
                handle.wait(60.0)
            found.append(1e6 * (time.perf_counter() - began) / 2)

    run_threads(FakeWorld(2), work)
    return median(found)
