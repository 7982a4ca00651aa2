"""``run_drill``: the master of a drill: sees nodes go, has the others compose themselves anew, and compares the end.

It trains nothing. It knows who is there by its connections (Oobleck §2.6.2), kills who does not answer in time, decides
how many steps the state has (``semu.executor.drill.node`` says why that is well defined), and tells each node its rank,
the plan and which layers move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import torch

from semu.checks import check_integer, check_number, check_word
from semu.errors import ConfigError, ExecutorError, SemuError
from semu.executor.drill.crew import Crew, ProcessCrew, ThreadCrew
from semu.executor.drill.orders import (
    Failure,
    Here,
    Key,
    Left,
    Moment,
    Move,
    Ready,
    Saved,
    Settings,
    Stepped,
    Stop,
    Train,
)
from semu.executor.drill.report import DrillReport, Recovery, Stopped
from semu.executor.drill.state import Uninterrupted, run_uninterrupted
from semu.files import make_folder
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

BACKENDS = ("gloo", "fake")
TOLERANCE = 1e-9
"""Largest difference of losses, parameters and optimizer state from the model in one piece, over the largest number."""
_GRACE_S = 5.0
_BEGIN_S = 600.0
"""For processes to begin, which says nothing of how fast they answer then."""
_MOST_IN_VAIN = 3
"""Reconfigurations in a row without a step and without a node that is gone."""


@dataclass(frozen=True)
class Arrangement:
    """Pipelines on nodes.

    Attributes:
        plan: of all. nodes: of each rank. moves: layers that are copied, from whom to whom.
    """

    plan: ExecutionPlan
    nodes: tuple[int, ...]
    moves: tuple[Move, ...]


Arrange = Callable[[Mapping[int, frozenset[Key]]], Arrangement]
"""(node -> layers that it holds, each of them somewhere) -> pipelines on all these nodes. Raises ``ConfigError`` where
there are too few."""


def run_drill(
    arrange: Arrange,
    first: Arrangement,
    *,
    iterations: int,
    failures: Sequence[Failure] = (),
    joins: Sequence[tuple[int, int]] = (),
    backend: str = "gloo",
    timeout_s: float = 30.0,
    width: int = 16,
    learning_rate: float = 1e-3,
    out: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DrillReport:
    """Train small layers in the pipelines of some nodes, let nodes die, and compare the end with a run without that.

    Args:
        arrange: composes what is left. first: of all nodes, numbered from 0 on; nothing moves.
        iterations: to train. failures: who dies when. joins: (iteration, node): nodes that come back behind it.
        backend: ``gloo``, a process for each node, or ``fake``, threads. timeout_s: of every wait for others [s].
        width: of the layers. learning_rate: Adam's. out: where the state is written if too few nodes are left.
        progress: is told every step.
    Returns:
        What happened; where too few nodes are left, ``stopped`` says so.
    Raises:
        ConfigError: an unknown node, one that fails twice, or joins while it is there. ExecutorError: loss, parameters
            or optimizer state are not those of the model in one piece; nodes that do not come to an end.
    """
    _check(first, iterations, failures, joins, backend, timeout_s, width, learning_rate)
    settings = Settings(iterations, width, timeout_s, learning_rate, tuple(failures))
    crew: Crew = ProcessCrew(timeout_s) if backend == "gloo" else ThreadCrew(timeout_s)
    master = _Master(crew, arrange, settings, list(joins), out, progress)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of small layers several cost more than they gain
    try:
        try:
            master.run(first)
        finally:
            crew.close()
        progress("the model in one piece, without failures")
        steps = master.saved_steps
        expected = run_uninterrupted(first.plan, width, learning_rate, steps)
    finally:
        torch.set_num_threads(threads)
    units = [dict(one.tensors) if one.file is None else _read(one.file) for one in master.saved]
    worst = _worst(units, expected)
    losses = tuple(master.losses[number] for number in range(steps))
    loss_error = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(losses, expected.losses, strict=True)), default=0.0)
    missing = expected.units.keys() - {key for own in units for key in own}
    if worst > TOLERANCE or loss_error > TOLERANCE or (missing and master.stopped is None):
        raise ExecutorError(
            "the drill's state is not that of the model in one piece",
            where="semu drill",
            expected=f"{len(expected.units)} layers, within {TOLERANCE:g}",
            got=f"{len(missing)} missing, losses {loss_error:.1e}, parameters and optimizer state {worst:.1e}",
        )
    return DrillReport(
        title=first.plan.name,
        backend=backend,
        nodes=len(first.nodes),
        iterations=iterations,
        losses=losses,
        recoveries=tuple(master.recoveries),
        layers=len(expected.units),
        loss_error=loss_error,
        state_error=worst,
        iteration_s=master.iteration_s,
        stopped=master.stopped,
    )


def _check(
    first: Arrangement,
    iterations: int,
    failures: Sequence[Failure],
    joins: Sequence[tuple[int, int]],
    backend: str,
    timeout_s: float,
    width: int,
    learning_rate: float,
) -> None:
    check_word(backend, BACKENDS, "backend", "--backend")
    check_integer(iterations, "--iterations", "a number of iterations", least=1)
    check_number(timeout_s, "--timeout", "a time", is_above=True)
    check_number(learning_rate, "learning_rate", "a learning rate", is_above=True)
    if width < 4 or width % 4:
        raise ConfigError("not a width", where="width", expected="a multiple of 4", got=width)
    last = max(first.nodes)
    here = dict.fromkeys(range(last + 1), True)
    failed: set[int] = set()
    events = [(one.iteration, 0, one.node) for one in failures] + [(at, 1, node) for at, node in joins]
    for iteration, is_join, node in sorted(events):
        where = "--join" if is_join else "--kill"
        if not 0 <= iteration < iterations:
            raise ConfigError("no such iteration", where=where, expected=f"0 to {iterations - 1}", got=iteration)
        if node not in here:
            raise ConfigError("no such node", where=where, expected=f"0 to {last}", got=node)
        if here[node] is bool(is_join) or (not is_join and node in failed):
            what = "a node that is there joins" if is_join else "a node fails twice"
            raise ConfigError(what, where=where, expected="each node fails once, and joins after that", got=node)
        here[node] = bool(is_join)
        failed.add(node)
    if backend == "fake" and any(one.moment is Moment.HANG for one in failures):
        raise ConfigError("a thread that hangs cannot be ended", where="--kill", expected="--backend gloo")


@dataclass
class _Master:
    """A running drill.

    Attributes:
        losses: by iteration. recoveries: in order. saved: state of all nodes at the end. stopped: why before its end.
    """

    crew: Crew
    arrange: Arrange
    settings: Settings
    joins: list[tuple[int, int]]
    out: Path | None
    progress: Callable[[str], None]
    losses: dict[int, float] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    stopped: Stopped | None = None
    iteration_s: float = 0.0
    _times: list[float] = field(default_factory=list)

    @property
    def saved_steps(self) -> int:
        """Steps of the state at the end."""
        return max((one.steps for one in self.saved), default=0)

    @property
    def _until(self) -> int:
        """Steps behind which all leave, because a node joins or all is done."""
        return min([self.settings.iterations, *(at + 1 for at, _ in self.joins)])

    def run(self, first: Arrangement) -> None:
        """All of it."""
        self.progress(f"{len(first.nodes)} nodes begin")
        self._begin(first.nodes, self.settings)
        order = Train(0, first.plan, first.nodes, (), 0, self._until)
        recovery: Recovery | None = None
        vain = 0
        while True:
            left, gone = self._trained(order, recovery)
            steps = max((one.steps for one in left.values()), default=order.steps)
            if not left:
                raise ExecutorError("no node is left", where="semu drill", got=f"{len(order.nodes)} were there")
            held = {node: one.keys for node, one in left.items()}
            lost = _unheld(order.plan, held)
            if lost is not None or steps >= self.settings.iterations:
                self._stop(left, steps, lost)
                return
            vain = 0 if gone or steps > order.steps else vain + 1
            if vain > _MOST_IN_VAIN:
                reason = next((one.reason for one in left.values() if one.reason), None)
                raise ExecutorError("nodes do not come together again", where="semu drill", got=reason)
            joining = [node for at, node in self.joins if at < steps]
            self._begin(joining, replace(self.settings, failures=()))
            for node in joining:
                held[node] = frozenset()
            begin = time.monotonic()
            self.joins = [(at, node) for at, node in self.joins if at >= steps]
            try:
                found = self.arrange(held)
            except ConfigError as error:
                self._stop(left, steps, error)
                return
            arranged = time.monotonic()
            seen = [at for _, at in gone]
            noticed = [one.time_s for one in left.values() if one.reason is not None]
            since = min([*seen, *noticed], default=begin)
            recovery = Recovery(
                steps=steps,
                gone=tuple(sorted(node for node, _ in gone)),
                joined=tuple(joining),
                nodes=len(held),
                redone=bool(noticed) and len({one.steps for one in left.values()}) == 1,
                first_notice_s=max(0.0, min(noticed, default=since) - since),
                notice_s=max(0.0, max(noticed, default=since) - since),
                arrange_s=arranged - begin,
                since_s=since,
            )
            self.recoveries.append(recovery)
            who = ", ".join(f"node {node}" for node in recovery.gone) or "nobody"
            reasons = [(one.time_s, one.reason) for one in left.values() if one.reason is not None]
            why = f" ({min(reasons)[1]})" if reasons and not recovery.gone else ""
            self.progress(f"behind step {steps}: {who} gone{why}, {len(held)} nodes go on, {len(found.moves)} copies")
            order = Train(order.epoch + 1, found.plan, found.nodes, found.moves, steps, self._until)

    def _begin(self, nodes: Sequence[int], settings: Settings) -> None:
        """Start nodes and wait until all are there: others would wait for them with the timeout, and leave."""
        for node in nodes:
            self.crew.start(node, settings)
        awaited, deadline = set(nodes), time.monotonic() + _BEGIN_S
        while awaited:
            found = self.crew.wait(max(0.0, deadline - time.monotonic()))
            silent = awaited if not found else {node for node, said in found if said is None}
            if silent:
                raise ExecutorError(
                    "nodes have ended or do not begin", where="semu drill", expected="their word", got=sorted(silent)
                )
            awaited -= {node for node, said in found if isinstance(said, Here)}

    def _trained(self, order: Train, recovery: Recovery | None) -> tuple[dict[int, Left], list[tuple[int, float]]]:
        """Have the nodes train until all have left or are gone: what those say that left, who is gone since when."""
        for node in order.nodes:
            self.crew.send(node, order)
        left: dict[int, Left] = {}
        gone: list[tuple[int, float]] = []
        open_nodes = set(order.nodes)
        deadline: float | None = None
        limit = self.settings.timeout_s + _GRACE_S
        while open_nodes:
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = self.crew.wait(wait_s)
            if not found and deadline is not None and time.monotonic() >= deadline:
                for node in sorted(open_nodes):
                    self.crew.kill(node)
                    gone.append((node, time.monotonic()))
                break
            for node, said in found:
                if said is None and node in open_nodes:
                    gone.append((node, time.monotonic()))
                    open_nodes.discard(node)
                elif said is None and node in left:  # after it had left
                    gone.append((node, time.monotonic()))
                    del left[node]
                elif isinstance(said, Left) and said.epoch == order.epoch:
                    left[node] = said
                    open_nodes.discard(node)
                elif isinstance(said, Ready) and recovery is not None:
                    recovery.add(said)
                elif isinstance(said, Stepped):
                    self._count(said, recovery)
            if (gone or left) and deadline is None:
                deadline = time.monotonic() + limit
        return left, gone

    def _count(self, said: Stepped, recovery: Recovery | None) -> None:
        if said.iteration in self.losses:
            return
        self.losses[said.iteration] = said.loss
        self._times.append(said.time_s)
        self.progress(f"iteration {said.iteration}: loss {said.loss:.9g}")
        if recovery is not None and recovery.again_s == 0.0:
            recovery.again_s = said.time_s - recovery.since_s
        elif len(self._times) > 1:
            spans = sorted(b - a for a, b in zip(self._times, self._times[1:], strict=False))
            self.iteration_s = spans[len(spans) // 2]

    def _stop(self, left: Mapping[int, Left], steps: int, error: SemuError | None = None) -> None:
        """Collect the state of all nodes, or have it written where training cannot go on."""
        folder = None
        if error is not None and self.out is not None:
            folder = make_folder(self.out / "saved")
        for node in left:
            self.crew.send(node, Stop(steps, None if folder is None else str(folder / f"node-{node}.pt")))
        open_nodes = set(left)
        deadline = time.monotonic() + self.settings.timeout_s + _GRACE_S
        while open_nodes:
            found = self.crew.wait(max(0.0, deadline - time.monotonic()))
            if not found:
                raise ExecutorError(
                    "nodes did not end", where="semu drill", expected="their state", got=sorted(open_nodes)
                )
            for node, said in found:
                if isinstance(said, Saved):
                    self.saved.append(said)
                    open_nodes.discard(node)
                elif said is None and node in open_nodes:
                    open_nodes.discard(node)
        if error is not None:
            files = tuple(one.file for one in self.saved if one.file is not None)
            self.stopped = Stopped(str(error), steps, tuple(sorted(left)), files)


def _unheld(plan: ExecutionPlan, held: Mapping[int, frozenset[Key]]) -> ConfigError | None:
    """Which layers of a plan no node holds, as an error; None: each is held."""
    there = frozenset[Key]().union(*held.values())
    lost: dict[str, list[int]] = {}
    for chunk in plan.chunks:
        for layer in range(chunk.first_layer, chunk.first_layer + chunk.num_layers):
            if (chunk.module, layer) not in there and layer not in lost.setdefault(chunk.module, []):
                lost[chunk.module].append(layer)
    said = [f"layers {', '.join(map(str, sorted(layers)))} of {module}" for module, layers in lost.items() if layers]
    if not said:
        return None
    return ConfigError(
        f"no node holds {' and '.join(said)}", where="nodes", expected="failures that leave a copy of every layer"
    )


def _read(file: str) -> dict[Key, list[list[torch.Tensor]]]:
    found: dict[str, Any] = torch.load(file, weights_only=True)
    layers: dict[Key, list[list[torch.Tensor]]] = found["layers"]
    return layers


def _worst(nodes: Sequence[Mapping[Key, list[list[torch.Tensor]]]], expected: Uninterrupted) -> float:
    """Largest difference of any tensor from that of the model in one piece, over the largest number in that."""
    worst = 0.0
    for units in nodes:
        for key, unit in units.items():
            for tensors, others in zip(unit, expected.units[key], strict=True):
                for tensor, other in zip(tensors, others, strict=True):
                    scale = max(float(other.abs().max()), 1e-30)
                    worst = max(worst, float((tensor - other).abs().max()) / scale)
    return worst
