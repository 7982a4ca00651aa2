"""``lazy_names``: the names of a package, imported on first use; they are declared once, in its ``__init__.pyi``."""

import sys
from collections.abc import Callable


def lazy_names(
    package: str, check: Callable[[], None] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    The stub holds ``from MODULE import NAME as NAME`` and the package's functions. What ``dir`` shows is its
    ``__all__``, or all of these names.

    Args:
        package: its name. check: called before something is imported.
    """
    homes: dict[str, str] = {}  # name -> module that has it; empty until the stub was read
    shown: list[str] = []

    def _read_stub() -> None:
        import ast

        module = sys.modules[package]
        names: dict[str, str] = {}
        chosen, functions = list[str](), list[str]()
        for node in ast.parse(module.__spec__.loader.get_data(f"{module.__path__[0]}/__init__.pyi")).body:  # type: ignore[union-attr]
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name: str(node.module) for alias in node.names}
            elif isinstance(node, ast.FunctionDef):
                functions.append(node.name)
            elif isinstance(node, ast.Assign):
                chosen = ast.literal_eval(node.value)
        shown.extend(chosen or [*names, *functions])
        homes.update(names)

    def _get(name: str) -> object:
        from importlib import import_module

        if not homes:
            _read_stub()
        if name == "__all__":
            return shown
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if check is not None:
            check()
        home = homes[name]
        value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def _show() -> list[str]:
        _get("__all__")
        return sorted(shown)

    return _get, _show
