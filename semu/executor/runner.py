"""``Runner``: does what a plan says, action after action, with the user's stages, autograd and a communicator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from semu.errors import ExecutorError, SemuError
from semu.executor.communicator import Communicator, Handle, Operation, Tensors
from semu.executor.copies import check_shards, gradients_of, meeting_ranks, reducing_ranks, sum_copies
from semu.executor.edges import Edge, Stage
from semu.executor.model import PipelineModel, Shape
from semu.executor.program import End, Program, Step, make_program
from semu.executor.recording import Recording, common_zero, own_clock, recorder_on
from semu.executor.stage_run import StageRun
from semu.plan.action import ActionKind
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

TIMEOUT_S = 300.0
"""How long a rank waits for another one, where nothing is said."""


@dataclass(frozen=True)
class IterationResult:
    """What an iteration made, on one rank.

    Attributes:
        losses: (module, microbatch, part) -> loss, of the rank's last chunks; tensors without gradient, on the device.
        recording: when what was done; None: it was not recorded.
    """

    losses: dict[tuple[str, int, int], torch.Tensor]
    recording: Recording | None

    def loss(self) -> float:
        """The sum of this rank's losses; 0 without one."""
        return float(sum(loss.item() for loss in self.losses.values()))


class Runner:
    """Runs plans on one rank.

    Gradients are added to the parameters' ``grad``; clear them between iterations, and step an optimizer.

    Args:
        model: the rank's part. communicator: to the other ranks.
        timeout_s: for every wait [s]. is_recording: keep the times of all actions (``IterationResult.recording``).
        average: divide gradients by the number of data-parallel replicas.
    """

    def __init__(
        self,
        model: PipelineModel,
        communicator: Communicator,
        *,
        timeout_s: float = TIMEOUT_S,
        is_recording: bool = False,
        average: bool = True,
    ) -> None:
        self.model, self.communicator = model, communicator
        self.timeout_s, self.is_recording, self.average = timeout_s, is_recording, average
        self._is_cpu = communicator.device.type == "cpu" and torch.get_default_device().type == "cpu"
        self._do: dict[ActionKind, Callable[[Step], None]] = {
            ActionKind.FORWARD_STAGE: self._forward,
            ActionKind.BACKWARD_STAGE: self._backward,
            ActionKind.INPUT_BACKWARD_STAGE: self._input_backward,
            ActionKind.WEIGHT_BACKWARD_STAGE: self._weight_backward,
            ActionKind.ISEND: self._launch,
            ActionKind.IRECV: self._launch,
            ActionKind.WAIT_ISEND: self._wait_send,
            ActionKind.WAIT_IRECV: self._wait_receive,
            ActionKind.EXCHANGE: self._exchange,
            ActionKind.EXCHANGE_GRADIENT: self._exchange_gradient,
        }
        self._clear()

    def _clear(self) -> None:
        self._program: Any = None
        self._runs: dict[int, StageRun] = {}
        self._forwards: dict[Edge, Tensors] = {}
        """Tensors that were made or have arrived, and were not taken yet."""
        self._backwards: dict[Edge, Tensors] = {}
        self._flying: dict[int, tuple[Handle, Tensors]] = {}
        """Launched operations, by message, with their tensors."""
        self._losses: dict[tuple[str, int, int], torch.Tensor] = {}

    def prepare(self, plan: ExecutionPlan) -> Program:
        """Make a plan ready; a program may run many times.

        Raises:
            ExecutorError: a plan for another world, other shards, another model, or with messages that do not fit its
                modules.
        """
        mine = self.communicator
        if (plan.num_ranks, plan.num_replicas) != (mine.num_ranks, mine.num_replicas):
            raise ExecutorError(
                "a plan for another world",
                where=f"rank {mine.rank}: plan",
                expected=f"{mine.num_ranks} pipeline ranks x {mine.num_replicas} replicas",
                got=f"{plan.num_ranks} x {plan.num_replicas}",
            )
        check_shards(plan, mine)
        program = make_program(plan, self.model, mine.rank, mine.replica)
        mine.connect([*meeting_ranks(plan), *reducing_ranks(plan)])
        return program

    def run(self, plan: ExecutionPlan | Program) -> IterationResult:
        """Run one iteration.

        Raises:
            ExecutorError: a stage raised, another rank is gone or silent for longer than the timeout; the rank, the
                action and the stage are named.
        """
        step, program = None, None
        mine = self.communicator
        record = recorder_on(mine.device) if self.is_recording else None
        try:
            program = self._program = plan if isinstance(plan, Program) else self.prepare(plan)
            if record is not None:
                record.begin(common_zero(mine.gather(own_clock(), self.timeout_s)))
            do = self._do
            for step in program.steps:
                if record is None:
                    do[step.kind](step)
                else:
                    record.start(step.action)
                    do[step.kind](step)
                    record.stop()
            self._check_empty()
            step = None
            self._reduce()
            if record is not None:
                record.start(-1)
                record.stop()
            return IterationResult(self._losses, None if record is None else record.finish(mine.rank, mine.replica))
        except Exception as error:
            failure = self._explained(error, program, step)
            mine.abort(str(failure))
            raise failure from error
        finally:
            self._clear()

    # -- stages ------------------------------------------------------------------------------------------------------
    def _forward(self, step: Step) -> None:
        stage = step.stage
        assert stage is not None
        run = StageRun(self._program, stage, self.model)
        loss = run.forward(self._forwards, self.communicator.device)
        gang = self._gang_of(stage)
        if loss is not None and stage.chunk == (gang or (stage.chunk,))[0]:  # members have the same one
            module = self._program.plan.chunks[stage.chunk].module
            self._losses[module, stage.microbatch, stage.part] = loss
        if stage.has_backward:
            self._runs[stage.pair] = run

    def _backward(self, step: Step) -> None:
        self._run_of(step).backward(self._backwards)
        del self._runs[_pair(step)]

    def _input_backward(self, step: Step) -> None:
        self._run_of(step).input_backward(self._backwards)

    def _weight_backward(self, step: Step) -> None:
        self._run_of(step).weight_backward()
        del self._runs[_pair(step)]

    def _run_of(self, step: Step) -> StageRun:
        run = self._runs.get(_pair(step))
        if run is None:
            raise ExecutorError("a backward without its forward", expected="the forward of the stage before it")
        return run

    # -- communication -----------------------------------------------------------------------------------------------
    def _launch(self, step: Step) -> None:
        operations = [
            Operation(end.is_send, end.peer, end.tag, self._taken(end) if end.is_send else self._buffers(end))
            for end in step.ends
        ]
        handles = self.communicator.launch(operations)
        for end, operation, handle in zip(step.ends, operations, handles, strict=True):
            self._flying[end.message] = (handle, operation.tensors)

    def _taken(self, end: End) -> Tensors:
        """What is sent."""
        waiting = self._backwards if end.is_gradient else self._forwards
        if end.edge not in waiting:
            raise ExecutorError("nothing to send", expected="the stage that makes it before the send")
        tensors = tuple([tensor.contiguous() for tensor in waiting.pop(end.edge)])
        if not end.is_gradient:
            chunk = self._program.stages[end.edge.source].chunk
            if self.model.shapes is not None or chunk not in self.model.checked:
                self._check_shapes(end, tensors)
                self.model.checked.add(chunk)
        return tensors

    def _check_shapes(self, end: End, tensors: Tensors) -> None:
        """What is sent is what the other end has made room for: always if the user tells it, else once per chunk."""
        told = self._program.shapes.of_edge(end.edge)
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        if shapes == list(told):
            return
        made = str(shapes)
        if self.model.shapes is not None:
            raise ExecutorError(
                "a stage's outputs are not what shapes() tells", where="PipelineModel.shapes", expected=made, got=told
            )
        raise ExecutorError(
            f"a stage's outputs {made} are not what its layers make on torch's meta device",
            where="PipelineModel.skeletons",
            expected="the same, or PipelineModel(shapes=...), e.g. where autocast chooses the types",
            got=told,
        )

    def _gang_of(self, stage: Stage) -> tuple[int, ...]:
        """The chunks of the gang of a stage's chunk; empty: it is in none."""
        plan = self._program.plan
        if plan.chunks[stage.chunk].gang < 0:
            return ()
        return next(gang for gang in plan.gangs if stage.chunk in gang)

    def _exchange(self, step: Step) -> None:
        """Meet before a forward; what arrives goes to all."""
        assert step.stage is not None
        edges = [edge for group in step.stage.reads for edge in group if not edge.is_empty]
        self._meet(step.stage, [(edge, self._program.stages[edge.source].rank) for edge in edges], self._forwards)

    def _exchange_gradient(self, step: Step) -> None:
        """Meet before a backward; gradients of what the gang handed on go to all."""
        assert step.stage is not None
        edges = [edge for edge in step.stage.readers if edge.has_gradient and not edge.is_empty]
        self._meet(step.stage, [(edge, self._program.stages[edge.target].rank) for edge in edges], self._backwards)

    def _meet(self, stage: Stage, given: list[tuple[Edge, int]], waiting: dict[Edge, Tensors]) -> None:
        """Broadcast what some edges carry. ``given``: edges, and the ranks on which it is."""
        plan, mine = self._program.plan, self.communicator
        ranks = [plan.chunks[chunk].rank for chunk in self._gang_of(stage)]
        for edge, root in given:
            if root == mine.rank:
                tensors = tuple(tensor.contiguous() for tensor in waiting[edge])
            elif waiting is self._forwards:
                tensors = self._empty(self._program.shapes.of_edge(edge))
            else:
                tensors = self._empty(self._runs[stage.pair].gradient_shapes(edge))
            mine.broadcast(tensors, root, ranks, self.timeout_s)
            waiting[edge] = tensors
        if not given:
            mine.sum_over_ranks((torch.zeros(1, device=mine.device),), ranks, self.timeout_s)

    def _empty(self, shapes: Sequence[Shape]) -> Tensors:
        return tuple(torch.empty(size, dtype=dtype, device=self.communicator.device) for size, dtype in shapes)

    def _buffers(self, end: End) -> Tensors:
        """Where something is received."""
        run = self._runs.get(end.edge.source) if end.is_gradient else None
        shapes = self._program.shapes.of_edge(end.edge) if run is None else run.gradient_shapes(end.edge)
        if end.is_gradient and run is None:  # taken before the forward has run
            shapes = [one for one in shapes if one[1].is_floating_point]
        if self._is_cpu:  # the default device costs less
            return tuple([torch.empty(size, dtype=dtype) for size, dtype in shapes])
        return tuple(torch.empty(size, dtype=dtype, device=self.communicator.device) for size, dtype in shapes)

    def _wait_send(self, step: Step) -> None:
        for end in step.ends:
            handle, _ = self._flying[end.message]
            handle.wait(self.timeout_s)
            del self._flying[end.message]

    def _wait_receive(self, step: Step) -> None:
        for end in step.ends:
            handle, tensors = self._flying[end.message]
            handle.wait(self.timeout_s)
            del self._flying[end.message]
            (self._backwards if end.is_gradient else self._forwards)[end.edge] = tensors

    # -- the end -----------------------------------------------------------------------------------------------------
    def _reduce(self) -> None:
        """Gradients of copies and of replicas."""
        mine = self.communicator
        sum_copies(self._program.plan, self.model, mine, self.timeout_s)
        if mine.num_replicas == 1:
            return
        gradients = gradients_of(self.model.parameters())
        mine.sum_over_replicas(gradients, self.timeout_s)
        if self.average:
            for gradient in gradients:
                gradient /= mine.num_replicas

    def _check_empty(self) -> None:
        left = [
            f"{len(found)} {what}"
            for found, what in (
                (self._flying, "operations without a wait"),
                (self._forwards, "activations that no stage has read"),
                (self._backwards, "gradients that no stage has read"),
                (self._runs, "stages without a backward"),
            )
            if found
        ]
        if left:
            raise ExecutorError("the plan ends too early", expected="every buffer freed", got=", ".join(left))

    def _explained(self, error: Exception, program: Program | None, step: Step | None) -> SemuError:
        """The error that says which rank, action and stage."""
        mine = self.communicator
        where = f"rank {mine.rank}" + (f", replica {mine.replica}" if mine.num_replicas > 1 else "")
        if program is None and isinstance(error, SemuError):
            return error if isinstance(error, ExecutorError) else ExecutorError(str(error), where=where)
        where += f": {program.describe(step)}" if step is not None and program is not None else ": end of the iteration"
        is_own = step is not None and step.kind.is_stage  # the user's code, whatever it raises
        if isinstance(error, TimeoutError) and not is_own:
            return ExecutorError(
                "no answer from another rank",
                where=where,
                expected=f"it within {self.timeout_s:g} s",
                got=mine.reason() or str(error),
            )
        if isinstance(error, ConnectionError) and not is_own:
            return ExecutorError("another rank has failed", where=where, got=mine.reason() or str(error))
        if isinstance(error, ExecutorError):
            return ExecutorError.of(error, where=f"{where}: {error.where}" if error.where else where)
        return ExecutorError(f"the stage raised {type(error).__name__}: {error}", where=where)


def _pair(step: Step) -> int:
    assert step.stage is not None
    return step.stage.pair


def run_plan(
    plan: ExecutionPlan, model: PipelineModel, communicator: Communicator, *, timeout_s: float = TIMEOUT_S
) -> IterationResult:
    """Run one iteration of a plan on this rank; every rank calls it.

    Args:
        plan: the same on all ranks, one that ``semu.plan.verification.rules.verify`` accepts; it is not verified
            again.
        model: this rank's chunks. communicator: to the others.
        timeout_s: for every wait [s].
    Raises:
        ExecutorError: as ``Runner.run``.
    """
    return Runner(model, communicator, timeout_s=timeout_s).run(plan)


def run_plans(
    plans: Iterable[ExecutionPlan], model: PipelineModel, communicator: Communicator, *, timeout_s: float = TIMEOUT_S
) -> Iterator[IterationResult]:
    """Run one plan after another; step the optimizer between two results.

    Args:
        plans: e.g. those of ``semu.executor.received_plans``. model, communicator, timeout_s: as ``run_plan``.
    Raises:
        ExecutorError: as ``Runner.run``.
    """
    runner = Runner(model, communicator, timeout_s=timeout_s)
    for plan in plans:
        yield runner.run(plan)
