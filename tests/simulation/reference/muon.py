"""What the slow reference says of Muon: which parameters are matrices of layers, who steps them, what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.reference.costs import latency_of, on_grid
from simulation.reference.model import CutModel
from simulation.reference.network import collective_seconds, wire_bytes

from semu.graph.operator import Operator, Phase
from semu.hardware.device import Device, DeviceKind, Stream
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.nn import Linear
from semu.nn.trace.parameter_use import ParameterUse

STREAM = Stream(Device(DeviceKind.COMPUTE), "compute")


@dataclass
class Piece:
    """A parameter on a rank: elements, its matrices as (rows, columns, axis that ranks share), experts apart or not."""

    elements: int
    matrices: list[tuple[int, int, int | None]]
    is_routed: bool
    count: int = 1

    def apart(self) -> list[Piece]:
        """Every expert's part by itself."""
        own = self.matrices[: len(self.matrices) // self.count]
        return [Piece(self.elements // self.count, own, self.is_routed)] * self.count


@dataclass
class Share:
    """Elements of matrices and of all else that a rank steps, and its products [s]."""

    in_matrices: int
    others: int
    products_s: float = 0.0

    @property
    def moments(self) -> int:
        """One of each element of a matrix, two of all else."""
        return self.in_matrices + 2 * self.others


def shares_of(model: CutModel, rank: int) -> list[Share]:
    """What the rank steps: of all but experts that are spread otherwise, then of these."""
    parallel = model.job.parallel
    training = model.job.training
    pieces = pieces_of(model, rank)
    result = []
    for is_routed, shards in ((False, parallel.dp * parallel.cp), (True, model.experts.edp)):
        mine = [one for piece in pieces if piece.is_routed is is_routed for one in piece.apart()]
        hands = deal(mine, shards if parallel.zero else 1)
        totals = []
        for hand in hands:
            inside = sum(piece.elements for piece in hand if piece.matrices)
            totals.append(Share(inside, sum(piece.elements for piece in hand) - inside))
        master = 0 if training.master_dtype is training.precision.tensor_dtype else training.master_dtype.size_bytes
        state = training.optimizer_state_dtype.size_bytes
        share = max(totals, key=lambda t: (t.in_matrices + t.others) * master + t.moments * state)
        if is_routed:
            etp = (
                [model.job.cluster.place_group("etp", list(range(model.experts.etp)))] if model.experts.etp > 1 else []
            )
            group = etp[0] if etp else None
        else:
            group = model.tp_group
        most = max(hands, key=lambda hand: sum(flop(m) for piece in hand for m in piece.matrices))
        share.products_s = sum(seconds(model, matrix, group) for piece in most for matrix in piece.matrices)
        result.append(share)
    return result


def pieces_of(model: CutModel, rank: int) -> list[Piece]:
    """Trained parameters of a rank, each once, in order of data flow."""
    found: dict[int, Piece] = {}
    for block in model.held_on(rank):
        parts = {id(module.weight): module.parts or () for module in block.body.modules() if isinstance(module, Linear)}
        for use in block.trace.parameters:
            if not use.parameter.requires_grad or id(use.parameter) in found:
                continue
            size = [int(d) for d in block.trace.graph.tensors[use.tensor].shape if isinstance(d, int)]
            is_matrix = ".layers." in f"{block.path}." and len(size) > 1 and not use.path.endswith("bias")
            matrices = cut(use, size, parts.get(id(use.parameter), ())) if is_matrix else []
            is_bias = len(size) == 2 and use.path.endswith("bias")
            count = size[0] if ".layers." in f"{block.path}." and (len(size) == 3 or is_bias) else 1
            found[id(use.parameter)] = Piece(use.numel, matrices, model.experts.holds(use), count)
    return list(found.values())


def cut(use: ParameterUse, size: list[int], parts: tuple[int, ...]) -> list[tuple[int, int, int | None]]:
    """The matrices in a parameter."""
    *several, rows, columns = size
    whole = use.parameter.shape[-2:]
    axis = 0 if whole[0] > rows else 1 if whole[1] > columns else None
    heights = [part * rows // whole[0] for part in parts] if len(parts) == 3 else [rows]
    one = [(height, columns, axis) for height in heights]
    for count in several:
        one *= count
    return one


def deal(pieces: list[Piece], ranks: int) -> list[list[Piece]]:
    """Whole parameters, the smallest first, to and fro over the ranks."""
    hands: list[list[Piece]] = [[] for _ in range(ranks)]
    for turn, piece in enumerate(sorted(pieces, key=lambda piece: piece.elements)):
        way, place = divmod(turn, ranks)
        hands[ranks - 1 - place if way % 2 else place].append(piece)
    return hands


def flop(matrix: tuple[int, int, int | None]) -> int:
    """Of one step at least."""
    short, long = min(matrix[:2]), max(matrix[:2])
    return 2 * short * short * (2 * long + short)


def seconds(model: CutModel, matrix: tuple[int, int, int | None], group: CommGroup | None) -> float:
    """Kernels, and exchanges between tensor-parallel ranks, one after another."""
    training = model.job.training
    rows, columns, axis = matrix
    way = training.muon_split.value if axis is not None and group is not None and group.num_ranks > 1 else "blockwise"
    total, short, long = 0.0, min(rows, columns), max(rows, columns)
    if way == "duplicated":
        assert group is not None
        whole = [rows, columns]
        whole[axis or 0] *= group.num_ranks
        short, long = min(whole), max(whole)
        total += exchange(model, OpKind.ALL_GATHER, group, 4 * short * long)
    elif way == "distributed":
        assert group is not None
        short, long = (columns, rows) if axis == 0 else (rows, columns)
        total += training.muon_steps * exchange(model, OpKind.ALL_REDUCE, group, 4 * short * short)
    m, n = short, long
    total += kernel(model, OpKind.ADD, 0, m * n, (m * n,)) + kernel(model, OpKind.ADD, 0, 2 * m * n, (m * n,))
    each = kernel(model, OpKind.MATMUL, 2 * m * m * n, m * n + n * m + m * m, (m, m, n))  # X X^T
    each += kernel(model, OpKind.MATMUL, 2 * m * m * m, 2 * m * m + m * m + m * m, (m, m, m))  # b A + c A A
    each += kernel(model, OpKind.MATMUL, 2 * m * m * n, m * m + m * n + m * n + m * n, (m, n, m))  # a X + B X
    return total + training.muon_steps * each


def kernel(model: CutModel, kind: OpKind, flops: int, moved: int, key: tuple[int, ...]) -> float:
    """One kernel in the type of the products."""
    dtype = model.job.training.muon_dtype
    operator = Operator(
        0, "", kind, Phase.FORWARD, STREAM, flops, moved * dtype.size_bytes, 0, dtype, key, (), (), (), 0, 0, 1
    )
    return latency_of(operator, {"one": 1}, model.job.profile, {})


def exchange(model: CutModel, kind: OpKind, group: CommGroup, size: int) -> float:
    """One collective."""
    return on_grid(collective_seconds(model.job.profile, kind, group, wire_bytes(kind, group.num_ranks, size)))
