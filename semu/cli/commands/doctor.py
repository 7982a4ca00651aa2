"""``semu doctor``: versions, extras, and the cache of compiled kernels."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from semu.ahead import cache_folder, compiled_ahead, missing_kernels
from semu.cli.console import Progress, emit, emit_json
from semu.errors import install_line
from semu.kernel_table import KERNELS, NEEDS
from semu.units import align_columns, format_bytes

_BASE = ("numpy", "numba", "networkx", "ortools", "matplotlib", "scipy", "shtab", "pyyaml")
_EXTRAS = {
    "executor": "torch",
    "ray": "ray",
    "hf": "transformers",
    "hta": "HolisticTraceAnalysis",
    "imports": "accelerate",
    "test": "pytest",
}
"""Extra of pyproject.toml -> the package that tells whether it is there."""


def doctor_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    warm: list[dict[str, Any]] = []
    if arguments.warm:
        warm = _warm()
    missing = [
        {"command": command, "missing": len(missing_kernels(command)), "kernels": len(names)}
        for command, names in NEEDS.items()
    ]
    found = {
        "versions": _versions(),
        "extras": _extras(),
        "kernel_cache": kernel_cache(),
        "missing_kernels": missing,
        "warm": warm,
    }
    if arguments.json:
        emit_json(found)
    else:
        emit(_text(found))
    return 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    from semu import __version__

    own = {"semu": __version__, "python": platform.python_version()}
    return {**own, **{name: _version(name) for name in _BASE}}


def _extras() -> list[dict[str, str | None]]:
    return [
        {
            "extra": extra,
            "package": package,
            "version": found,
            "install": None if found else install_line(extra, package),
        }
        for extra, package, found in ((extra, package, _version(package)) for extra, package in _EXTRAS.items())
    ]


def kernel_cache() -> dict[str, Any]:
    """Where compiled kernels are kept: ``folders`` (with kernels in them, or the one that will be used), ``kernels``
    (compiled), ``size_bytes``, ``is_writable``."""
    package, place = Path(__file__).resolve().parents[2], cache_folder()
    files = [file for file in place.rglob("*.nb[ic]") if file.is_file()]
    folder = next(folder for folder in (place, *place.parents) if folder.exists())
    return {
        "folder": str(place) if place != package else f"{package}/*/__pycache__",
        "kernels": sum(file.suffix == ".nbi" for file in files),
        "size_bytes": sum(file.stat().st_size for file in files),
        "is_writable": os.access(folder, os.W_OK),
    }


def _warm() -> list[dict[str, Any]]:
    """Run a small job of each kind once and compile what is left; what that took: ``command``, ``seconds``,
    ``compiled``."""
    import semu
    from semu.compiled import compile_kernels
    from semu.runfile import load_run

    job = load_run("lm-7b", ["parallel.vpp=1", "training.global_batch=8"])
    several = load_run("lm-7b", ["parallel.vpp=2", "training.global_batch=8"])
    modal = load_run("vlm-s", ["training.global_batch=16"])
    steps: dict[str, Callable[[], object]] = {
        "simulate": lambda: [semu.simulate(each) for each in (job, several, modal)],
        "grid": lambda: semu.grid(job, vary={"tp": (1, 2), "pp": (2, 4)}, top=1),
        "search": lambda: semu.search(modal, rollouts=64),
        "others": lambda: compile_kernels(KERNELS),
    }
    rows = []
    for name, run in steps.items():
        begin, before = time.monotonic(), kernel_cache()["kernels"]
        with compiled_ahead(name), Progress() as progress:
            progress("compiling the other kernels" if name == "others" else f"running a small {name}")
            run()
        compiled = kernel_cache()["kernels"] - before
        rows.append({"command": name, "seconds": round(time.monotonic() - begin, 2), "compiled": compiled})
    return rows


def _text(found: dict[str, Any]) -> str:
    cache = found["kernel_cache"]
    lines = align_columns([(name, text or "not installed") for name, text in found["versions"].items()])
    extras = [(row["extra"], f"{row['package']} {row['version'] or 'not installed'}") for row in found["extras"]]
    lines += ["", "extras", *(f"  {line}" for line in align_columns(extras))]
    missing = [row["install"] for row in found["extras"] if row["install"]]
    lines += [f"  to add one: {line}" for line in missing[:1] for line in line.split(" or ")]
    state = "writable" if cache["is_writable"] else "NOT writable: kernels are compiled anew by every process"
    held = f"{cache['kernels']} kernels, {format_bytes(cache['size_bytes'])}" if cache["kernels"] else "empty"
    lines += ["", "kernel cache (NUMBA_CACHE_DIR moves it)", f"  {cache['folder']}", f"  {held}; {state}"]
    if lacking := [f"{row['command']} {row['missing']}" for row in found["missing_kernels"] if row["missing"]]:
        lines.append(f"  to be compiled on first use (semu doctor --warm does so at once): {', '.join(lacking)}")
    if found["warm"]:
        lines += ["", "warmed by a small run of each command"]
        rows = [(row["command"], f"{row['seconds']:.1f} s", f"{row['compiled']} compiled") for row in found["warm"]]
        lines += [f"  {line}" for line in align_columns(rows, (False, True, True))]
    return "\n".join(lines)
