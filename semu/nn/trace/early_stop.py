"""Recomputation that stops early: of a second forward pass, the kernels behind the last one that is needed do not run.

PyTorch's checkpoint without reentrance raises inside the second forward pass as soon as everything that the backward
pass saved is there again (``torch.utils.checkpoint.set_checkpoint_early_stop``, on by default): the last product of a
transformer layer and the residual addition behind it are not computed again, since their outputs are no backward
kernel's input. Megatron-LM's CheckpointFunction runs to the end (1604.06174 §4). What is needed is known after the
backward pass, so a block is traced twice: ``needed_lengths`` of the first trace are the ``lengths`` of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from semu.graph.graph import Graph


class SecondRuns:
    """The recomputations of one trace, in the order in which they begin.

    Args:
        lengths: how many operators each may append; empty: all.

    Attributes:
        spans: first operator and operator behind the last one of each.
    """

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self.spans: list[tuple[int, int]] = []
        self._lengths = lengths
        self._end: int | None = None

    @contextmanager
    def one(self, graph: Graph) -> Iterator[None]:
        """Operators appended inside are of one recomputation."""
        number, first, outer = len(self.spans), len(graph.operators), self._end
        self.spans.append((first, first))
        if self._lengths:
            self._end = first + self._lengths[number]
        try:
            yield
        finally:
            self.spans[number], self._end = (first, len(graph.operators)), outer

    def is_over(self, graph: Graph) -> bool:
        """Whether the recomputation that is running has all that is needed of it."""
        return self._end is not None and len(graph.operators) >= self._end


def needed_lengths(graph: Graph, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Of each recomputation, how many operators run: up to the last one whose output another operator needs.

    Args:
        graph: of a trace in which all of them ran to their ends. spans: ``SecondRuns.spans`` of it.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for operator in graph.operators:
        for tensor in operator.inputs:
            readers[graph.tensors[tensor].storage].append(operator.index)
    kept = {graph.tensors[tensor].storage for tensor in graph.outputs}
    return tuple(_needed(graph, first, last, readers, kept) - first for first, last in spans)


def _needed(graph: Graph, first: int, last: int, readers: defaultdict[int, list[int]], kept: set[int]) -> int:
    """The operator behind the last one that is needed; those from it to ``last`` are read by one another at most."""
    end = last
    while end > first:
        operator = graph.operators[end - 1]
        written = [graph.tensors[tensor].storage for tensor in operator.outputs]
        if any(storage in kept or graph.storages[storage].role.is_static for storage in written):
            return end
        if any(not end <= reader < last for storage in written for reader in readers[storage] if reader >= end):
            return end
        end -= 1
    return end
