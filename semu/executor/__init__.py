"""Runs execution plans over torch (PipeWeaver §7.3): ``run_plan``, ``split_model``, communicators, delivery of plans.

Needs the extra: ``pip install '.[executor]'`` in a checkout. Names are imported on first use, and torch with them.
"""

import sys
from importlib.util import find_spec

from semu.errors import ExecutorError, install_line
from semu.lazy import lazy_names


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
            expected=install_line("executor", "torch"),
        )


__getattr__, __dir__ = lazy_names(__name__, require_torch)
