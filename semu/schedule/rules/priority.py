"""``Priority``: at every step each rank takes the stage that two priorities put first (FlexPipe §5, Algorithm 1).

The computation type traversal priority says whether a forward or a backward comes first, the stage traversal priorities
of which chunk (Table 2); limits of microbatches in flight and check functions may refuse a forward (Fig. 7). A rank
that finds nothing waits for what is on its way. FlexPipe's steps take equally long; here every stage takes its own time
unless ``clock`` is ``"steps"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from semu.checks import check_word
from semu.errors import ConfigError, unknown_name
from semu.records import dataclass
from semu.schedule.rules.expressions import Number, Size, value_of
from semu.schedule.rules.hooks import Check, Choose, Hooks
from semu.schedule.rules.instructions import Instruction, waits_of
from semu.schedule.rules.limits import NO_LIMIT, checked_limits
from semu.schedule.rules.machine import Limits, find_order
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.traversal import Breadth, Oldest, Traversal
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

PREFER = ("backward", "forward", "alternate")
"""Which type of computation comes first; the position of a word is its code in ``rules.kernels.machine``."""
CHECKS = ("patient",)
"""Check functions that are compiled. patient: a forward does not start where it would delay a backward that is on its
way."""


@dataclass(frozen=True)
class Priority(Rule):
    """FlexPipe's rule: what comes first, and what must not start.

    Attributes:
        prefer: type of computation that comes first: ``backward``, ``forward``, or ``alternate`` (FlexPipe:
            interleaved), that which did not run last.
        units: how many forwards, how many backwards run before the other type may come first again.
        forward, backward: of which chunk.
        in_flight: the most virtual stages whose activations a rank holds; on a pipeline with costs, as bytes, by what
            its largest microbatch leaves on the rank. Several numbers: the most microbatches in flight of each virtual
            stage.
        admission: with in_flight on ranks of several chunks, a microbatch enters where every rank has room for all of
            it (``microbatch``), or wherever its first forward fits (``stage``), which some limits make wait for ever.
        when_blocked: where a run's next stage is not there, or from the first backward on the other type under
            ``alternate``, a rank takes what else is ready (``yield``, Algorithm 1) or waits (``wait``).
        checks: names of ``CHECKS``, which are compiled, or functions of a ``Step`` and a stage that say whether the
            stage may start (FlexPipe Fig. 7): about 100 times slower.
        choose: a function of a ``Step`` that says which stage starts, in the place of both priorities and all limits.
        modules: rules of modality modules by name; a rank that holds chunks of one of them alone follows its rule.
        instructions: new ones by name, with what they hold back across modules.
        clock: ``costs``: every stage takes its time; ``steps``: each takes a step and holds the same, as in FlexPipe.
    """

    prefer: Literal["backward", "forward", "alternate"] = "backward"
    units: tuple[Number, Number] = (1, 1)
    forward: Traversal = field(default_factory=Breadth)
    backward: Traversal = field(default_factory=Breadth)
    in_flight: Number | tuple[Number, ...] | None = None
    admission: Literal["microbatch", "stage"] = "microbatch"
    when_blocked: Literal["yield", "wait"] = "yield"
    checks: tuple[str | Check, ...] = ()
    modules: Mapping[str, Priority] | tuple[tuple[str, Priority], ...] = ()
    instructions: Mapping[str, Instruction] | tuple[tuple[str, Instruction], ...] = ()
    clock: Literal["costs", "steps"] = "costs"
    choose: Choose | None = None

    def __post_init__(self) -> None:
        check_word(self.prefer, PREFER, "type of computation", "prefer")
        check_word(self.admission, ("microbatch", "stage"), "admission", "admission")
        check_word(self.when_blocked, ("yield", "wait"), "word", "when_blocked")
        check_word(self.clock, ("costs", "steps"), "clock", "clock")
        for name in self.checks:
            if not callable(name) and name not in CHECKS:
                raise unknown_name("check", name, CHECKS, where="checks")
        object.__setattr__(self, "modules", tuple(sorted(dict(self.modules).items())))
        object.__setattr__(self, "instructions", tuple(sorted(dict(self.instructions).items())))

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return self.on(PipelineStudy.of(shape))

    def on(self, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> StageColumns:
        """See ``Rule``; under ``clock = "steps"`` neither the costs nor ``limit_bytes`` matter."""
        shape = study.shape
        if self.clock == "steps":
            study, limit_bytes = PipelineStudy.of(shape, input_s=0.5, weight_s=0.5), None
        study = self.waiting(study)
        rules = self._rules_of_ranks(shape)
        table = np.array([rule.codes(shape, rank) for rank, rule in enumerate(rules)], dtype=np.int64)
        is_breadth = tuple((type(rule.forward) is Breadth, type(rule.backward) is Breadth) for rule in rules)
        asked = tuple(check for rule in dict.fromkeys((self, *rules)) for check in rule.checks if callable(check))
        hooks = Hooks(asked, self.choose) if asked or self.choose is not None else None
        return find_order(study, table, is_breadth, self._limits(study, rules, limit_bytes), hooks)

    def waiting(self, study: PipelineStudy) -> PipelineStudy:
        """The pipeline with what the instructions hold back; errors as ``waits_of``."""
        if not self.instructions:
            return study
        more = waits_of(dict(self.instructions).items(), study.shape)
        return replace(study, waits=tuple(dict.fromkeys((*study.waits, *more))))

    def _rules_of_ranks(self, shape: PipelineShape) -> list[Priority]:
        """The rule that each rank follows.

        Raises:
            ConfigError: a module that the pipeline does not have.
        """
        rules, known = dict(self.modules), sorted(set(shape.chunk_module))
        for name in rules:
            if name not in known:
                raise unknown_name("module", name, known, where="modules")
        found = []
        for rank in range(shape.num_ranks):
            modules = {shape.chunk_module[chunk] for chunk in shape.chunks_of(rank)}
            found.append(rules.get(min(modules), self) if len(modules) == 1 else self)
        return found

    def codes(self, shape: PipelineShape, rank: int) -> tuple[int, ...]:
        """The columns of ``rules.kernels.machine`` for a rank."""
        size = Size(shape.num_ranks, rank, shape.num_slots, shape.num_microbatches)
        ways = {"forward": self.forward, "backward": self.backward}
        return (
            PREFER.index(self.prefer),
            self.when_blocked == "wait",
            "patient" in self.checks,
            *(value_of(unit, size, "units", 1) for unit in self.units),
            *(0 if way.run is None else value_of(way.run, size, f"{name}.run", 1) for name, way in ways.items()),
            *(type(way) is Oldest for way in ways.values()),
            *(way.is_last for way in ways.values()),
        )

    def _limits(self, study: PipelineStudy, rules: list[Priority], limit_bytes: ArrayLike | None) -> Limits:
        shape = study.shape
        p, v, m = shape.num_ranks, shape.num_slots, shape.num_microbatches
        limit = np.array(np.broadcast_to(NO_LIMIT if limit_bytes is None else limit_bytes, (p,)), dtype=np.int64)
        of_chunk = np.full(shape.num_chunks, NO_LIMIT, dtype=np.int64)
        most, copies = study.held_bytes.max(axis=0, initial=0), max(shape.chunk_flow, default=0) + 1
        for rank, rule in enumerate(rules):
            given, size = rule.in_flight, Size(p, rank, v, m)
            slots = len({shape.chunk_slot[chunk] for chunk in shape.chunks_of(rank)})
            if isinstance(given, tuple):
                if len(given) != v:
                    expected = f"{v} numbers, one per virtual stage"
                    raise ConfigError("limits of another length", where="in_flight", expected=expected, got=len(given))
                for chunk in shape.chunks_of(rank):
                    if shape.has_backward[chunk]:
                        of_chunk[chunk] = value_of(given[shape.chunk_slot[chunk]], size, "in_flight", 1)
            elif given is not None:
                limit[rank] = min(
                    limit[rank], value_of(given, size, "in_flight", 1) * int(most[rank]) // max(slots // copies, 1)
                )
        admits = self.admission == "microbatch"
        return Limits(checked_limits(study, limit) if admits else limit, of_chunk, admits)
