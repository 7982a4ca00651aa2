"""Runs execution plans over torch (PipeWeaver §7.3): ``run_plan``, ``split_model``, communicators, delivery of plans.

Needs the extra: ``pip install 'semu[executor]'``. Names are imported on first use, and torch with them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from semu.errors import ExecutorError

if TYPE_CHECKING:
    from semu.executor.chunk import LayerChunk
    from semu.executor.communicator import Communicator, Operation
    from semu.executor.delivery import publish_plans, received_plans
    from semu.executor.fake_communicator import FakeCommunicator, FakeWorld, run_threads
    from semu.executor.model import ModuleStages, PipelineModel, split_model
    from semu.executor.processes import Place, RankFailure, launch
    from semu.executor.recording import Recording, timeline_of
    from semu.executor.runner import IterationResult, Runner, run_plan, run_plans
    from semu.executor.torch_communicator import TorchCommunicator

_HOMES = {
    "Communicator": "semu.executor.communicator",
    "FakeCommunicator": "semu.executor.fake_communicator",
    "FakeWorld": "semu.executor.fake_communicator",
    "IterationResult": "semu.executor.runner",
    "LayerChunk": "semu.executor.chunk",
    "ModuleStages": "semu.executor.model",
    "Operation": "semu.executor.communicator",
    "PipelineModel": "semu.executor.model",
    "Place": "semu.executor.processes",
    "RankFailure": "semu.executor.processes",
    "Recording": "semu.executor.recording",
    "Runner": "semu.executor.runner",
    "TorchCommunicator": "semu.executor.torch_communicator",
    "launch": "semu.executor.processes",
    "publish_plans": "semu.executor.delivery",
    "received_plans": "semu.executor.delivery",
    "run_plan": "semu.executor.runner",
    "run_plans": "semu.executor.runner",
    "run_threads": "semu.executor.fake_communicator",
    "split_model": "semu.executor.model",
    "timeline_of": "semu.executor.recording",
}

__all__ = [
    "Communicator",
    "FakeCommunicator",
    "FakeWorld",
    "IterationResult",
    "LayerChunk",
    "ModuleStages",
    "Operation",
    "PipelineModel",
    "Place",
    "RankFailure",
    "Recording",
    "Runner",
    "TorchCommunicator",
    "launch",
    "publish_plans",
    "received_plans",
    "require_torch",
    "run_plan",
    "run_plans",
    "run_threads",
    "split_model",
    "timeline_of",
]


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises:
        ExecutorError: it is not installed; the extra is named.
    """
    is_there = sys.modules["torch"] is not None if "torch" in sys.modules else find_spec("torch") is not None
    if not is_there:
        raise ExecutorError(
            "running plans needs torch, which is not installed",
            where="semu.executor",
            expected="pip install 'semu[executor]'",
        )


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'semu.executor' has no attribute {name!r}")
    require_torch()
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
