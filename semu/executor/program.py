"""``Program``: a plan made ready for one rank and replica: steps with everything that they need at hand."""

from __future__ import annotations

from semu.errors import ExecutorError
from semu.executor.edges import Edge, Stage, linked_stages, match_messages
from semu.executor.model import PipelineModel
from semu.executor.recording import PHASES
from semu.executor.shapes import StageShapes
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass


@dataclass(slots=True, eq=False)
class End:
    """A rank's end of a message.

    Attributes:
        message: its number. edge: what it carries. is_gradient: backwards. is_send: else this rank receives it.
        peer, tag: for the communicator.
    """

    message: int
    edge: Edge
    is_gradient: bool
    is_send: bool
    peer: int
    tag: int


@dataclass(slots=True)
class Step:
    """What is done at once: one action, or the launches of a batch.

    Attributes:
        action: number of the first action in the rank's list. kind: of that action.
        stage: of computation, else None. ends: of communication, those with something to carry on this replica.
    """

    action: int
    kind: ActionKind
    stage: Stage | None
    ends: tuple[End, ...]


@dataclass(frozen=True)
class Program:
    """A rank's steps; to be run again only on data of the same shapes.

    Attributes:
        plan: what it was made from. rank, replica: for whom. steps: in order. stages: all pairs of the plan.
        shapes: of what is received.
    """

    plan: ExecutionPlan
    rank: int
    replica: int
    steps: tuple[Step, ...]
    stages: tuple[Stage, ...]
    shapes: StageShapes

    def describe(self, step: Step) -> str:
        """A step for people: ``action 7, forward_stage 2F0 (llm, microbatch 0)``."""
        plan = self.plan
        if step.stage is not None and step.kind.is_exchange:
            letter = "F" if step.kind is ActionKind.EXCHANGE else "B"
            return f"action {step.action}, {step.kind} before {stage_text(plan, step.stage, letter)}"
        if step.stage is not None:
            return f"action {step.action}, {step.kind} {stage_text(plan, step.stage, PHASES[step.kind].value)}"
        said = []
        for end in step.ends:
            source = int(plan.messages.source[end.message])
            stage = stage_text(plan, self.stages[source // 2], "B" if source % 2 else "F")
            said.append(f"message {end.message} {'to' if end.is_send else 'from'} rank {end.peer}, of {stage}")
        return f"action {step.action}, {step.kind} of " + "; ".join(said)


def stage_text(plan: ExecutionPlan, stage: Stage, letter: str) -> str:
    """``2F0 (llm, microbatch 0)``; with the part, where a microbatch has several."""
    is_cut = plan.pairs.part[plan.pairs.chunk == stage.chunk].max(initial=0) > 0
    part = f", part {stage.part}" if is_cut else ""
    module = plan.chunks[stage.chunk].module
    return f"{stage.chunk}{letter}{stage.microbatch} ({module}, microbatch {stage.microbatch}{part})"


def make_program(plan: ExecutionPlan, model: PipelineModel, rank: int, replica: int) -> Program:
    """Bind a plan to a rank's model.

    Raises:
        ExecutorError: a plan for other chunks than the model has, or with messages that do not fit its modules.
    """
    stages = linked_stages(plan, model.sources, replica)
    match_messages(plan, stages)
    _check_model(plan, model, rank)
    messages = plan.messages
    edges = {}
    for stage in stages:
        for edge in stage.readers:
            edges[edge.message] = edges[-2 - edge.gradient] = edge
    actions = plan.actions[rank]
    kinds, targets, batches = actions.kind.tolist(), actions.target.tolist(), actions.batch.tolist()
    peers = messages.source_rank.tolist(), messages.target_rank.tolist()
    tags, sources = messages.tag.tolist(), messages.source.tolist()
    steps: list[Step] = []
    open_batch = -1
    for number, (code, target, batch) in enumerate(zip(kinds, targets, batches, strict=True)):
        kind = KINDS[code]
        if kind.is_stage or kind.is_exchange:
            steps.append(Step(number, kind, stages[target], ()))
            open_batch = -1
            continue
        is_gradient = bool(sources[target] % 2)
        edge = edges[-2 - target if is_gradient else target]
        is_send = kind in (ActionKind.ISEND, ActionKind.WAIT_ISEND)
        peer = peers[1 if is_send else 0][target]
        ends = () if edge.is_empty else (End(target, edge, is_gradient, is_send, peer, tags[target]),)
        is_launch = kind in (ActionKind.ISEND, ActionKind.IRECV)
        if is_launch and batch >= 0 and batch == open_batch:
            steps[-1].ends += ends
        else:
            open_batch = batch if is_launch else -1
            steps.append(Step(number, kind, None, ends))
    kept = tuple(step for step in steps if step.ends or (step.stage is not None and not step.stage.is_empty))
    return Program(plan, rank, replica, kept, tuple(stages), StageShapes(plan, model, stages))


def _check_model(plan: ExecutionPlan, model: PipelineModel, rank: int) -> None:
    if model.model_hash is not None and model.model_hash != plan.model_hash:
        raise ExecutorError(
            "a plan for another model",
            where=f"rank {rank}: plan.model_hash",
            expected=model.model_hash[:16],
            got=plan.model_hash[:16],
        )
    for number, chunk in enumerate(plan.chunks):
        if chunk.rank == rank and number not in model.chunks:
            raise ExecutorError(
                f"the plan has a chunk on rank {rank} that the model lacks there",
                where=f"plan.chunks[{number}]",
                expected=", ".join(map(str, model.chunks)) or "no chunk",
                got=number,
            )
        module = model.modules[chunk.module]
        if chunk.has_backward and module.loss is None and not model.outputs(chunk.module):
            raise ExecutorError(
                "a module that is trained, whose output nobody reads",
                where=f"modules.{chunk.module}.loss",
                expected="a loss",
            )
