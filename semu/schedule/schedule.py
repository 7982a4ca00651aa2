"""``Schedule``: for each pipeline rank, the order of its stages. Data only; generators live one per file.

Text form, one line per rank: ``0F0 0F1 0B0 0B1`` (chunk, phase, microbatch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from semu.errors import ScheduleError
from semu.graph.operator import Phase

_STAGE = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, slots=True)
class StageKey:
    """One stage: a chunk's forward or backward computation of one microbatch."""

    chunk: int
    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.phase.value}{self.microbatch}"

    @classmethod
    def parse(cls, text: str, where: str = "schedule") -> StageKey:
        """Read ``2F0``.

        Raises:
            ScheduleError: not a stage.
        """
        match = _STAGE.fullmatch(text)
        if match is None:
            raise ScheduleError("not a stage", where=where, expected="chunk, phase, microbatch, like 2F0", got=text)
        return cls(int(match[1]), Phase(match[2]), int(match[3]))


@dataclass(frozen=True)
class PipelineShape:
    """What a schedule must order.

    Attributes:
        num_ranks: pipeline ranks. num_microbatches: microbatches of one replica.
        chunk_rank: rank of each chunk.
        sources: per chunk, the chunks whose forward output it reads.
        has_backward: per chunk, whether it has a backward stage.
        chunk_slot: per chunk, which of its rank's virtual stages it belongs to; by default all belong to the first.
    """

    num_ranks: int
    num_microbatches: int
    chunk_rank: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    has_backward: tuple[bool, ...]
    chunk_slot: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.chunk_slot:
            object.__setattr__(self, "chunk_slot", (0,) * len(self.chunk_rank))
        if len(self.chunk_slot) != len(self.chunk_rank) or min(self.chunk_slot, default=0) < 0:
            raise ScheduleError(
                "not a slot for every chunk",
                where="chunk_slot",
                expected=f"{len(self.chunk_rank)} numbers >= 0",
                got=self.chunk_slot,
            )

    @classmethod
    def chain(cls, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> PipelineShape:
        """One chunk per rank and slot, one after another over the ranks, slot by slot, all with a backward stage."""
        count = num_ranks * num_slots
        return cls(
            num_ranks,
            num_microbatches,
            tuple(c % num_ranks for c in range(count)),
            tuple((c - 1,) if c else () for c in range(count)),
            (True,) * count,
            tuple(c // num_ranks for c in range(count)),
        )

    @property
    def num_chunks(self) -> int:
        """Number of model chunks."""
        return len(self.chunk_rank)

    @property
    def num_slots(self) -> int:
        """Virtual stages per rank."""
        return max(self.chunk_slot, default=0) + 1

    def chunks_of(self, rank: int, slot: int | None = None) -> list[int]:
        """Chunks held by a rank, in order of data flow; of one of its virtual stages, or of all."""
        return list(self._held.get((rank, slot), ()))

    @cached_property
    def _held(self) -> dict[tuple[int, int | None], list[int]]:
        """Chunks by (rank, slot), and of all slots by (rank, None)."""
        held: dict[tuple[int, int | None], list[int]] = {}
        for chunk, (rank, slot) in enumerate(zip(self.chunk_rank, self.chunk_slot, strict=True)):
            held.setdefault((rank, slot), []).append(chunk)
            held.setdefault((rank, None), []).append(chunk)
        return held

    @cached_property
    def _readers(self) -> list[list[int]]:
        """For every chunk, the chunks that read its result and have a backward stage."""
        readers: list[list[int]] = [[] for _ in self.sources]
        for chunk, sources in enumerate(self.sources):
            for source in dict.fromkeys(sources):
                if self.has_backward[chunk]:
                    readers[source].append(chunk)
        return readers

    def forward(self, rank: int, microbatch: int, slot: int | None = None) -> list[StageKey]:
        """Forward stages of a rank (or of one of its virtual stages) for one microbatch, in order."""
        return [StageKey(chunk, Phase.FORWARD, microbatch) for chunk in self.chunks_of(rank, slot)]

    def backward(self, rank: int, microbatch: int, slot: int | None = None) -> list[StageKey]:
        """Backward stages of a rank (or of one of its virtual stages) for one microbatch, in order."""
        return [
            StageKey(chunk, Phase.BACKWARD, microbatch)
            for chunk in reversed(self.chunks_of(rank, slot))
            if self.has_backward[chunk]
        ]

    def predecessors(self, stage: StageKey) -> list[StageKey]:
        """Stages whose results a stage needs."""
        if stage.phase is Phase.FORWARD:
            return [StageKey(source, Phase.FORWARD, stage.microbatch) for source in self.sources[stage.chunk]]
        own = [StageKey(stage.chunk, Phase.FORWARD, stage.microbatch)]
        return own + [StageKey(chunk, Phase.BACKWARD, stage.microbatch) for chunk in self._readers[stage.chunk]]


@dataclass(frozen=True)
class Schedule:
    """An order of stages for each rank.

    Attributes:
        name: of the generator, or of the file.
        orders: per rank, its stages in order.
    """

    name: str
    orders: tuple[tuple[StageKey, ...], ...]

    @classmethod
    def build(cls, name: str, orders: Iterable[Iterable[StageKey]]) -> Schedule:
        """From any iterables of stages, one per rank."""
        return cls(name, tuple(tuple(order) for order in orders))

    def to_text(self) -> str:
        """Text form, one line per rank; ``-`` for a rank without stages."""
        return "\n".join(" ".join(str(stage) for stage in order) or "-" for order in self.orders)

    @classmethod
    def from_text(cls, text: str, name: str = "text") -> Schedule:
        """Read the text form; blank lines are skipped.

        Raises:
            ScheduleError: a word that is not a stage (rank and position are named).
        """
        lines = [[] if line.strip() == "-" else line.split() for line in text.splitlines() if line.strip()]
        return cls.build(
            name,
            (
                [StageKey.parse(word, f"{name}: rank {rank}, position {i}") for i, word in enumerate(words)]
                for rank, words in enumerate(lines)
            ),
        )

    def validate(self, shape: PipelineShape) -> None:
        """Check that every stage runs once, on its rank, and that the order cannot deadlock.

        Raises:
            ScheduleError: what is wrong and where; a deadlock is shown as a grid with an arrow at each stuck rank.
        """
        if len(self.orders) != shape.num_ranks:
            raise ScheduleError(
                "wrong number of ranks", where=self.name, expected=str(shape.num_ranks), got=len(self.orders)
            )
        seen: set[StageKey] = set()
        for rank, order in enumerate(self.orders):
            for position, stage in enumerate(order):
                self._check_stage(stage, shape, seen, f"{self.name}: rank {rank}, position {position}", rank)
                seen.add(stage)
        for microbatch in range(shape.num_microbatches):
            for rank in range(shape.num_ranks):
                for stage in (*shape.forward(rank, microbatch), *shape.backward(rank, microbatch)):
                    if stage not in seen:
                        raise ScheduleError(
                            "a stage is missing", where=f"{self.name}: rank {rank}", expected=str(stage)
                        )
        self._dry_run(shape)

    @staticmethod
    def _check_stage(stage: StageKey, shape: PipelineShape, seen: set[StageKey], where: str, rank: int) -> None:
        if not (0 <= stage.chunk < shape.num_chunks and 0 <= stage.microbatch < shape.num_microbatches):
            raise ScheduleError(
                "no such stage",
                where=where,
                expected=f"0 <= chunk < {shape.num_chunks}, 0 <= microbatch < {shape.num_microbatches}",
                got=stage,
            )
        if stage.phase not in (Phase.FORWARD, Phase.BACKWARD):
            raise ScheduleError("split backward is not executed yet", where=where, expected="phase F or B", got=stage)
        if stage.phase is Phase.BACKWARD and not shape.has_backward[stage.chunk]:
            raise ScheduleError("the chunk has no backward stage", where=where, expected="no such stage", got=stage)
        if shape.chunk_rank[stage.chunk] != rank:
            raise ScheduleError(
                "a stage on the wrong rank", where=where, expected=f"rank {shape.chunk_rank[stage.chunk]}", got=stage
            )
        if stage in seen:
            raise ScheduleError("a stage runs twice", where=where, expected="once", got=stage)

    def _dry_run(self, shape: PipelineShape) -> None:
        done: set[StageKey] = set()
        cursor = [0] * len(self.orders)
        progress = True
        while progress:
            progress = False
            for rank, order in enumerate(self.orders):
                while cursor[rank] < len(order) and all(p in done for p in shape.predecessors(order[cursor[rank]])):
                    done.add(order[cursor[rank]])
                    cursor[rank] += 1
                    progress = True
        if any(position < len(order) for position, order in zip(cursor, self.orders, strict=True)):
            raise ScheduleError(
                "the schedule deadlocks\n" + self._stuck_grid(cursor, shape, done),
                where=self.name,
                expected="an order in which every rank can go on",
            )

    def _stuck_grid(self, cursor: Sequence[int], shape: PipelineShape, done: set[StageKey]) -> str:
        lines = []
        for rank, order in enumerate(self.orders):
            before = " ".join(str(stage) for stage in order[max(0, cursor[rank] - 3) : cursor[rank]])
            if cursor[rank] == len(order):
                lines.append(f"  rank {rank}: {before} (finished)")
                continue
            stage = order[cursor[rank]]
            waits = ", ".join(str(p) for p in shape.predecessors(stage) if p not in done)
            lines.append(f"  rank {rank}: {before} -> {stage} waits for {waits}")
        return "\n".join(lines)
