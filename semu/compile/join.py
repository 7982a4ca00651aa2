"""``build_stages``: joins the templates of a chunk's blocks into its forward and its backward stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from semu.compile.stage import ROLES, StageProgram, csr
from semu.compile.template import HalfTemplate, TemplateLibrary
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
        size_row, role: of each storage. maps, unit_maps, shard_maps: of each block, exchange and shard from the host,
            the number of each storage of its template.
    """

    library: TemplateLibrary
    blocks: Sequence[int]
    streams: dict[str, int]
    serial: bool
    exchanges: ExchangePlan
    size_row: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    maps: list[list[int]] = field(default_factory=list)
    unit_maps: list[list[int]] = field(default_factory=list)
    shard_maps: list[list[int]] = field(default_factory=list)

    @cached_property
    def host_copies(self) -> set[int]:
        """Streams of copies to and from the host."""
        return {number for name, number in self.streams.items() if name in HOST_COPIES}

    def build(
        self, has_consumer: bool, borrowed: Sequence[bool], produced: Sequence[bool] = ()
    ) -> tuple[StageProgram, StageProgram | None]:
        """The two stages; arguments as ``build_stages``."""
        templates = [self.library.templates[b] for b in self.blocks]
        self._number_storages()
        carry_in = [self.maps[0][s] for s in templates[0].carry_in]
        carry_out = [self.maps[-1][s] for s in templates[-1].carry_out]
        gradient_in = [self.maps[-1][s] if s >= 0 else -1 for s in templates[-1].gradient_in]
        gradient_out = [
            self.maps[0][s] if s >= 0 and (not produced or produced[n]) else -1
            for n, s in enumerate(templates[0].gradient_out)
        ]
        order = list(range(len(self.blocks)))
        forward = self._chain(order, [t.forward for t in templates], len(carry_in), is_backward=False)
        backward = self._chain(order[::-1], [t.backward for t in templates], len(gradient_in), is_backward=True)
        exists = set(forward.touched) | set(carry_in)
        saved = {s for s in backward.touched if s in exists}
        lent = {s for s, is_borrowed in zip(carry_in, borrowed, strict=False) if is_borrowed}
        forward_stage = self._program(
            forward,
            before=set(carry_in),
            after=saved | lent | (set(carry_out) if has_consumer else set()),
            arriving=carry_in,
            leaving=carry_out if has_consumer else [],
            kept=saved | lent,
        )
        if not backward.rows:
            if has_consumer and any(s >= 0 for s in gradient_out):
                raise ConfigError(
                    "a pipeline stage that only hands gradients on, with nothing of its own to compute, is not "
                    "modelled by this version",
                    where="parallel.pp",
                    expected="another pp or layout, or a trained parameter in that stage",
                    got="blocks that compute no gradient between others that do",
                )
            return forward_stage, None
        backward_stage = self._program(
            backward,
            before=saved | ({s for s in gradient_in if s >= 0} if has_consumer else set()),
            after={s for s in gradient_out if s >= 0} | (lent & saved),
            arriving=gradient_in if has_consumer else [],
            leaving=gradient_out,
            kept=set(),
        )
        return forward_stage, backward_stage

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
            self.shard_maps.append(self._new_storages(unit.shard) if unit.shard >= 0 else [])

    def _new_storages(self, number: int) -> list[int]:
        """Numbers for all storages of a template."""
        template, first, offset = self.library.templates[number], len(self.size_row), self.library.size_offset[number]
        self.size_row.extend(range(offset, offset + len(template.sizes)))
        self.role.extend(ROLES.index(role) for role in template.roles)
        return list(range(first, first + len(template.sizes)))

    def _chain(
        self, order: Sequence[int], halves: Sequence[HalfTemplate], num_arriving: int, *, is_backward: bool
    ) -> _Chain:
        chain = _Chain()
        producers: list[int | None] = [None] * num_arriving
        busy = {position for position in order if halves[position].operators}
        gathers, reductions = self.exchanges.turns(order, busy, is_backward=is_backward)
        copies = self.exchanges.copies(order, busy)
        row = GATHER_BACKWARD if is_backward else GATHER_FORWARD
        last = before_last = -1  # last operator of the latest block, and of the one before
        fronts: list[list[int]] = []
        for turn, position in enumerate(order):
            half, mapping = halves[position], self.maps[position]
            fronts.append([i for stream, i in chain.ends.items() if stream not in self.host_copies])
            for number in gathers.get(turn, ()):
                before = chain.latest
                if self.exchanges.units[number].shard >= 0:
                    before = [self._bring_shard(chain, number, row, before)]
                chain.ready[number] = self._exchange(chain, number, row, before)
            if turn in copies:
                number, begin = copies[turn]
                chain.ready[number] = self._exchange(chain, number, row, fronts[begin])
            self._copy_out(chain, position, COPY_OUT_BACKWARD if is_backward else COPY_OUT_FORWARD)
            first = len(chain.rows)
            chain.rows.extend((half.rows + self.library.row_offset[self.blocks[position]]).tolist())
            chain.block.extend([position] * len(half.operators))
            chain.is_exchange.extend([False] * len(half.operators))
            chain.stream.extend(self.streams[op.stream.name] for op in half.operators)
            for preds in half.preds:
                known = [p + first if p >= 0 else producers[-1 - p] for p in preds]
                chain.preds.append([p for p in known if p is not None])
            ours = [i for i in range(first, len(chain.rows)) if chain.stream[i] not in self.host_copies]
            if self.serial and ours and last >= 0 and chain.stream[ours[0]] != chain.stream[last]:
                chain.preds[ours[0]].append(last)
            if is_backward and before_last >= 0:  # copies in come one block ahead
                for i in range(first, len(chain.rows)):
                    if chain.stream[i] in self.host_copies:
                        chain.preds[i].append(before_last)
            chain.touches.extend([mapping[s] for s in touches] for touches in half.touches)
            producers = [_resolve(p, first, producers) for p in half.producers]
            if ours:
                last, before_last = ours[-1], last
            if half.operators:
                self._serve(chain, position, first, is_backward)
            for number in reductions.get(turn, ()):
                self._reduce(chain, number)
        return chain

    # -- exchanges -------------------------------------------------------------------------------------------------
    def _serve(self, chain: _Chain, position: int, first: int, is_backward: bool) -> None:
        """A block's operators wait for its parameters, which stay to its end, and write its gradients."""
        chain.ends = {chain.stream[i]: i for i in range(first, len(chain.rows))}
        for preds in chain.preds[first:] if chain.barrier >= 0 else ():
            preds.append(chain.barrier)
        chain.barrier = -1
        for number, (unit, storages) in enumerate(zip(self.exchanges.units, self.unit_maps, strict=True)):
            if position not in unit.blocks:
                continue
            if unit.gathers:
                gathered = storages[BACKWARD_PARAMETERS if is_backward else FORWARD_PARAMETERS]
                for i in chain.ends.values():
                    if chain.stream[i] not in self.host_copies:
                        chain.touches[i].append(gathered)
                for i in range(first, len(chain.rows)) if number in chain.ready else ():
                    if chain.stream[i] not in self.host_copies:
                        chain.preds[i].append(chain.ready[number])
            if is_backward:
                for writer in unit.writers[unit.blocks.index(position)]:
                    chain.touches[first + writer].append(storages[GRADIENTS])

    def _copy_out(self, chain: _Chain, position: int, row: int) -> None:
        """Copy what was gathered for a block out of the gathers' buffers, each unit once."""
        for number, unit in enumerate(self.exchanges.units):
            if unit.copies_out and position in unit.blocks and number in chain.ready and number not in chain.copied:
                chain.copied.add(number)
                chain.ready[number] = self._exchange(chain, number, row, [chain.ready[number]])

    def _reduce(self, chain: _Chain, number: int) -> None:
        """Reduce a unit's gradients behind what has been written down so far."""
        before = chain.latest
        if self.exchanges.units[number].copies_in:
            before = [self._exchange(chain, number, COPY_IN, before)]
        done = self._exchange(chain, number, REDUCE, before)
        if self.exchanges.units[number].replicates:
            done = self._exchange(chain, number, REPLICATE, [done])
        if not self.exchanges.overlap_reduce:
            chain.barrier = done

    def _exchange(self, chain: _Chain, number: int, row: int, preds: Iterable[int]) -> int:
        """Append a collective of a unit; returns its position."""
        unit: Exchange = self.exchanges.units[number]
        storages = self.unit_maps[number]
        touched = [] if row == REPLICATE else [storages[_STORAGE_OF_ROW[row]]]
        if row in (GATHER_FORWARD, GATHER_BACKWARD) and unit.shard >= 0:
            touched.append(self.shard_maps[number][row])
        return self._append(chain, unit.template, row, unit.blocks[0], preds, touched)

    def _bring_shard(self, chain: _Chain, number: int, row: int, preds: Iterable[int]) -> int:
        """Append the copy of a unit's shard from the host; it stays until it is gathered."""
        unit = self.exchanges.units[number]
        return self._append(chain, unit.shard, row, unit.blocks[0], preds, [self.shard_maps[number][row]])

    def _append(
        self, chain: _Chain, template: int, row: int, block: int, preds: Iterable[int], touched: list[int]
    ) -> int:
        """Append a transfer that serves a block; returns its position."""
        operator = self.library.templates[template].operators[row]
        chain.rows.append(self.library.row_offset[template] + row)
        chain.block.append(block)
        chain.is_exchange.append(True)
        chain.stream.append(self.streams[operator.stream.name])
        chain.preds.append(list(preds))
        chain.touches.append(touched)
        return len(chain.rows) - 1

    def _program(
        self,
        chain: _Chain,
        *,
        before: set[int],
        after: set[int],
        arriving: list[int],
        leaving: list[int],
        kept: set[int],
    ) -> StageProgram:
        used = sorted({s for touches in chain.touches for s in touches} | before | after)
        local = {s: i for i, s in enumerate(used)}
        pred_ptr, pred = csr(chain.preds)
        touch_ptr, touch = csr([[local[s] for s in touches] for touches in chain.touches])
        return StageProgram(
            rows=np.array(chain.rows, dtype=np.int32),
            block=np.array(chain.block, dtype=np.int32),
            pred_ptr=pred_ptr,
            pred=pred,
            stream=np.array(chain.stream, dtype=np.int32),
            touch_ptr=touch_ptr,
            touch=touch,
            size_row=np.array([self.size_row[s] for s in used], dtype=np.int32),
            role=np.array([self.role[s] for s in used], dtype=np.int32),
            alive_before=np.array([s in before for s in used], dtype=np.bool_),
            alive_after=np.array([s in after for s in used], dtype=np.bool_),
            arriving=tuple(self.size_row[s] if s >= 0 else -1 for s in arriving),
            leaving=tuple(self.size_row[s] if s >= 0 else -1 for s in leaving),
            leaving_kept=tuple(s in kept for s in leaving),
            num_streams=len(self.streams),
            storage=np.array(used, dtype=np.int32),
            arriving_storage=tuple(arriving),
            leaving_storage=tuple(leaving),
            is_exchange=np.array(chain.is_exchange, dtype=np.bool_),
        )


@dataclass
class _Chain:
    """Operators of several halves, one after another, with chunk-wide storage numbers.

    Attributes:
        rows, block, stream, preds, touches: of each operator. is_exchange: it is a transfer of a unit.
        ends: stream -> last operator of the latest block. ready: unit -> its gather, or the copy behind it.
        copied: units that were copied out of the gathers' buffers.
        barrier: reduction that the next block waits for, -1: none.
    """

    rows: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    is_exchange: list[bool] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    preds: list[list[int]] = field(default_factory=list)
    touches: list[list[int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    barrier: int = -1

    @property
    def latest(self) -> list[int]:
        """What ends the latest block, and the reduction that the next one waits for."""
        return [*self.ends.values(), *([self.barrier] if self.barrier >= 0 else [])]

    @property
    def touched(self) -> set[int]:
        """Storages that any operator touches."""
        return {s for touches in self.touches for s in touches}


def _resolve(producer: int | None, first: int, producers: list[int | None]) -> int | None:
    if producer is None:
        return None
    return producer + first if producer >= 0 else producers[-1 - producer]
