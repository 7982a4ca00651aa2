"""``read_kineto``: a trace of ``torch.profiler`` (Kineto, Chrome's JSON, plain or gzip) -> ``GpuTrace``.

Kernels are complete events (``ph: X``) of category ``kernel``, ``gpu_memcpy`` or ``gpu_memset``. Steps are annotations
``ProfilerStep#N``. A kernel belongs to the step during which it was launched (the runtime call with its
``correlation``); where the launch is not in the trace, to the step whose annotation on the GPU, else on the CPU, covers
its start.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from semu.checks import is_integer
from semu.errors import MALFORMED, ConfigError
from semu.fitting.kernel_names import family_of, family_of_kind
from semu.fitting.trace_events import read_events
from semu.validation.traces.gpu_trace import GpuTrace, Kernel

_GPU_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
_LAUNCH_CATEGORIES = frozenset(("cuda_runtime", "cuda_driver", "runtime"))
_STEP = re.compile(r"ProfilerStep#(\d+)")


def read_kineto(path: str | os.PathLike[str], content: bytes | None = None) -> GpuTrace:
    """Read a trace.

    Args:
        path: the file. content: what it holds, where it is read already.
    Raises:
        ConfigError: it cannot be read, is no JSON, no trace, or holds no kernel.
    """
    place = os.fspath(path)
    complete, document, num_events = read_events(path, content)
    try:
        trace = _Reader(complete).trace(document)
    except MALFORMED as error:
        raise ConfigError(
            "an event of the trace cannot be read",
            where=place,
            expected="name, finite ts and dur >= 0 in every event",
            got=repr(error),
        ) from error
    if not trace.kernels:
        categories = sorted({str(event.get("cat")) for event in complete})
        raise ConfigError(
            "no GPU kernels in the trace",
            where=place,
            expected="events of category kernel (profile with ProfilerActivity.CUDA)",
            got=f"{num_events} events of categories {', '.join(categories[:8]) or '(none)'}",
        )
    return trace


class _Reader:
    """Sorts complete events into kernels, launches and steps."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._gpu: list[dict[str, Any]] = []
        self._launches: dict[int, float] = {}
        self._cpu_steps: dict[int, tuple[float, float]] = {}
        self._gpu_steps: dict[object, list[tuple[float, float, int]]] = {}
        for event in events:
            category = str(event.get("cat", "")).lower()
            if category in _GPU_CATEGORIES:
                self._gpu.append(event)
            elif category in _LAUNCH_CATEGORIES:
                correlation = _argument(event, "correlation")
                if isinstance(correlation, int):
                    self._launches[correlation] = float(event["ts"])
            elif category.endswith("user_annotation") and (match := _STEP.fullmatch(str(event["name"]))) is not None:
                number, start, end = int(match[1]), float(event["ts"]), float(event["ts"]) + float(event["dur"])
                if category.startswith("gpu"):
                    self._gpu_steps.setdefault(_track(event), []).append((start, end, number))
                else:
                    known = self._cpu_steps.get(number, (start, end))
                    self._cpu_steps[number] = (min(start, known[0]), max(end, known[1]))
        self._cpu_order = sorted((start, end, number) for number, (start, end) in self._cpu_steps.items())
        for spans in self._gpu_steps.values():
            spans.sort()

    def trace(self, document: Mapping[str, Any]) -> GpuTrace:
        """All of it."""
        world = document.get("distributedInfo")
        world = world if isinstance(world, dict) else {}
        steps = dict(self._cpu_steps)
        for start, end, number in (span for spans in self._gpu_steps.values() for span in spans):
            if number not in self._cpu_steps:
                known = steps.get(number, (start, end))
                steps[number] = (min(start, known[0]), max(end, known[1]))
        return GpuTrace(
            kernels=tuple(self._kernel(event) for event in self._gpu),
            steps=steps,
            rank=_integer(world.get("rank")),
            world_size=_integer(world.get("world_size")),
        )

    def _kernel(self, event: dict[str, Any]) -> Kernel:
        name, start = str(event["name"]), float(event["ts"])
        kind = _argument(event, "kind")
        family = family_of_kind(kind) if isinstance(kind, str) else None
        if family is None:
            collective = _argument(event, "Collective name")
            family = family_of(name, collective if isinstance(collective, str) else None)
        duration = float(event["dur"])
        if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0):
            raise ValueError(f"{name[:60]}: ts {start}, dur {duration}")
        end = start + duration
        return Kernel(name, family, start, end, event.get("pid"), self._step_of(event, start))

    def _step_of(self, event: dict[str, Any], start: float) -> int | None:
        correlation = _argument(event, "correlation")
        launch = self._launches.get(correlation) if isinstance(correlation, int) and correlation > 0 else None
        if launch is not None and self._cpu_order:
            return _covering(self._cpu_order, launch)
        spans = self._gpu_steps.get(_track(event))
        return _covering(self._cpu_order if spans is None else spans, start)


def _covering(spans: list[tuple[float, float, int]], time: float) -> int | None:
    """Number of the span that covers a time."""
    position = bisect_right(spans, time, key=lambda span: span[0]) - 1
    return spans[position][2] if position >= 0 and time < spans[position][1] else None


def _argument(event: Mapping[str, Any], name: str) -> object:
    arguments = event.get("args")
    return arguments.get(name) if isinstance(arguments, dict) else None


def _track(event: Mapping[str, Any]) -> tuple[object, object]:
    return event.get("pid"), event.get("tid")


def _integer(value: object) -> int | None:
    return value if is_integer(value) else None
