"""Which sizes of templates cover every number of nodes that failures may leave.

Source: Oobleck (2309.08125 §4.1.1, appendix A). Its equation A.2 lacks a factor n0, and its condition p > n0 - 1 is
more than is needed: with at least f + 1 pipelines, consecutive sizes n0 .. n_max cover every N' >= (f + 1) n0 if and
only if n_max >= n0 + ceil((n0 - 1) / (f + 1)).
"""

from __future__ import annotations


def least_largest(smallest: int, faults: int) -> int:
    """The least n_max that covers every number of nodes from (f + 1) n0 on.

    k pipelines hold from k n0 to k n_max nodes; the gap between k and k + 1 of them closes if
    k n_max >= (k + 1) n0 - 1, last of all for k = f + 1.

    Args:
        smallest: n0, nodes of the smallest template. faults: f, failures at once.
    """
    return smallest + -(-(smallest - 1) // (faults + 1))


def is_covered(smallest: int, largest: int, faults: int, nodes: int) -> bool:
    """Whether at least f + 1 pipelines of consecutive sizes hold exactly so many nodes."""
    most = nodes // smallest  # k pipelines, k n0 <= nodes <= k n_max
    least = max(faults + 1, -(-nodes // largest))
    return least <= most


MOST_SIZES = 32
"""Sizes that are planned at most, where that many cover: large clusters have more pipelines, not longer ones."""


def sizes(smallest: int, faults: int, nodes: int, most_stages: int) -> range:
    """Sizes of the templates: from n0 to N - f n0, no larger than a pipeline can have stages.

    Args:
        smallest: n0. faults: f. nodes: N. most_stages: as many nodes as a pipeline can use at most.
    """
    enough = max(least_largest(smallest, faults), smallest + MOST_SIZES - 1)
    return range(smallest, min(nodes - faults * smallest, most_stages, enough) + 1)
