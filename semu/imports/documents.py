"""``read_document``: a TOML, YAML or JSON file as arguments, one for each scalar or list of scalars, by dotted path.

    parallelism:
      tensor_parallel_degree: 2      ->   parallelism.tensor_parallel_degree  ("2",)  line 2
    modules: [a, b]                  ->   modules  ("a", "b")                         line 3
    data: [{path: x}]                ->   data.0.path  ("x",)                         line 4

``${a.b}`` stands for the value at ``a.b``, as in OmegaConf; other interpolations are gaps.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from semu.errors import ConfigError
from semu.files import checked_levels
from semu.imports.arguments import Argument, Given
from semu.imports.flags import FlagTable

LARGEST = 2 << 20
"""Bytes of the largest file that is taken for a configuration."""
_MOST = 100_000
"""Values of a document, whose aliases may make more of them than it has letters."""
_DEEPEST = 100
_REFERENCE = re.compile(r"\$\{([\w.\-]+)\}")
_INTERPOLATION = re.compile(r"\$\{[^}]*\}")
_Leaf = tuple[str, tuple[str, ...], int]


class Document:
    """A parsed file.

    Attributes:
        source: the file. leaves: path -> words and line. data: the same as mappings and lists.
    """

    def __init__(self, source: str, data: Any, lines: Mapping[str, int]) -> None:
        self.source, self.data = source, data
        leaves = list(_leaves(data, "", 0, source))
        self.leaves: dict[str, tuple[tuple[str, ...], int]] = {
            path: (words, _line(lines, path)) for path, words, _ in leaves
        }
        for path, (words, line) in self.leaves.items():
            self.leaves[path] = (tuple(self._resolved(word) for word in words), line)

    def has(self, *paths: str) -> bool:
        """Whether it has all of some keys, tables included."""
        return all(path in self.leaves or any(leaf.startswith(f"{path}.") for leaf in self.leaves) for path in paths)

    def arguments(self, flags: FlagTable, below: str = "") -> tuple[Argument, ...]:
        """Its values as arguments.

        Args:
            below: only what is below this path, named from there.
        """
        found = []
        for path, (words, line) in self.leaves.items():
            if not path.startswith(below):
                continue
            name = path.removeprefix(below)
            open_word = next((word for word in words if _INTERPOLATION.search(word)), None)
            gap = "" if open_word is None else f"{open_word} (line {line}: not set in the file)"
            found.append(Argument(flags.spelt(name), name, words, line, gap))
        return tuple(found)

    def given(self, kind: str, flags: FlagTable) -> Given:
        """All of it, for ``Settings``."""
        return Given(self.source, kind, flags, self.arguments(flags))

    def _resolved(self, word: str) -> str:
        seen = 0
        while (match := _REFERENCE.fullmatch(word)) is not None and seen < _DEEPEST:
            words = self.leaves.get(match[1], ((),))[0]
            if len(words) != 1 or words[0] == word:
                return word
            word, seen = words[0], seen + 1
        return word


def read_document(text: str, source: str) -> Document:
    """Parse a file; its name says whether it is TOML, YAML or JSON, else its contents.

    Raises:
        ConfigError: text that is none of these, with the line; a file that is too large; no table at its top.
    """
    if len(text) > LARGEST:
        message = f"a configuration of {len(text) / (1 << 20):.1f} MiB"
        raise ConfigError(message, where=source, expected=f"at most {LARGEST >> 20} MiB", got="a larger file")
    suffix = PurePath(source).suffix.lower()
    if suffix == ".toml":
        data, lines = _parse_toml(text, source)
    elif suffix == ".json":
        data, lines = _parse_json(text, source)
    else:
        data, lines = _parse_yaml(text, source)
    if not isinstance(data, dict):
        raise ConfigError("no keys at the top", where=source, expected="a table of settings", got=type(data).__name__)
    return Document(source, checked_levels(data, source, "a configuration"), lines)


def _parse_toml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        match = re.search(r"\(at line (\d+)", str(error))
        where = source if match is None else f"{source}:{match[1]}"
        raise ConfigError("not TOML", where=where, expected="TOML 1.0", got=str(error)[:80]) from error
    lines: dict[str, int] = {}
    table = ""
    for number, row in enumerate(text.splitlines(), start=1):
        if (head := re.match(r"\s*\[\[?\s*([\w.\-\"' ]+?)\s*\]", row)) is not None:
            table = re.sub(r"[\"' ]", "", head[1]) + "."
            lines.setdefault(table[:-1], number)
        elif (key := re.match(r"\s*([\w.\-\"' ]+?)\s*=", row)) is not None:
            lines.setdefault(table + re.sub(r"[\"' ]", "", key[1]), number)
    return data, lines


def _parse_json(text: str, source: str) -> tuple[Any, dict[str, int]]:
    try:
        data = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        where = f"{source}:{line}" if line else source
        raise ConfigError("not JSON", where=where, expected="JSON", got=str(error)[:80]) from error
    except RecursionError as error:
        raise ConfigError("not a configuration", where=source, expected="tables a few deep", got="deep ones") from error
    lines: dict[str, int] = {}
    for number, row in enumerate(text.splitlines(), start=1):
        for key in re.findall(r'"([^"\\]+)"\s*:', row):
            lines.setdefault(key, number)
    return data, lines


def _parse_yaml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines: dict[str, int] = {}
    try:
        reader = loader(text)
        try:
            node = reader.get_single_node()
            data = _built(reader, node, "", lines, [0], source)
        finally:
            reader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        got = str(getattr(error, "problem", None) or error).splitlines()[0][:80]
        raise ConfigError("not YAML", where=where, expected="YAML", got=got) from error
    except RecursionError as error:
        raise ConfigError("not a configuration", where=source, expected="tables a few deep", got="deep ones") from error
    except ValueError as error:  # a date such as 2026-99-99
        raise ConfigError("not YAML", where=source, expected="YAML", got=str(error)[:80]) from error
    return data, lines


def _built(reader: Any, node: Any, path: str, lines: dict[str, int], count: list[int], source: str) -> Any:
    """What a node of YAML holds; tags of a program's own classes are taken as plain tables."""
    count[0] += 1
    if count[0] > _MOST or path.count(".") > _DEEPEST:
        raise ConfigError("not a configuration", where=source, expected=f"at most {_MOST} values", got="more")
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if node.id == "mapping":
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else "?"
            below = f"{path}.{name}" if path else name
            lines.setdefault(below, key.start_mark.line + 1)
            built = _built(reader, value, below, lines, count, source)
            if name == "<<" and isinstance(built, dict):
                found = {**built, **found}
            else:
                found[name] = built
        return found
    if node.id == "sequence":
        items = enumerate(node.value)
        return [_built(reader, item, f"{path}.{at}" if path else str(at), lines, count, source) for at, item in items]
    if node.tag.startswith("tag:yaml.org,2002:") and node.tag.rpartition(":")[2] in ("bool", "int", "float", "null"):
        return reader.construct_object(node)
    return node.value


def _leaves(value: Any, path: str, depth: int, source: str) -> Iterator[_Leaf]:
    if depth > _DEEPEST:
        raise ConfigError("not a configuration", where=source, expected="tables a few deep", got="deep ones")
    if isinstance(value, dict):  # one without keys says nothing
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else str(name), depth + 1, source)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}.{at}", depth + 1, source)
    elif isinstance(value, list):
        yield path, tuple(_word(item) for item in value) or ("[]",), depth
    else:
        yield path, (_word(value),), depth


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _line(lines: Mapping[str, int], path: str) -> int:
    """The line of a path, of what is around it, or of a key of that name."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        if (line := lines.get(".".join(parts[:length]))) is not None and length == len(parts):
            return line
    return lines.get(parts[-1], next((lines[part] for part in reversed(parts) if part in lines), 0))
