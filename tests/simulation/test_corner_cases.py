"""Where ``semu.simulate`` departs from its own rules; each test says what should hold.

Every test here fails today and is marked so (``xfail``, strict: when the gap is closed the mark must go, and the test
belongs to its neighbours in ``test_reference`` or ``test_reduction``).
"""

from __future__ import annotations

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import (
    FEATURES,
    WIDTH,
    Along,
    Distance,
    Fork,
    carry_along,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
    wide,
)
from simulation.reference import expand
from simulation.reference_tail import gather_times

from semu.errors import ConfigError
from semu.hardware.kinds import OpKind
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.nn.module import Parameter
from semu.parallel.config import Parallel
from semu.report import Report
from semu.simulation import simulate


def linear() -> Linear:
    return Linear(WIDTH, WIDTH)


def module(name: str, *blocks: Module, sources: tuple[str, ...] = (), has_data: bool = True) -> ModalityModule:
    inputs = FEATURES if has_data else ()
    return ModalityModule(name, ModalityRole.ENCODER, Sequential(*blocks), inputs, sources)


def assert_memory_ends_where_it_began(report: Report) -> None:
    for rank, static in zip(report.timeline.ranks, report.static_memory_bytes, strict=True):
        assert rank.memory.total[-1] == static
        assert rank.memory.by_role.min() >= 0


# engine/stage.py, _Joiner._program: a storage in ``alive_before`` that no operator touches and that does not survive
# is never freed: ``memory_of_stage`` frees a storage when its count of touches falls to 0, and this one starts there.

@pytest.mark.parametrize("kind", ["chain", "t2v"])
def test_an_arriving_tensor_that_nobody_reads_is_freed(kind: str) -> None:
    if kind == "t2v":  # the loss alone on the last rank: caption and timestep end there unread
        job = job_of(t2v(), t2v_items(2), Parallel(pp=10))
    else:
        job = job_of(chain(linear(), Fork(), Along(), Distance()), text_items(2), Parallel(pp=4))
    report = simulate(job)
    assert_memory_ends_where_it_began(report)
    assert_equal(report, expand(job))


# simulation/memory.py, RankMemory.peak: looks during stages only. Between stages a rank may hold a tensor that is being
# sent together with one that is being received; the curve of the timeline shows it, the reported peak does not.

def test_a_peak_between_two_stages_is_reported() -> None:
    job = job_of(carry_along(), text_items(3), Parallel(pp=3))
    report = simulate(job)
    assert list(report.peak_memory_bytes) == [rank.memory.peak_bytes for rank in report.timeline.ranks]


# simulation/memory.py, RankMemory._released: takes all that leaves a stage for sent, also what goes to a chunk of the
# same rank, which frees it again.

def test_gradients_for_two_encoders_of_which_one_is_on_the_same_rank() -> None:
    model = Model(
        "two-encoders",
        [
            module("near", linear(), linear()),
            module("far", linear(), linear()),
            module("backbone", SumOfThree(), Distance(), sources=("near", "far")),
        ],
    )
    job = job_of(model, text_items(3), Parallel(pp=2))
    assert_memory_ends_where_it_began(simulate(job))
    assert_equal(simulate(job), expand(job))


class SumOfThree(Module):
    """Data and two encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.first(x) + self.second(y) + z


# simulation/layout.py: a module that two others read. The two gradients that come back are neither added (no operator)
# nor stored (one buffer is freed, two are received); it must be modelled, or refused in _refuse_unmodelled.

def test_a_module_that_feeds_two_others() -> None:
    model = Model(
        "diamond",
        [
            module("source", linear(), linear()),
            module("left", linear(), linear(), sources=("source",), has_data=False),
            module("end", SumOfThree(), Distance(), sources=("source", "left")),
        ],
    )
    try:
        report = simulate(job_of(model, text_items(2), Parallel(pp=3)))
    except ConfigError:
        return
    assert_memory_ends_where_it_began(report)


# simulation/accounting.py, _tokens: ``modules[-1].inputs[0]`` where the last module has no input of its own.

def test_a_backbone_without_data_of_its_own() -> None:
    model = Model(
        "no-data", [module("encoder", linear()), module("end", Distance(), sources=("encoder",), has_data=False)]
    )
    assert_equal(simulate(job_of(model, text_items(2))), expand(job_of(model, text_items(2))))


class Times(Module):
    """A product with a weight that is somebody else's too; with ``ends``, the loss of it."""

    def __init__(self, weight: Parameter, ends: bool) -> None:
        super().__init__()
        self.weight = weight
        self.ends = ends

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        for other in others:
            y = y + other
        return F.mean_squared_error(y) if self.ends else y


