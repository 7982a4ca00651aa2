"""``dispatchers``: semu's kernels as functions of numba, kept on disk where that is possible and in memory where not.

Only this file and ``compiler`` import numba, and ``compiled`` imports them when it has to: a process whose kernels all
lie on disk as machine code (``stored``) never does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import cgutils, sigutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.imputils import impl_ret_new_ref
from numba.core.registry import cpu_target
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

from semu import ahead
from semu.stored import Code, Spec, kernel_name, needed_symbols

_FAULTS = (OSError, EOFError, pickle.UnpicklingError)
"""Of a disk that is full, a folder that is not there or a file that was cut off."""


class _Results(CompileResultCacheImpl):
    """What numba keeps of a function, of which the machine code is noted."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.codes: dict[Any, Code] = {}

    def reduce(self, data: Any) -> Any:
        """What is written of a compiled function."""
        return self._noted(super().reduce(data))

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """A compiled function of what was read."""
        return super().rebuild(target_context, self._noted(payload))

    def _noted(self, payload: Any) -> Any:
        (_, _, (machine_code, _)), description, environment, signature, *_, others = payload
        environments = [environment, *others]
        if not any(each.consts for each in environments):
            names = tuple(each.env_name for each in environments)
            entry, needed = description.llvm_cpython_wrapper_name, needed_symbols(machine_code)
            self.codes[signature.args] = Code(entry, names, machine_code, needed)
        return payload


class _Cache(FunctionCache):
    """numba's cache of one function, which asks first whether another process compiles it just now.

    numba compiles anew where the function's own file has changed; this cache also where a file has whose kernels the
    function's file calls.
    """

    _impl_class = _Results

    def __init__(self, function: Callable[..., Any], compile_kernel: Callable[[str], None]) -> None:
        super().__init__(function)
        self._compile_kernel = compile_kernel
        called = ahead.kernel_sources(Path(function.__code__.co_filename))[1:]
        if called:
            file = self._cache_file
            file._source_stamp = (file._source_stamp, *(sha256(source.read_bytes()).digest() for source in called))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled before; None: nothing, or nothing that can be read."""
        found = self._load(sig, target_context)
        if found is None and ahead.awaited(kernel_name(self._py_func), self._compile_kernel):
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


def compiler_options(version: tuple[int, int]) -> dict[str, Any]:
    """The option of ``numba.njit`` that names semu's compiler, for versions of numba that it was tried with: its
    shortcuts take the place of functions that another version may have changed."""
    if not (0, 61) <= version < (0, 69):
        return {}
    from semu.compiler import QuickCompiler

    return {"pipeline_class": QuickCompiler}


_COMPILER = compiler_options(numba.version_info.short)


def make_dispatcher(
    function: Callable[..., Any], options: dict[str, Any], compile_kernel: Callable[[str], None]
) -> Any:
    """numba's function of a Python function.

    Args:
        options: of ``numba.njit``. compile_kernel: compiles another kernel, while one waits for another process.
    """
    options = options | {"nogil": True, "no_cfunc_wrapper": True, **_COMPILER}
    found: Any = numba.njit(**options)(function)
    if "no_cpython_wrapper" not in options:
        try:
            found._cache = _Cache(function, compile_kernel)
        except RuntimeError:  # no folder that can be written to
            found._cache = NullCache()
            ahead.report_trouble("no folder for compiled kernels can be written to")
    return found


def compile_types(dispatcher: Any, text: str) -> None:
    """Compile a function, or load it, for arguments of types as ``KERNELS`` writes them."""
    dispatcher.compile(sigutils.normalize_signature(f"({text},)")[0])


def called_with(dispatcher: Any, args: tuple[Any, ...]) -> tuple[Spec, Callable[..., Any], Code | None] | None:
    """What a call with some arguments has run: what they are, the function, and its machine code, once; None: they were
    converted first, or ``stored`` has no words for what they are."""
    kinds = tuple(dispatcher.typeof_pyval(value) for value in args)
    result = dispatcher.overloads.get(kinds)
    spec = _spec(types.Tuple(kinds))
    if result is None or spec is None:
        return None
    codes = getattr(getattr(dispatcher._cache, "_impl", None), "codes", {})
    return spec, result.entry_point, codes.pop(kinds, None)


def _spec(kind: Any) -> Spec | None:
    """What a value of a type is in words of ``stored``; None: it has none."""
    if isinstance(kind, types.Array) and kind.layout == "C" and kind.aligned and kind.ndim > 0:
        return as_dtype(kind.dtype).str, kind.ndim, bool(kind.mutable)
    if type(kind) in (types.Tuple, types.UniTuple):
        parts = tuple(_spec(part) for part in kind)
        return None if None in parts else parts
    return {types.int64: "int", types.float64: "float", types.boolean: "bool", types.none: "None"}.get(kind)


def type_of(value: Any) -> Any:
    """numba's type of an intrinsic."""
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)


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


def _generate_trailing_zeros(_typing_context: Any, word: Any) -> Any:
    def _generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), _generate


zeros, empty = intrinsic(_generate_zeros), intrinsic(_generate_empty)
trailing_zeros = intrinsic(_generate_trailing_zeros)
