"""Conditions of a shell script in three values: true, false, and None where the script alone cannot tell."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from semu.imports.megatron.shell_words import gap_in

_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def holds_test(words: list[str]) -> bool | None:
    """Whether ``[ words ]`` holds: of texts, numbers, ``!``, ``-a`` and ``-o``; None of files and of gaps.

    Args:
        words: expanded, without the brackets.
    """
    if words[:1] == ["!"]:
        inner = holds_test(words[1:])
        return None if inner is None else not inner
    for joint, combine in (("-o", either), ("-a", both)):
        if joint in words[1:]:
            at = words.index(joint, 1)
            return combine(holds_test(words[:at]), holds_test(words[at + 1 :]))
    if any(gap_in(word) is not None for word in words):
        return None
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 3 and words[1] in ("=", "==", "!="):
        return fnmatchcase(words[0], words[2]) == (words[1] != "!=")
    if len(words) == 3 and words[1] in _NUMERIC and all(re.fullmatch(r"-?\d+", word) for word in words[::2]):
        return _NUMERIC[words[1]](int(words[0]), int(words[2]))
    return None


def both(left: bool | None, right: bool | None) -> bool | None:
    """Left and right."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: bool | None, right: bool | None) -> bool | None:
    """Left or right."""
    if left or right:
        return True
    return None if left is None or right is None else False
