"""What is made when it is first used: names of packages (``lazy_names``), values of tables (``LazyTable``)."""

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

V = TypeVar("V")


def imported(module: str, name: str) -> Callable[[], Any]:
    """A function that imports a module and returns what has a name there."""

    def _import() -> object:
        from importlib import import_module

        return getattr(import_module(module), name)

    return _import


class LazyTable(MutableMapping[str, V]):
    """A table whose values are made when they are first asked for.

    Args:
        makers: of the values, by key.
    """

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers, self._made = dict(makers), dict[str, V]()

    def __getitem__(self, key: str) -> V:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._makers[key], self._made[key] = lambda: value, value

    def __delitem__(self, key: str) -> None:
        del self._makers[key]
        self._made.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def lazy_names(
    package: str, check: Callable[[], None] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported on first use.

    The stub holds ``from MODULE import NAME as NAME`` and the package's functions. What ``dir`` shows is its
    ``__all__``, or all of these names.

    Args:
        package: its name. check: called before something is imported.
    """
    homes: dict[str, tuple[str, str]] = {}  # name -> module that has it, its name there; empty until the stub was read
    shown: list[str] = []

    def _read_stub() -> None:
        import ast

        module = sys.modules[package]
        names: dict[str, tuple[str, str]] = {}
        chosen, functions = list[str](), list[str]()
        for node in ast.parse(module.__spec__.loader.get_data(f"{module.__path__[0]}/__init__.pyi")).body:  # type: ignore[union-attr]
            if isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
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
        home, own = homes[name]
        value = import_module(f"{home}.{own}") if home == package else getattr(import_module(home), own)
        setattr(sys.modules[package], name, value)
        return value

    def _show() -> list[str]:
        _get("__all__")
        return sorted(shown)

    return _get, _show
