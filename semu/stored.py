"""``stored``: machine code of kernels on disk, which runs without numba.

numba's cache holds machine code too, but whoever reads it imports numba and sets up its types, which takes longer than
most simulations. Here a kernel's machine code lies beside what its arguments must be; LLVM (llvmlite) links it, and
numba's two small libraries in C, which it calls, are loaded by themselves. A file counts as long as the sources of the
kernel, the versions of numba and llvmlite, Python and the processor are what they were: a checksum over all that and
over its own bytes says so. Only the user, the owner of semu or the administrator may have written it. Where anything is
otherwise, nothing is found and numba does what it always did (which trusts whatever lies in its cache: where others may
write to that folder, name one's own in ``NUMBA_CACHE_DIR``).
"""

from __future__ import annotations

import builtins
import ctypes
import marshal
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from semu import ahead

Spec = str | tuple[Any, ...]
"""What an argument is: ``(type, dimensions, whether it is written to)`` of an array in C order, ``int``, ``float``,
``bool``, ``None``, or a tuple of those; of a call the tuple of its arguments."""
_SCALARS = {
    "int": "(type({0}) is int or type({0}) is Int)",
    "float": "(type({0}) is float or type({0}) is Float)",
    "bool": "(type({0}) is bool or type({0}) is Bool)",
    "None": "{0} is None",
}
_NAMES = {"Array": np.ndarray, "Int": np.int64, "Float": np.float64, "Bool": np.bool_}
_ORDERED, _WRITTEN = 0x101, 0x400
"""Flags of arrays: in C order and aligned; that may be written to."""
_SYMBOLS = 2
"""Kind of the section of an ELF file that has its symbols."""
_HARMLESS = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_DISABLE_JIT"}
"""Settings of numba that do not change what it compiles."""


class Code(NamedTuple):
    """Machine code of a kernel.

    Attributes:
        entry: name of the function that Python calls. environments: names of the places where it looks for objects of
            Python. machine_code: an object file. needed: names of the functions that it calls and does not have.
    """

    entry: str
    environments: tuple[str, ...]
    machine_code: bytes
    needed: tuple[str, ...]


class Known(NamedTuple):
    """A kernel for some types: whether arguments are of them, and what runs."""

    fits: Callable[[tuple[Any, ...]], bool]
    run: Callable[..., Any]


def kernel_name(function: Callable[..., Any]) -> str:
    """``compile.kernels.run_stage`` of a function of semu."""
    return f"{function.__module__}.{function.__qualname__}".removeprefix("semu.")


def fits(spec: Spec) -> Callable[[tuple[Any, ...]], bool]:
    """A function that says whether the arguments of a call are what a spec says."""
    return _function(_fits_code(spec), spec)


def read(function: Callable[..., Any]) -> list[Known]:
    """What is stored of a kernel and counts today."""
    try:
        path, linker = _file(function), _linker()
        if linker is None or not path.exists():
            return []
        return [
            Known(_function(code, spec), linker.link(function, Code(*found)))
            for spec, code, found in _entries(path, _stamp(function, linker))
        ]
    except Exception:  # whatever it is, numba compiles
        return []


def write(function: Callable[..., Any], spec: Spec, code: Code) -> None:
    """Store the machine code of a kernel for some types beside what is stored of it, if that is possible."""
    from tempfile import mkstemp

    linker = _linker()
    if linker is None:
        return
    with suppress(OSError):
        path, stamp = _file(function), _stamp(function, linker)
        before: list[Any] = []
        with suppress(OSError, ValueError, EOFError, TypeError):
            before = _entries(path, stamp)
        entries = [entry for entry in before if entry[0] != spec] + [(spec, _fits_code(spec), tuple(code))]
        body = marshal.dumps(entries)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(sha256(stamp + body).digest() + body)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def _entries(path: Path, stamp: bytes) -> list[Any]:
    """What a file holds; nothing, where its bytes or its stamp are other than they were, or somebody else wrote it."""
    with path.open("rb") as file:
        is_trusted, kept = _is_trusted(os.fstat(file.fileno())), file.read()
    if not is_trusted or kept[:32] != sha256(stamp + kept[32:]).digest():
        return []
    entries: list[Any] = marshal.loads(kept[32:])
    return entries


