"""A griffe extension: in a docstring ``float64[num_ops] [s]`` is a shape and a unit, and no link of Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe


class PlainBrackets(griffe.Extension):
    """Escapes brackets that follow brackets, outside code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mend the docstring of an object."""
        if obj.docstring is not None:
            parts = re.split(r"(`[^`]*`)", obj.docstring.value)
            parts[::2] = [re.sub(r"\](\s?)\[", r"]\1\\[", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)
