"""Search problems as JSON: ``json_of``, ``arrays_of_json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from semu.errors import MALFORMED, ConfigError
from semu.searcher.problem.checks import COSTS, LABELS
from semu.searcher.problem.problem_arrays import ProblemArrays

_FORMAT = "semu search problem 1"


def json_of(problem: ProblemArrays) -> str:
    """As text; pairs that cost the same share one entry of ``costs``."""
    rows = np.concatenate(
        [getattr(problem, name).astype(object) for name in COSTS] + [problem.num_candidates[:, None].astype(object)], 1
    )
    table: dict[tuple[Any, ...], int] = {}
    kinds = [table.setdefault(tuple(row), len(table)) for row in rows.tolist()]
    width = problem.forward_s.shape[1]
    costs = [{name: row[i * width : i * width + row[-1]] for i, name in enumerate(COSTS)} for row in table]
    plain = ("rank", *LABELS, "pred_ptr", "pred", "transfer_s", "static_bytes", "limit_bytes")
    body: dict[str, Any] = {"format": _FORMAT, "module_names": list(problem.module_names)}
    body |= {name: getattr(problem, name).tolist() for name in plain}
    body |= {"has_backward": problem.has_backward.astype(int).tolist(), "costs_of": kinds, "costs": costs}
    return json.dumps(body, separators=(",", ":"))


def arrays_of_json(text: str, where: str) -> tuple[list[str], dict[str, Any]]:
    """Names of the modules, and the other arrays, of what ``json_of`` wrote.

    Raises:
        ConfigError: something else.
    """
    try:
        body = json.loads(text)
        if not isinstance(body, Mapping) or body.get("format") != _FORMAT:
            raise ValueError("another format")
        width = max((len(row["held_bytes"]) for row in body["costs"]), default=1)
        kinds = np.array(body["costs_of"], dtype=np.int64)
        arrays: dict[str, Any] = {name: body[name] for name in ("rank", "has_backward", *LABELS)}
        arrays |= {name: body[name] for name in ("pred_ptr", "pred", "transfer_s", "static_bytes", "limit_bytes")}
        for name in COSTS:
            rows = [row[name] + row[name][-1:] * (width - len(row[name])) for row in body["costs"]]
            arrays[name] = np.array(rows).reshape(len(rows), width)[kinds]
        counts = np.array([len(row["held_bytes"]) for row in body["costs"]], dtype=np.int16)
        arrays["num_candidates"] = counts[kinds]
        names = [str(name) for name in body["module_names"]]
    except (*MALFORMED, RecursionError) as error:
        raise ConfigError(f"not a search problem: {error}", where=where, expected=_FORMAT) from error
    return names, arrays
