"""``time_uncertainty``: which coefficients an iteration time rests on, and how far their errors move it.

To first order the iteration grows by what a kind takes on the critical path (``critical_path``). Inside a stage that is
the time of its kernels and the exposed time of its collectives, which is shared out among the kinds of a stream by
their times; a chunk's stages are taken to be made up alike, as their mean over the replica's microbatches is.

Where a framework's factors were fitted on whole runs of the device, the error of groups of runs that were left out of
the fit holds what kernels by themselves are off: it stands in place of both for products and memory-bound kernels whose
coefficients are the device's own, as one kind, ``software.runs``. Elsewhere (kernels of another device, attention,
experts' products, factors that nobody fitted) a kernel and its factor each have their own spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageCosts, StageProgram
from semu.costs.roofline import CostModel
from semu.costs.shape_factors import ATTENTION_KEY
from semu.engine.critical_paths import RankPieces, critical_path
from semu.engine.timeline import OuterSlice
from semu.graph.operator import Phase
from semu.hardware.attention_kernels import times
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.number import Number, worst_provenance
from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.present.uncertainty import FACTOR_SPREADS, UncertainKind, Uncertainty, spread_of
from semu.simulation.effects.launch import launch_slowdowns
from semu.simulation.effects.structural import structural_kinds
from semu.simulation.replica_costs import ReplicaCosts


def time_uncertainty(
    costs: ReplicaCosts,
    pieces: Sequence[RankPieces],
    *,
    iteration_time_s: float,
    overhead_s: float,
    launch_share: float,
) -> Uncertainty:
    """How far the errors of the coefficients move an iteration time.

    Args:
        costs, pieces: of the job's slowest replica.
        iteration_time_s: [s]; overhead_s: what of it lies outside the model and is taken as exact [s].
        launch_share: share of the stages' time that they wait for the host.
    Returns:
        The contributions of all kinds; their times are those on the critical path, with what the path does not explain
        (another replica's work) laid on all of them alike. What kind of run it is adds a spread of the whole time
        (``structural_kinds``).
    """
    job, model = costs.costed.job, costs.costed.cost_model
    spreads = _Spreads(job, model)
    path = critical_path(pieces)
    seconds: dict[str, float] = {}
    weighted: dict[str, float] = {}

    def _add(kind: str, time: float, spread: float) -> None:
        seconds[kind] = seconds.get(kind, 0.0) + time
        weighted[kind] = weighted.get(kind, 0.0) + time * spread

    stages = _StageMixes(costs, spreads)
    for (chunk, phase), time in path.stages.items():
        for kind, share, spread in stages.of(chunk, phase):
            _add(kind, time * share * (1.0 - launch_share), spread)
    explained = sum(seconds.values())
    launch = launch_share * sum(path.stages.values())
    if launch > 0:
        key, number = job.launch
        spread, slower = spread_of(number.provenance, number.relative_error), max(launch_slowdowns(costs.costed.layout))
        _add(key, launch / slower, spread)
        if slower > 1:
            stall = job.profile.host.transfer_stall
            both = math.hypot(spread, spread_of(stall.provenance, stall.relative_error))
            _add("host.transfer_stall", launch * (1 - 1 / slower), both)
        explained += launch
    for kind, time in list(seconds.items()):
        factor = spreads.factor(kind)
        if factor is not None:
            _add(factor[0], time, factor[1])
    for piece, time in path.outer:
        for kind, part, spread in spreads.of_outer(piece, time):
            _add(kind, part, spread)
        explained += time
    scale = (iteration_time_s - overhead_s) / explained if explained > 0 else 0.0
    kinds = [UncertainKind(kind, time * scale, weighted[kind] / time) for kind, time in seconds.items() if time > 0]
    kinds += structural_kinds(job, iteration_time_s - overhead_s)
    return Uncertainty.of(iteration_time_s, kinds)


_OWN = frozenset((Provenance.MEASURED, Provenance.FITTED))
"""Of coefficients that are the device's own."""
_APART = (OpKind.GROUPED_MATMUL, OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
"""Kinds whose kernels differ from run to run."""
_JUDGED = tuple(kind for kind in OpKind if not kind.is_communication and kind not in _APART)
"""Kinds that are in most dense runs, from which factors come."""


class _Spreads:
    """Relative standard deviations of the times of a job's operators, before software changes the device."""

    def __init__(self, job: TrainingJob, model: CostModel) -> None:
        self._model = model
        self._plain: DeviceProfile = job.cluster.profile.scaled(job.training.fp8_recipe)
        software = job.training.software
        self._factors = None if software is Software.KERNELS else job.cluster.profile.software_factors(software)
        self._attention = job.attention_factors
        self._transfer_s = job.profile.transfer_s
        self._spreads: dict[object, tuple[str, float]] = {}
        judged = (kind for kind in _JUDGED if self._find_judge(kind) is not None)
        self._judged = frozenset(kind for kind in judged if self._plain.efficiency(kind).provenance in _OWN)

    def _find_judge(self, kind: OpKind) -> float | None:
        """Mean error of groups left out of the fit of a kind's factor on this device; None: nobody fitted it here."""
        factor = None if self._factors is None else self._factors.of_kind(kind)
        return None if factor is None or factor.provenance is Provenance.TRANSFERRED else factor.relative_error

    def of_row(self, row: int) -> tuple[str, float]:
        """Kind and spread of an operator of the library."""
        operator = self._model.library.operators[row]
        if operator.kind.is_communication:
            group = self._model.link_of(row)
            assert group is not None
            return self._link(group.port, operator.kind)
        is_attention = operator.kind in (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
        head_dim = operator.key[5] if is_attention and len(operator.key) == len(ATTENTION_KEY) else None
        has_flop = operator.flop != 0
        key = operator.kind, operator.dtype, head_dim if isinstance(head_dim, int) else None, has_flop
        if key not in self._spreads:
            self._spreads[key] = self._compute(*key)
        return self._spreads[key]

    def _compute(self, kind: OpKind, dtype: DType | None, head_dim: int | None, has_flop: bool) -> tuple[str, float]:
        section = self._plain.efficiency(kind, dtype=dtype, head_dim=head_dim)
        provenance, error = section.provenance, section.relative_error
        if has_flop and dtype in (DType.FP32, DType.TF32) and (kind, dtype) not in self._plain.variants:
            provenance, error = worst_provenance(provenance, Provenance.TRANSFERRED), None
        is_held = kind in self._judged and provenance in _OWN
        return kind.value, 0.0 if is_held else spread_of(provenance, error)

    def _link(self, port: Port, kind: OpKind) -> tuple[str, float]:
        section = self._plain.links[port].of(kind)
        return f"{port.value}.{kind.value}", spread_of(section.provenance, section.relative_error)

    def factor(self, kind: str) -> tuple[str, float] | None:
        """The software factor of a compute kind with its spread; None: there is none."""
        if self._factors is None or "." in kind or kind in (OpKind.OPTIMIZER.value, OpKind.CUSTOM.value):
            return None
        name = self._factors.name_of(OpKind(kind))
        number = self._factors.of_kind(OpKind(kind))
        if name == "attention":
            of_kernel = self._attention.of_kind(OpKind(kind))
            number = number if of_kernel is None else times(of_kernel, number)
        return "software.runs" if OpKind(kind) in self._judged else f"software.{name}", _factor_spread(number)

    def of_outer(self, piece: OuterSlice, time_s: float) -> list[tuple[str, float, float]]:
        """Kinds, times [s] and spreads of an operator outside stages, of which ``time_s`` is on the path."""
        if piece.name == "interference" and self._factors is not None:
            return [("software.interference", time_s, _factor_spread(self._factors.interference))]
        if piece.port is None:
            kind, spread = self._compute(piece.kind, None, None, False)
            return [(kind, time_s, spread)]
        kind, spread = self._link(piece.port, piece.kind)
        if piece.kind is not OpKind.P2P or self._factors is None or not self._transfer_s:
            return [(kind, time_s, spread)]
        added = min(self._transfer_s, time_s)
        return [
            (kind, time_s - added, spread),
            ("software.transfer_s", added, _factor_spread(self._factors.transfer_s)),
        ]


def _factor_spread(number: Number) -> float:
    return spread_of(number.provenance, number.relative_error, FACTOR_SPREADS)


class _StageMixes:
    """What the stages of each chunk and phase are made up of."""

    def __init__(self, costs: ReplicaCosts, spreads: _Spreads) -> None:
        self._costs, self._spreads = costs, spreads
        self._mixes: dict[StageProgram, list[tuple[str, float, float]]] = {}

    def of(self, chunk: int, phase: Phase) -> list[tuple[str, float, float]]:
        """Kinds with their shares of the stages' time, which add up to 1, and spreads."""
        program = self._costs.costed.layout.chunks[chunk]  # of its variants, the first stands for all
        stage = self._costs.costed.evaluation.chunks[chunk]
        own, its = (program.forward, stage.forward) if phase is Phase.FORWARD else (program.backward, stage.backward)
        assert own is not None and its is not None
        if own not in self._mixes:
            self._mixes[own] = self._mix(own, its, chunk)
        return self._mixes[own]

    def _mix(self, program: StageProgram, stage: StageCosts, chunk: int) -> list[tuple[str, float, float]]:
        uses, shapes = self._costs.uses_of(chunk), self._costs.shapes
        time = self._costs.row_seconds(chunk)[program.rows]
        exposed: NDArray[np.float64] = uses @ stage.exposed[shapes]
        exposed[0] = float(uses @ stage.latency[shapes]) - exposed[1:].sum()
        total = np.bincount(program.stream, weights=time, minlength=len(exposed))
        visible = np.divide(exposed, total, out=np.zeros_like(total), where=total > 0)
        shares = np.bincount(program.rows, weights=time * visible[program.stream])
        everything = float(shares.sum()) or 1.0
        kinds: dict[str, float] = {}
        spread: dict[str, float] = {}
        for row in np.flatnonzero(shares).tolist():
            kind, own = self._spreads.of_row(row)
            share = float(shares[row]) / everything
            kinds[kind] = kinds.get(kind, 0.0) + share
            spread[kind] = spread.get(kind, 0.0) + share * own
        return [(kind, share, spread[kind] / share) for kind, share in kinds.items()]
