"""Execution plans as JSON: decisions, and the estimates in a separate block.

    {"format": "semu plan 1", "name": "search", "model_hash": "...", "num_ranks": 4, ...,
     "chunks": [{"module": "vit", "rank": 0, "layers": [0, 6], "has_backward": true, "variants": [["full", ...]]}, ...],
     "pairs": {"chunk": [...], ...}, "messages": {"source": [...], ...},
     "actions": ["F0 s0@0 ws0 ...", ...], "estimates": {"inputs_hash": "...", ...}}

``actions`` has a line per rank and a word per action: ``F12`` ``B12`` ``I12`` ``W12`` the stages of pair 12, ``s5@3``
isend and ``r5@3`` irecv of message 5 in batch 3 (without ``@``: for itself), ``ws5`` and ``wr5`` the waits for them.
Arrays are lists, as they stand in ``semu.plan.tables``. Floats have all their digits, so what is read back is equal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from semu.checks import check_word
from semu.errors import ConfigError, ScheduleError
from semu.plan.plan_data import PlanData
from semu.plan.tables import (
    PlanChunk,
    PlanEstimates,
    PlanMemory,
    PlanMessages,
    PlanPairs,
    PlanReduction,
    RankActions,
)

_Plan = TypeVar("_Plan", bound=PlanData)

FORMAT = "semu plan 1"
VERSION = 1
_HEAD = re.compile(r"semu plan (\d{1,9})")
_WORDS = ("F", "B", "I", "W", "s", "ws", "r", "wr", "x", "xg")
"""Words of actions, by ``ActionKind.code``."""
_ACTION = re.compile(r"(F|B|I|W|ws|wr|s|r|xg|x)(0|[1-9]\d{0,8})(?:@(0|[1-9]\d{0,8}))?")
_CHUNK = ("module", "rank", "layers", "has_backward", "variants", "flow", "sources", "gang", "repeats")
_PLAN = ("format", *(item.name for item in fields(PlanData)))
_OPTIONAL = ("problem", "estimates", "limit_bytes", "reads", "weights", "reductions")
_NEEDED = tuple(key for key in _PLAN if key not in _OPTIONAL)


def plan_json(plan: PlanData) -> str:
    """The file of a plan."""
    table: dict[str, Any] = {
        "format": FORMAT,
        "name": plan.name,
        "model_hash": plan.model_hash,
        "num_ranks": plan.num_ranks,
        "num_replicas": plan.num_replicas,
        "num_microbatches": plan.num_microbatches,
        "limit_bytes": plan.limit_bytes.tolist(),
        "problem": None if plan.problem is None else dict(plan.problem),
        "chunks": [_chunk_table(chunk) for chunk in plan.chunks],
        "pairs": _columns(plan.pairs),
        "messages": _columns(plan.messages),
        "reads": {name: [list(map(list, own)) for own in rows] for name, rows in plan.reads.items()} or None,
        "weights": list(plan.weights) or None,
        "reductions": [vars(one) for one in plan.reductions] or None,
        "actions": [action_words(own) for own in plan.actions],
        "estimates": None if plan.estimates is None else _columns(plan.estimates),
    }
    lines = []
    for key, value in table.items():
        if value is None:
            continue
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {_dumps(its)}" for name, its in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}" if inner else f" {json.dumps(key)}: {{}}")
        elif isinstance(value, list) and value and not isinstance(value[0], int | float):
            inner = ",\n".join(f"  {_dumps(its)}" for its in value)
            lines.append(f" {json.dumps(key)}: [\n{inner}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {_dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _chunk_table(chunk: PlanChunk) -> dict[str, Any]:
    table: dict[str, Any] = {
        "module": chunk.module,
        "rank": chunk.rank,
        "layers": [chunk.first_layer, chunk.num_layers],
        "has_backward": chunk.has_backward,
        "variants": [list(words) for words in chunk.variants],
    }
    if chunk.flow:
        table["flow"] = chunk.flow
    if chunk.gang >= 0:
        table["gang"] = chunk.gang
    if chunk.repeats:
        table["repeats"] = True
    return table if chunk.sources is None else {**table, "sources": list(chunk.sources)}


def _columns(own: PlanPairs | PlanMessages | PlanEstimates | PlanMemory) -> dict[str, Any]:
    """Every attribute by its name, arrays as lists."""

    def _listed(value: object) -> object:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, PlanMemory):
            return _columns(value)
        return [_listed(row) for row in value] if isinstance(value, tuple) else value

    found = {item.name: _listed(getattr(own, item.name)) for item in fields(own)}
    return {name: value for name, value in found.items() if value is not None}


def action_words(own: RankActions) -> str:
    """A rank's actions as words."""
    columns = zip(own.kind.tolist(), own.target.tolist(), own.batch.tolist(), strict=True)
    return " ".join(f"{_WORDS[code]}{target}" + (f"@{batch}" if batch >= 0 else "") for code, target, batch in columns)


