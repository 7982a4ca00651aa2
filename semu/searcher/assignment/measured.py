"""Costs of samples from measured stages: ``refitted`` costs, and their file.

A trace says how long every stage of an iteration took, by annotations that are named as semu's own traces name them
(``validation.traces.stages``): ``2B13 llm`` is the backward of chunk 2 of the pipeline on microbatch 13
(``torch.profiler.record_function`` around a stage). An assignment says which samples each microbatch had. Where a
trace has a stage kind, its coefficients are fitted anew; other stages of the same module and pass are scaled alike;
transfers stay the engine's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.files import read_source, write_text
from semu.schedule.phases import PHASES
from semu.searcher.assignment.costs import DIGITS, Residual, SampleCosts, StageKind, TransferKind, weighted

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FITTED, MEASURED, SCALED = "fitted", "measured", "scaled"
"""Provenance of a stage's coefficients: the engine's; refitted; the engine's, times what its module was off."""
FEWEST = 4
"""Measured stages of a kind, below which nothing can be said."""
STAGES_EACH = 3
"""Measured stages for each coefficient that is fitted anew, at least."""


class MeasuredStage(NamedTuple):
    """How long a stage took [s]; ``code``: of its pass, 0 forward, 1 backward."""

    chunk: int
    code: int
    microbatch: int
    seconds: float


def read_members(path: str | os.PathLike[str], replica: int, ids: Sequence[str | int]) -> list[I64]:
    """Samples of every microbatch of a replica, int64[n] each, from ``assignment.jsonl``.

    Args:
        ids: of the samples, in their order.
    Raises:
        ConfigError: no such file; a sample that is not among ``ids``; no such replica; samples that are deferred.
    """
    place, expected = os.fspath(path), "assignment.jsonl, as semu assign --out writes it"
    number = {str(name): position for position, name in enumerate(ids)}
    found: dict[int, I64] = {}
    for row, text in enumerate(read_source(path, expected).decode("utf-8", "replace").splitlines(), 1):
        try:
            line = json.loads(text)
            own, microbatch, names = line["replica"], int(line["microbatch"]), [str(name) for name in line["ids"]]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError("not a microbatch", where=f"{place}:{row}", expected=expected) from error
        if own != replica:
            continue
        if line.get("deferred"):
            raise ConfigError("deferred samples", where=f"{place}:{row}", expected="a run without deferral")
        unknown = [name for name in names if name not in number]
        if unknown:
            raise ConfigError("not a sample of the file", where=f"{place}:{row}", expected="its id", got=unknown[0])
        found[microbatch] = np.array([number[name] for name in names], np.int64)
    if sorted(found) != list(range(len(found))) or not found:
        raise ConfigError("no microbatches of the replica", where=place, expected=f"replica {replica}", got=len(found))
    return [found[microbatch] for microbatch in range(len(found))]


def refitted(
    costs: SampleCosts, features: I64, members: Sequence[I64], stages: Iterable[MeasuredStage], source: str
) -> SampleCosts:
    """Costs with the coefficients of the stages that were measured.

    For every stage kind the fit is the one of three that is least off on stages left out one at a time: the engine's
    cost times a factor; another fixed time beside such a factor; all coefficients.

    Args:
        costs: of the engine. features: int64[num_samples, num_names]. members: of every microbatch, its samples.
        stages: measured. source: where, in words.
    Raises:
        ConfigError: a stage that the pipeline has not, or a microbatch that nothing is known of; too few stages.
    """
    rows: dict[int, list[MeasuredStage]] = {}
    number = {key: row for row, key in enumerate(costs.keys)}
    for stage in stages:
        row = number.get(StageKind(stage.chunk, stage.code))
        if row is None or stage.microbatch >= len(members):
            raise ConfigError(
                "a stage of another run",
                where=source,
                expected=f"a chunk and a pass of the run, microbatches 0..{len(members) - 1}",
                got=f"chunk {stage.chunk}, microbatch {stage.microbatch}",
            )
        rows.setdefault(row, []).append(stage)
    few = min(len(own) for own in rows.values())
    if few < FEWEST:
        raise ConfigError("too few stages", where=source, expected=f"{FEWEST} microbatches or more", got=few)
    sums = np.stack([features[own].sum(axis=0) for own in members]).astype(np.float64)
    fixed_s, slope_s = costs.fixed_s.copy(), costs.slope_s.copy()
    provenance = [FITTED] * len(costs.keys)
    off: dict[tuple[str, int], list[F64]] = {}
    ratio: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row, own in rows.items():
        table = sums[[stage.microbatch for stage in own]]
        seconds = np.array([stage.seconds for stage in own])
        said = costs.fixed_s[row] + weighted(table, costs.slope_s[row][None])[:, 0]
        fixed_s[row], slope_s[row], errors = _least_off(costs, row, table, seconds)
        provenance[row] = MEASURED
        group = _group(costs, row)
        off.setdefault(group, []).append(errors)
        ratio.setdefault(group, []).append((float(seconds.sum()), float(said.sum())))
    for row, key in enumerate(costs.keys):
        told = ratio.get(_group(costs, row)) if isinstance(key, StageKind) and row not in rows else None
        if told:
            factor = sum(pair[0] for pair in told) / sum(pair[1] for pair in told)
            fixed_s[row], slope_s[row], provenance[row] = fixed_s[row] * factor, slope_s[row] * factor, SCALED
    residuals = tuple(
        Residual(module, PHASES[code].value, float(np.sqrt(np.mean(each**2))), float(np.abs(each).max()), len(each))
        for (module, code), parts in off.items()
        for each in [np.concatenate(parts)]
    )
    rounded = [_rounded(values) for values in (fixed_s, slope_s)]
    return replace(
        costs,
        fixed_s=rounded[0],
        slope_s=rounded[1],
        residuals=residuals,
        source=f"refitted to {sum(map(len, rows.values()))} stages of {source}",
        provenance=tuple(provenance),
    )


