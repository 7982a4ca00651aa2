"""``read_nsys``: a report of Nsight Systems (``nsys stats --format csv``) -> ``GpuTrace`` or ``KernelSum``.

``cuda_gpu_trace`` has a row per kernel and copy, with its start; ``cuda_gpu_kern_sum`` a row per name of kernels, with
sums over the whole profile. Neither marks iterations.
"""

from __future__ import annotations

import re

from semu.errors import ConfigError
from semu.fitting.kernel_names import family_of
from semu.validation.traces.gpu_trace import GpuTrace, Kernel, KernelSum, NamedKernels
from semu.validation.traces.nsys_table import EXPECTED, NsysReport, NsysTable, find_table

_DEVICE = re.compile(r".*\(([0-9]{1,6})\)")
_ROUNDING = 0.0005
"""nsys prints shares to 0.1 %: the most that each is off by."""
_SLACK = 0.005


def read_nsys(content: bytes, place: str) -> GpuTrace | KernelSum:
    """Read a report.

    Args:
        content: of the file. place: the file, for messages.
    Raises:
        ConfigError: no text; no report of kernels, or two; a row that cannot be read; no rows.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("not a text file", where=place, expected=EXPECTED, got=f"byte {error.start}") from error
    table = find_table(text, place)
    return _trace(table) if table.report is NsysReport.GPU_TRACE else _sum(table)


def _trace(table: NsysTable) -> GpuTrace:
    """Times from the first kernel on, so that they keep their digits."""
    starts, durations = table.times_ns("start"), table.times_ns("duration")
    origin = min(starts)
    return GpuTrace(
        tuple(
            Kernel(
                name,
                family_of(name),
                float(start - origin) / 1e3,
                float(start - origin + duration) / 1e3,
                _device(device),
                None,
            )
            for start, duration, device, name in zip(
                starts, durations, table.texts("device"), table.texts("name"), strict=True
            )
        ),
        has_process_per_rank=False,
    )


def _device(cell: str) -> object:
    """Number of the GPU in ``NVIDIA H100 80GB HBM3 (3)``; a cell without one is its own name."""
    match = _DEVICE.fullmatch(cell)
    return cell if match is None else int(match[1])


def _sum(table: NsysTable) -> KernelSum:
    totals, counts, names = table.times_ns("total time"), table.counts("instances"), table.texts("name")
    kernels = tuple(
        NamedKernels(name, count, float(total) / 1e9) for name, count, total in zip(names, counts, totals, strict=True)
    )
    if "time" not in table.columns or table.columns["time"].unit != "%":
        return KernelSum(kernels)
    listed = float(sum(table.numbers("time", "a share in percent"))) / 100
    unsure = _SLACK + _ROUNDING * len(kernels)
    if listed > 1 + unsure:
        raise ConfigError(
            "shares of more than the whole time",
            where=f"{table.place} {table.columns['time'].heading}",
            expected="100 % in all rows together: one report",
            got=f"{listed:.1%}",
        )
    return KernelSum(kernels, listed if listed < 1 - unsure else 1.0)
