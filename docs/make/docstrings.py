"""A griffe extension for semu's docstrings.

``float64[num_ops] [s]`` is a shape and a unit, no link of Markdown; a section begins without an empty line before it.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(?m)(?<!\n)\n((?:Args|Attributes|Raises|Returns|Source|Yields):)$")


class PlainDocstrings(griffe.Extension):
    """Escapes brackets that follow brackets, outside code, and sets sections apart."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mend the docstring of an object."""
        if obj.docstring is not None:
            parts = re.split(r"(`[^`]*`)", obj.docstring.value)
            parts[::2] = [re.sub(r"\](\s?)\[", r"]\1\\[", part) for part in parts[::2]]
            obj.docstring.value = _SECTION.sub(r"\n\n\1", "".join(parts))
