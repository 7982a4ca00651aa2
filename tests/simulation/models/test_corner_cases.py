"""Models, placements and rules that are easy to get wrong: most were wrong once."""

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
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times

from semu.errors import ConfigError
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.nn.module import Parameter
from semu.parallel.config import Parallel
from semu.simulation import simulate


def check(job: TrainingJob) -> None:
    assert_equal(simulate(job), expand(job))


def linear() -> Linear:
    return Linear(WIDTH, WIDTH)


def module(name: str, *blocks: Module, sources: tuple[str, ...] = (), has_data: bool = True) -> ModalityModule:
    inputs = FEATURES if has_data else ()
    return ModalityModule(name, ModalityRole.ENCODER, Sequential(*blocks), inputs, sources)


class SumOfThree(Module):
    """Data and two encoders; the second encoder's gradient is that of the sum itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.first(x) + self.second(y) + z


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


# -- memory ------------------------------------------------------------------------------------------------------------
def test_an_arriving_tensor_that_nobody_reads_goes_with_its_stage() -> None:
    check(job_of(chain(linear(), Fork(), Along(), Distance()), text_items(2), Parallel(pp=4)))
    # the loss alone on the last rank: caption and timestep end there unread
    check(job_of(t2v(), t2v_items(2), Parallel(pp=10)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_a_peak_between_two_stages(pp: int, seed: int) -> None:
    """A waiting rank may hold a tensor that is being sent together with one that is being received."""
    for pipeline in (False, True):
        check(job_of(carry_along(), text_items(3, seed), Parallel(pp=pp), overlap=overlap(pipeline=pipeline)))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("pp", range(1, 7))
def test_two_encoders(pp: int, recompute: str) -> None:
    """The backbone's gradients for the two may leave for another rank, stay, or both at once."""
    model = Model(
        "two-encoders",
        [
            module("near", linear(), linear()),
            module("far", linear(), linear()),
            module("backbone", SumOfThree(), Distance(), sources=("near", "far")),
        ],
    )
    check(job_of(model, text_items(3), Parallel(pp=pp), recompute=recompute))


def test_operators_without_duration_count_alike_in_peak_and_curve() -> None:
    rules = {kind: lambda row: 0.0 for kind in (OpKind.ADD, OpKind.NORM, OpKind.MATMUL, OpKind.ACTIVATION)}
    job = job_of(gpt(), text_items(3), Parallel(pp=2))
    report = simulate(job, latency_rules=rules)
    assert list(report.peak_memory_bytes) == [rank.memory.peak_bytes for rank in report.timeline.ranks]
    assert all(
        rank.memory.total[-1] == s for rank, s in zip(report.timeline.ranks, report.static_memory_bytes, strict=True)
    )


# -- models ------------------------------------------------------------------------------------------------------------
def test_a_module_that_feeds_two_others_is_refused() -> None:
    model = Model(
        "diamond",
        [
            module("source", linear(), linear()),
            module("left", linear(), linear(), sources=("source",), has_data=False),
            module("end", SumOfThree(), Distance(), sources=("source", "left")),
        ],
    )
    with pytest.raises(ConfigError, match="source"):
        simulate(job_of(model, text_items(2), Parallel(pp=3)))


@pytest.mark.parametrize("pp", [1, 2])
def test_a_last_module_without_data_of_its_own(pp: int) -> None:
    end = module("end", Distance(), sources=("encoder",), has_data=False)
    job = job_of(Model("no-data", [module("encoder", linear()), end]), text_items(2), Parallel(pp=pp))
    check(job)
    assert simulate(job).tokens == sum(item.tokens("text") for item in text_items(2))


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


def test_a_parameter_that_the_loss_does_not_reach_is_reduced_and_stepped() -> None:
    """Its buffer is there, and is reduced with the others, as Megatron-LM's contiguous buffers are."""
    model = chain(linear(), Fork(), Along(), Distance())  # the fork's second product ends nowhere
    report = simulate(job_of(model, text_items(2), Parallel(dp=2)))
    (scatter,) = (piece for piece in report.timeline.ranks[0].outer if piece.kind is OpKind.REDUCE_SCATTER)
    assert scatter.net_bytes == model.num_parameters() * 4 // 2


# -- replicas ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(4))
def test_each_replica_sends_over_its_own_links(seed: int) -> None:
    """Two nodes of three GPUs: replica 0 crosses nodes between ranks 1 and 2, replica 1 between ranks 0 and 1."""
    check(job_of(gpt(), text_items(4, seed), Parallel(dp=2, pp=3), gpus_per_node=3))


def test_nvlink_does_not_reach_all_of_a_large_node() -> None:
    """Twelve GPUs on one node, NVLink joins eight: some replicas meet over PCIe, some do not."""
    check(job_of(gpt(), text_items(12), Parallel(dp=6, pp=2)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("pp", "tp", "tensor"), [(1, 1, False), (2, 2, True), (3, 1, False)])
@pytest.mark.parametrize("kind", ["text", "vlm", "t2v"])
def test_every_replica_waits_for_its_parameters(kind: str, pp: int, tp: int, tensor: bool) -> None:
    """Operator by operator, also where replicas differ and where collectives run beside kernels."""
    model, items = {"text": (wide, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}[kind]
    options = overlap(parameters=True, tensor=tensor)
    job = job_of(model(), items(4, seed=2), Parallel(dp=2, pp=pp, tp=tp), overlap=options)
    free = expand(job)
    assert_equal(simulate(job), expand(job, gather_times(free)))


# -- custom rules ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [OpKind.P2P, OpKind.OPTIMIZER, OpKind.REDUCE_SCATTER, OpKind.ALL_GATHER])
def test_custom_rules_reach_the_operators_outside_stages(kind: OpKind) -> None:
    job = job_of(gpt(), text_items(4), Parallel(dp=2, pp=2))
    report, plain = simulate(job, latency_rules={kind: lambda row: 0.5}), simulate(job)
    seen = set()
    for rank, before in zip(report.timeline.ranks, plain.timeline.ranks, strict=True):
        old = {piece.name: piece for piece in before.outer}
        for piece in rank.outer:
            lasts = old[piece.name].end_s - old[piece.name].start_s
            seen.add(piece.kind)
            assert piece.end_s - piece.start_s == (0.5 if piece.kind is kind else lasts)
    assert kind in seen
