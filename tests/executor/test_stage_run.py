"""What a stage gets back from the readers of its outputs; numpy's arrays stand for tensors, so that torch may lack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import semu.executor
from semu.errors import ExecutorError
from semu.executor.edges import Edge, Stage

ROWS = 5
Rows = tuple[int, int] | None


class Array(np.ndarray):
    """What a stage asks of tensors."""

    requires_grad, device = True, "cpu"

    def detach(self) -> Array:
        return self

    def is_floating_point(self) -> bool:
        return self.dtype.kind == "f"

    def add_(self, other: Array) -> Array:
        self += other
        return self

    def copy_(self, other: Array) -> Array:
        self[...] = other
        return self


class Anchor:
    """Keeps the gradients of the outputs that need them."""

    given: Sequence[Array | None] = ()

    def __init__(self, outputs: Sequence[Array]) -> None:
        self.outputs = outputs

    def backward(self, gradients: Sequence[Array | None]) -> None:
        Anchor.given = gradients

    def input_gradients(self, gradients: Sequence[Array | None], inputs: Sequence[Array]) -> list[Array | None]:
        Anchor.given = gradients
        return [None] * len(inputs)


@pytest.fixture(scope="module")
def stage_run() -> ModuleType:
    """``semu.executor.stage_run`` over arrays, beside the one that others import; a chunk returns what it is."""
    stand_ins: dict[str, dict[str, Any]] = {
        "torch": {
            "Tensor": Array,
            "zeros": lambda size, dtype, device: np.zeros(size, dtype).view(Array),
            "set_grad_enabled": lambda _: nullcontext(),
        },
        "semu.executor.backward": {"Anchor": Anchor},
        "semu.executor.chunk": {
            "run_chunk": lambda chunk, values, strategies: chunk,
            "as_tuple": lambda value: value if isinstance(value, tuple) else (value,),
        },
        "semu.executor.communicator": {"Tensors": tuple},
        "semu.executor.model": {"PipelineModel": object, "Shape": tuple},
    }
    spec = spec_from_file_location("stage_run_of_arrays", Path(semu.executor.__file__).with_name("stage_run.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, names in stand_ins.items():
            stand_in = ModuleType(name)
            vars(stand_in).update(names)
            patch.setitem(sys.modules, name, stand_in)
        spec.loader.exec_module(module)
    return module


def made(stage_run: ModuleType, readers: dict[Edge, Rows]) -> tuple[Any, dict[Edge, Any], tuple[Array, ...]]:
    """A stage after its forward, what it handed on, and its outputs: one of integers between two of numbers."""
    numbers = (np.arange(ROWS * width, dtype=np.float64).reshape(ROWS, width).view(Array) for width in (3, 2))
    first, last = numbers
    outputs = (first, np.arange(ROWS).view(Array), last)
    ends = {"is_first": True, "is_last": True, "has_backward": True, "strategies": None}
    stage = Stage(0, 0, 0, 0, 0, (0, ROWS), False, **ends, readers=list(readers))
    program = SimpleNamespace(
        shapes=SimpleNamespace(rows=readers.__getitem__),
        plan=SimpleNamespace(chunks=[SimpleNamespace(module="encoder")]),
    )
    model = SimpleNamespace(modules={"encoder": SimpleNamespace(load=None, loss=None)}, chunks=[outputs])
    waiting: dict[Edge, Any] = {}
    run = stage_run.StageRun(program, stage, model)
    assert run.forward(waiting, "cpu") is None
    return run, waiting, outputs


def edge_to(target: int, *, is_empty: bool = False, has_gradient: bool = True) -> Edge:
    return Edge(0, target, None, is_empty, has_gradient)


READERS: dict[str, list[Rows]] = {
    "one": [None],
    "one of some rows": [(1, 4)],
    "two": [None, None],
    "three": [None, None, None],
    "parts": [(0, 2), (2, 5)],
    "parts that overlap": [(0, 3), (1, 5)],
    "a whole and parts": [(0, 2), None, (2, 5)],
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_gradients_of_all_readers_add_up(name: str, half: bool, stage_run: ModuleType) -> None:
    """Row by row; what readers without a gradient, or of nothing, hold does not matter."""
    own = {edge_to(number + 1): rows for number, rows in enumerate(READERS[name])}
    silent = {edge_to(98, is_empty=True): None, edge_to(99, has_gradient=False): None}
    run, waiting, outputs = made(stage_run, {**own, **silent})
    expected = [np.zeros((ROWS, 3)), np.zeros((ROWS, 2))]
    returned: dict[Edge, tuple[Array, ...]] = {}
    for edge, rows in own.items():
        first, last = rows or (0, ROWS)
        for tensor, output in zip(waiting.pop(edge), outputs, strict=True):
            np.testing.assert_array_equal(tensor, output[first:last])
        gradients = []
        for total in expected:
            gradient = (10.0**edge.target * (1.0 + np.arange((last - first) * total.shape[1]))).reshape(
                last - first, -1
            )
            for row in range(first, last):
                for column in range(total.shape[1]):
                    total[row, column] += gradient[row - first, column]
            gradients.append(gradient.view(Array))
        returned[edge] = tuple(gradients)
    kept = {edge: [gradient.copy() for gradient in gradients] for edge, gradients in returned.items()}
    assert [edge.target for edge in waiting] == [99]
    waiting = dict(returned)
    (run.input_backward if half else run.backward)(waiting)
    assert waiting == {}
    assert len(Anchor.given) == 2
    for found, total in zip(Anchor.given, expected, strict=True):
        np.testing.assert_array_equal(found, total)
    for edge, gradients in returned.items():  # other stages may hold them
        for gradient, before in zip(gradients, kept[edge], strict=True):
            np.testing.assert_array_equal(gradient, before)


def test_every_reader_comes_first(stage_run: ModuleType) -> None:
    readers = {edge_to(1): None, edge_to(2): None}
    run, waiting, _ = made(stage_run, readers)
    first, _ = readers
    with pytest.raises(ExecutorError, match="a gradient is not there"):
        run.backward({first: waiting[first]})
