"""``build_stages``: joins the templates of a chunk's blocks into its forward and its backward stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import ROLES, StageProgram
from semu.engine.template import HalfTemplate, TemplateLibrary


def build_stages(
    library: TemplateLibrary,
    blocks: Sequence[int],
    streams: Sequence[str],
    *,
    serial: bool = True,
    has_consumer: bool = True,
    borrowed: Sequence[bool] = (),
) -> tuple[StageProgram, StageProgram | None]:
    """Join a chunk's blocks into its forward and its backward stage.

    Args:
        library: holds the templates. blocks: template number of each block of the chunk, in order.
        streams: stream names, the compute stream first.
        serial: communication does not overlap: a block's first operator waits for the last one of the block before.
        has_consumer: false: nobody takes what the chunk returns, nor sends it gradients (the model's end).
        borrowed: per arriving tensor, whether a chunk of the same rank keeps it for its own backward, and so frees it.
    Returns:
        (forward, backward); backward is None where nothing in the chunk needs a gradient.
    """
    joiner = _Joiner(library, blocks, {name: number for number, name in enumerate(streams)}, serial)
    return joiner.build(has_consumer, borrowed)


class _Joiner:
    """Numbers the storages of a chunk: a carry is one storage, whichever block looks at it."""

    def __init__(self, library: TemplateLibrary, blocks: Sequence[int], streams: dict[str, int], serial: bool) -> None:
        self.library = library
        self.blocks = list(blocks)
        self.streams = streams
        self.serial = serial
        self.size_row: list[int] = []
        self.role: list[int] = []
        self.maps: list[list[int]] = []

    def build(self, has_consumer: bool, borrowed: Sequence[bool]) -> tuple[StageProgram, StageProgram | None]:
        """The two stages; arguments as ``build_stages``."""
        templates = [self.library.templates[b] for b in self.blocks]
        self._number_storages()
        carry_in = [self.maps[0][s] for s in templates[0].carry_in]
        carry_out = [self.maps[-1][s] for s in templates[-1].carry_out]
        gradient_in = [self.maps[-1][s] if s >= 0 else -1 for s in templates[-1].gradient_in]
        gradient_out = [self.maps[0][s] if s >= 0 else -1 for s in templates[0].gradient_out]
        order = list(range(len(self.blocks)))
        forward = self._chain(order, [t.forward for t in templates], len(carry_in))
        backward = self._chain(order[::-1], [t.backward for t in templates], len(gradient_in))
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
            first = len(self.size_row)
            offset = self.library.size_offset[number]
            self.size_row.extend(range(offset, offset + len(template.sizes)))
            self.role.extend(ROLES.index(role) for role in template.roles)
            mapping = list(range(first, first + len(template.sizes)))
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

    def _chain(self, order: Sequence[int], halves: Sequence[HalfTemplate], num_arriving: int) -> _Chain:
        chain = _Chain()
        producers: list[int | None] = [None] * num_arriving
        for position in order:
            half, mapping = halves[position], self.maps[position]
            first = len(chain.rows)
            chain.rows.extend((half.rows + self.library.row_offset[self.blocks[position]]).tolist())
            chain.block.extend([position] * len(half.operators))
            chain.stream.extend(self.streams[op.stream.name] for op in half.operators)
            for preds in half.preds:
                known = [p + first if p >= 0 else producers[-1 - p] for p in preds]
                chain.preds.append([p for p in known if p is not None])
            if self.serial and half.operators and first and chain.stream[first] != chain.stream[first - 1]:
                chain.preds[first].append(first - 1)
            chain.touches.extend([mapping[s] for s in touches] for touches in half.touches)
            producers = [_resolve(p, first, producers) for p in half.producers]
        return chain

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
        touch = [local[s] for touches in chain.touches for s in touches]
        stream = np.array(chain.stream, dtype=np.int32)
        num_streams = len(self.streams)
        return StageProgram(
            rows=np.array(chain.rows, dtype=np.int32),
            block=np.array(chain.block, dtype=np.int32),
            pred_ptr=pointer(len(p) for p in chain.preds),
            pred=np.array([p for preds in chain.preds for p in preds], dtype=np.int32),
            stream=stream,
            order_ptr=pointer(np.bincount(stream, minlength=num_streams).tolist()),
            order=np.argsort(stream, kind="stable").astype(np.int32),
            touch_ptr=pointer(len(t) for t in chain.touches),
            touch=np.array(touch, dtype=np.int32),
            touches=np.bincount(np.array(touch, dtype=np.int64), minlength=len(used)).astype(np.int32),
            size_row=np.array([self.size_row[s] for s in used], dtype=np.int32),
            role=np.array([self.role[s] for s in used], dtype=np.int32),
            alive_before=np.array([s in before for s in used], dtype=np.bool_),
            alive_after=np.array([s in after for s in used], dtype=np.bool_),
            arriving=tuple(self.size_row[s] if s >= 0 else -1 for s in arriving),
            leaving=tuple(self.size_row[s] if s >= 0 else -1 for s in leaving),
            leaving_kept=tuple(s in kept for s in leaving),
            num_streams=num_streams,
        )


class _Chain:
    """Operators of several halves, one after another, with chunk-wide storage numbers."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.block: list[int] = []
        self.stream: list[int] = []
        self.preds: list[list[int]] = []
        self.touches: list[list[int]] = []

    @property
    def touched(self) -> set[int]:
        """Storages that any operator touches."""
        return {s for touches in self.touches for s in touches}


def _resolve(producer: int | None, first: int, producers: list[int | None]) -> int | None:
    if producer is None:
        return None
    return producer + first if producer >= 0 else producers[-1 - producer]


def pointer(lengths: Iterable[int]) -> NDArray[np.int32]:
    """CSR pointer: 0, then the running sum of the lengths."""
    return np.array([0, *itertools.accumulate(lengths)], dtype=np.int32)
