"""``GraphNodes``: the operators, tensors, storages and subgraphs of a graph, as ``Graph`` builds them."""

from __future__ import annotations

from semu.graph.operator import Operator
from semu.graph.subgraph import Subgraph
from semu.graph.tensor import Storage, TensorNode
from semu.hardware.device import Stream


class GraphNodes:
    """What a graph holds.

    Attributes:
        operators, tensors, storages, subgraphs: nodes by index, in order of creation.
        inputs: tensors that exist before the first operator.
        outputs: tensors that must survive the last operator.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.tensors: list[TensorNode] = []
        self.storages: list[Storage] = []
        self.subgraphs: list[Subgraph] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def streams(self) -> list[Stream]:
        """The streams in use, in order of first use."""
        return list(dict.fromkeys(operator.stream for operator in self.operators))
