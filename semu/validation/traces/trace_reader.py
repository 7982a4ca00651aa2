"""``read_gpu_trace``: a profile of torch.profiler or of Nsight Systems, told apart by what it holds."""

from __future__ import annotations

import os

from semu.files import read_source
from semu.fitting import trace_events
from semu.validation.traces import nsys_table
from semu.validation.traces.gpu_trace import GpuTrace, KernelSum
from semu.validation.traces.kineto import read_kineto
from semu.validation.traces.nsys import read_nsys

EXPECTED = f"{trace_events.EXPECTED}; or {nsys_table.EXPECTED}"


def read_gpu_trace(path: str | os.PathLike[str]) -> GpuTrace | KernelSum:
    """Read a trace of ``torch.profiler`` in JSON, or a report of ``nsys stats`` in CSV; plain or gzip.

    Raises:
        ConfigError: it cannot be read, is neither, is damaged, or holds no kernel.
    """
    content = read_source(path, EXPECTED)
    if content.lstrip()[:1] in (b"{", b"["):
        return read_kineto(path, content)
    return read_nsys(content, os.fspath(path))
