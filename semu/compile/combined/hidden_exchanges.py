"""Exchanges of experts' tokens that hide behind another microbatch's layer.

Source: Megatron-LM's ``TransformerLayerSchedulePlan`` (megatron-core 0.16).

A layer of one microbatch runs forward beside the same kind of layer of another that runs backward, on two streams:

    exchanges   combine_bw | dispatch  -> dispatch_bw | combine
    compute     attention  | experts_bw -> experts    | attention_bw

The exchanges wait for the compute above and below them, and compute for them, so that a pair of layers lasts as long as
its compute and what of the exchanges is exposed. Weight gradients that run behind the gradients of inputs
(``overlap.delayed_weight_gradients``) let the exchange after them begin earlier:

    after experts_bw:    max(max(x + w, dispatch) + experts,  max(x, dispatch) + dispatch_bw)
    after attention_bw:  max(max(x + w, combine) + attention, max(x, combine) + combine_bw)

for x, w the gradients of inputs and of weights. ``HiddenExchanges`` are rows of a library beside the exchanges' own:
they take the exposed part only, and stages that run in pairs have them in the place of the exchanges.

Off: every layer's exchanges hide behind a layer of the same kind and shape, and the first and last layers of a stage as
all others (with delayed weight gradients, one exchange of a stage begins later in Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

F64 = NDArray[np.float64]
Rows = tuple[int, ...]


@dataclass(frozen=True)
class LayerParts:
    """Where a layer's operators stand in its template: positions among its forward, then backward operators.

    Attributes:
        dispatch, combine: exchanges of the forward. combine_back, dispatch_back: of the backward.
        attention, experts: compute of the forward, outside and between its exchanges.
        attention_back, experts_back: of the backward, without what is delayed.
        attention_weights, experts_weights: weight gradients that are delayed.
    """

    dispatch: Rows
    combine: Rows
    combine_back: Rows
    dispatch_back: Rows
    attention: Rows
    experts: Rows
    attention_back: Rows
    experts_back: Rows
    attention_weights: Rows
    experts_weights: Rows

    @property
    def exchanges(self) -> Rows:
        """All exchanges, in order."""
        return self.dispatch + self.combine + self.combine_back + self.dispatch_back


@dataclass(frozen=True)
class HiddenExchanges:
    """The exposed parts of a layer's exchanges as rows of a library.

    Attributes:
        parts: of the layer. first: row of the layer's first operator. hidden: row of the first exposed part; the parts
            come in the order of ``LayerParts.exchanges``.
    """

    parts: LayerParts
    first: int
    hidden: int

    @property
    def count(self) -> int:
        """How many exchanges there are."""
        return len(self.parts.exchanges)

    @property
    def key(self) -> bytes:
        """What ``exposed`` depends on beside its argument."""
        return repr(self._sizes).encode()

    @property
    def _sizes(self) -> list[int]:
        """Operators of each of the fields of ``LayerParts``."""
        return [len(getattr(self.parts, field.name)) for field in fields(LayerParts)]

    @property
    def row_of(self) -> Mapping[int, int]:
        """Row of an exchange -> row of its exposed part."""
        return {self.first + position: self.hidden + n for n, position in enumerate(self.parts.exchanges)}

    @property
    def sources(self) -> NDArray[np.int64]:
        """int64[n], rows that the exposed parts depend on, in the order of the fields of ``LayerParts``."""
        parts = [getattr(self.parts, field.name) for field in fields(LayerParts)]
        return self.first + np.array([position for part in parts for position in part], dtype=np.int64)

    def exposed(self, latency: F64) -> F64:
        """Exposed parts.

        Args:
            latency: float64[n, num_shapes] [s], of ``sources``.
        Returns:
            float64[num_exchanges, num_shapes] [s].
        """
        dispatch, combine, combine_back, dispatch_back, *compute = np.split(latency, np.cumsum(self._sizes)[:-1])
        attention, experts, attention_x, experts_x, attention_w, experts_w = (part.sum(axis=0) for part in compute)
        to, to_back = _exposed(dispatch, dispatch_back, experts_x, experts_w, experts)
        back, back_back = _exposed(combine, combine_back, attention_x, attention_w, attention)
        return np.concatenate((to, back, back_back, to_back))


def _exposed(first: F64, second: F64, x: F64, w: F64, after: F64) -> tuple[F64, F64]:
    """What is exposed of two exchanges beside compute x, w and ``after``: float64[.., num_shapes] [s] each."""
    lasts, follows = first.sum(axis=0), second.sum(axis=0)
    seen = np.maximum(lasts - (x + w), 0.0)
    ends = np.maximum(np.maximum(x + w, lasts) + after, np.maximum(x, lasts) + follows)
    return _last_of(first, seen), _last_of(second, ends - (x + w + after) - seen)


def _last_of(exchange: F64, exposed: F64) -> F64:
    """The exposed time of an exchange shared out to its operators, the last ones first."""
    ends = np.cumsum(exchange, axis=0)
    hidden = ends[-1] - exposed
    late = np.maximum(ends - hidden, 0.0)
    return np.diff(late, axis=0, prepend=0.0)
