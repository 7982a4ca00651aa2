"""The table of parallel axes is what the other places say of them."""

from __future__ import annotations

from itertools import product

import pytest

from semu.hardware.cluster import Cluster
from semu.parallel.axes import AXES, COUNTS, DATA, GPU_AXES, MESH, PEERS, Shards, axes_of
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.runfile.schema import SCHEMA


def test_names_and_orders() -> None:
    assert AXES == ("dp", "tp", "pp", "vpp", "cp", "ep", "etp")
    assert (*COUNTS, "etp") == AXES
    assert (GPU_AXES, PEERS, DATA) == (("dp", "tp", "pp", "cp"), ("tp", "cp"), ("cp", "dp"))
    assert axes_of(Shards.SAMPLES, Shards.LAYERS) == ("dp", "pp", "vpp")


@pytest.mark.parametrize("name", AXES)
def test_an_axis_is_a_keyword_a_key_and_part_of_a_text(name: str) -> None:
    assert name in SCHEMA["parallel"]
    made = Parallel(**{name: 2})
    assert made == Parallel.parse(f"{name}2")
    assert f"{name}2" in made.label().split("-")
    assert made.sizes[name] == 2
    assert made.num_gpus == (2 if name in MESH else 1)


def test_ranks_are_numbered_in_the_order_of_the_mesh() -> None:
    parallel = Parallel(dp=3, tp=2, pp=4, cp=5)
    mesh = Mesh(parallel, Cluster("h100", nodes=120, gpus_per_node=1))
    places = product(*(range(getattr(parallel, name)) for name in reversed(MESH)))
    numbers = [mesh.gpu(**dict(zip(reversed(MESH), place, strict=True))) for place in places]
    assert numbers == [*range(parallel.num_gpus)]
    for name in MESH:
        other = {axis: 1 for axis in MESH if axis != name}
        assert mesh.gpu(**other, **{name: 1}) - mesh.gpu(**other) == parallel.stride(name)
    assert parallel.data_ranks * parallel.tp == parallel.stage_gpus == parallel.replica_gpus * parallel.dp
