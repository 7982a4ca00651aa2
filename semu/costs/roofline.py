"""From cost columns to latencies: the roofline of DESIGN §3.2 over all operators and shapes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.template import CostColumns, TemplateLibrary
from semu.costs.shape_factors import ATTENTION_KEY, MASKED_KEY, SHAPE_COEFFICIENTS, ShapeFactors
from semu.errors import ConfigError
from semu.graph.dim import DimTable, as_int
from semu.graph.operator import Operator, Phase
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import DType, OpKind, Provenance
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_cost
from semu.hardware.network.protocols import CollectiveCost
from semu.hardware.number import worst_provenance
from semu.records import dataclass
from semu.units import TIME_GRID_PER_S


@dataclass(frozen=True)
class RuleInput:
    """What a custom latency rule sees of one operator, for many shapes (arrays [num_shapes]).

    Attributes:
        operator: the operator. profile: the device.
        flop: [FLOP]. mem_bytes, net_bytes: [bytes]. key: [key_width, num_shapes], the shape key.
        default_s: what semu's own rule says [s].
    """

    operator: Operator
    profile: DeviceProfile
    flop: NDArray[np.float64]
    mem_bytes: NDArray[np.int64]
    net_bytes: NDArray[np.int64]
    key: NDArray[np.int64]
    default_s: NDArray[np.float64]


LatencyRule = Callable[[RuleInput], "NDArray[np.float64] | float | None"]
"""Latency [s] of an operator, or None to keep semu's own; consulted before rounding to the time grid."""


def _group_of_key(operator: Operator) -> CommGroup:
    """The communicator that a link operator's key (ranks, nodes) describes; a transfer without key is within a node."""
    key = operator.key or ((2, 1) if operator.kind is OpKind.P2P else ())
    if len(key) != 2 or not all(isinstance(part, int) for part in key):
        raise ConfigError(
            "a collective on an unknown communicator",
            where=operator.path or operator.kind.value,
            expected="key = (ranks, nodes), or the stream's group",
            got=operator.key,
        )
    ranks, nodes = (as_int(part, "a communicator", operator.path) for part in key)
    return CommGroup(operator.stream.name, ranks, nodes)


LatencyRules = Mapping[OpKind, LatencyRule]
"""Custom rules by operator kind."""

_OUTSIDE = memo.Table[memo.Scope]("costs outside stages, by device", 64)
_LINK_COSTS = memo.ScopedTable[CollectiveCost]("costs of collectives on a device, by kind and group", 4096)


@dataclass(frozen=True)
class Coefficients:
    """What one operator's latency was computed with, for reports."""

    provenance: Provenance
    source: str
    relative_error: float | None


