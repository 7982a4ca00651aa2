"""Recomputation that stops early: a second forward pass ends with the last kernel whose output the backward needs.

PyTorch's non-reentrant checkpoint leaves the second forward pass as soon as every saved tensor exists again
(``torch.utils.checkpoint.set_checkpoint_early_stop``, on by default): the last product of a transformer layer and the
residual addition behind it are not computed again, since no backward kernel reads their outputs. Megatron-LM's
CheckpointFunction runs to the end (1604.06174 §4). The backward pass decides what is needed, so a block is traced
twice: ``needed_lengths`` of the first trace are the ``lengths`` of the second.
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
        """Operators appended inside belong to one recomputation."""
        number, first, outer = len(self.spans), len(graph.operators), self._end
        self.spans.append((first, first))
        if self._lengths:
            self._end = first + self._lengths[number]
        try:
            yield
        finally:
            self.spans[number], self._end = (first, len(graph.operators)), outer

    def is_over(self, graph: Graph) -> bool:
        """Whether the running recomputation has appended as many operators as it may."""
        return self._end is not None and len(graph.operators) >= self._end


def needed_lengths(graph: Graph, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Operators of each recomputation that run: up to the last whose output an operator outside needs.

    Args:
        graph: of a trace in which every recomputation ran to its end. spans: ``SecondRuns.spans`` of that trace.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for operator in graph.operators:
        for tensor in operator.inputs:
            readers[graph.tensors[tensor].storage].append(operator.index)
    kept = {graph.tensors[tensor].storage for tensor in graph.outputs}
    return tuple(_needed(graph, first, last, readers, kept) - first for first, last in spans)


def _needed(graph: Graph, first: int, last: int, readers: defaultdict[int, list[int]], kept: set[int]) -> int:
    """One behind the last operator that is needed; from there to ``last``, outputs are read inside the span only."""
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
