"""``build_stages``: joins the templates of a chunk's blocks into its forward and its backward stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.compile.stage_chain import NO_NUMBERS, Numbers, StageChain, grouped
from semu.compile.template import HalfTemplate, Pairs, TemplateLibrary
from semu.compile.zero_exchange import (
    BACKWARD_PARAMETERS,
    COPY_IN,
    COPY_OUT_BACKWARD,
    COPY_OUT_FORWARD,
    FORWARD_PARAMETERS,
    GATHER_BACKWARD,
    GATHER_FORWARD,
    GRADIENTS,
    REDUCE,
    REPLICATE,
    Exchange,
    ExchangePlan,
)
from semu.errors import ConfigError
from semu.hardware.device import HOST_COPIES
from semu.records import dataclass

_STORAGE_OF_ROW = {
    GATHER_FORWARD: FORWARD_PARAMETERS,
    GATHER_BACKWARD: BACKWARD_PARAMETERS,
    COPY_OUT_FORWARD: FORWARD_PARAMETERS,
    COPY_OUT_BACKWARD: BACKWARD_PARAMETERS,
    COPY_IN: GRADIENTS,
    REDUCE: GRADIENTS,
}
"""What a row of a unit's template touches; a unit that is copied from the host has the first two."""


def build_stages(
    library: TemplateLibrary,
    blocks: Sequence[int],
    streams: Sequence[str],
    *,
    serial: bool = True,
    has_consumer: bool = True,
    borrowed: Sequence[bool] = (),
    exchanges: ExchangePlan | None = None,
    produced: Sequence[bool] = (),
) -> tuple[StageProgram, StageProgram | None]:
    """Join a chunk's blocks into its forward and its backward stage.

    Args:
        library: holds the templates. blocks: template number of each block of the chunk, in order.
        streams: stream names, the compute stream first.
        serial: communication does not overlap: a block's first operator waits for the last one of the block before.
        has_consumer: false: nobody takes what the chunk returns, nor sends it gradients (the model's end).
        produced: per arriving tensor, whether a chunk made it, which takes its gradient; a member of a gang gets what
            another member's rank has, and that one hands the gradient back. Empty: all are.
        borrowed: per arriving tensor, whether a chunk of the same rank keeps it for its own backward, and so frees it.
        exchanges: collectives over the data-parallel group inside the stages (ZeRO-2, ZeRO-3), and copies of parameters
            from the host.
    Returns:
        (forward, backward); backward is None where nothing in the chunk needs a gradient.
    Raises:
        ConfigError: gradients that pass through a chunk without backward operators.
    """
    names = {name: number for number, name in enumerate(streams)}
    joiner = _Joiner(library, blocks, names, serial, exchanges if exchanges is not None else ExchangePlan())
    return joiner.build(has_consumer, borrowed, produced)


