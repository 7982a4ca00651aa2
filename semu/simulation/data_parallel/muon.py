"""Newton-Schulz products of Muon's step: ``orthogonalization_s``."""

from __future__ import annotations

import math

from semu import memo
from semu.compile.optimizer_share import Matrix
from semu.compile.template import TemplateLibrary, compile_template
from semu.costs.evaluation import CostedJob
from semu.costs.roofline import Coefficients, CostModel
from semu.graph.graph import Graph
from semu.hardware.kinds import DType, OpKind, Provenance
from semu.hardware.network import CommGroup
from semu.hardware.number import worst_provenance
from semu.job.kinds import SplitMatrices
from semu.nn.rules.optimizer import newton_schulz
from semu.simulation.transfers import collective

_EXCHANGED = DType.FP32
"""Type in which ranks exchange matrices and their small products."""


def orthogonalization_s(costed: CostedJob, rank: int) -> float:
    """Time that a pipeline rank takes to make its matrices orthogonal [s]: kernels one after another, and what
    tensor-parallel ranks exchange of the matrices that they share; none of it overlaps.

    Source:
        2502.16982 §2.2 and Algorithm 1; the three ways of ``training.muon_split`` are Megatron-LM's.
    """
    layout = costed.layout
    total = 0.0
    for pool, share in zip(layout.pools(rank), layout.optimizer_shares(rank), strict=True):
        mesh = pool.mesh
        group = mesh.worst_etp_group if pool.is_expert else mesh.worst_tp_group
        total += sum(count * _matrix_s(costed, matrix, group) for matrix, count in share.matrices)
    return total


def _matrix_s(costed: CostedJob, matrix: Matrix, group: CommGroup) -> float:
    training, model = costed.job.training, costed.cost_model
    way, steps = training.muon_split, training.muon_steps
    if matrix.split is None or group.num_ranks == 1:
        way = SplitMatrices.BLOCKWISE
    rows, columns = matrix.rows, matrix.columns
    sizes = [rows, columns]
    if way is SplitMatrices.BLOCKWISE:
        return _products_s(model, min(sizes), max(sizes), steps, training.muon_dtype)
    split = matrix.split or 0
    whole = rows * columns * group.num_ranks
    if way is SplitMatrices.DUPLICATED:
        sizes[split] *= group.num_ranks
        gathered = collective(model, "matrix", OpKind.ALL_GATHER, group, whole * _EXCHANGED.size_bytes, 0.0)
        return gathered.end_s + _products_s(model, min(sizes), max(sizes), steps, training.muon_dtype)
    short, long = sizes[1 - split], sizes[split]
    summed = collective(model, "X X^T", OpKind.ALL_REDUCE, group, short * short * _EXCHANGED.size_bytes, 0.0)
    return steps * summed.end_s + _products_s(model, short, long, steps, training.muon_dtype)


def products_provenance(costed: CostedJob) -> Provenance:
    """The worst provenance of what the products are costed with."""
    training, model = costed.job.training, costed.cost_model
    return worst_provenance(
        *(item.provenance for item in _costs(model, newton_schulz(1, 1, 1, training.muon_dtype))[1])
    )


def _products_s(model: CostModel, short: int, long: int, steps: int, dtype: DType) -> float:
    """Kernels over one matrix [s]."""

    def _find() -> float:
        return math.fsum(_costs(model, newton_schulz(short, long, steps, dtype))[0])

    return _find() if model.rules else _TIMES.get(model, (short, long, steps, dtype), _find)


def _costs(model: CostModel, graph: Graph) -> tuple[list[float], list[Coefficients]]:
    """Latencies of a graph's kernels [s], and what they are computed with."""
    library = TemplateLibrary([compile_template(graph, len(graph.operators))])
    own = CostModel(library, model.profile, model.rules)
    return own.latencies(library.evaluate({})).sum(axis=1).tolist(), own.coefficients


_TIMES = memo.ScopedTable[float]("time of Newton-Schulz products under a cost model, by sizes, steps and type", 4096)
