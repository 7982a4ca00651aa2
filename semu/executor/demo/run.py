"""``run_demo``: processes or threads that execute a plan on small layers, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from semu.checks import check_integer, check_number, check_word
from semu.errors import ConfigError, ExecutorError
from semu.executor.communicator import Communicator
from semu.executor.delivery import publish_plans, received_plans
from semu.executor.demo.model import DemoModel, gradients_of, part_named, run_unpipelined
from semu.executor.demo.replay import Replay, agreement, calibrate, simulate_order, starts_of
from semu.executor.demo.scaled import with_fewer_layers, with_whole_layers
from semu.executor.fake_communicator import FakeWorld, run_threads
from semu.executor.model import split_model
from semu.executor.processes import Place, launch
from semu.executor.recording import Recording, timeline_of
from semu.executor.runner import Runner
from semu.executor.sharded import ShardedCommunicator
from semu.executor.torch_communicator import TorchCommunicator
from semu.files import make_folder, write_file, write_text
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.reductions import shards_of_ranks
from semu.records import dataclass
from semu.units import format_time

BACKENDS = ("gloo", "fake")
WARM_UP = 1
"""Iterations in which caches fill, before those that calibrate."""
CALIBRATION = 2
"""Iterations whose stages' median times the simulation takes."""


@dataclass(frozen=True)
class DemoReport:
    """What a demo showed.

    Attributes:
        plan: what ran. backend, iterations: how, and how often after calibration.
        loss: sum of all losses. reference_loss: of the model in one piece.
        gradients, worst_gradient: how many were compared; the largest difference over the largest gradient's number.
        simulated_s, measured_s: makespans [s], measured: of every iteration. agreement: share of pairs of stages of
            different ranks that began in the simulated order.
        replay, recordings: both iterations in full, measured: the one of median makespan.
    """

    plan: ExecutionPlan
    backend: str
    iterations: int
    loss: float
    reference_loss: float
    gradients: int
    worst_gradient: float
    simulated_s: float
    measured_s: tuple[float, ...]
    agreement: float
    replay: Replay
    recordings: tuple[Recording, ...]

    @property
    def median_s(self) -> float:
        """The measured makespan [s]."""
        return median(self.measured_s)

    @property
    def error(self) -> float:
        """Simulated makespan over the measured one, less one."""
        return self.simulated_s / self.median_s - 1.0 if self.median_s > 0 else 0.0

    def to_json(self) -> dict[str, object]:
        """In plain numbers."""
        return {
            "plan": self.plan.name,
            "backend": self.backend,
            "num_ranks": self.plan.num_ranks,
            "num_replicas": self.plan.num_replicas,
            "shards": list(shards_of_ranks(self.plan)),
            "actions": sum(len(own) for own in self.plan.actions),
            "iterations": self.iterations,
            "loss": self.loss,
            "reference_loss": self.reference_loss,
            "gradients": self.gradients,
            "worst_gradient": self.worst_gradient,
            "simulated_makespan_s": self.simulated_s,
            "measured_makespan_s": list(self.measured_s),
            "makespan_error": self.error,
            "order_agreement": self.agreement,
        }

    def __repr__(self) -> str:
        plan = self.plan
        places = f"{plan.num_ranks} ranks" + (f" x {plan.num_replicas} replicas" if plan.num_replicas > 1 else "")
        shards = shards_of_ranks(plan)
        places += f" of {', '.join(map(str, shards))} shards" if max(shards) > 1 else ""
        return "\n".join(
            (
                f"plan {plan.name}: {sum(len(own) for own in plan.actions)} actions on {places}, {self.backend}",
                f"loss                 {self.loss:.12g} (in one piece {self.reference_loss:.12g})",
                f"gradients            {self.gradients} compared, largest difference {self.worst_gradient:.1e} of the "
                "largest",
                f"makespan simulated   {format_time(self.simulated_s)}, with stage times calibrated here",
                f"makespan measured    {format_time(self.median_s)} (median of {len(self.measured_s)}, "
                f"{format_time(min(self.measured_s))} to {format_time(max(self.measured_s))})",
                f"difference           {100 * self.error:+.1f} %",
                f"order of events      {100 * self.agreement:.1f} % of stages on different ranks begin as simulated",
            )
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``result.json`` and ``timeline.png``, one iteration simulated and measured.

        Raises:
            ConfigError: a file cannot be written.
        """
        import json

        from semu.present.plots.search import draw_timelines

        out = make_folder(Path(folder))
        recordings = {"simulated": self.replay.recordings, "measured": self.recordings}
        pictures = [(name, timeline_of(self.plan, own)) for name, own in recordings.items()]
        title = f"{self.plan.name}: a plan executed on small layers ({self.backend})"
        return [
            write_text(out / "result.json", json.dumps(self.to_json(), indent=2) + "\n"),
            write_file(out / "timeline.png", lambda path: draw_timelines(path, pictures, title=title)),
        ]


def run_demo(
    plan: ExecutionPlan,
    *,
    backend: str = "gloo",
    iterations: int = 3,
    timeout_s: float = 60.0,
    width: int = 32,
    fewer_layers: int = 8,
    is_sharded: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> DemoReport:
    """Execute a plan on this machine with small layers, some iterations, delivered one by one as a planner would.

    Args:
        plan: of any model. backend: ``gloo``, a process per rank, or ``fake``, threads.
        iterations: after those that calibrate. timeout_s: for other ranks [s]. width: of the layers.
        fewer_layers: how many of the plan's layers one layer stands for. is_sharded: a process or thread for each GPU
            of a stage, with its shard of the layers, where the plan says shards; else a stage holds its layers whole.
            The width is raised to what all numbers of shards divide. progress: is told every step.
    Raises:
        ConfigError: an unknown backend, no iterations. ExecutorError: a rank failed, or loss or gradients are not
            those of the model in one piece.
    """
    check_word(backend, BACKENDS, "backend", "--backend")
    check_integer(iterations, "--iterations", "a number of iterations")
    check_number(timeout_s, "--timeout", "a time", is_above=True, is_infinite_ok=True)
    check_integer(fewer_layers, "--fewer-layers", "a number of layers")
    if width < 4 or width % 4:
        raise ConfigError("not a width", where="width", expected="a multiple of 4", got=width)
    plan = with_fewer_layers(plan, fewer_layers)
    plan = plan if is_sharded else with_whole_layers(plan)
    heads = DemoModel(plan).heads
    width = -(-width // heads) * heads
    total = WARM_UP + CALIBRATION + iterations
    size = sum(shards_of_ranks(plan)) * plan.num_replicas
    progress(f"{total} iterations on {size} {'processes' if backend == 'gloo' else 'threads'}")
    if backend == "gloo":
        found = launch(
            rank_process,
            size,
            (plan.num_replicas, shards_of_ranks(plan), width, timeout_s),
            timeout_s=timeout_s,
            serve=lambda store: publish_plans(store, [plan] * total, size),
        )
    else:
        found = _threads(plan, total, width, timeout_s)
    progress("the model in one piece")
    return _report(plan, DemoModel(plan, width), backend, iterations, found)


def rank_process(
    place: Place, num_replicas: int, shards: Sequence[int], width: int, timeout_s: float
) -> dict[str, Any]:
    """What every process does."""
    communicator = _of_shard(TorchCommunicator(num_replicas, timeout_s=timeout_s), shards)
    plans = received_plans(place.connect(), place.world_size, timeout_s=timeout_s)
    return _work(communicator, plans, width, timeout_s)


def _of_shard(communicator: Communicator, shards: Sequence[int]) -> Communicator:
    """The same where no rank has several."""
    return ShardedCommunicator(communicator, shards) if max(shards) > 1 else communicator


def _threads(plan: ExecutionPlan, total: int, width: int, timeout_s: float) -> list[dict[str, Any]]:
    """The same with threads; the planner is one more."""
    shards = shards_of_ranks(plan)
    world = FakeWorld(sum(shards), plan.num_replicas)
    size = sum(shards) * plan.num_replicas
    limit = timedelta(seconds=timeout_s)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    connect = partial(dist.TCPStore, "127.0.0.1", store.port, is_master=False, timeout=limit)
    own, *connections = (connect() for _ in range(size + 1))

    def publish() -> None:
        """The planner; that ranks are gone, they say themselves."""
        with suppress(ExecutorError, RuntimeError):
            publish_plans(own, [plan] * total, size)

    planner = threading.Thread(target=publish, daemon=True)
    planner.start()

    def work(communicator: Communicator) -> dict[str, Any]:
        """One rank."""
        number = communicator.rank * communicator.num_replicas + communicator.replica
        plans = received_plans(connections[number], size, timeout_s=timeout_s)
        return _work(_of_shard(communicator, shards), plans, width, timeout_s)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run_threads(world, work)
    finally:
        torch.set_num_threads(threads)
        del store  # a planner that still waits hears that it is gone
        planner.join(timeout_s)


_BUILDING = threading.Lock()
"""Threads share torch's random numbers."""


def _work(communicator: Communicator, plans: Any, width: int, timeout_s: float) -> dict[str, Any]:
    """All iterations of a rank; gradients are those of the last one."""
    runner: Runner | None = None
    recordings = []
    loss = 0.0
    plan = None
    for plan in plans:
        if runner is None:
            with _BUILDING:
                modules = DemoModel(plan, width).modules(communicator.replica, communicator)
            part = split_model(plan, modules, communicator.rank)
            runner = Runner(part, communicator, timeout_s=timeout_s, is_recording=True)
        for parameter in runner.model.parameters():
            parameter.grad = None
        result = runner.run(plan)
        recordings.append(result.recording)
        loss = result.loss()
    if plan is None or runner is None:
        raise ExecutorError("no plan came", where="semu run")
    gradients = {name: one.numpy() for name, one in gradients_of(plan, runner.model.chunks).items()}
    return {"loss": loss, "gradients": gradients, "recordings": recordings}


def weights_of_ranks(plan: ExecutionPlan) -> list[float]:
    """Per world rank, by what its losses count in the batch's: its pipeline's share of the samples, else 1."""
    if not plan.weights:
        return [1.0] * (plan.num_ranks * plan.num_replicas)
    flows = {chunk.rank: chunk.flow for chunk in plan.chunks}
    return [plan.weights[flows[rank]] for rank in range(plan.num_ranks)]


def _report(
    plan: ExecutionPlan, model: DemoModel, backend: str, iterations: int, found: Sequence[dict[str, Any]]
) -> DemoReport:
    reference = run_unpipelined(model)
    shards = shards_of_ranks(plan)
    first, replicas = [0, *accumulate(shards)], plan.num_replicas
    leads = [found[at * replicas + replica] for at in first[:-1] for replica in range(replicas)]
    loss = sum(rank["loss"] * weight for rank, weight in zip(leads, weights_of_ranks(plan), strict=True))
    scale = max((float(one.abs().max()) for one in reference.gradients.values()), default=1.0) or 1.0
    worst, seen = 0.0, set()
    for rank in found:
        for name, gradient in rank["gradients"].items():
            expected = part_named(reference.gradients, name)
            difference = torch.from_numpy(gradient) - (0.0 if expected is None else expected)
            worst = max(worst, float(difference.abs().max()) / scale)
            seen.add(name.partition("|")[0])
    missing = reference.gradients.keys() - seen
    if missing or worst > 1e-9 or abs(loss - reference.loss) > 1e-9 * max(1.0, abs(reference.loss)):
        raise ExecutorError(
            "the pipeline's gradients are not those of the model in one piece",
            where=f"plan {plan.name}",
            expected=f"loss {reference.loss:.12g}, {len(reference.gradients)} gradients",
            got=f"loss {loss:.12g}, {len(missing)} missing, largest difference {worst:.1e} of the largest gradient",
        )
    by_iteration = [
        tuple(rank["recordings"][number] for rank in leads) for number in range(len(leads[0]["recordings"]))
    ]
    times = calibrate(plan, by_iteration[WARM_UP : WARM_UP + CALIBRATION])
    replay = simulate_order(plan, model.sources, times)
    measured = by_iteration[WARM_UP + CALIBRATION :]
    spans = [timeline_of(plan, own).makespan_s for own in measured]
    middle = measured[spans.index(sorted(spans)[(len(spans) - 1) // 2])]
    return DemoReport(
        plan=plan,
        backend=backend,
        iterations=iterations,
        loss=loss,
        reference_loss=reference.loss,
        gradients=len(seen),
        worst_gradient=worst,
        simulated_s=replay.makespan_s,
        measured_s=tuple(spans),
        agreement=agreement(starts_of(plan, replay.recordings), starts_of(plan, middle)),
        replay=replay,
        recordings=middle,
    )
