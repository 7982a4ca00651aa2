"""Layers of experts that run in pairs: where their exchanges and computation stand, and stages with what is exposed.

``hidden_exchanges`` says how such a pair runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from semu.compile.combined.hidden_exchanges import HiddenExchanges, LayerParts, Rows
from semu.compile.stage import StageProgram
from semu.compile.template import HalfTemplate, Template
from semu.graph.operator import Phase
from semu.hardware.device import DeviceKind
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.records import dataclass

EXPERT_STREAMS = ("ep", "etp")
"""Streams of the communicators that move tokens to experts."""


@dataclass(frozen=True)
class Hiding:
    """How exchanges hide.

    Attributes:
        delays: weight gradients run behind the gradients of inputs. serial: no other communication of a stage hides.
    """

    delays: bool
    serial: bool


def hiding_of(job: TrainingJob) -> Hiding | None:
    """How a job's exchanges of experts' tokens hide behind another microbatch; None: they do not."""
    if not job.hides_exchanges:
        return None
    return Hiding(job.training.overlap.delayed_weight_gradients, serial=not job.overlaps_tensor_parallel)


def layer_parts(template: Template, how: Hiding) -> LayerParts | None:
    """The parts of a layer; None: it has no experts on other ranks, or they are not trained.

    Collectives of other groups count as compute where nothing hides them: in the forward, and everywhere where no
    communication hides.
    """
    first = len(template.forward.operators)
    there, back = _ways(template.forward), _ways(template.backward)
    if there is None or back is None:
        return None
    (dispatch, combine), (combine_back, dispatch_back) = there, back
    outside, between = _compute(template.forward, dispatch, combine, serial=True)
    outside_back, between_back = _compute(template.backward, combine_back, dispatch_back, serial=how.serial)

    def _split(positions: Rows) -> tuple[Rows, Rows]:
        operators = template.backward.operators
        late = tuple(p for p in positions if how.delays and operators[p].phase is Phase.WEIGHT_GRADIENT)
        return tuple(p + first for p in positions if p not in late), tuple(p + first for p in late)

    attention_back, attention_weights = _split(outside_back)
    experts_back, experts_weights = _split(between_back)
    return LayerParts(
        dispatch,
        combine,
        tuple(p + first for p in combine_back),
        tuple(p + first for p in dispatch_back),
        outside,
        between,
        attention_back,
        experts_back,
        attention_weights,
        experts_weights,
    )


def _ways(half: HalfTemplate) -> tuple[Rows, Rows] | None:
    """The exchanges to the experts and back, or the other way round; None where there are not two."""
    found: list[list[int]] = []
    for position, operator in enumerate(half.operators):
        if operator.stream.device.kind is not DeviceKind.LINK or operator.stream.name not in EXPERT_STREAMS:
            continue
        if found and position == found[-1][-1] + 1:
            found[-1].append(position)
        else:
            found.append([position])
    return (tuple(found[0]), tuple(found[1])) if len(found) == 2 else None


def _compute(half: HalfTemplate, first: Rows, second: Rows, *, serial: bool) -> tuple[Rows, Rows]:
    """Positions of what fills time outside two exchanges, and between them: computation, and with ``serial`` other
    groups' collectives."""
    compute = [
        position
        for position, operator in enumerate(half.operators)
        if operator.stream.device.kind is not DeviceKind.LINK or (serial and operator.kind is not OpKind.P2P)
    ]
    return (
        tuple(p for p in compute if p < first[0] or p > second[-1]),
        tuple(p for p in compute if first[-1] < p < second[0]),
    )


def hidden_template(template: Template, parts: LayerParts) -> Template:
    """The exchanges of a layer again, to be costed by their exposed parts; nothing else."""
    operators = [template.operators[position] for position in parts.exchanges]
    return Template.of_transfers(operators, (), (), template.groups)


def hiding_programs(hidden: Sequence[HiddenExchanges]) -> Callable[[StageProgram], StageProgram]:
    """Stage -> the same with the exposed parts in the place of its exchanges, one object for one."""
    row_of = {row: by for layer in hidden for row, by in layer.row_of.items()}
    made: dict[StageProgram, StageProgram] = {}

    def _of(program: StageProgram) -> StageProgram:
        if program not in made:
            rows = np.array([row_of.get(row, row) for row in program.rows.tolist()], dtype=program.rows.dtype)
            made[program] = replace(program, rows=rows)
        return made[program]

    return _of
