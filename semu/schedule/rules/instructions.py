"""``Instruction``: a new instruction of a rule, with dependencies across modality modules (FlexPipe §4.2, Fig. 6).

FlexPipe registers an instruction with the stages that must have been scheduled before it (``check_prev_dep``), the
stages that follow it (``check_nxt_dep``, ``set_cssr_deps``), and so many microbatches at a time (``sched_unit``). Here
an instruction stands after some stages and before others, which wait for the first, group by group of microbatches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from semu.errors import ConfigError, ScheduleError, unknown_name
from semu.records import dataclass
from semu.schedule.graph import Wait
from semu.schedule.phases import BACKWARD, FORWARD, LETTERS
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.rule import one_value
from semu.schedule.shape import PipelineShape

_STAGES = re.compile(r"([\w.-]+):([FB])")


@dataclass(frozen=True)
class Instruction:
    """An exchange between modality modules, and what it holds back.

    Attributes:
        after: stages that must have ended, as ``module:F``, the end of a module's forward, or ``module:B``.
        before: stages that wait for it, as ``module:F``, the beginning of a module's forward, or ``module:B``.
        every: microbatches of a group: the stages of a group wait for those of the whole group.
    """

    after: tuple[str, ...]
    before: tuple[str, ...]
    every: Number = 1

    def __post_init__(self) -> None:
        for name in ("after", "before"):
            stages = getattr(self, name)
            wrong = [text for text in stages if not isinstance(text, str) or not _STAGES.fullmatch(text)]
            if wrong or not stages:
                expected = "stages as module:F or module:B"
                raise ConfigError(
                    "not stages of modules", where=f"instructions.{name}", expected=expected, got=[*wrong]
                )

    def waits(self, shape: PipelineShape) -> Iterator[Wait]:
        """What waits for what.

        Raises:
            ConfigError: a module that the pipeline does not have, a module without backwards, a group of no microbatch.
        """
        every = one_value(self.every, shape, "instructions.every", 1)
        for first in self.after:
            for code, chunk in _chunks_of(first, shape, is_end=True):
                for second in self.before:
                    for other_code, other in _chunks_of(second, shape, is_end=False):
                        yield Wait(chunk, code, other, other_code, every)


def _chunks_of(text: str, shape: PipelineShape, *, is_end: bool) -> Iterator[tuple[int, int]]:
    """(phase, chunk) of the stages with which a module ends, or begins, its forward or backward."""
    module, _, letter = text.partition(":")
    known = list(dict.fromkeys(name for name in shape.chunk_module if name))
    if module not in known:
        raise unknown_name("module", module, known, where="instructions")
    code = LETTERS.index(letter)
    chunks = [chunk for chunk, name in enumerate(shape.chunk_module) if name == module]
    inner = [source for chunk in chunks for source in shape.sources[chunk] if source in chunks]
    read = [chunk for chunk in chunks if any(source in chunks for source in shape.sources[chunk])]
    through = inner if (code == FORWARD) == is_end else read
    for chunk in chunks:
        if chunk not in through:
            if code == BACKWARD and not shape.has_backward[chunk]:
                raise ConfigError(
                    "a module without backwards", where="instructions", expected="stages that run", got=text
                )
            yield code, chunk


def waits_of(instructions: Iterable[tuple[str, Instruction]], shape: PipelineShape) -> tuple[Wait, ...]:
    """What the instructions of a rule hold back.

    Raises:
        ConfigError: as ``Instruction.waits``. ScheduleError: dependencies that form a cycle.
    """
    waits = []
    for name, instruction in instructions:
        waits += [*instruction.waits(shape)]
        _check_cycles(name, waits, shape)
    return tuple(dict.fromkeys(waits))


def _check_cycles(name: str, waits: Iterable[Wait], shape: PipelineShape) -> None:
    """Refuse what waits for itself: in one group of microbatches, on the stages of chunks."""
    sorter: TopologicalSorter[tuple[int, int]] = TopologicalSorter()
    for chunk, sources in enumerate(shape.sources):
        sorter.add((chunk, BACKWARD), (chunk, FORWARD))
        for source in sources:
            sorter.add((chunk, FORWARD), (source, FORWARD))
            if shape.has_backward[chunk]:
                sorter.add((source, BACKWARD), (chunk, BACKWARD))
    for wait in waits:
        sorter.add((wait.after, wait.after_code), (wait.before, wait.before_code))
    try:
        sorter.prepare()
    except CycleError as error:
        stages = [f"{chunk}{LETTERS[code]}" for chunk, code in error.args[1]]
        raise ScheduleError(
            f"the instruction {name} makes stages wait for themselves",
            where=f"instructions.{name}",
            expected="dependencies without a cycle",
            got=" -> ".join(stages),
        ) from error
