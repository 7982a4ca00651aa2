"""``read_events``: the complete events of a Chrome trace in JSON, plain or gzip."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from semu.errors import ConfigError
from semu.files import parse_json, read_source

EXPECTED = "a trace of torch.profiler (export_chrome_trace): JSON with traceEvents, plain or gzip"


def read_events(
    path: str | os.PathLike[str], content: bytes | None = None
) -> tuple[list[dict[str, Any]], Mapping[str, Any], int]:
    """Read a trace.

    Args:
        path: the file. content: what it holds, where it is read already.
    Returns:
        Events of phase X; the document, without its events where it is a mere list; the number of all events.
    Raises:
        ConfigError: it cannot be read, is no JSON or no trace.
    """
    place = os.fspath(path)
    document = parse_json(read_source(path, EXPECTED) if content is None else content, place, EXPECTED)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        got = f"keys {', '.join(list(document)[:5])}" if isinstance(document, dict) else type(document).__name__
        raise ConfigError("not a trace", where=place, expected=EXPECTED, got=got)
    complete = [event for event in events if event.get("ph") == "X"]
    return complete, document if isinstance(document, dict) else {}, len(events)
