"""``kernel`` and ``part``: functions that numba compiles, kept on disk where that is possible and in memory where not.

A *kernel* is called from Python; a *part* only by kernels, so that numba needs no door to it from Python, which is a
sixth of the time that compiling takes. ``_ieee``: a division by zero gives infinity or NaN and raises nothing. All
release the GIL. ``semu.ahead`` compiles kernels before they are called; ``python -m semu.compiled NAME ...`` is the
process that does so: what it has compiled lies in numba's cache, where the process that needs it looks first.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core import sigutils
from numba.core.caching import FunctionCache, NullCache

from semu import ahead
from semu.kernel_table import KERNELS

P = ParamSpec("P")
R = TypeVar("R")
_FAULTS = (OSError, EOFError, pickle.UnpicklingError)
"""Of a disk that is full, a folder that is not there or a file that was cut off."""


class _Cache(FunctionCache):
    """numba's cache of one function, which asks first whether another process compiles it just now."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled before; None: nothing, or nothing that can be read."""
        found = self._load(sig, target_context)
        if found is None and ahead.awaited(kernel_name(self._py_func), compile_kernel):
            found = self._load(sig, target_context)
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except _FAULTS as error:
            ahead.report_trouble(f"cannot read {self._cache_path}: {error}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, or go on without where the disk does not take it."""
        try:
            with ahead.WRITING:
                super().save_overload(sig, data)
        except _FAULTS as error:
            ahead.report_trouble(f"cannot write to {self._cache_path}: {getattr(error, 'strerror', error)}")
            self.disable()


def kernel_name(function: Callable[..., Any]) -> str:
    """``compile.kernels.run_stage`` of a function of semu."""
    return f"{function.__module__}.{function.__qualname__}".removeprefix("semu.")


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    found: Any = numba.njit(nogil=True, **options)(function)
    if hasattr(found, "overloads"):  # not under NUMBA_DISABLE_JIT
        try:
            found._cache = _Cache(function)
        except RuntimeError:  # no folder that can be written to
            found._cache = NullCache()
            ahead.report_trouble("no folder for compiled kernels can be written to")
    return found  # type: ignore[no-any-return]


kernel = _compiled


def part(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """A function that only kernels of the same file call."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


kernel_ieee, part_ieee = partial(kernel, error_model="numpy"), partial(part, error_model="numpy")


def compile_kernel(name: str) -> None:
    """Compile a kernel of ``KERNELS``, or load it."""
    module, _, function = name.rpartition(".")
    dispatcher = getattr(import_module(f"semu.{module}"), function)
    dispatcher.compile(sigutils.normalize_signature(f"({KERNELS[name].types},)")[0])


def compile_kernels(names: Iterable[str]) -> None:
    """``compile_kernel`` of several."""
    for name in names:
        compile_kernel(name)


if __name__ == "__main__":
    ahead.serve(sys.argv[1:], compile_kernel)
