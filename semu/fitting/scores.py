"""``score``: measurements against a profile, per kind, with and without the factors of their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.fitting.forms import flop_of
from semu.fitting.models import SMALL_BYTES, SMALL_PRODUCT
from semu.fitting.samples import Family, Samples
from semu.records import dataclass

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predicted times.

    Attributes:
        n: rows. mape, p95: mean and 95th percentile of |predicted / measured - 1|.
        time_weighted: sum of |predicted - measured| over the sum of measured.
        base_mape: mean without the sources' factors.
    """

    n: int
    mape: float
    p95: float
    time_weighted: float
    base_mape: float

    def to_json(self) -> dict[str, object]:
        """As ``semu calibrate --json`` has it, in percent."""
        shares = {
            "mape": self.mape,
            "p95": self.p95,
            "time_weighted": self.time_weighted,
            "mape_without_site_factor": self.base_mape,
        }
        return {"n": self.n, **{name: round(100.0 * share, 4) for name, share in shares.items()}}


@dataclass(frozen=True, slots=True)
class KindScore:
    """Errors of a kind: ``gemm``, ``gemm_small``, ``attention_forward``, ``norm``, ``all_reduce`` and so on."""

    kind: str
    errors: Errors

    def to_json(self) -> dict[str, object]:
        """As ``semu calibrate --score --json`` has it, in percent."""
        return {"kind": self.kind, **self.errors.to_json()}


def errors_of(measured: Values, predicted: Values, base: Values) -> Errors:
    """Errors of at least one row.

    Args:
        measured, predicted, base: float64[n] [s]; base is predicted without the sources' factors.
    """
    relative = np.abs(predicted / measured - 1.0)
    return Errors(
        len(measured),
        float(relative.mean()),
        float(np.quantile(relative, 0.95)),
        float(np.abs(predicted - measured).sum() / measured.sum()),
        float(np.abs(base / measured - 1.0).mean()),
    )


def kinds_of(samples: Samples) -> NDArray[np.str_]:
    """The kind under which each row is scored: n texts."""
    group, name, *rest = samples.section.split(".")
    if group == "link":
        suffix = {"nvlink": "", "nic": "_nodes", "pcie": "_pcie"}[name]
        return np.full(len(samples), f"{rest[0]}{suffix}")
    if samples.family is Family.PRODUCT:
        base = "gemm" if name == "matmul" else "gemm_grouped"
        base = f"{base}_{rest[0]}" if rest else base
        is_small = np.min(samples.shape[:3], axis=0) < SMALL_PRODUCT
    elif samples.family is Family.MEMORY:
        base, is_small = name, samples.column("bytes") < SMALL_BYTES
    else:
        return np.full(len(samples), f"{name}_fp8" if rest == ["fp8"] else name)
    return np.where(is_small, f"{base}_small", base)


def score(rows: Sequence[tuple[Samples, Values, Values]]) -> tuple[KindScore, ...]:
    """Errors per kind, kinds in alphabetical order.

    Args:
        rows: samples of a section, predicted times, and those without factors.
    """
    by_kind: dict[str, list[tuple[Values, Values, Values]]] = {}
    for samples, predicted, base in rows:
        kinds = kinds_of(samples)
        for kind in np.unique(kinds):
            rows_of = kinds == kind
            by_kind.setdefault(str(kind), []).append((samples.time_s[rows_of], predicted[rows_of], base[rows_of]))
    return tuple(
        KindScore(kind, errors_of(*(np.concatenate(column) for column in zip(*parts, strict=True))))
        for kind, parts in sorted(by_kind.items())
    )


_BANDS: Mapping[Family, tuple[str, float, tuple[float, ...], tuple[str, ...]]] = {
    Family.PRODUCT: ("flop", 1e9, (30.0, 300.0), ("below 30 GFLOP", "30 to 300 GFLOP", "above 300 GFLOP")),
    Family.ATTENTION: ("seq_q", 1.0, (1024.0, 4096.0), ("below 1k tokens", "1k to 4k tokens", "4k tokens and more")),
    Family.MEMORY: ("bytes", 1e6, (50.0, 200.0), ("below 50 MB", "50 to 200 MB", "above 200 MB")),
    Family.LINK: ("bytes", 1e6, (1.0, 64.0), ("below 1 MB", "1 to 64 MB", "64 MB and more")),
}


def bands(
    samples: Samples, predicted: Values, base: Values, held: NDArray[np.bool_]
) -> tuple[tuple[str, Errors | None, Errors], ...]:
    """Errors by size: name, those of held-out rows, those of all rows; empty bands are left out."""
    name, unit, edges, labels = _BANDS[samples.family]
    size = (flop_of(samples.family, samples.shape) if name == "flop" else samples.column(name)) / unit
    number = np.searchsorted(edges, size, side="right")
    result = []
    for i, label in enumerate(labels):
        inside = number == i
        if inside.any():
            out = inside & held
            held_out = errors_of(samples.time_s[out], predicted[out], base[out]) if out.any() else None
            result.append((label, held_out, errors_of(samples.time_s[inside], predicted[inside], base[inside])))
    return tuple(result)
