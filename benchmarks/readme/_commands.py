"""``run_json``, ``run_text``: what a semu command prints; each command runs once in a process."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from typing import Any

from semu.cli import main


@cache
def run_text(words: str) -> str:
    """Run ``semu WORDS`` in this process; returns what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        main(words.split())
    return printed.getvalue()


@cache
def run_json(words: str) -> Any:
    """Run ``semu WORDS --json`` in this process.

    Returns:
        Its document: a result, or ``{"error": ...}`` where semu refuses.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        main([*words.split(), "--json"])
    return json.loads(printed.getvalue())
