"""``cluster_of``: the cluster that a file is for, or the fewest whole nodes that its parallel sizes need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.hardware.cluster import DEFAULT_DEVICE, PER_NODE, Cluster, said_of_cluster
from semu.imports.settings import Settings


def cluster_of(
    settings: Settings,
    asked: str | None,
    *,
    ranks: int,
    world: int | None = None,
    where: str | None = None,
    gpus_per_node: int | None = None,
    divides: Callable[[int], bool] = lambda gpus: True,
    may_grow: bool = False,
) -> Mapping[str, Any]:
    """``[cluster]``: as the caller asks, else as the file says, else the fewest whole nodes, on ``DEFAULT_DEVICE``.

    Args:
        settings: take a note of what was decided.
        asked: ``DEVICE:NODESxGPUS`` by the caller, or a part of it (``said_of_cluster``).
        ranks: GPUs of one replica, at least.
        world, gpus_per_node: as the file says; None: it does not. where: what says so, for messages.
        divides: whether the batch and the groups divide on so many GPUs; where they do on no whole number of nodes
            below 16 times the fewest, the most GPUs of one node are taken on which they do.
        may_grow: where the file's number of GPUs is a start (a script for one node, to be changed by whoever has
            more), and does not hold the sizes, the fewest whole nodes are taken that do.
    Raises:
        ConfigError: a cluster that cannot be parsed; GPUs that make no whole nodes.
    """
    said = said_of_cluster(asked) if asked is not None else {}
    device = said.get("device", DEFAULT_DEVICE)
    if "nodes" in said:
        cluster = Cluster(**{"device": device, **said})
        if world is not None and world != cluster.num_gpus:
            settings.notes.append(f"cluster: {cluster.num_gpus} GPUs as asked, the file is for {world}")
        return {"device": cluster.device, "nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node}
    is_legal = world is None or (world % ranks == 0 and divides(world))
    if world is not None and not is_legal and may_grow:
        least = math.lcm(ranks, gpus_per_node or PER_NODE)
        sizes = [least * times for times in range(1, 17) if divides(least * times)]
        if sizes and sizes[0] > world:
            settings.notes.append(
                f"cluster: {world} GPUs do not hold the sizes, taken as {sizes[0]}, the fewest that do"
            )
            world = sizes[0]
    if world is not None:
        per_node = gpus_per_node or min(world, PER_NODE)
        if world % per_node:
            message = f"{world} GPUs do not make nodes of {per_node}"
            raise ConfigError(
                message, where=where or settings.given.source, expected="--cluster DEVICE:NODESxGPUS", got=world
            )
        if gpus_per_node is None:
            settings.notes.append(f"cluster: {world} GPUs taken as nodes of {per_node}")
        return {"device": device, "nodes": world // per_node, "gpus_per_node": per_node}
    per_node = gpus_per_node or PER_NODE
    world = _fewest(ranks, per_node, divides)
    size = min(world, per_node)
    nodes = world // size
    settings.notes.append(
        f"cluster: not said, taken as {nodes} x {size} GPUs, the fewest whole nodes that hold {ranks} ranks"
        if size == per_node
        else f"cluster: not said, taken as {size} GPUs of a node, the most on which batch and groups divide"
    )
    return {"device": device, "nodes": nodes, "gpus_per_node": size}


def says_size(asked: str | None) -> bool:
    """Whether a caller's ``DEVICE:NODESxGPUS`` says the number of GPUs."""
    return asked is not None and "nodes" in said_of_cluster(asked)


def _fewest(ranks: int, per_node: int, divides: Callable[[int], bool]) -> int:
    """GPUs of the fewest whole nodes whose number is a multiple of ``ranks``."""
    step = math.lcm(ranks, per_node)
    whole = [step * times for times in range(1, 17)]
    part = [gpus for gpus in range(per_node, 0, -1) if gpus % ranks == 0]
    return next((gpus for gpus in (whole[0], *part, *whole[1:]) if divides(gpus)), step)
