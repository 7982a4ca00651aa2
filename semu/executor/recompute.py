"""``recomputed``: a function whose intermediate results are thrown away and made again in the backward.

Every saved tensor is replaced by a placeholder; the first one that the backward asks for runs the function once more
and fills them all. What was made again lives as long as the graph does, so that the two halves of a split backward
share one recomputation, where ``torch.utils.checkpoint`` makes one for each pass of the autograd engine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from semu.errors import ExecutorError


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` that keeps its arguments only.

    Random numbers and autocast are those of the first time. The function must do the same both times.

    Raises:
        ExecutorError: in the backward, where it did not.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    frame = _Frame(function, arguments)
    with saved_tensors_hooks(frame.pack, _unpack):
        return function(*arguments)


class _Place:
    """A saved tensor: where it was saved, and the tensor once it has been made again."""

    __slots__ = ("__weakref__", "frame", "tensor")

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame
        self.tensor: torch.Tensor | None = None


class _Enough(Exception):
    """Everything that was saved is there again."""


class _Frame:
    """One call: how to repeat it, and the tensors that wait for its results."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.places: list[weakref.ref[_Place]] = []
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        self.device = next((one.device for one in tensors if one.device.type == "cuda"), torch.device("cpu"))
        if torch.cuda.is_initialized() and self.device.type == "cpu":  # parameters may be there, where no argument is
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.seed = torch.get_rng_state()
        self.device_seed = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        self.autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted({"cpu", self.device.type})
        ]

    def pack(self, _: torch.Tensor) -> _Place:
        """A placeholder instead of a tensor."""
        place = _Place(self)
        self.places.append(weakref.ref(place))
        return place

    def run_again(self) -> None:
        """Fill the placeholders that still are wanted."""
        at = 0

        def keep(tensor: torch.Tensor) -> int:
            """Keep the tensor that was saved at the same point the first time."""
            nonlocal at
            if at < len(self.places):
                place = self.places[at]()
                if place is not None:
                    place.tensor = tensor.detach()
            at += 1
            if at == len(self.places):
                raise _Enough
            return at

        again = [
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in self.arguments
        ]
        devices = [self.device] if self.device_seed is not None else []
        with torch.random.fork_rng(devices), ExitStack() as casts:
            for kind, is_enabled, dtype in self.autocast:
                casts.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_enabled))
            casts.enter_context(torch.enable_grad())
            casts.enter_context(saved_tensors_hooks(keep, _refuse))
            torch.set_rng_state(self.seed)
            if self.device_seed is not None:
                torch.cuda.set_rng_state(self.device_seed, self.device)
            try:
                self.function(*again)
            except _Enough:
                return
        raise ExecutorError(
            "a recomputation saved other tensors than the forward",
            where=getattr(self.function, "__qualname__", type(self.function).__name__),
            expected=f"{len(self.places)} tensors",
            got=at,
        )


def _unpack(place: _Place) -> torch.Tensor:
    if place.tensor is None:
        place.frame.run_again()
    assert place.tensor is not None
    return place.tensor


def _refuse(_: int) -> torch.Tensor:
    raise ExecutorError("a backward within a recomputation", expected="a forward")
