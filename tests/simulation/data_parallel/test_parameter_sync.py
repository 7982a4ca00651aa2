"""Parameters that reach the other ranks by broadcasts of their owners, against an all-gather and by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from simulation.reference.network import collective_seconds

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from semu_models.text.gpt import GPT, GPTConfig


def report(sync: str, dp: int, nodes: int = 1, zero: int = 1, *, hides: bool = False) -> Report:
    model = Model.from_module(GPT(GPTConfig(2, 512, heads=8, vocab=4096, positions=256)), name="llm")
    overlap = Overlap(grad_reduce=False, param_gather=hides)
    training = Training(1, dp, 256, parameter_sync=sync, overlap=overlap)
    parallel = Parallel(dp=dp, zero=zero)
    return semu.simulate(TrainingJob(model, Cluster("a100-80g", nodes, dp // nodes), parallel, training))


@pytest.mark.parametrize(("dp", "nodes"), [(2, 1), (8, 1), (4, 2), (16, 8)])
def test_every_owner_sends_its_share_once(dp: int, nodes: int) -> None:
    found = report("broadcast", dp, nodes)
    pieces = [piece for piece in found.timeline.ranks[0].outer if piece.name.startswith("parameters of")]
    share = math.ceil(2 * found.parameters / dp)
    assert [piece.net_bytes for piece in pieces] == [share] * dp
    cluster = Cluster("a100-80g", nodes, dp // nodes)
    group = cluster.place_group("dp", range(dp))
    each = collective_seconds(cluster.profile, OpKind.ALL_GATHER, group, share)
    assert [piece.end_s - piece.start_s for piece in pieces] == pytest.approx([each] * dp, rel=1e-6)
    assert all(one.end_s == two.start_s for one, two in pairwise(pieces))
    gathered = report("all_gather", dp, nodes)
    (gather,) = [piece for piece in gathered.timeline.ranks[0].outer if piece.name == "parameters"]
    longer = dp * each - (gather.end_s - gather.start_s)
    assert longer > 0
    assert found.iteration_time_s - gathered.iteration_time_s == pytest.approx(longer, rel=1e-6)
    assert found.peak_memory_bytes == gathered.peak_memory_bytes


def test_overlap_does_not_hide_them() -> None:
    assert report("broadcast", 4, hides=True).iteration_time_s == report("broadcast", 4).iteration_time_s
    names = {piece.name for piece in report("all_gather", 4, hides=True).timeline.ranks[0].outer}
    assert "parameters" not in names and "parameters 0" in names  # before the first forward


def test_without_shards_nothing_is_sent() -> None:
    assert report("broadcast", 4, zero=0).iteration_time_s == report("all_gather", 4, zero=0).iteration_time_s


def test_another_word() -> None:
    with pytest.raises(ConfigError, match="parameter_sync"):
        report("multicast", 2)
