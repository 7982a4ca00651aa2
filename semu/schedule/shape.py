"""``StageKey``, one stage of a pipeline, and ``PipelineShape``, what a schedule must order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.records import dataclass

_STAGE = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class StageKey:
    """One stage: a chunk's forward or backward computation of one (sub-)microbatch."""

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
        chunk_module: per chunk, the modality module that it is part of; by default one without a name.
        chunk_split: per chunk, into how many sub-microbatches its module cuts a microbatch; by default 1. Stages of
            microbatch i are numbered i x split to i x split + split - 1, and need those of other modules with which
            they share a part of the microbatch.
        part_counts: per chunk, into how many of these each microbatch is cut, 0 where it has nothing for the module
            (DIP §4: M_i = ceil(N_i / B_i) of the microbatch's N_i items); by default all. The stages of the others do
            not exist.
        joins: a stage needs all of another module's stages of its microbatch, whichever share a part of it, as the
            simulation of a job executes them.
        reads: (module, for every microbatch of its readers the numbers of its stages that they read), where that is not
            what the module makes of the same microbatch: samples that are deferred. Needs ``joins``.
        chunk_gang: per chunk, the number of its gang, -1 for none. Members of a gang lie on ranks of
            their own, hold parts of the same layers and run together: their stages of a microbatch and phase begin at
            once (but weight gradients), and what arrives at one of them it gives to the others. They read chunks of
            their own ranks. Or all read the same chunks of several ranks: then what a member reads of another rank is
            sent to it, each begins when all has come (an asynchronous all-gather, FlexPipe §7.5), and gives gradients
            to the chunks of its own rank alone. Empty: there are no gangs.
        chunk_flow, microbatch_flow: per chunk and per microbatch, which copy of the model it is part of or runs
            through (bidirectional pipelines); by default there is one.
        combines: in the steady phase of 1F1B, interleaved or not, and of DualPipe-V, the forward and the backward of a
            turn run as one (``semu.schedule.rules.combined``); under 1F1B every rank runs one more forward before it.
    """

    num_ranks: int
    num_microbatches: int
    chunk_rank: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    has_backward: tuple[bool, ...]
    chunk_slot: tuple[int, ...] = ()
    chunk_module: tuple[str, ...] = ()
    chunk_split: tuple[int, ...] = ()
    chunk_flow: tuple[int, ...] = ()
    microbatch_flow: tuple[int, ...] = ()
    part_counts: tuple[tuple[int, ...], ...] = ()
    joins: bool = False
    reads: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()
    chunk_gang: tuple[int, ...] = ()
    combines: bool = False

    def __post_init__(self) -> None:
        for field, what, default, least in (
            ("chunk_slot", "slot", 0, 0),
            ("chunk_split", "number of sub-microbatches", 1, 1),
            ("chunk_flow", "flow", 0, 0),
        ):
            values = getattr(self, field)
            if not values:
                object.__setattr__(self, field, (default,) * len(self.chunk_rank))
            elif len(values) != len(self.chunk_rank) or min(values) < least:
                expected = f"{len(self.chunk_rank)} numbers >= {least}"
                raise ScheduleError(f"not a {what} for every chunk", where=field, expected=expected, got=values)
        self._check_part_counts()
        self._check_gangs()
        if not self.chunk_module:
            object.__setattr__(self, "chunk_module", ("",) * len(self.chunk_rank))
        if not self.microbatch_flow:
            object.__setattr__(self, "microbatch_flow", (0,) * self.num_microbatches)
        elif len(self.microbatch_flow) != self.num_microbatches:
            raise ScheduleError(
                "not a flow for every microbatch",
                where="microbatch_flow",
                expected=f"{self.num_microbatches} numbers",
                got=self.microbatch_flow,
            )

    def _check_gangs(self) -> None:
        if all(gang < 0 for gang in self.chunk_gang):
            object.__setattr__(self, "chunk_gang", ())
            return
        if len(self.chunk_gang) != len(self.chunk_rank) or self.is_cut or any(self.chunk_flow):
            raise ScheduleError(
                "not a gang for every chunk, or gangs beside sub-microbatches or copies of the model",
                where="chunk_gang",
                expected=f"{len(self.chunk_rank)} numbers, whole microbatches, one copy",
                got=self.chunk_gang,
            )
        for members in self.gangs:
            ranks = [self.chunk_rank[chunk] for chunk in members]
            backs = {self.has_backward[chunk] for chunk in members}
            is_strange = self._reads_apart(members) and len({frozenset(self.sources[c]) for c in members}) > 1
            if len(set(ranks)) < len(ranks) or len(backs) > 1 or is_strange:
                raise ScheduleError(
                    "members of a gang that cannot run together",
                    where=f"chunk_gang {self.chunk_gang[members[0]]}",
                    expected="one chunk per rank, all with a backward or none, that read chunks of their own ranks, "
                    "or all the same",
                    got=f"chunks {list(members)} on ranks {ranks}",
                )

    @cached_property
    def gangs(self) -> tuple[tuple[int, ...], ...]:
        """The chunks of every gang, by its number."""
        numbers = sorted({gang for gang in self.chunk_gang if gang >= 0})
        return tuple(tuple(c for c, own in enumerate(self.chunk_gang) if own == gang) for gang in numbers)

    def _reads_apart(self, members: Sequence[int]) -> bool:
        return any(not self.gives_back(chunk, source) for chunk in members for source in self.sources[chunk])

    def gives_back(self, reader: int, source: int) -> bool:
        """Whether a chunk gives a chunk that it reads a gradient, where both have one."""
        is_own = self.chunk_rank[reader] == self.chunk_rank[source]
        return not self.chunk_gang or self.chunk_gang[reader] < 0 or is_own

    @cached_property
    def meeting(self) -> tuple[int, ...]:
        """Per chunk, the number of its gang where the gang's stages begin together, else -1."""
        apart = {number for number, members in enumerate(self.gangs) if self._reads_apart(members)}
        return tuple(-1 if gang in apart else gang for gang in self.chunk_gang) or (-1,) * self.num_chunks

    def _check_part_counts(self) -> None:
        if not self.part_counts:
            return
        every = tuple((split,) * self.num_microbatches for split in self.chunk_split)
        if self.part_counts == every:
            object.__setattr__(self, "part_counts", ())
            return
        fits = len(self.part_counts) == len(every) and all(
            len(own) == self.num_microbatches and all(0 <= n <= split for n in own)
            for own, split in zip(self.part_counts, self.chunk_split, strict=True)
        )
        if not fits:
            raise ScheduleError(
                "not a number of sub-microbatches for every chunk and microbatch",
                where="part_counts",
                expected=f"{len(every)} x {self.num_microbatches} numbers, from 0 to the chunk's chunk_split",
                got=self.part_counts,
            )

    def __hash__(self) -> int:
        """Of all that shapes are told apart by, found once: problems and units are looked up by their shapes."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(getattr(self, item.name) for item in fields(self)))
            object.__setattr__(self, "_hash", known)
        return known

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_hash"}  # another process has others

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

    @cached_property
    def num_slots(self) -> int:
        """Virtual stages per rank."""
        return max(self.chunk_slot, default=0) + 1

    @cached_property
    def is_v_shaped(self) -> bool:
        """Whether the second of two virtual stages lies against the order of ranks."""
        second = [rank for rank, slot in zip(self.chunk_rank, self.chunk_slot, strict=False) if slot == 1]
        return self.num_slots == 2 and second[0] > second[-1]

    @cached_property
    def is_plain(self) -> bool:
        """Whether every chunk runs every microbatch in one piece: what the simulation of a job executes."""
        return not self.is_cut and not any(self.chunk_flow + self.microbatch_flow)

    @cached_property
    def is_cut(self) -> bool:
        """Whether any module cuts a microbatch, has nothing to do for one, or is read by other microbatches."""
        return any(split > 1 for split in self.chunk_split) or bool(self.part_counts or self.reads)

    def every_part(self, chunk: int) -> list[int]:
        """Numbers of all of a chunk's stages of one phase, in order."""
        return [part for microbatch in range(self.num_microbatches) for part in self.parts(chunk, microbatch)]

    def chunks_of(self, rank: int, slot: int | None = None) -> list[int]:
        """Chunks held by a rank, in order of data flow; of one of its virtual stages, or of all."""
        return list(self._held.get((rank, slot), ()))

    @cached_property
    def chain_places(self) -> tuple[int, ...]:
        """Per rank, its number in a chain of all ranks that lies as far from the end of the data flow, counted in ranks
        on the longest way: the rank itself where the data flows from rank to rank. Modules side by side (two encoders
        on ranks of their own) have equal places."""
        ranks = tuple(range(self.num_ranks))
        reads_earlier = all(source < chunk for chunk, own in enumerate(self.sources) for source in own)
        if self.num_slots > 1 or self.chunk_gang or any(self.chunk_flow) or not reads_earlier:
            return ranks
        behind = [0] * self.num_chunks
        for chunk in reversed(range(self.num_chunks)):
            for source in self.sources[chunk]:
                moves = self.chunk_rank[source] != self.chunk_rank[chunk]
                behind[source] = max(behind[source], behind[chunk] + moves)
        return tuple(
            self.num_ranks - 1 - max((behind[chunk] for chunk in self.chunks_of(rank)), default=ranks[-1] - rank)
            for rank in ranks
        )

    @cached_property
    def _held(self) -> dict[tuple[int, int | None], list[int]]:
        """Chunks by (rank, slot), and of all slots by (rank, None)."""
        held: dict[tuple[int, int | None], list[int]] = {}
        for chunk, (rank, slot) in enumerate(zip(self.chunk_rank, self.chunk_slot, strict=True)):
            held.setdefault((rank, slot), []).append(chunk)
            held.setdefault((rank, None), []).append(chunk)
        return held

    def parts(self, chunk: int, microbatch: int) -> range:
        """Numbers of a chunk's stages for one microbatch, in order; none where it runs through another copy."""
        if self.chunk_flow[chunk] != self.microbatch_flow[microbatch]:
            return range(0)
        first = microbatch * self.chunk_split[chunk]
        return range(first, first + self.count(chunk, microbatch))

    @cached_property
    def part_table(self) -> NDArray[np.int64]:
        """int64[num_chunks, num_microbatches], how many stages of one phase each chunk runs for each microbatch."""
        cut = self.part_counts or [[split] * self.num_microbatches for split in self.chunk_split]
        runs = np.equal.outer(self.chunk_flow, self.microbatch_flow)
        return np.array(cut, dtype=np.int64).reshape(runs.shape) * runs

    def count(self, chunk: int, microbatch: int) -> int:
        """Into how many sub-microbatches a chunk's module cuts a microbatch."""
        return self.part_counts[chunk][microbatch] if self.part_counts else self.chunk_split[chunk]

    def forward(self, rank: int, microbatch: int, slot: int | None = None) -> list[StageKey]:
        """Forward stages of a rank (or of one of its virtual stages) for one microbatch, in order."""
        chunks = self._held.get((rank, slot), ())
        if self.is_plain:
            return [StageKey(chunk, Phase.FORWARD, microbatch) for chunk in chunks]
        return self._parts_of(chunks, Phase.FORWARD, microbatch)

    def backward(
        self, rank: int, microbatch: int, slot: int | None = None, phase: Phase = Phase.BACKWARD
    ) -> list[StageKey]:
        """Backward stages of a rank (or of one of its virtual stages) for one microbatch, in order; with ``phase``
        only their input or weight gradients."""
        chunks = self._held_back.get((rank, slot), ())
        if self.is_plain:
            return [StageKey(chunk, phase, microbatch) for chunk in chunks]
        return self._parts_of(chunks, phase, microbatch)

    def _parts_of(self, chunks: Sequence[int], phase: Phase, microbatch: int) -> list[StageKey]:
        return [StageKey(chunk, phase, part) for chunk in chunks for part in self.parts(chunk, microbatch)]

    @cached_property
    def _held_back(self) -> dict[tuple[int, int | None], list[int]]:
        """``_held`` of chunks with a backward, in the order of backwards."""
        return {key: [c for c in reversed(chunks) if self.has_backward[c]] for key, chunks in self._held.items()}

    @cached_property
    def _read(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """``reads`` by module."""
        return dict(self.reads)

    @cached_property
    def _read_by(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Module -> number of a stage -> microbatches of the readers that read it."""
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for module, reads in self.reads:
            own = found.setdefault(module, {})
            for microbatch, parts in enumerate(reads):
                for part in parts:
                    own[part] = (*own.get(part, ()), microbatch)
        return found

    def shared(self, chunk: int, part: int, other: int) -> Sequence[int]:
        """Stages of another chunk that share a part of the microbatch with a chunk's stage ``part``; where a module
        joins the parts of another, all of that; where it reads parts of several microbatches, these."""
        names = self.chunk_module[chunk], self.chunk_module[other]
        if self.reads and names[0] != names[1]:
            if names[1] in self._read:
                return self._read[names[1]][part]
            if names[0] in self._read:
                return self._read_by[names[0]].get(part, ())
        if self.joins and self.chunk_module[chunk] != self.chunk_module[other]:
            return self.parts(other, part // self.chunk_split[chunk])
        if not self.part_counts and self.chunk_split[chunk] == self.chunk_split[other]:
            return range(part, part + 1)
        microbatch, within = divmod(part, self.chunk_split[chunk])
        mine, theirs = self.count(chunk, microbatch), self.count(other, microbatch)
        first = microbatch * self.chunk_split[other]
        if within >= mine or not theirs:
            return range(first, first)
        return range(first + within * theirs // mine, first - (-(within + 1) * theirs // mine))
