"""C programs beside the benchmarks, compiled on the spot: ``compiled``, ``bind``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


@contextmanager
def compiled(source: str) -> Iterator[tuple[str, ctypes.CDLL] | None]:
    """Name and library of a C file, built in a temporary folder; None where there is no C compiler."""
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"])), None)
    if compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "reference.so"
        flags = ["-O3", "-march=native", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, str(Path(__file__).with_name(source)), "-o", str(library), "-lm"], check=True)
        yield f"C, {Path(compiler).name} -O3 -march=native", ctypes.CDLL(str(library))


def bind(function: Any, *arguments: int | NDArray[Any]) -> Callable[[], int]:
    """A C function with its arguments: counts and pointers."""
    function.restype = ctypes.c_int64
    return partial(
        function,
        *(ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in arguments),
    )