# simulation/reduction.py, _gradient_ready: ``seen`` keeps the first entry of a parameter that two chunks of a rank use,
# which is the later chunk's, whose backward stage comes first; its gradient is complete only after the earlier chunk's.

def test_a_parameter_shared_by_two_chunks_is_reduced_when_both_are_done() -> None:
    width = 8192
    features = (InputSpec("text", width),)
    weight = Parameter(width, width)
    model = Model(
        "shared",
        [
            ModalityModule("encoder", ModalityRole.ENCODER, Sequential(Times(weight, False)), features),
            ModalityModule(
                "end",
                ModalityRole.BACKBONE,
                Sequential(Times(Parameter(width, width), False), Times(weight, True)),
                features,
                ("encoder",),
            ),
        ],
    )
    assert_tails_equal(job_of(model, text_items(2), Parallel(dp=2), overlap=overlap(gradients=True)))


# simulation/pipeline.py, node_latencies: ``mesh.pp_pair(source, target)`` is replica 0's pair for all replicas; another
# replica's pair may cross nodes (or NVLink islands) where this one does not. Per replica, or the worst pair, as for tp.

def test_each_replica_sends_over_its_own_links() -> None:
    """Two nodes of three GPUs: replica 0 crosses nodes between ranks 1 and 2, replica 1 between ranks 0 and 1."""
    job = job_of(gpt(), text_items(4), Parallel(dp=2, pp=3), gpus_per_node=3)
    assert_equal(simulate(job), expand(job))


# simulation/reduction.py, gather_floors: one floor for all replicas, with the rest of the work of the cheapest shape,
# so that the slowest replica waits too little (up to 2 % of the iteration in such jobs). It takes a floor per replica.

@pytest.mark.parametrize("kind", ["text", "vlm"])
def test_every_replica_waits_for_its_parameters(kind: str) -> None:
    model, items = {"text": (wide, text_items), "vlm": (vlm, vlm_items)}[kind]
    job = job_of(model(), items(4, seed=2), Parallel(dp=2), overlap=overlap(parameters=True))
    expected = expand(job, gather_times(expand(job)))
    assert simulate(job).makespan_s == max(replica.makespan_s for replica in expected.replicas)


# simulation/transfers.py (p2p_latency, collective_time) and reduction.py (_finish) never see ``latency_rules``, which
# are documented as "custom latencies by operator kind"; used, or refused by name.

@pytest.mark.parametrize("kind", [OpKind.P2P, OpKind.OPTIMIZER, OpKind.REDUCE_SCATTER, OpKind.ALL_GATHER])
def test_custom_rules_reach_the_operators_outside_stages(kind: OpKind) -> None:
    job = job_of(gpt(), text_items(4), Parallel(dp=2, pp=2))
    try:
        slow = simulate(job, latency_rules={kind: lambda row: 1.0})
    except ConfigError:
        return
    assert slow.iteration_time_s > 1.0


# engine/stage_kernels.py, memory_of_stage: counts what an operator of no duration holds; the curve of the timeline, a
# step function of time, cannot. The two should agree on one rule.

def test_operators_without_duration_count_alike_in_peak_and_curve() -> None:
    rules = {kind: lambda row: 0.0 for kind in (OpKind.ADD, OpKind.NORM, OpKind.MATMUL, OpKind.ACTIVATION)}
    report = simulate(job_of(gpt(), text_items(3), Parallel(pp=2)), latency_rules=rules)
    assert list(report.peak_memory_bytes) == [rank.memory.peak_bytes for rank in report.timeline.ranks]
