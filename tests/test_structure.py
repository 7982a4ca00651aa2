"""The shape of the source tree: imports without circles, short files and functions, folders that fit on one screen.

A violation passes only where an exception below names it with its reason; an import that closes a circle has its reason
beside it (``# circle: ...``).
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("semu", "semu_models", "calibration")

# Module -> reason for more than 500 lines.
LONG_FILES: dict[str, str] = {}
# Module and function -> reason for more than 100 lines.
LONG_FUNCTIONS: dict[str, str] = {}
# Folder -> reason for more than 21 files.
FULL_FOLDERS: dict[str, str] = {}
# Modules with a public function of their name -> why.
SHARED_NAMES = {
    "calibration.collective_cases": "a script's file is named for what it does",
    "calibration.compare": "a script's file is named for what it does",
    "semu.schedule.generators.gpipe": "the schedule's name",
    "semu.schedule.generators.interleaved": "the schedule's name",
    "semu.schedule.generators.one_f_one_b": "the schedule's name",
}


@cache
def modules() -> dict[str, Path]:
    """Name of each module of the packages, and its file."""
    found = {}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def is_kernel(module: str) -> bool:
    return "kernels" in module.split(".")


def imports(module: str) -> Iterator[str]:
    """Modules that a module imports: at its top, inside functions and under TYPE_CHECKING alike."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def excused(module: str) -> Iterator[str]:
    """Modules whose import says beside it why it may close a circle."""
    lines = modules()[module].read_text(encoding="utf-8").splitlines()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and re.search(r"  # circle: \w", lines[node.end_lineno - 1]):
            yield from [node.module] * len(node.names)


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_imports_make_no_circle():
    graph = nx.DiGraph((module, target) for module in modules() for target in imports(module) if target != module)
    said = {(module, target) for module in modules() for target in excused(module)}
    graph.remove_edges_from(said)
    circles = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert not circles, circles
    for source, target in said:  # a reason that is no longer needed goes
        assert nx.has_path(graph, target, source), (source, target)
    for source, target in said:  # wherever it is imported
        assert list(excused(source)).count(target) == list(imports(source)).count(target), (source, target)


def test_files_have_at_most_500_lines():
    long = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for module, path in modules().items()
        if not is_kernel(module)
    }
    long = {module: lines for module, lines in long.items() if lines > 500}
    assert set(long) <= set(LONG_FILES), long


def test_functions_have_at_most_100_lines():
    long = {
        f"{module}.{function.name}": function.end_lineno - function.lineno + 1
        for module in modules()
        if not is_kernel(module)
        for function in functions(module)
        if function.end_lineno - function.lineno + 1 > 100
    }
    assert set(long) <= set(LONG_FUNCTIONS), long


def test_folders_have_about_20_files():
    counts = Counter(
        str(path.parent.relative_to(ROOT))
        for path in modules().values()
        if path.name not in ("__init__.py", "__main__.py")
    )
    full = {folder: count for folder, count in counts.items() if count > 21}
    assert set(full) <= set(FULL_FOLDERS), full


def test_no_module_has_a_public_function_of_its_name():
    shared = {
        module
        for module in modules()
        for node in tree(module).body
        if isinstance(node, ast.FunctionDef) and node.name == module.split(".")[-1]
    }
    assert shared <= set(SHARED_NAMES), sorted(shared - set(SHARED_NAMES))


def test_kernels_have_fewer_than_20_arguments():
    counts = {
        f"{module}.{function.name}": len(function.args.args) + len(function.args.kwonlyargs)
        for module in modules()
        if is_kernel(module)
        for function in functions(module)
    }
    assert max(counts.values()) < 20, {name: count for name, count in counts.items() if count >= 20}


def test_public_functions_have_docstrings():
    """Those inside functions and private classes too, which ruff's rules leave out; private is what begins with _."""
    bare = [
        f"{module}:{function.lineno} {function.name}"
        for module in modules()
        for function in functions(module)
        if not function.name.startswith("_") and ast.get_docstring(function) is None
    ]
    assert bare == []


def test_the_files_that_the_readme_of_the_package_names_are_there() -> None:
    named = re.findall(
        r"`([a-z_]+/[a-z_/]*\.py|semu_models/[a-z_/]*\.py)`", (ROOT / "semu" / "README.md").read_text("utf-8")
    )
    assert len(named) > 30
    assert [name for name in named if not (ROOT / "semu" / name).exists() and not (ROOT / name).exists()] == []