def _group(costs: SampleCosts, row: int) -> tuple[str, int]:
    key = costs.keys[row]
    return (costs.checkpoint.layout.kinds[key.kind].module, key.code) if isinstance(key, StageKind) else ("", -1)


def _rounded(values: F64) -> F64:
    flat = [float(f"{value:.{DIGITS - 1}e}") for value in values.ravel().tolist()]
    return np.array(flat).reshape(values.shape)


def _least_off(costs: SampleCosts, row: int, table: F64, seconds: F64) -> tuple[float, F64, F64]:
    """Fixed time, slopes, and relative errors on stages left out one at a time."""
    slope = costs.slope_s[row]
    by_engine = weighted(table, slope[None])[:, 0]
    used = np.flatnonzero((slope != 0) & (table.max(axis=0) > 0))
    ones = np.ones(len(seconds))
    designs = [(costs.fixed_s[row] + by_engine)[:, None], np.column_stack((ones, by_engine))]
    designs += [np.column_stack((ones, table[:, used]))] if len(used) > 1 else []
    best, least = None, np.inf
    for number, design in enumerate(designs):
        if number and len(seconds) < STAGES_EACH * design.shape[1]:
            continue
        left = np.array([_left_out(design, seconds, place) for place in range(len(seconds))])
        if best is None or np.mean(left**2) < least:
            best, least = (number, _solved(design, seconds), left), float(np.mean(left**2))
    assert best is not None
    number, found, errors = best
    if number == 0:
        return float(costs.fixed_s[row] * found[0]), slope * found[0], errors
    if number == 1:
        return float(found[0]), slope * found[1], errors
    slopes = np.zeros_like(slope)
    slopes[used] = found[1:]
    return float(found[0]), slopes, errors


def _left_out(design: F64, seconds: F64, place: int) -> float:
    found = _solved(np.delete(design, place, axis=0), np.delete(seconds, place))
    return float(design[place] @ found / seconds[place] - 1)


def _solved(design: F64, seconds: F64) -> F64:
    """Least squares of relative errors."""
    table = design / seconds[:, None]
    scale = np.maximum(np.abs(table).max(axis=0), np.finfo(np.float64).tiny)
    found: F64 = np.linalg.lstsq(table / scale, np.ones(len(table)), rcond=1e-10)[0] / scale
    return found


# -- files ------------------------------------------------------------------------------------------------------------
def write_costs(costs: SampleCosts, path: str | os.PathLike[str]) -> Path:
    """Write coefficients with their provenance, as JSON; the file.

    Raises:
        ConfigError: it cannot be written.
    """
    document = {
        "kind": "semu costs of samples",
        "model": costs.checkpoint.job.model.name,
        "source": costs.source,
        "names": costs.names,
        "rows": [
            {"unit": _key_json(key), "fixed_s": fixed, "slope_s": slope, "provenance": word}
            for key, fixed, slope, word in zip(
                costs.keys, costs.fixed_s.tolist(), costs.slope_s.tolist(), costs.provenance_of_rows, strict=True
            )
        ],
        "residuals": [vars(own) for own in costs.residuals],
    }
    return write_text(Path(path), json.dumps(document, indent=1, allow_nan=False) + "\n")


def _key_json(key: StageKind | TransferKind) -> dict[str, Any]:
    return {"stage" if isinstance(key, StageKind) else "transfer": json.loads(json.dumps(key))}


def read_costs(path: str | os.PathLike[str], costs: SampleCosts) -> SampleCosts:
    """The costs of a job with the coefficients of a file.

    Args:
        costs: of the job, fitted to the engine.
    Raises:
        ConfigError: no such file, or one of another pipeline.
    """
    place, expected = os.fspath(path), "what semu validate --costs wrote of the same run"
    try:
        document: Mapping[str, Any] = json.loads(read_source(path, expected))
        rows = document["rows"]
        units = [row["unit"] for row in rows]
        fixed_s = np.array([row["fixed_s"] for row in rows], dtype=np.float64)
        slope_s = np.array([row["slope_s"] for row in rows], dtype=np.float64)
        words = tuple(str(row["provenance"]) for row in rows)
        residuals = tuple(Residual(**own) for own in document["residuals"])
        names, source = tuple(document["names"]), str(document["source"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError("not costs of samples", where=place, expected=expected) from error
    if names != costs.names or units != [_key_json(key) for key in costs.keys] or slope_s.shape != costs.slope_s.shape:
        raise ConfigError(
            "costs of another pipeline",
            where=place,
            expected=expected,
            got=f"{document.get('model')}, {len(rows)} units",
        )
    return replace(costs, fixed_s=fixed_s, slope_s=slope_s, residuals=residuals, source=source, provenance=words)
