"""numba's compiler with four shortcuts, which change how long compiling takes and not what is compiled.

Half of numba's time goes into work that it does again and again: (1) the type of ``a + b`` is looked up anew, through
dozens of overloads, at every place where the same types are added; (2) the options of functions are compared by
making dictionaries of both; (3) a function that only compiled functions call is optimized and made machine code of,
although each of its callers gets a copy and is optimized as a whole; (4) the variables of a statement are looked for
in names and numbers too. The shortcuts hold while numba compiles a function of semu.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import codegen, compiler, ir, targetconfig
from numba.core.types import functions

_CallType: Any = functions.BaseFunction
_Code: Any = codegen.JITCPUCodegen
_Function: Any = functions.Function
_Options: Any = targetconfig.TargetConfig
_Statement: Any = ir.Inst
_types_of_calls: dict[Any, tuple[Any, Any]] = {}
"""Signature and key of the implementation, by (typing context, function, types of the arguments)."""
_without_variables: set[type] = set()
"""Of values in statements: names, numbers, places in the source."""
_resolve = _CallType.get_call_type
_set_environment, _list = _Code.set_env, _Statement._rec_list_vars


def _remember_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    """``BaseFunction.get_call_type``, remembered where the implementation depends on the arguments' types alone.

    An overload written in Python does not: it is compiled with its caller's options.
    """
    if kws or type(self) is not _Function:
        return _resolve(self, context, args, kws)
    key = (context, self, tuple(args))
    found = _types_of_calls.get(key)
    if found is None:
        signature = _resolve(self, context, args, kws)
        implementation = self._impl_keys[signature.args]
        if implementation is self.typing_key:
            _types_of_calls[key] = signature, implementation
        return signature
    signature, self._impl_keys[signature.args] = found[0], found[1]
    return signature


def _are_equal(self: Any, other: Any) -> Any:
    """``TargetConfig.__eq__``, without calling a property for every option."""
    if isinstance(other, _Options):
        return self is other or self._values == other._values or self.values() == other.values()
    return NotImplemented


def _hash(self: Any) -> int:
    """``TargetConfig.__hash__``: one number for all options of a target, as numba has it."""
    return hash(type(self))


def _list_variables(self: Any, value: Any) -> list[Any]:
    """``Inst._rec_list_vars``, in the same order."""
    kind = type(value)
    if kind is ir.Var:
        return [value]
    if issubclass(kind, _Statement):
        return value.list_vars()  # type: ignore[no-any-return]
    if issubclass(kind, dict):
        value = value.values()
    elif not issubclass(kind, list | tuple):
        _without_variables.add(kind)
        return []
    found = []
    for each in value:
        if type(each) is ir.Var:
            found.append(each)
        elif type(each) not in _without_variables:
            found += _list_variables(self, each)
    return found


def _set_environment_if_emitted(self: Any, name: str, environment: Any) -> None:
    """``JITCPUCodegen.set_env``, for functions that there is machine code of."""
    if address := self._engine.get_global_value_address(name):
        pointer = ctypes.c_void_p.from_buffer(ctypes.py_object(environment)).value
        ctypes.c_void_p.from_address(address).value = pointer


class _Library(codegen.JITCodeLibrary):
    """LLVM code of a function: optimized and made machine code of when its address is asked for."""

    _is_emitted = False

    def _optimize_final_module(self) -> None:
        """Leave it to the callers, or to ``get_pointer_to_function``."""

    def _finalize_final_module(self) -> None:
        if self._object_caching_enabled and self._compiled_object is not None:  # read from numba's cache
            self._is_emitted = True
            super()._finalize_final_module()
        else:
            self._finalize_dynamic_globals()
            self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Address of a function of this library; 0: it has none of this name."""
        self._ensure_finalized()
        if not self._is_emitted:
            if all(function.name != name for function in self.get_defined_functions()):
                return 0
            self._is_emitted = True
            self._dynamic_globals.clear()
            super()._optimize_final_module()
            super()._finalize_final_module()
        return int(super().get_pointer_to_function(name))


@contextmanager
def _shortcuts(code: Any) -> Iterator[None]:
    """Have numba take the shortcuts; it compiles one function at a time, and those that it calls inside."""
    if "_library_class" in code.__dict__:
        yield
        return
    equal, hashed = _Options.__eq__, _Options.__hash__
    code._library_class = _Library
    _Code.set_env = _set_environment_if_emitted
    _CallType.get_call_type, _Statement._rec_list_vars = _remember_call_type, _list_variables
    _Options.__eq__, _Options.__hash__ = _are_equal, _hash
    try:
        yield
    finally:
        del code._library_class
        _Code.set_env = _set_environment
        _CallType.get_call_type, _Statement._rec_list_vars = _resolve, _list
        _Options.__eq__, _Options.__hash__ = equal, hashed


class QuickCompiler(compiler.Compiler):
    """numba's compiler of one function, with the shortcuts of this file."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a Python function."""
        with _shortcuts(self.state.targetctx.codegen()):
            return super().compile_extra(func)
