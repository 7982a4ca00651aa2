"""Oobleck's own reconfiguration: reinstantiate, borrow, merge (§2.5.1).

A pipeline that lost nodes takes the template of the nodes that it has left. Where they are fewer than the smallest
template, it borrows from pipelines that have more than that, the largest first; where all of them together cannot yield
enough, it merges with the smallest other pipeline until it is large enough. Each merge is a pipeline fewer, so that the
steps can end with fewer than f + 1 pipelines although the nodes would make as many (``TemplateSet.compose`` does).

The source leaves open, and here it is: each step is done for all pipelines, in order, before the next; a pipeline with
no node left is dropped if it cannot borrow a whole one; nodes that join make a pipeline of their own where they are
enough, else they go one by one to the smallest pipeline that has a larger template; so do nodes of a merged pipeline
that is larger than the largest template.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

Group = tuple[int, ...]
"""Nodes of a pipeline, in the order of its places."""


def three_steps(groups: Sequence[Group], alive: Collection[int], smallest: int, largest: int) -> list[Group]:
    """Pipelines after a failure or a join.

    Args:
        groups: pipelines until now. alive: nodes that are there. smallest, largest: sizes of the templates.
    Returns:
        Pipelines of ``smallest`` to ``largest`` nodes. Nodes that no pipeline can take are in none.
    """
    there = set(alive)
    left = [[node for node in group if node in there] for group in groups]
    free = sorted(there.difference(*groups))
    if len(free) >= smallest:
        left.append(free[:largest])
        free = free[largest:]
    free = _handed(free, left, largest)
    for group in left:
        lack = smallest - len(group)
        others = [other for other in left if len(other) > smallest and other is not group]
        if 0 < lack <= sum(map(len, others)) - smallest * len(others):
            for _ in range(lack):
                group.append(max(others, key=len).pop())
    left = sorted(filter(None, left), key=lambda group: len(group) >= smallest)
    while len(left) > 1 and len(left[0]) < smallest:
        group = left.pop(0)
        min(left, key=len).extend(group)
        left.sort(key=lambda group: len(group) >= smallest)
    for group in left:
        free += group[largest:]
        del group[largest:]
    _handed(free, left, largest)
    return [tuple(group) for group in left if len(group) >= smallest]


def _handed(free: Sequence[int], groups: Sequence[list[int]], largest: int) -> list[int]:
    """Give nodes one by one to the smallest pipeline that may grow; nodes that are left."""
    for k, node in enumerate(free):
        takes = min((group for group in groups if len(group) < largest), key=len, default=None)
        if takes is None:
            return list(free[k:])
        takes.append(node)
    return []
