"""``Recompute``: a wrapper that keeps only a module's inputs and runs it again before its backward."""

from __future__ import annotations

from typing import Any

from semu.errors import GraphError
from semu.nn.module import Module
from semu.nn.trace.autograd import recompute
from semu.nn.trace.tensor import Tensor


class Recompute(Module):
    """Full activation recomputation of one module (activation checkpointing, 1604.06174).

    Args:
        module: any module; its inputs are kept, everything inside is computed again in the backward pass.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        """As the wrapped module."""
        for arg in args:
            if not isinstance(arg, Tensor):
                raise GraphError("recompute keeps tensors only", expected="tensors", got=type(arg).__name__)
        return recompute(args[0].trace, self.module, args)
