"""``kernel`` and ``part``: functions that numba compiles when they are called, and that run without numba where their
machine code lies on disk.

A *kernel* is called from Python; a *part* only by kernels, so that numba needs no door to it from Python, which is a
sixth of the time that compiling takes, and keeps nothing of it on disk. ``_ieee``: a division by zero gives infinity or
NaN and raises nothing. All release the GIL. ``semu.stored`` holds the machine code of kernels that were called before;
``semu.dispatchers`` has numba compile or read the others. ``semu.ahead`` compiles kernels before they are called;
``python -m semu.compiled NAME ...`` is the process that does so: what it has compiled lies in numba's cache, where the
process that needs it looks first. ``semu.compiler`` is numba's compiler with shortcuts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial, update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from semu import ahead, stored
from semu.kernel_table import KERNELS
from semu.stored import kernel_name as kernel_name

P = ParamSpec("P")
R = TypeVar("R")
_IS_PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
_looking = threading.RLock()


class Compiled(Generic[P, R]):
    """A function that numba compiles, for the types that it is called with.

    Attributes of numba's function (``stats``, ``overloads``) are found here too.
    """

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._options = options
        self._dispatcher: Any = None
        self._known: list[stored.Known] = []
        self._is_read = False

    @property
    def dispatcher(self) -> Any:
        """numba's function."""
        if self._dispatcher is None:
            from semu.dispatchers import make_dispatcher

            made = make_dispatcher(self.py_func, self._options, compile_kernel)
            with _looking:  # of two threads that make one at once, one wins
                self._dispatcher = self._dispatcher or made
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """Kernels that call this one see numba's function."""
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        """Run, as the Python function would."""
        for fits, run in self._known:
            if fits(args):
                return run(*args)  # type: ignore[no-any-return]
        return self._call_new(args, named)

    def _call_new(self, args: tuple[Any, ...], named: dict[str, Any]) -> R:
        """Run for types that have not been called with in this process."""
        if not self._is_read:
            with _looking:
                if not self._is_read and self._dispatcher is None:
                    self._known = stored.read(self.py_func)
                self._is_read = True
            return self(*args, **named)
        found: R = self.dispatcher(*args, **named)
        if not named:
            self._note(args)
        return found

    def _note(self, args: tuple[Any, ...]) -> None:
        """Have the next call with such arguments run at once, in this process and the next ones."""
        from semu.dispatchers import called_with

        called = called_with(self.dispatcher, args)
        if called is None:
            return
        spec, run, code = called
        with _looking:
            fits = stored.fits(spec)
            if not any(known.fits(args) for known in self._known):
                self._known = [*self._known, stored.Known(fits, run)]
                if code is not None:
                    stored.write(self.py_func, spec, code)

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


class _Intrinsic:
    """A function that numba writes into the kernels that call it, of ``semu.dispatchers``."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _numba_type_(self) -> Any:
        dispatchers = import_module("semu.dispatchers")
        return dispatchers.type_of(getattr(dispatchers, self._name))


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    return function if _IS_PLAIN else cast("Callable[P, R]", Compiled(function, options))


kernel = _compiled


def part(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """A function that only kernels call; of another file, its file stands in ``ahead.kernel_sources``."""
    return _compiled(function, no_cpython_wrapper=True, **options)


inlined = partial(part, forceinline=True, _nrt=False)
"""A part that is written into each of its callers, so that groups of arrays are handed to it for nothing. It makes no
arrays, and counts no references to those that it is given."""
kernel_ieee, part_ieee = partial(kernel, error_model="numpy"), partial(part, error_model="numpy")

if TYPE_CHECKING or _IS_PLAIN:
    zeros, empty = np.zeros, np.empty
else:
    zeros, empty = _Intrinsic("zeros"), _Intrinsic("empty")
"""``np.zeros`` and ``np.empty`` of a shape and a type inside kernels: those compile two functions anew for each kind of
array, an eighth of what a kernel takes; these are part of the kernel."""
trailing_zeros: Any = _Intrinsic("trailing_zeros")
"""Number of zeros below the lowest one of a word (uint64) that is not zero, inside kernels."""


def compile_kernel(name: str) -> None:
    """Compile a kernel of ``KERNELS``, or load it."""
    from semu.dispatchers import compile_types

    module, _, function = name.rpartition(".")
    compile_types(getattr(import_module(f"semu.{module}"), function).dispatcher, KERNELS[name].types)


def compile_kernels(names: Iterable[str]) -> None:
    """``compile_kernel`` of several."""
    for name in names:
        compile_kernel(name)


if __name__ == "__main__":
    ahead.serve(sys.argv[1:], compile_kernel)