# -- reading -----------------------------------------------------------------------------------------------------------
def read_plan(kind: type[_Plan], path: str | os.PathLike[str]) -> _Plan:
    """See ``ExecutionPlan.read``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"cannot read the plan: {reason}", where=str(path), expected="a plan.json") from error
    return plan_of_json(kind, text, Path(path).name)


def plan_of_json(kind: type[_Plan], text: str, name: str) -> _Plan:
    """See ``ExecutionPlan.from_json``."""
    try:
        table: Any = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"not JSON: {error}", where=name, expected=f'{{"format": "{FORMAT}", ...}}') from error
    _check_format(table, name)
    _check_keys(table, _PLAN, _NEEDED, name)
    try:
        return _read(kind, table)
    except ScheduleError as error:  # ``plan.pairs.chunk[3]``: in which file
        error.where = f"{name}: {error.where}" if error.where else name
        raise


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _check_format(table: object, name: str) -> None:
    got = table.get("format") if isinstance(table, dict) else type(table).__name__
    match = _HEAD.fullmatch(got) if isinstance(got, str) else None
    if match is None:
        raise ScheduleError("not a plan of this format", where=name, expected=FORMAT, got=repr(got))
    if int(match[1]) != VERSION:
        later = int(match[1]) > VERSION
        raise ScheduleError(
            "a plan of a later version of semu" if later else "a plan of a version that never was",
            where=f"{name}: format",
            expected=FORMAT,
            got=got,
            nearest=FORMAT,
        )


def _check_keys(table: object, legal: Sequence[str], needed: Sequence[str], where: str) -> None:
    if not isinstance(table, dict):
        raise ScheduleError("not a table", where=where, expected=", ".join(needed), got=type(table).__name__)
    for key in table:
        check_word(key, legal, "key", f"{where}: {key}")
    missing = [key for key in needed if key not in table]
    if missing:
        raise ScheduleError("a key is missing", where=where, expected=", ".join(missing), got=", ".join(table))


def _read(kind: type[_Plan], table: Mapping[str, Any]) -> _Plan:
    problem, reads = table.get("problem"), table.get("reads", {})
    for key, value in (("problem", problem), ("reads", reads)):
        if value is not None and not isinstance(value, dict):
            raise ScheduleError("not a table", where=f"plan.{key}", expected="a table", got=type(value).__name__)
    chunks, lines = (_list(table[key], f"plan.{key}") for key in ("chunks", "actions"))
    limits: Any = table.get("limit_bytes", [0] * len(lines))
    estimates = table.get("estimates")
    return kind(
        name=table["name"],
        model_hash=table["model_hash"],
        num_ranks=table["num_ranks"],
        num_replicas=table["num_replicas"],
        num_microbatches=table["num_microbatches"],
        chunks=tuple(_chunk(own, f"plan.chunks[{number}]") for number, own in enumerate(chunks)),
        pairs=PlanPairs(**_of(table["pairs"], PlanPairs, "plan.pairs")),
        messages=PlanMessages(**_of(table["messages"], PlanMessages, "plan.messages")),
        actions=tuple(_actions(line, f"plan.actions[{rank}]") for rank, line in enumerate(lines)),
        limit_bytes=limits,
        problem=problem,
        estimates=None if estimates is None else _estimates(estimates),
        reads=reads or {},
        weights=tuple(_list(table.get("weights", []), "plan.weights", "numbers")),
        reductions=tuple(
            _reduction(own, f"plan.reductions[{number}]")
            for number, own in enumerate(_list(table.get("reductions", []), "plan.reductions"))
        ),
    )


def _list(value: object, where: str, expected: str = "a list") -> list[Any]:
    if not isinstance(value, list):
        raise ScheduleError("not a list", where=where, expected=expected, got=repr(value))
    return value


def _of(table: object, kind: type[PlanPairs] | type[PlanMessages], where: str) -> dict[str, Any]:
    """Columns of a class; an empty table of items, or of bytes, keeps its shape."""
    names = [item.name for item in fields(kind)]
    _check_keys(table, names, names, where)
    assert isinstance(table, dict)
    found: dict[str, Any] = {}
    for key in table:
        value = _list(table[key], f"{where}.{key}")
        is_empty = key in ("items", "num_bytes") and all(row == [] for row in value)
        shape = (len(value), 0, 2) if key == "items" else (len(value), 0)
        found[key] = np.zeros(shape, dtype=np.int32) if is_empty else value
    return found


def _estimates(table: object) -> PlanEstimates:
    where = "plan.estimates"
    names = [item.name for item in fields(PlanEstimates)]
    _check_keys(table, names, names[:6], where)
    assert isinstance(table, dict)
    for key in ("start_s", "end_s"):
        _list(table[key], f"{where}.{key}", "a list per rank")
    memory = table.get("memory")
    if memory is not None:
        names = [item.name for item in fields(PlanMemory)]
        _check_keys(memory, names, names, f"{where}.memory")
        memory = PlanMemory(**memory)
    return PlanEstimates(**{**table, "memory": memory})


def _chunk(table: object, where: str) -> PlanChunk:
    _check_keys(table, _CHUNK, _CHUNK[:5], where)
    assert isinstance(table, dict)
    layers, variants = table["layers"], table["variants"]
    if not isinstance(layers, list) or len(layers) != 2:
        raise ScheduleError("not layers", where=f"{where}.layers", expected="[first, how many]", got=repr(layers))
    if not isinstance(variants, list) or not all(isinstance(words, list) for words in variants):
        raise ScheduleError("not lists of words", where=f"{where}.variants", expected="lists", got=repr(variants))
    sources = table.get("sources")
    try:
        return PlanChunk(
            module=table["module"],
            rank=table["rank"],
            first_layer=layers[0],
            num_layers=layers[1],
            has_backward=table["has_backward"],
            variants=tuple(tuple(words) for words in variants),
            flow=table.get("flow", 0),
            gang=table.get("gang", -1),
            repeats=table.get("repeats", False),
            sources=None if sources is None else tuple(_list(sources, f"{where}.sources", "numbers of chunks")),
        )
    except ScheduleError as error:
        error.where = where + (error.where or "").removeprefix("plan.chunks")
        raise


def _reduction(table: object, where: str) -> PlanReduction:
    names = [item.name for item in fields(PlanReduction)]
    _check_keys(table, names, names, where)
    assert isinstance(table, dict)
    lists = {name: tuple(_list(table[name], f"{where}.{name}")) for name in ("chunks", "shards")}
    return PlanReduction(table["module"], table["layer"], **lists)


def _actions(line: object, where: str) -> RankActions:
    if not isinstance(line, str):
        raise ScheduleError("not a line of actions", where=where, expected="F0 s0@0 ...", got=repr(line))
    rows = []
    for position, word in enumerate(line.split()):
        match = _ACTION.fullmatch(word)
        if match is None:
            raise ScheduleError(
                "not an action",
                where=f"{where}, position {position}",
                expected="F12, B12, I12, W12, s5@3, r5@3, ws5, wr5, x12 or xg12",
                got=word,
            )
        rows.append((_WORDS.index(match[1]), int(match[2]), -1 if match[3] is None else int(match[3])))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    try:
        return RankActions(kind=table[:, 0], target=table[:, 1], batch=table[:, 2])  # type: ignore[arg-type]  # checked
    except ScheduleError as error:
        error.where = where + (error.where or "").removeprefix("plan.actions")
        raise