def _is_trusted(file: os.stat_result) -> bool:
    """Whether nobody can have written a file who could not change semu or this process."""
    if not hasattr(os, "geteuid"):  # not on Windows, where folders say who may write
        return True
    owners = {0, os.geteuid(), os.stat(__file__).st_uid}
    return file.st_uid in owners and not file.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def needed_symbols(machine_code: bytes) -> tuple[str, ...]:
    """Names that an object file (ELF, 64 bits, as on Linux) uses and does not have; of other kinds of files none."""
    if machine_code[:6] != b"\x7fELF\x02\x01":
        return ()
    start, size, count = *struct.unpack_from("<Q", machine_code, 40), *struct.unpack_from("<HH", machine_code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", machine_code, start + size * n) for n in range(count)]
    found = []
    for _, kind, _, _, offset, length, linked, _, _, step in sections:
        if kind != _SYMBOLS:
            continue
        names = machine_code[sections[linked][4] :][: sections[linked][5]]
        for place in range(offset, offset + length, step):
            name, _, _, section = struct.unpack_from("<IBBH", machine_code, place)
            if name and not section:
                found.append(names[name : names.index(b"\0", name)].decode())
    return tuple(found)


def _file(function: Callable[..., Any]) -> Path:
    """Where a kernel's machine code lies."""
    source = Path(function.__code__.co_filename)
    folder = ahead.cache_folder()
    is_beside = folder == Path(__file__).resolve().parent
    place = source.parent / "__pycache__" if is_beside else folder / "semu-kernels"
    return place / f"{kernel_name(function)}.{sys.implementation.cache_tag}.kernel"


def _stamp(function: Callable[..., Any], linker: _Linker) -> bytes:
    """Of everything that the machine code of a kernel depends on."""
    found = sha256(linker.stamp)
    for source in ahead.kernel_sources(Path(function.__code__.co_filename)):
        found.update(source.read_bytes())
    return found.digest()


def _fits_code(spec: Spec) -> CodeType:
    assert isinstance(spec, tuple)
    words = [f"len(given) == {len(spec)}", *(_words(part, f"given[{n}]") for n, part in enumerate(spec))]
    body = compile(f"lambda given: {' and '.join(words)}", "<types of a kernel>", "eval")
    return next(part for part in body.co_consts if isinstance(part, CodeType))


def _words(spec: Spec, value: str) -> str:
    if isinstance(spec, str):
        return _SCALARS[spec].format(value)
    if _is_array(spec):
        kind, dimensions, is_written = spec
        flags = _ORDERED | _WRITTEN
        wanted = flags if is_written else _ORDERED
        name = _dtype_name(kind)
        return (
            f"type({value}) is Array and ({value}.dtype is {name} or {value}.dtype == {name}) "
            f"and {value}.ndim == {dimensions} and {value}.flags.num & {flags} == {wanted}"
        )
    inside = [_words(part, f"{value}[{n}]") for n, part in enumerate(spec)]
    return " and ".join([f"type({value}) is tuple", f"len({value}) == {len(spec)}", *inside])


def _is_array(spec: tuple[Any, ...]) -> bool:
    return len(spec) == 3 and isinstance(spec[2], bool)


def _dtype_name(kind: str) -> str:
    return f"of_{kind.encode().hex()}"


def _kinds(spec: Spec) -> Iterator[str]:
    if isinstance(spec, tuple):
        if _is_array(spec):
            yield spec[0]
        else:
            for part in spec:
                yield from _kinds(part)


def _function(code: CodeType, spec: Spec) -> Callable[[tuple[Any, ...]], bool]:
    names = _NAMES | {_dtype_name(kind): np.dtype(kind) for kind in _kinds(spec)}
    return FunctionType(code, names)


class _Linker:
    """LLVM with the functions that kernels call.

    Attributes:
        stamp: of what all machine code depends on.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self._llvm = llvm
        (folder,) = find_spec("numba").submodule_search_locations  # type: ignore[union-attr, misc]
        self._functions = _extension(folder, "_dynfunc")
        runtime = _extension(folder, "core.runtime._nrt_python")
        helpers = _extension(folder, "_helperlib")
        symbols = {
            f"numba_{name}": place for own in (helpers, self._functions) for name, place in own.c_helpers.items()
        }
        symbols |= {name if name[0] == "_" else f"NRT_{name}": place for name, place in runtime.c_helpers.items()}
        symbols |= {
            f"PyExc_{kind.__name__}": id(kind)
            for kind in vars(builtins).values()
            if isinstance(kind, type) and issubclass(kind, BaseException)
        }
        for name, place in {**symbols, "_Py_NoneStruct": id(None)}.items():
            llvm.add_symbol(name, place)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        self._environment = self._functions.Environment({"__name__": __name__})
        versions = [Path(folder, "_version.py"), Path(llvm.__file__).parents[1] / "_version.py"]
        here = Path(__file__).parent
        files = [*versions, *(here / f"{name}.py" for name in ("compiled", "compiler", "dispatchers", "stored"))]
        python = sys.version, sys.flags.optimize, sys.byteorder
        self.stamp = repr((python, np.__version__, self._processor)).encode() + b"".join(
            sha256(file.read_bytes()).digest() for file in files
        )

    def link(self, function: Callable[..., Any], code: Code) -> Callable[..., Any]:
        """A function of Python that runs machine code.

        Raises:
            ValueError: it calls a function that this process does not have (LLVM would end the process).
        """
        llvm = self._llvm
        processor, features = self._processor
        is_x86 = llvm.Target.from_default_triple().name.startswith("x86")
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            opt=3,
            cpu=processor,
            features=features,
            reloc="static" if is_x86 else "default",
            codemodel="jitdefault",
            jit=True,
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        lacking = [name for name in code.needed if not llvm.address_of_symbol(name)]
        if lacking:
            raise ValueError(f"no {', '.join(lacking)}, which the machine code of {kernel_name(function)} calls")
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
        engine.finalize_object()
        for name in code.environments:
            if place := engine.get_global_value_address(name):
                ctypes.c_void_p.from_address(place).value = id(self._environment)
        address = engine.get_function_address(code.entry)
        if not address:
            raise ValueError(f"no {code.entry} in the machine code of {kernel_name(function)}")
        module = sys.modules[function.__module__]
        made: Callable[..., Any] = self._functions.make_function(
            module, function.__name__, function.__doc__ or "", address, self._environment, (engine, machine)
        )
        return made


def _extension(folder: str, name: str) -> ModuleType:
    """A library in C of numba, without numba."""
    full = f"numba.{name}"
    if full in sys.modules:
        return sys.modules[full]
    for suffix in EXTENSION_SUFFIXES:
        path = Path(folder, *name.split(".")).with_suffix("")
        file = path.with_name(path.name + suffix)
        if file.exists():
            spec = spec_from_file_location(full, file)
            assert spec is not None and spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return sys.modules.setdefault(full, module)
    raise ImportError(f"no {full} in {folder}")


_linkers: list[_Linker | None] = []


def _linker() -> _Linker | None:
    """The process's linker; None: it cannot be made, or numba is told to compile otherwise."""
    if not _linkers:
        is_told = any(name.startswith("NUMBA_") and name not in _HARMLESS for name in os.environ)
        made = None
        if not is_told and not Path(".numba_config.yaml").exists():
            with suppress(Exception):
                made = _Linker()
        _linkers.append(made)
    return _linkers[0]
