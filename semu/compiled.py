"""``kernel`` and ``part``: functions that numba compiles, kept on disk where that is possible and in memory where not.

A *kernel* is called from Python; a *part* only by kernels, so that numba needs no door to it from Python, which is a
sixth of the time that compiling takes, and keeps nothing of it on disk. ``_ieee``: a division by zero gives infinity or
NaN and raises nothing. All release the GIL. ``semu.ahead`` compiles kernels before they are called; ``python -m
semu.compiled NAME ...`` is the process that does so: what it has compiled lies in numba's cache, where the process that
needs it looks first. ``semu.compiler`` is numba's compiler with shortcuts.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numba
import numpy as np
from numba import types
from numba.core import cgutils, sigutils
from numba.core.caching import FunctionCache, NullCache
from numba.core.imputils import impl_ret_new_ref
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from semu import ahead
from semu.kernel_table import KERNELS

P = ParamSpec("P")
R = TypeVar("R")
_FAULTS = (OSError, EOFError, pickle.UnpicklingError)
"""Of a disk that is full, a folder that is not there or a file that was cut off."""


class _Cache(FunctionCache):
    """numba's cache of one function, which asks first whether another process compiles it just now.

    numba compiles anew where the function's own file has changed; this cache also where a file has whose kernels the
    function's file calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        called = ahead.kernel_sources(Path(function.__code__.co_filename))[1:]
        if called:
            file = self._cache_file
            file._source_stamp = (file._source_stamp, *(sha256(source.read_bytes()).digest() for source in called))

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


def _compiler(version: tuple[int, int]) -> dict[str, Any]:
    """The option of ``numba.njit`` that names semu's compiler, for versions of numba that it was tried with: its
    shortcuts take the place of functions that another version may have changed."""
    if not (0, 61) <= version < (0, 69):
        return {}
    from semu.compiler import QuickCompiler

    return {"pipeline_class": QuickCompiler}


_COMPILER = _compiler(numba.version_info.short)


def kernel_name(function: Callable[..., Any]) -> str:
    """``compile.kernels.run_stage`` of a function of semu."""
    return f"{function.__module__}.{function.__qualname__}".removeprefix("semu.")


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    options |= {"nogil": True, "no_cfunc_wrapper": True, **_COMPILER}
    found: Any = numba.njit(**options)(function)
    if hasattr(found, "overloads") and "no_cpython_wrapper" not in options:  # not under NUMBA_DISABLE_JIT
        try:
            found._cache = _Cache(function)
        except RuntimeError:  # no folder that can be written to
            found._cache = NullCache()
            ahead.report_trouble("no folder for compiled kernels can be written to")
    return found  # type: ignore[no-any-return]


kernel = _compiled


def part(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """A function that only kernels call; of another file, its file stands in ``ahead.kernel_sources``."""
    return _compiled(function, no_cpython_wrapper=True, **options)


inlined = partial(part, forceinline=True, _nrt=False)
"""A part that is written into each of its callers, so that groups of arrays are handed to it for nothing. It makes no
arrays, and counts no references to those that it is given."""
kernel_ieee, part_ieee = partial(kernel, error_model="numpy"), partial(part, error_model="numpy")


def _generate_array(shape: Any, dtype: Any, *, is_zero: bool) -> Any:
    """Types and code of ``zeros`` and ``empty``."""
    from numba.np import arrayobj  # which numba loads with the first kernel

    is_tuple = isinstance(shape, types.BaseTuple)
    kinds = tuple(shape) if is_tuple else (shape,)
    array = types.Array(parse_dtype(dtype), len(kinds), "C")

    def _generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        given = cgutils.unpack_tuple(builder, arguments[0]) if is_tuple else arguments[:1]
        sizes = [context.cast(builder, size, kind, types.intp) for size, kind in zip(given, kinds, strict=True)]
        made = arrayobj._empty_nd_impl(context, builder, array, sizes)
        if is_zero:
            cgutils.memset(builder, made.data, builder.mul(made.itemsize, made.nitems), 0)
        return impl_ret_new_ref(context, builder, array, made._getvalue())

    return array(shape, dtype), _generate


def _generate_zeros(_typing_context: Any, shape: Any, dtype: Any) -> Any:
    return _generate_array(shape, dtype, is_zero=True)


def _generate_empty(_typing_context: Any, shape: Any, dtype: Any) -> Any:
    return _generate_array(shape, dtype, is_zero=False)


if TYPE_CHECKING or numba.config.DISABLE_JIT:
    zeros, empty = np.zeros, np.empty
else:
    zeros, empty = intrinsic(_generate_zeros), intrinsic(_generate_empty)
"""``np.zeros`` and ``np.empty`` of a shape and a type inside kernels: those compile two functions anew for each kind of
array, an eighth of what a kernel takes; these are part of the kernel."""


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
