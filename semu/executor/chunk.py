"""``LayerChunk``: some layers of a module as one ``torch.nn.Module``, each run under its memory strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from semu.errors import ExecutorError
from semu.executor.offload import offloaded
from semu.executor.recompute import recomputed


class LayerChunk(torch.nn.Module):
    """Layers one after another, each called with what the one before returned (a tuple is spread out).

    Args:
        layers: those that the plan counts.
        stem: runs before them on the module's first chunk, e.g. an embedding; None: nothing.
        head: runs behind them on its last one, e.g. a norm with a projection; None: nothing.
        selective: names of submodules of a layer that are recomputed under the strategy ``selective``.
    """

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        stem: torch.nn.Module | None = None,
        head: torch.nn.Module | None = None,
        selective: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.stem, self.head = stem, head
        self.selective = tuple(selective)

    def forward(self, *values: Any, strategies: Sequence[str] | None = None) -> Any:
        """Run the layers.

        Args:
            values: what the stem or the first layer takes.
            strategies: ``none``, ``selective``, ``full`` or ``offload`` for every layer; None: none everywhere.
        Raises:
            ExecutorError: strategies for another number of layers, or ``selective`` where nothing is named.
        """
        words = strategies if strategies is not None else ("none",) * len(self.layers)
        if len(words) != len(self.layers):
            raise ExecutorError(
                "strategies for another number of layers", expected=f"{len(self.layers)} words", got=len(words)
            )
        if self.stem is not None:
            values = as_tuple(self.stem(*values))
        for layer, word in zip(self.layers, words, strict=True):
            values = as_tuple(self._run(layer, word, values))
        if self.head is not None:
            values = as_tuple(self.head(*values))
        return values if len(values) != 1 else values[0]

    def _run(self, layer: torch.nn.Module, word: str, values: tuple[Any, ...]) -> Any:
        if word != "selective":
            return _run_whole(layer, word, values)
        if not self.selective:
            raise ExecutorError(
                "the plan recomputes parts of layers, and nobody says which",
                where="LayerChunk.selective",
                expected="names of submodules, such as attention.core",
            )
        with _selectively(layer, self.selective):
            return layer(*values)


def _run_whole(module: torch.nn.Module, word: str, values: tuple[Any, ...]) -> Any:
    """Call a module under the strategy ``none``, ``full`` or ``offload``."""
    if word == "full":
        return recomputed(module, *values)
    if word == "offload":
        with offloaded(module.parameters()):
            return module(*values)
    return module(*values)


@contextmanager
def _selectively(layer: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Calls of named submodules are recomputed."""
    chosen = [layer.get_submodule(name) for name in names]
    for module in chosen:
        module.forward = partial(recomputed, module.forward)
    try:
        yield
    finally:
        for module in chosen:
            del module.forward


def run_chunk(chunk: torch.nn.Module, values: tuple[Any, ...], strategies: Sequence[str] | None) -> Any:
    """Call a chunk; one that is not made of layers runs whole under the one strategy that all its layers have.

    Raises:
        ExecutorError: such a chunk under several strategies, or under ``selective``.
    """
    if isinstance(chunk, LayerChunk):
        return chunk(*values, strategies=strategies)
    words = set(strategies or ()) or {"none"}
    if len(words) == 1 and words != {"selective"}:
        return _run_whole(chunk, words.pop(), values)
    raise ExecutorError(
        "a chunk that is one module cannot run its layers differently",
        expected="semu.executor.LayerChunk, or one of none, full and offload for all its layers",
        got=", ".join(sorted(words)),
    )


def as_tuple(value: Any) -> tuple[Any, ...]:
    """What a module returned, as the tuple that the next one takes."""
    return value if isinstance(value, tuple) else (value,)
