"""Proof by execution: loss and every gradient of a pipelined iteration are those of the model in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from executor.plan_kit import make_plan, modular_shape, random_schedule
from executor.proof import compare, run_fake
from executor.small_models import SmallModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semu.executor import FakeWorld, Runner, run_threads, split_model
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.stage_plan import STRATEGIES
from semu.schedule.study import PipelineStudy

torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_eager"),
    [*((name, False) for name in ALL_SCHEDULES), ("1f1b", True), ("zb-v", True), ("chimera", True)],
)
def test_every_schedule_family(name: str, is_eager: bool) -> None:
    family = ALL_SCHEDULES[name]
    p, m, v = next(size for size in ((4, 8, 1), (4, 8, 2)) if family.misfit(*size) is None)
    shape = family.shape(p, m, v)
    shape = replace(shape, chunk_module=("lm",) * shape.num_chunks)
    copies = max(shape.chunk_flow) + 1
    model = SmallModel("lm", {"lm": [[1] * m]}, {"lm": 2 * shape.num_chunks // copies})
    plan = make_plan(shape, family(shape), [2] * shape.num_chunks, model.items, model.sources)
    compare(plan, model, run_fake(plan, model, is_eager=is_eager))


RULES = (
    "priority in-flight=2*p",
    "priority prefer=alternate forward=depth backward=depth in-flight=2*p*v",
    "separated inner={priority forward=oldest backward=oldest in-flight=2*p*v} activations=2*p",
    "separated inner={priority prefer=forward forward=breadth(2) backward=depth(last)} activations=p",
)
"""Schedules that an exploration finds, and one that none would."""


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("is_v", [False, True])
def test_explored_rules_of_modules(text: str, is_v: bool) -> None:
    """An encoder cut into parts of unlike sizes, a backbone, several chunks per rank."""
    parts = {"vit": (3, 2, 1, 2), "llm": (1, 1, 1, 1)}
    items = {"vit": [[5, 2, 3, 4]], "llm": [[1, 1, 1, 1]]}
    segments = 2 if is_v else 1
    model = SmallModel("vlm", items, dict.fromkeys(parts, segments * 3))
    shape = modular_shape(3, {name: (segments, parts[name]) for name in parts}, model.sources, is_v=is_v)
    schedule = ALL_SCHEDULES[text].on(PipelineStudy.of(shape))
    schedule.validate(shape)
    plan = make_plan(shape, schedule, [1] * shape.num_chunks, items, model.sources)
    compare(plan, model, run_fake(plan, model), parts)


def layers_of(shape_chunks: int, each: int = 1) -> list[int]:
    return [each] * shape_chunks


def case(
    name: str,
    num_ranks: int,
    items: dict[str, list[list[int]]],
    parts: dict[str, Sequence[int]],
    seed: int,
    *,
    frozen: tuple[str, ...] = (),
    strategies: Sequence[str] = (),
    split: bool = False,
    is_v: bool = False,
    layers: int = 1,
) -> None:
    """A random order of all stages of a model; its variants are the strategies, each for all layers, in turn."""
    segments = 2 if is_v else 1
    modules = {module: (segments, parts[module]) for module in parts}
    counts = dict.fromkeys(parts, segments * num_ranks * layers)
    model = SmallModel(name, items, counts, frozen)
    shape = modular_shape(num_ranks, modules, model.sources, frozen, is_v=is_v)
    variants = [[[word] * layers for word in strategies]] * shape.num_chunks if strategies else ()
    schedule = random_schedule(shape, seed, split=split)
    plan = make_plan(shape, schedule, [layers] * shape.num_chunks, items, model.sources, variants)
    compare(plan, model, run_fake(plan, model), parts)


VLM_ITEMS = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
VLM_PARTS = {"vit": (3, 2, 1), "llm": (1, 1, 1)}


@pytest.mark.parametrize("split", [False, True])
def test_unequal_sub_microbatches_of_images(split: bool) -> None:
    case("vlm", 2, VLM_ITEMS, VLM_PARTS, 1, split=split)


def test_frozen_encoder_has_no_backward() -> None:
    case("vlm", 2, VLM_ITEMS, VLM_PARTS, 2, frozen=("vit",), split=True)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("word", STRATEGIES)
def test_memory_strategies_change_nothing(word: str, split: bool) -> None:
    case("vlm", 2, VLM_ITEMS, VLM_PARTS, 3, strategies=(word,), layers=2, split=split)


def test_two_encoders_into_one_backbone() -> None:
    items = {"vit": [[4, 2]], "audio": [[3, 5]], "llm": [[1, 1]]}
    case("two encoders", 2, items, {"vit": (2, 1), "audio": (1, 3), "llm": (1, 1)}, 4, split=True)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("parts", [((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 1), (2, 3)), ((2, 3), (2, 3))])
def test_the_gradients_of_all_readers_of_an_output_add_up(
    parts: tuple[tuple[int, int], tuple[int, int]], split: bool
) -> None:
    """A decoder and the backbone both read all that an encoder made, whole or in parts."""
    items = {"vit": [[4, 3]], "depth": [[4, 3]], "llm": [[1, 1]]}
    case("two readers", 2, items, {"vit": parts[0], "depth": parts[1], "llm": (1, 1)}, 11, split=split)


@pytest.mark.parametrize("parts", [((2, 1), (3, 2)), ((1, 1), (2, 3)), ((3, 1), (1, 1)), ((2, 3), (2, 3))])
def test_captions_and_clips_cut_alike_or_not(parts: tuple[tuple[int, int], tuple[int, int]]) -> None:
    items = {"llm": [[3, 4]], "dit": [[3, 4]]}
    case("t2v", 2, items, {"llm": parts[0], "dit": parts[1]}, 5, split=True)


def test_replicas_with_microbatches_of_their_own() -> None:
    items = {"vit": [[5, 2, 3], [1, 4, 2]], "llm": [[1, 1, 1], [1, 1, 1]]}
    case("vlm", 2, items, VLM_PARTS, 6)


def test_a_replica_without_images() -> None:
    items = {"vit": [[5, 2, 0], [0, 4, 2]], "llm": [[1, 1, 1], [1, 1, 1]]}
    case("vlm", 2, items, {"vit": (3, 2, 2), "llm": (1, 1, 1)}, 7)


def test_chunks_in_a_v_hand_on_within_a_rank() -> None:
    case("vlm", 2, VLM_ITEMS, VLM_PARTS, 8, is_v=True, split=True)


def test_one_rank() -> None:
    case("vlm", 1, VLM_ITEMS, VLM_PARTS, 9, split=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_plans(data: st.DataObject) -> None:
    """Models, parts, ranks, strategies and orders drawn together."""
    name = data.draw(st.sampled_from(["vlm", "two encoders", "t2v", "lm"]))
    names = {"vlm": ["vit", "llm"], "two encoders": ["vit", "audio", "llm"], "t2v": ["llm", "dit"], "lm": ["lm"]}[name]
    count, replicas = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    cuts = {"vlm": ("vit",), "two encoders": ("vit", "audio"), "t2v": ("llm", "dit"), "lm": ()}[name]
    items: dict[str, list[list[int]]] = {}
    for module in names:
        if module == "dit":
            items[module] = items["llm"]
        elif module in cuts:
            least = 1 if name == "t2v" else 0
            items[module] = [[data.draw(st.integers(least, 4)) for _ in range(count)] for _ in range(replicas)]
        else:
            items[module] = [[1] * count for _ in range(replicas)]
    most = {module: [max(own[i] for own in items[module]) for i in range(count)] for module in names}
    parts = {
        module: tuple(data.draw(st.integers(min(1, n), n)) if module in cuts else 1 for n in most[module])
        for module in names
    }
    frozen = data.draw(st.sampled_from([(), (names[0],)])) if len(names) > 1 else ()
    case(
        name,
        data.draw(st.integers(1, 3)),
        items,
        parts,
        data.draw(st.integers(0, 1 << 20)),
        frozen=frozen,
        strategies=data.draw(st.lists(st.sampled_from(STRATEGIES), max_size=3)),
        split=data.draw(st.booleans()),
        is_v=data.draw(st.booleans()),
    )


def test_random_numbers_of_a_recomputation_are_those_of_the_forward() -> None:
    items = {"lm": [[1, 1]]}
    shape = modular_shape(1, {"lm": (1, (1, 1))}, {"lm": ()})
    model = SmallModel("lm", items, {"lm": 2}, dropout=0.5)
    found = []
    for word in ("none", "full"):
        plan = make_plan(shape, random_schedule(shape, 0, split=False), [2], items, model.sources, [[[word] * 2]])
        modules = model.modules(0)
        part = split_model(plan, modules, 0)
        torch.manual_seed(5)
        run_threads(FakeWorld(1), lambda mine, part=part, plan=plan: Runner(part, mine).run(plan))
        found.append([p.grad.clone() for p in part.parameters() if p.grad is not None])
    assert len(found[0]) > 5
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