class CostModel:
    """Latencies of a library's operators on a device.

    Args:
        library: templates with their cost rows. profile: the device. rules: custom latency rules by kind.

    Attributes:
        library, profile, rules: as above.
        outside: stands for what operators outside stages cost without rules, on this device, whatever the library.
    """

    def __init__(self, library: TemplateLibrary, profile: DeviceProfile, rules: LatencyRules | None = None) -> None:
        self.library = library
        self.profile = profile
        self.outside = _OUTSIDE.get(profile, memo.Scope)
        self.rules = check_rules(rules)
        n = len(library.operators)
        self._flop_rate, self._mem_rate = np.ones(n), np.ones(n)
        self._fixed, self._p = np.zeros(n), np.full(n, np.inf)
        self._net_rate, self._corner = np.ones(n), np.zeros(n)
        self._protocols: dict[int, CollectiveCost] = {}
        self._has_flop = np.array([operator.flop != 0 for operator in library.operators], dtype=np.bool_)
        self.efficiencies: list[Efficiency | None] = []
        self.coefficients: list[Coefficients] = []
        for row, (operator, group) in enumerate(zip(library.operators, library.groups, strict=True)):
            if operator.kind.is_communication:
                self._fill_link(row, operator, group)
            else:
                self._fill_compute(row, operator)
        self._factors = ShapeFactors(library.operators, self.efficiencies)

    def _fill_link(self, row: int, operator: Operator, group: CommGroup | None) -> None:
        if group is None:
            group = _group_of_key(operator)
        cost = self.link_cost(operator.kind, group)
        self._net_rate[row], self._fixed[row], self._corner[row] = cost.bytes_per_s, cost.latency_s, cost.c_s
        if not cost.is_plain:
            self._protocols[row] = cost
        efficiency = self.profile.links[group.port].of(operator.kind)
        self.efficiencies.append(None)
        self.coefficients.append(Coefficients(efficiency.provenance, efficiency.source, efficiency.relative_error))

    def link_cost(self, kind: OpKind, group: CommGroup) -> CollectiveCost:
        """What collectives of a kind cost on a communicator."""
        return _LINK_COSTS.get(self.outside, (kind, group), lambda: collective_cost(self.profile, kind, group))

    def _fill_compute(self, row: int, operator: Operator) -> None:
        is_attention = operator.kind in (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
        head_dim = operator.key[5] if is_attention and len(operator.key) >= len(ATTENTION_KEY) else None
        efficiency = self.profile.efficiency(
            operator.kind, dtype=operator.dtype, head_dim=head_dim if isinstance(head_dim, int) else None
        )
        peak = self.profile.peak_flop_per_s(operator.dtype) if operator.flop != 0 else 1.0
        self._flop_rate[row] = efficiency.flop_rate(peak, is_weight_gradient=operator.phase is Phase.WEIGHT_GRADIENT)
        self._mem_rate[row] = efficiency.mem * self.profile.mem_bytes_per_s.value
        self._fixed[row], self._p[row] = efficiency.t0_s, efficiency.p
        self.efficiencies.append(efficiency)
        provenance = efficiency.provenance
        if operator.flop != 0 and operator.dtype in (DType.FP32, DType.TF32):
            is_own = (operator.kind, operator.dtype) in self.profile.variants
            provenance = provenance if is_own else worst_provenance(provenance, Provenance.TRANSFERRED)
        if is_attention and len(operator.key) == len(MASKED_KEY) and efficiency.partial_tile == 1:
            provenance = worst_provenance(provenance, Provenance.DEFAULT)  # of partial_tile
        self.coefficients.append(Coefficients(provenance, efficiency.source, efficiency.relative_error))

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """Every coefficient that operators' latencies are computed with: float64[num_ops, num_coefficients]."""
        rates = (self._flop_rate, self._mem_rate, self._net_rate)
        ways = {row: [x for way in cost.protocols for x in astuple(way)] for row, cost in self._protocols.items()}
        protocols = np.zeros((max(map(len, ways.values()), default=0), len(self._fixed)))
        for row, numbers in ways.items():
            protocols[: len(numbers), row] = numbers
        shapes = [
            [0.0 if item is None else getattr(item, name) for item in self.efficiencies] for name in SHAPE_COEFFICIENTS
        ]
        shape_numbers = np.array(shapes, dtype=np.float64)
        return np.stack((*rates, self._fixed, self._p, self._corner, *shape_numbers, *protocols), axis=1)

    def latencies(self, columns: CostColumns, rows: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """Latency of every operator for every shape.

        Args:
            columns: evaluated costs. rows: int[num_ops], the operators that they are of; None: all of the library.
        Returns:
            float64[num_ops, num_shapes] [s], on the time grid; an operator that does nothing takes no time.
        Raises:
            ConfigError: a custom rule returned a negative or non-finite latency.
        """
        from semu.costs.kernels import roofline_latency

        wanted = np.arange(len(self.library.operators)) if rows is None else rows
        memory = columns.mem_bytes.astype(np.float64)
        flop, memory = self._factors.apply(columns.flop, memory, columns.symbols, wanted)
        result = np.empty(flop.shape)
        roofline_latency(
            flop,
            memory,
            columns.net_bytes.astype(np.float64),
            self._flop_rate[wanted],
            self._mem_rate[wanted],
            self._net_rate[wanted],
            self._fixed[wanted],
            self._p[wanted],
            self._corner[wanted],
            result,
        )
        if self._protocols:
            for place, row in enumerate(wanted.tolist()):
                if row in self._protocols:
                    seconds = self._protocols[row].times_s(columns.net_bytes[place])
                    result[place] = np.rint(seconds * TIME_GRID_PER_S) / TIME_GRID_PER_S
        if self.rules:
            self._apply_rules(columns, wanted, result)
        is_idle = (columns.mem_bytes == 0) & (columns.net_bytes == 0)
        result[np.where(self._has_flop[wanted, None], columns.flop == 0, is_idle)] = 0.0
        self._hide(columns, wanted, result)
        return result

    def _hide(self, columns: CostColumns, rows: NDArray[np.integer], result: NDArray[np.float64]) -> None:
        """Leave of rows that hide behind others what is exposed."""
        for layer in self.library.hidden:
            mine = (rows >= layer.hidden) & (rows < layer.hidden + layer.count)
            if mine.any():
                sources = layer.sources
                latency = self.latencies(self.library.evaluate(columns.symbols, sources), sources)
                result[mine] = layer.exposed(latency)[rows[mine] - layer.hidden]

    def outer_latency(
        self,
        kind: OpKind,
        path: str,
        *,
        group: CommGroup | None = None,
        mem_bytes: NDArray[np.int64] | int = 0,
        net_bytes: NDArray[np.int64] | int = 0,
    ) -> NDArray[np.float64]:
        """Latencies of an operator outside stages (a transfer, a reduction, the optimizer step).

        Args:
            kind: a communication kind with its ``group``, or a compute kind. path: name, for rules and errors.
            mem_bytes, net_bytes: [bytes], for one or many shapes.
        Returns:
            float64[num_shapes] [s], on the time grid; nothing to do takes no time. Custom rules apply.
        """
        memory, network = np.atleast_1d(np.asarray(mem_bytes)), np.atleast_1d(np.asarray(net_bytes))
        if group is not None:
            seconds = self.link_cost(kind, group).times_s(network)
        else:
            efficiency = self.profile.efficiency(kind)
            seconds = efficiency.t0_s + memory / (efficiency.mem * self.profile.mem_bytes_per_s.value)
        memory, network = np.broadcast_arrays(memory, network)
        result: NDArray[np.float64] = np.rint(seconds * TIME_GRID_PER_S) / TIME_GRID_PER_S
        rule = self.rules.get(kind)
        if rule is not None:
            if group is not None:
                stream = Stream(Device(DeviceKind.LINK, port=group.port, direction=Direction.OUT), group.name)
                key: tuple[int, ...] = (group.num_ranks, group.num_nodes)
                phase = Phase.FORWARD if kind is OpKind.P2P else Phase.REDUCTION
            else:
                stream, key, phase = Stream(Device(DeviceKind.COMPUTE), "compute"), (), Phase.OPTIMIZER
            operator = Operator(-1, path, kind, phase, stream, 0, 0, 0, DType.BF16, key, (), (), (), 0, 0, 1)
            keys = np.repeat(np.array(key, dtype=np.int64)[:, None], len(result), axis=1)
            seen = RuleInput(operator, self.profile, np.zeros(len(result)), memory, network, keys, result.copy())
            result = _ruled(rule, seen)
        return np.where((memory == 0) & (network == 0), 0.0, result)

    def outer_provenance(self, kind: OpKind, group: CommGroup | None) -> Provenance:
        """Provenance of the coefficients of an operator outside stages."""
        if group is not None:
            return self.profile.links[group.port].of(kind).provenance
        return self.profile.efficiency(kind).provenance

    def link_of(self, row: int) -> CommGroup | None:
        """The communicator of an operator of the library; None: it computes."""
        operator = self.library.operators[row]
        if not operator.kind.is_communication:
            return None
        return self.library.groups[row] or _group_of_key(operator)

    def bound(self, row: int, columns: CostColumns, weights: NDArray[np.float64]) -> str:
        """Which term of the roofline is longest: ``compute``, ``memory``, ``network``, or ``fixed``.

        Args:
            row: operator. columns: evaluated costs. weights: float64[num_shapes], how often each shape occurs.
        """
        uses = float(weights.sum()) or 1.0
        terms = {
            "compute": float(columns.flop[row] @ weights) / self._flop_rate[row] / uses,
            "memory": float(columns.mem_bytes[row] @ weights) / self._mem_rate[row] / uses,
            "network": float(columns.net_bytes[row] @ weights) / self._net_rate[row] / uses,
            "fixed": float(self._fixed[row]),
        }
        return max(terms, key=lambda name: terms[name])

    def _apply_rules(self, columns: CostColumns, rows: NDArray[np.integer], result: NDArray[np.float64]) -> None:
        for row, operator in enumerate(self.library.operators[number] for number in rows):
            rule = self.rules.get(operator.kind)
            if rule is None:
                continue
            seen = RuleInput(
                operator,
                self.profile,
                columns.flop[row],
                columns.mem_bytes[row],
                columns.net_bytes[row],
                DimTable.build(operator.key).evaluate(columns.symbols),
                result[row].copy(),
            )
            result[row] = _ruled(rule, seen)


def _ruled(rule: LatencyRule, seen: RuleInput) -> NDArray[np.float64]:
    """What a custom rule says, checked and on the time grid; semu's own latency where it says nothing."""
    said = rule(seen)
    if said is None:
        return seen.default_s
    values = np.asarray(said, dtype=np.float64)
    where = seen.operator.path or seen.operator.kind.value
    if values.ndim > 1 or (values.ndim == 1 and values.shape != seen.default_s.shape):
        raise ConfigError(
            "a latency rule returned the wrong number of latencies",
            where=where,
            expected=f"one number, or {len(seen.default_s)}",
            got=values.shape,
        )
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ConfigError(
            "a latency rule returned an impossible latency",
            where=where,
            expected="finite seconds >= 0",
            got=values.min(),
            nearest=0,
        )
    on_grid: NDArray[np.float64] = np.rint(np.broadcast_to(values, seen.default_s.shape) * TIME_GRID_PER_S)
    return on_grid / TIME_GRID_PER_S


def check_rules(rules: LatencyRules | None) -> dict[OpKind, LatencyRule]:
    """Custom rules, by kind.

    Raises:
        ConfigError: a key that is no ``OpKind``, or a rule that cannot be called.
    """
    for kind, rule in (rules or {}).items():
        if not isinstance(kind, OpKind):
            raise ConfigError("latency rules go by kind", where="latency_rules", expected="an OpKind", got=repr(kind))
        if not callable(rule):
            raise ConfigError("a latency rule is a function", where=f"latency_rules[{kind}]", got=repr(rule))
    return dict(rules or {})