@dataclass
class _Joiner:
    """Numbers the storages of a chunk: a carry is one storage, whichever block looks at it.

    Attributes:
        maps, unit_maps, shard_maps: of each block, exchange and shard from the host, the number of each storage of its
            template.
    """

    library: TemplateLibrary
    blocks: Sequence[int]
    streams: dict[str, int]
    serial: bool
    exchanges: ExchangePlan
    maps: list[Numbers] = field(default_factory=list)
    unit_maps: list[Numbers] = field(default_factory=list)
    shard_maps: list[Numbers] = field(default_factory=list)
    _numbered: list[int] = field(default_factory=list)
    _count: int = 0

    @cached_property
    def host_copies(self) -> frozenset[int]:
        """Streams of copies to and from the host."""
        return frozenset(number for name, number in self.streams.items() if name in HOST_COPIES)

    @cached_property
    def size_row(self) -> Numbers:
        """Size row of each storage."""
        offset, sizes = self.library.size_offset, [len(template.sizes) for template in self.library.templates]
        return np.concatenate([np.arange(offset[n], offset[n] + sizes[n]) for n in self._numbered])

    @cached_property
    def role(self) -> Numbers:
        """Role of each storage."""
        return np.concatenate([self.library.templates[n].role_numbers for n in self._numbered])

    @cached_property
    def units_of(self) -> Mapping[int, Sequence[int]]:
        """Exchanges that serve each block."""
        found: dict[int, list[int]] = {}
        for number, unit in enumerate(self.exchanges.units):
            for position in unit.blocks:
                found.setdefault(position, []).append(number)
        return found

    def build(
        self, has_consumer: bool, borrowed: Sequence[bool], produced: Sequence[bool] = ()
    ) -> tuple[StageProgram, StageProgram | None]:
        """The two stages; arguments as ``build_stages``."""
        templates = [self.library.templates[b] for b in self.blocks]
        self._number_storages()
        first, last = self.maps[0].tolist(), self.maps[-1].tolist()
        carry_in = [first[s] for s in templates[0].carry_in]
        carry_out = [last[s] for s in templates[-1].carry_out]
        gradient_in = [last[s] if s >= 0 else -1 for s in templates[-1].gradient_in]
        gradient_out = [
            first[s] if s >= 0 and (not produced or produced[n]) else -1
            for n, s in enumerate(templates[0].gradient_out)
        ]
        order = list(range(len(self.blocks)))
        forward = self._chain(order, [t.forward for t in templates], len(carry_in), is_backward=False)
        backward = self._chain(order[::-1], [t.backward for t in templates], len(gradient_in), is_backward=True)
        lent = [s for s, is_borrowed in zip(carry_in, borrowed, strict=False) if is_borrowed]
        exists = self._marked(carry_in)
        exists[forward.touched[:, 1]] = True
        saved = self._marked(backward.touched[:, 1]) & exists
        kept = saved | self._marked(lent)
        forward_stage = self._program(
            forward,
            before=self._marked(carry_in),
            after=kept | self._marked(carry_out if has_consumer else []),
            arriving=carry_in,
            leaving=carry_out if has_consumer else [],
            kept=kept,
        )
        if not backward.length:
            if has_consumer and any(s >= 0 for s in gradient_out):
                raise ConfigError(
                    "a pipeline stage that only hands gradients on, with nothing of its own to compute, is not "
                    "modelled by this version",
                    where="parallel.pp",
                    expected="another pp or layout, or a trained parameter in that stage",
                    got="blocks that compute no gradient between others that do",
                )
            return forward_stage, None
        taken = [s for s in gradient_in if s >= 0] if has_consumer else []
        backward_stage = self._program(
            backward,
            before=saved | self._marked(taken),
            after=self._marked([s for s in gradient_out if s >= 0]) | (self._marked(lent) & saved),
            arriving=gradient_in if has_consumer else [],
            leaving=gradient_out,
            kept=self._marked([]),
        )
        return forward_stage, backward_stage

    def _marked(self, storages: Sequence[int] | Numbers) -> NDArray[np.bool_]:
        """Which of all storages are among some."""
        marks = np.zeros(self._count, dtype=np.bool_)
        marks[np.asarray(storages, dtype=np.int64)] = True
        return marks

    def _number_storages(self) -> None:
        for position, number in enumerate(self.blocks):
            template = self.library.templates[number]
            mapping = self._new_storages(number)
            if position:
                previous = self.library.templates[self.blocks[position - 1]]
                for here, there in zip(template.carry_in, previous.carry_out, strict=True):
                    mapping[here] = self.maps[-1][there]
            self.maps.append(mapping)
        for position in range(len(self.blocks) - 2, -1, -1):
            template = self.library.templates[self.blocks[position]]
            following = self.library.templates[self.blocks[position + 1]]
            for here, there in zip(template.gradient_in, following.gradient_out, strict=True):
                if here >= 0 and there >= 0:
                    self.maps[position][here] = self.maps[position + 1][there]

        for unit in self.exchanges.units:
            mapping = self._new_storages(unit.template)
            if unit.keeps:
                mapping[BACKWARD_PARAMETERS] = mapping[FORWARD_PARAMETERS]
            self.unit_maps.append(mapping)
            self.shard_maps.append(self._new_storages(unit.shard) if unit.shard >= 0 else NO_NUMBERS)

    def _new_storages(self, number: int) -> Numbers:
        """Numbers for all storages of a template."""
        self._numbered.append(number)
        first = self._count
        self._count += len(self.library.templates[number].sizes)
        return np.arange(first, self._count)

    def _chain(
        self, order: Sequence[int], halves: Sequence[HalfTemplate], num_arriving: int, *, is_backward: bool
    ) -> StageChain:
        chain = StageChain(producers=[None] * num_arriving)
        busy = {position for position in order if halves[position].operators}
        gathers, reductions = self.exchanges.turns(order, busy, is_backward=is_backward)
        copies = self.exchanges.copies(order, busy)
        row = GATHER_BACKWARD if is_backward else GATHER_FORWARD
        fronts: list[list[int]] = []
        turn = 0
        while turn < len(order):
            position = order[turn]
            if copies:
                fronts.append(list(chain.ends.values()))
            for number in gathers.get(turn, ()):
                before = chain.latest
                if self.exchanges.units[number].shard >= 0:
                    before = [self._bring_shard(chain, number, row, before)]
                chain.ready[number] = self._exchange(chain, number, row, before)
            if turn in copies:
                number, begin = copies[turn]
                chain.ready[number] = self._exchange(chain, number, row, fronts[begin])
            self._copy_out(chain, position, COPY_OUT_BACKWARD if is_backward else COPY_OUT_FORWARD)
            first, written = chain.length, chain.num_waits
            stream, ours = self._append_half(chain, position, halves[position], is_backward)
            if halves[position].operators and self.exchanges.units:
                self._serve(chain, position, first, stream, ours, is_backward)
            for number in reductions.get(turn, ()):
                self._reduce(chain, number)
            turn += 1
            if alike := self._repeats(order, halves, turn):
                chain.repeat(order[turn : turn + alike], halves[position], self.maps, first, written)
                turn += alike
        return chain

    def _repeats(self, order: Sequence[int], halves: Sequence[HalfTemplate], turn: int) -> int:
        """How many turns from ``turn`` on have the block of the three turns before, and so do as the last of these, so
        much later."""
        if turn < 3 or self.exchanges.units:
            return 0
        number = self.blocks[order[turn - 1]]
        if any(self.blocks[order[turn - back]] != number for back in (2, 3)):
            return 0
        half = halves[order[turn - 1]]
        if not half.operators or any(p is not None and p < 0 for p in half.producers):
            return 0
        return sum(1 for _ in takewhile(lambda position: self.blocks[position] == number, order[turn:]))

    def _append_half(
        self, chain: StageChain, position: int, half: HalfTemplate, is_backward: bool
    ) -> tuple[Numbers, Numbers]:
        """Append a block's operators; returns their streams, and those that are no copies to or from the host."""
        first = chain.length
        preds, touches = half.pairs
        names, of_operator = half.stream_names
        numbers = [self.streams[name] for name in names]
        stream = np.array(numbers, dtype=np.int64).take(of_operator)
        chain.append(half.rows + self.library.row_offset[self.blocks[position]], position, stream)
        chain.wait(_placed(preds, first, chain.producers))
        chain.touch(np.stack((touches[:, 0] + first, self.maps[position].take(touches[:, 1])), axis=1))
        ours, theirs = np.arange(first, chain.length), NO_NUMBERS
        if not self.host_copies.isdisjoint(numbers):
            copied = np.array([number in self.host_copies for number in numbers]).take(of_operator)
            ours, theirs = ours[~copied], ours[copied]
        last = chain.last
        if self.serial and len(ours) and last >= 0 and stream[ours[0] - first] != chain.last_stream:
            chain.wait([(int(ours[0]), last)])
        if is_backward and chain.before_last >= 0:  # copies in come one block ahead
            chain.wait([(i, chain.before_last) for i in theirs.tolist()])
        chain.producers = [_resolve(p, first, chain.producers) for p in half.producers]
        if len(ours):
            chain.last, chain.before_last = int(ours[-1]), last
            chain.last_stream = int(stream[chain.last - first])
        return stream, ours

    # -- exchanges -------------------------------------------------------------------------------------------------
    def _serve(
        self, chain: StageChain, position: int, first: int, stream: Numbers, ours: Numbers, is_backward: bool
    ) -> None:
        """A block's operators wait for its parameters, which stay to its end, and write its gradients."""
        turns = enumerate(stream.tolist(), first)
        chain.ends = {number: i for i, number in turns if number not in self.host_copies}
        if chain.barrier >= 0:
            chain.wait([(i, chain.barrier) for i in ours.tolist()])
        chain.barrier = -1
        for number in self.units_of.get(position, ()):
            unit, storages = self.exchanges.units[number], self.unit_maps[number]
            if unit.gathers:
                gathered = int(storages[BACKWARD_PARAMETERS if is_backward else FORWARD_PARAMETERS])
                chain.touch([(i, gathered) for i in chain.ends.values()])
                if number in chain.ready:
                    chain.wait([(i, chain.ready[number]) for i in ours.tolist()])
            if is_backward:
                for writer in unit.writers[unit.blocks.index(position)]:
                    chain.touch([(first + writer, int(storages[GRADIENTS]))])

    def _copy_out(self, chain: StageChain, position: int, row: int) -> None:
        """Copy what was gathered for a block out of the gathers' buffers, each unit once."""
        for number in self.units_of.get(position, ()):
            if self.exchanges.units[number].copies_out and number in chain.ready and number not in chain.copied:
                chain.copied.add(number)
                chain.ready[number] = self._exchange(chain, number, row, [chain.ready[number]])

    def _reduce(self, chain: StageChain, number: int) -> None:
        """Reduce a unit's gradients behind what has been written down so far."""
        before = chain.latest
        if self.exchanges.units[number].copies_in:
            before = [self._exchange(chain, number, COPY_IN, before)]
        done = self._exchange(chain, number, REDUCE, before)
        if self.exchanges.units[number].replicates:
            done = self._exchange(chain, number, REPLICATE, [done])
        if not self.exchanges.overlap_reduce:
            chain.barrier = done

    def _exchange(self, chain: StageChain, number: int, row: int, preds: Iterable[int]) -> int:
        """Append a collective of a unit; returns its position."""
        unit: Exchange = self.exchanges.units[number]
        storages = self.unit_maps[number]
        touched = [] if row == REPLICATE else [int(storages[_STORAGE_OF_ROW[row]])]
        if row in (GATHER_FORWARD, GATHER_BACKWARD) and unit.shard >= 0:
            touched.append(int(self.shard_maps[number][row]))
        return self._append(chain, unit.template, row, unit.blocks[0], preds, touched)

    def _bring_shard(self, chain: StageChain, number: int, row: int, preds: Iterable[int]) -> int:
        """Append the copy of a unit's shard from the host; it stays until it is gathered."""
        unit = self.exchanges.units[number]
        return self._append(chain, unit.shard, row, unit.blocks[0], preds, [int(self.shard_maps[number][row])])

    def _append(
        self, chain: StageChain, template: int, row: int, block: int, preds: Iterable[int], touched: list[int]
    ) -> int:
        """Append a transfer that serves a block; returns its position."""
        stream = self.streams[self.library.templates[template].operators[row].stream.name]
        place = chain.length
        chain.append([self.library.row_offset[template] + row], block, [stream], is_exchange=True)
        chain.wait([(place, before) for before in preds])
        chain.touch([(place, storage) for storage in touched])
        return place

    def _program(
        self,
        chain: StageChain,
        *,
        before: NDArray[np.bool_],
        after: NDArray[np.bool_],
        arriving: list[int],
        leaving: list[int],
        kept: NDArray[np.bool_],
    ) -> StageProgram:
        used = before | after
        used[chain.touched[:, 1]] = True
        storages = np.flatnonzero(used)
        pred_ptr, pred = grouped(chain.waits, chain.length)
        touch_ptr, touch = grouped(chain.touched, chain.length)
        return StageProgram(
            rows=np.concatenate(chain.rows, dtype=np.int32) if chain.rows else np.zeros(0, dtype=np.int32),
            block=np.repeat(np.array(chain.block, dtype=np.int32), chain.lengths),
            pred_ptr=pred_ptr,
            pred=pred.astype(np.int32),
            stream=np.concatenate(chain.stream, dtype=np.int32) if chain.stream else np.zeros(0, dtype=np.int32),
            touch_ptr=touch_ptr,
            touch=(np.cumsum(used, dtype=np.int32) - np.int32(1)).take(touch),
            size_row=self.size_row.take(storages).astype(np.int32),
            role=self.role.take(storages).astype(np.int32),
            alive_before=before.take(storages),
            alive_after=after.take(storages),
            arriving=tuple([int(self.size_row[s]) if s >= 0 else -1 for s in arriving]),
            leaving=tuple([int(self.size_row[s]) if s >= 0 else -1 for s in leaving]),
            leaving_kept=tuple([bool(kept[s]) if s >= 0 else False for s in leaving]),
            num_streams=len(self.streams),
            storage=storages.astype(np.int32),
            arriving_storage=tuple(arriving),
            leaving_storage=tuple(leaving),
            is_exchange=np.repeat(np.array(chain.is_exchange, dtype=np.bool_), chain.lengths),
        )


def _placed(preds: Pairs, first: int, producers: Sequence[int | None]) -> Pairs:
    """Pairs of a half whose first operator is ``first``; those that wait for what nothing of the chunk makes are left
    out."""
    placed = preds + first
    arriving = np.flatnonzero(preds[:, 1] < 0)
    if len(arriving):
        found = [producers[-1 - p] for p in preds[arriving, 1].tolist()]
        placed[arriving, 1] = [-1 if p is None else p for p in found]
        placed = placed[placed[:, 1] >= 0]
    return placed


def _resolve(producer: int | None, first: int, producers: list[int | None]) -> int | None:
    if producer is None:
        return None
    return producer + first if producer >= 0 else producers[-1 - producer]
