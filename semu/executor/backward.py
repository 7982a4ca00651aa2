"""Backwards of a stage: whole, or the gradients of the inputs first and those of the parameters later.

An ``Anchor`` stands at the end of a stage's graph in place of its outputs, so that these may be freed when they have
been sent. A split backward first follows only the ways from the outputs to the stage's inputs. Where a parameter's
gradient branches off such a way, the gradient that arrives there is kept; the second half starts from these places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


class _Join(torch.autograd.Function):
    """Ends a graph: many outputs in, one number out."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor | None], *outputs: torch.Tensor) -> torch.Tensor:
        """The number means nothing. ``gradients``: of the outputs, filled before the backward runs."""
        ctx.gradients = gradients
        return outputs[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """The gradients that were filled in."""
        return (None, *ctx.gradients)


class Anchor:
    """The end of a stage's graph.

    Args:
        outputs: tensors that need gradients, at least one.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._gradients: list[torch.Tensor | None] = []
        self._root: torch.Tensor = _Join.apply(self._gradients, *outputs)
        self._ways: _Ways | None = None

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """The whole backward: gradients of inputs and parameters are added to their ``grad``.

        Args:
            gradients: of the outputs.
        """
        self._gradients[:] = gradients
        torch.autograd.backward(self._root, self._root.detach())  # any number will do

    def input_gradients(
        self, gradients: Sequence[torch.Tensor | None], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The first half of a split backward.

        Args:
            gradients: of the outputs. inputs: leaves.
        Returns:
            Gradients of the inputs; None for one that nothing depends on.
        """
        self._gradients[:] = gradients
        self._ways = _Ways(self._root, inputs)
        if not inputs:
            return []
        handles = [node.register_prehook(self._ways.keeper(node)) for node in self._ways.branches]
        try:
            return list(torch.autograd.grad(self._root, list(inputs), retain_graph=True, allow_unused=True))
        finally:
            for handle in handles:
                handle.remove()

    def weight_gradients(self) -> None:
        """The second half: gradients of the parameters are added to their ``grad``."""
        ways = self._ways
        assert ways is not None, "the first half comes first"
        self._ways = None
        for node, parameters in ways.branches.items():
            kept = ways.kept.pop(node, None)
            if kept is None:
                continue
            roots = [GradientEdge(node, number) for number, one in enumerate(kept) if one is not None]
            given = [one for one in kept if one is not None]
            if not given:
                continue
            found = torch.autograd.grad(
                roots, list(parameters), grad_outputs=given, retain_graph=True, allow_unused=True
            )
            _add(parameters, found)
        rest = ways.rest
        if rest:
            _add(rest, torch.autograd.grad(self._root, rest, allow_unused=True))


class _Ways:
    """The graph of a stage, by where its nodes lead.

    Attributes:
        branches: nodes on a way to an input from which a parameter is reached otherwise -> these parameters.
        rest: parameters that are reached from several such nodes, or from none.
        kept: what arrived at the branches.
    """

    def __init__(self, root: torch.Tensor, inputs: Sequence[torch.Tensor]) -> None:
        leaves = {id(tensor) for tensor in inputs}
        order = _nodes(root.grad_fn)
        to_input: set[Any] = set()
        parameters: dict[Any, dict[int, torch.Tensor]] = {}
        for node in order:  # children first
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) in leaves:
                    to_input.add(node)
                else:
                    parameters[node] = {id(variable): variable}
            elif any(child in to_input for child in _children(node)):
                to_input.add(node)
        self.branches: dict[Any, list[torch.Tensor]] = {}
        found = {}
        for node in order:
            if node in to_input:
                own: dict[int, torch.Tensor] = {}
                for child in _children(node):
                    if child not in to_input:
                        own |= parameters[child]
                if own:
                    found[node] = own
            elif node not in parameters:
                joined: dict[int, torch.Tensor] = {}
                for child in _children(node):
                    joined |= parameters[child]
                parameters[node] = joined
        reached = Counter(key for own in found.values() for key in own)
        every = {key: one for own in parameters.values() for key, one in own.items()}
        for node, own in found.items():
            alone = [one for key, one in own.items() if reached[key] == 1]
            if alone:
                self.branches[node] = alone
        self.rest = [one for key, one in every.items() if reached[key] != 1]
        self.kept: dict[Any, tuple[torch.Tensor | None, ...]] = {}

    def keeper(self, node: Any) -> Any:
        """A hook that keeps what arrives at a node."""

        def keep(gradients: tuple[torch.Tensor | None, ...]) -> None:
            """Keep it."""
            self.kept[node] = gradients

        return keep


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def _nodes(root: Any) -> list[Any]:
    """All nodes below one, each behind its children."""
    found: list[Any] = []
    seen = {root}
    stack = [(root, iter(_children(root)))]
    while stack:
        node, children = stack[-1]
        for child in children:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(_children(child))))
                break
        else:
            stack.pop()
            found.append(node)
    return found


def _add(parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient.detach().clone()  # it may be a view of another one
        else:
            parameter.grad += gradient.detach()
