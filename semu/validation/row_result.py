"""``RowResult``: what became of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from semu.records import dataclass


class Status(Enum):
    """Whether a row ran: semu may refuse to model it, or the row itself may be bad."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"


class Quantity(Enum):
    """What is compared; the value is its name in ``groups``."""

    TIME = "time"
    MEMORY = "memory"
    ACTIVATION = "activation"
    STATIC = "static"


@dataclass(frozen=True)
class Comparison:
    """A predicted and a measured number, in seconds or bytes; None: there is none."""

    predicted: float | None = None
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class RowResult:
    """What became of a row.

    Attributes:
        id, group, trust: of the row; trust empty where it cannot be read.
        is_scored: whether its errors count. status, reason: whether it ran, and if not, why.
        fits: whether it fits in memory, None where it did not run.
        device, precision: what the null model fits one MFU to. scope, measure: of its memory, empty: none.
        resolved: settings that the source leaves open -> what was used. notes: what to know, a sentence each.
        compared: the numbers. measured_mfu: the MFU at which the measured time would follow.
        interval_s: where the time lies with 90 % probability, as far as coefficients go [s]; None: not predicted.
        communication_s: by how much the predicted time grows when all communication takes twice its time [s].
        has_experts: whether the model has routed experts.
    """

    id: str
    group: str
    trust: str
    is_scored: bool
    status: Status
    reason: str | None = None
    fits: bool | None = None
    device: str | None = None
    precision: str | None = None
    scope: str | None = None
    measure: str | None = None
    resolved: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    compared: Mapping[Quantity, Comparison] = field(default_factory=dict)
    measured_mfu: float | None = None
    interval_s: tuple[float, float] | None = None
    communication_s: float | None = None
    has_experts: bool = False

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured time lies in the interval; None: there is no time, or no interval."""
        measured = self.compared.get(Quantity.TIME, Comparison()).measured
        if self.interval_s is None or measured is None:
            return None
        return self.interval_s[0] <= measured <= self.interval_s[1]

    def error(self, quantity: Quantity) -> float | None:
        """Relative error; None: not predicted or not measured."""
        return self.compared.get(quantity, Comparison()).error

    def to_json(self) -> dict[str, object]:
        """One of ``rows`` (DESIGN §6)."""
        time, memory, activation, static = (self.compared.get(quantity, Comparison()) for quantity in Quantity)
        return {
            "id": self.id,
            "group": self.group,
            "trust": self.trust,
            "scored": self.is_scored,
            "status": self.status.value,
            "reason": self.reason,
            "fits": self.fits,
            "device": self.device,
            "precision": self.precision,
            "predicted_iteration_time_s": time.predicted,
            "measured_iteration_time_s": time.measured,
            "time_error_percent": _percent(time.error),
            "predicted_interval_low_s": None if self.interval_s is None else self.interval_s[0],
            "predicted_interval_high_s": None if self.interval_s is None else self.interval_s[1],
            "inside_interval": self.is_inside,
            "measured_mfu": self.measured_mfu,
            "peak_mem_scope": self.scope,
            "peak_mem_measure": self.measure,
            "predicted_peak_mem_bytes": memory.predicted,
            "measured_peak_mem_bytes": memory.measured,
            "memory_error_percent": _percent(memory.error),
            "predicted_activation_bytes": activation.predicted,
            "measured_activation_bytes": activation.measured,
            "predicted_static_bytes": static.predicted,
            "measured_static_bytes": static.measured,
            "resolved": dict(self.resolved),
            "notes": list(self.notes),
        }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
