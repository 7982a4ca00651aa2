"""Collectives: which, over how many ranks, how large; free of torch."""

from __future__ import annotations

from calibration.case import Case, spread
from calibration.table import Value

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "send_recv")
SIZES = tuple(1 << power for power in range(10, 31, 2))
"""1 KiB to 1 GiB [bytes]."""


def group_sizes(world: int, ranks_per_node: int) -> list[int]:
    """Powers of two in a node, whole nodes, and the world.

    Args:
        world: ranks that there are. ranks_per_node: of each node.
    """
    inside = [1 << power for power in range(1, ranks_per_node.bit_length()) if 1 << power <= ranks_per_node]
    nodes = [ranks_per_node << power for power in range(world.bit_length()) if ranks_per_node << power <= world]
    return sorted({size for size in (*inside, *nodes, world) if 2 <= size <= world})


def collective_cases(world: int, ranks_per_node: int, topology: str, dtype: str, *, quick: bool = False) -> list[Case]:
    """The grid; between two ranks also ``send_recv``.

    Args:
        world, ranks_per_node: of the job. topology: for the column. dtype: of the elements. quick: small sizes.
    """
    sizes = (1 << 10, 1 << 14) if quick else SIZES
    cases = []
    for ranks in group_sizes(world, ranks_per_node):
        for kind in COLLECTIVES:
            if kind == "send_recv" and ranks != 2:
                continue
            for size in sizes:
                row: dict[str, Value] = {
                    "topology": topology,
                    "collective": kind,
                    "ranks": ranks,
                    "ranks_per_node": min(ranks, ranks_per_node),
                    "bytes": size,
                    "note": f"torch {dtype}",
                }
                cases.append(Case("collectives", row, 2 * size))
    return spread(cases)


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""
    if kind == "send_recv":
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks
