"""Planner, cover condition, composition and distribution against enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import semu
from semu.errors import ConfigError
from semu.resilience.templates.composing import Speed, compose_counts, distribute, distribute_by_variance
from semu.resilience.templates.cover import is_covered, least_largest
from semu.resilience.templates.holding import lost_layers, reassign
from semu.resilience.templates.planner import LayerTable, cut_pipeline, pipeline_time
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig


def splits(total: int, parts: int) -> list[tuple[int, ...]]:
    """Ordered ways of writing a number as positive parts."""
    cuts = itertools.combinations(range(1, total), parts - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, total))) for cut in cuts]


def every_cut(table: LayerTable, nodes: int, per_node: int, microbatches: int) -> dict[int, float]:
    """Least T of each number of stages, of all cuts and all ordered splits of every node's GPUs."""
    degrees = table.degrees.tolist()
    within = [
        split
        for parts in range(1, per_node + 1)
        for split in splits(per_node, parts)
        if all(one in degrees for one in split)
    ]
    found: dict[int, float] = {}
    for groups in itertools.product(within, repeat=nodes):
        gpus = [one for group in groups for one in group]
        stages = len(gpus)
        if stages > table.num_layers:
            continue
        for cut in splits(table.num_layers, stages):
            ends = np.cumsum(cut)
            times, is_legal = [], True
            for k, (degree, last) in enumerate(zip(gpus, ends, strict=True)):
                d, own = degrees.index(degree), slice(last - cut[k], last)
                flight = min(microbatches, stages - k)
                size = table.state_bytes[d, own].sum() + table.held_bytes[d, own].sum() * flight
                is_legal &= bool(size <= table.room_bytes)
                times.append(table.time_s[d, own].sum())
            if is_legal:
                found[stages] = min(found.get(stages, np.inf), pipeline_time(np.array(times), microbatches))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_planner_is_exact(seed: int) -> None:
    """nodes x GPUs <= 4, layers <= 8, memory limits, ties."""
    draw = random.Random(seed)
    nodes, per_node = draw.choice([(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4)])
    layers = draw.randint(nodes, 8)
    degrees = np.array([d for d in (1, 2, 4) if d <= per_node])
    kinds = draw.choice([1, 2, 8])
    base = np.array([[1, 2, 3, 5, 1, 7, 4, 2][draw.randrange(kinds)] for _ in range(layers)], dtype=float)
    time = np.stack([base / d**0.8 for d in degrees])
    state, held = np.stack([base * 3 / d for d in degrees]), np.stack([np.ones(layers) / d for d in degrees])
    room = draw.choice([1e9, base.sum() * 3 / nodes / per_node * draw.uniform(0.9, 2.0)])
    table = LayerTable(degrees, time, state, held, room)
    microbatches = draw.choice([2, 5, 16])
    expected = every_cut(table, nodes, per_node, microbatches)
    found = cut_pipeline(table, nodes, per_node, microbatches, slack=1e9)
    assert {len(stages) for _, stages in found} == set(expected)
    for time_s, stages in found:
        assert time_s == pytest.approx(expected[len(stages)], rel=1e-9)
        assert [one.first for one in stages] == [0, *(one.last for one in stages[:-1])]
        assert stages[-1].last == layers and sum(one.gpus for one in stages) == nodes * per_node
        d = [degrees.tolist().index(one.gpus) for one in stages]
        own = np.array([time[i, one.first : one.last].sum() for i, one in zip(d, stages, strict=True)])
        assert pipeline_time(own, microbatches) == pytest.approx(time_s, rel=1e-9)
    fastest = cut_pipeline(table, nodes, per_node, microbatches)
    assert bool(fastest) is bool(expected)
    if fastest:
        assert fastest[0][0] == pytest.approx(min(expected.values()), rel=1e-9)


def test_cover_is_necessary_and_sufficient() -> None:
    """Against every sum of sizes, n0 <= 8, f <= 4, N <= 200."""
    for smallest, faults in itertools.product(range(1, 9), range(5)):
        for largest in range(smallest, 2 * smallest + 2):
            reach = [{0}]  # numbers of nodes of k pipelines
            for _ in range(200 // smallest):
                reach.append({n + size for n in reach[-1] for size in range(smallest, largest + 1) if n + size <= 200})
            held = set().union(*reach[faults + 1 :])
            wanted = range((faults + 1) * smallest, 201)
            assert all(is_covered(smallest, largest, faults, n) is (n in held) for n in wanted)
            assert all(n in held for n in wanted) is (largest >= least_largest(smallest, faults))


def speeds_of(draw: random.Random, smallest: int, largest: int) -> list[Speed]:
    """Larger templates are faster, not always in proportion."""
    return [Speed(n, draw.uniform(0.5, 2.0) * n**0.5, draw.uniform(0.7, 1.3) / n) for n in range(smallest, largest + 1)]


def sets_of(sizes: list[int], nodes: int) -> Iterator[tuple[int, ...]]:
    """Every way of writing a number of nodes as a sum of sizes, as counts."""
    if not sizes:
        if nodes == 0:
            yield ()
        return
    for count in range(nodes // sizes[0] + 1):
        for rest in sets_of(sizes[1:], nodes - count * sizes[0]):
            yield (count, *rest)


@pytest.mark.parametrize("seed", range(25))
def test_composition_is_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    smallest, faults = draw.randint(1, 4), draw.randint(0, 2)
    nodes = draw.randint((faults + 1) * smallest, 30 if smallest > 2 else 16)
    speeds = speeds_of(draw, smallest, min(least_largest(smallest, faults) + draw.randint(0, 2), nodes))
    if not is_covered(smallest, speeds[-1].nodes, faults, nodes):
        speeds.append(Speed(nodes - faults * smallest, 1.0, 1.0 / nodes))
    microbatches = draw.randint(nodes // smallest, 60)

    def _time(counts: Sequence[int]) -> float:
        pipelines = [one for one, count in zip(speeds, counts, strict=True) for _ in range(count)]
        return max(one.time_s(m) for one, m in zip(pipelines, distribute(pipelines, microbatches), strict=True))

    legal = [c for c in sets_of([one.nodes for one in speeds], nodes) if sum(c) > faults]
    counts = compose_counts(speeds, nodes, microbatches, faults + 1)
    assert tuple(counts) in legal
    assert _time(counts) == pytest.approx(min(map(_time, legal)), rel=1e-6)


@pytest.mark.parametrize("seed", range(25))
def test_distribution_is_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    pipelines = [draw.choice(speeds_of(draw, 1, 5)) for _ in range(draw.randint(1, 4))]
    microbatches = draw.randint(len(pipelines), 14)
    found = distribute(pipelines, microbatches)
    assert sum(found) == microbatches and min(found) >= 1

    def _slowest(counts: Sequence[int]) -> float:
        return max(one.time_s(m) for one, m in zip(pipelines, counts, strict=True))

    every = splits(microbatches, len(pipelines))
    assert _slowest(found) == min(map(_slowest, every))
    by_variance = distribute_by_variance(pipelines, microbatches)

    def _spread(counts: Sequence[int]) -> float:
        return float(np.var([m * one.time_s(1) for one, m in zip(pipelines, counts, strict=True)]))

    assert _spread(by_variance) <= min(map(_spread, every)) * 1.02 + 1e-12
    assert _slowest(by_variance) >= _slowest(found)


def test_nothing_to_compose() -> None:
    with pytest.raises(ConfigError, match="no set of at least 2 templates uses 5 nodes") as caught:
        compose_counts([Speed(3, 1.0, 1.0), Speed(4, 1.0, 1.0)], 5, 10, 2)
    assert caught.value.nearest == 6
    with pytest.raises(ConfigError, match="3 microbatches for 4 pipelines") as caught:
        distribute([Speed(1, 1.0, 1.0)] * 4, 3)
    assert caught.value.nearest == 4


@pytest.mark.parametrize("seed", range(20))
def test_least_copied_bytes(seed: int) -> None:
    draw = random.Random(seed)
    count, layers = draw.randint(1, 6), draw.randint(3, 8)
    held = {10 + k: frozenset(draw.sample(range(layers), draw.randint(1, layers))) for k in range(count)}
    wanted = [frozenset(draw.sample(range(layers), draw.randint(1, layers))) for _ in range(count)]
    size = np.array([draw.randint(1, 9) for _ in range(layers)], dtype=float)
    chosen, copies = reassign(held, wanted, size)
    assert sorted(chosen) == sorted(held)

    def _copied(nodes: Sequence[int]) -> float:
        return float(sum(size[list(want - held[node])].sum() for node, want in zip(nodes, wanted, strict=True)))

    best = min(map(_copied, itertools.permutations(held)))
    assert _copied(chosen) == best
    nowhere = lost_layers(held, layers)
    lost = sum(size[layer] for want in wanted for layer in want if layer in nowhere)
    assert copies.total_bytes == pytest.approx(best - lost)
    assert copies.largest_bytes <= copies.total_bytes


def test_survival_of_eight_losses_in_three_times_four_nodes() -> None:
    """81 of 495: a node of each stage must be left (Fig. 2.2b)."""
    kept = 0
    for lost in itertools.combinations(range(12), 8):
        held = {node: frozenset((node % 4,)) for node in range(12) if node not in lost}
        kept += not lost_layers(held, 4)
    assert kept == 81


@pytest.mark.parametrize("seed", range(25))
def test_composition_of_few_microbatches_is_the_best_of_all(seed: int) -> None:
    """Fewer microbatches than the smallest pipelines that the nodes hold, so that some sets are not legal."""
    draw = random.Random(seed)
    smallest, faults = draw.randint(1, 3), draw.randint(0, 2)
    nodes = draw.randint((faults + 2) * smallest + 2, 30 if smallest > 1 else 14)
    speeds = speeds_of(draw, smallest, min(least_largest(smallest, faults) + 3, nodes))
    microbatches = draw.randint(faults + 1, max(faults + 1, nodes // smallest - 1))
    legal = [c for c in sets_of([one.nodes for one in speeds], nodes) if faults < sum(c) <= microbatches]
    if not legal:
        with pytest.raises(ConfigError, match="pipelines or more"):
            compose_counts(speeds, nodes, microbatches, faults + 1)
        return

    def _time(counts: Sequence[int]) -> float:
        pipelines = [one for one, count in zip(speeds, counts, strict=True) for _ in range(count)]
        return max(one.time_s(m) for one, m in zip(pipelines, distribute(pipelines, microbatches), strict=True))

    counts = compose_counts(speeds, nodes, microbatches, faults + 1)
    assert tuple(counts) in legal
    assert _time(counts) == pytest.approx(min(map(_time, legal)), rel=1e-6)


def test_fewer_microbatches_than_the_smallest_pipelines() -> None:
    """Eight pipelines of a node would be fastest and have seven microbatches: larger ones are taken; none: refused."""
    speeds = [Speed(n, 0.1 * n, 1.0 / n) for n in (1, 2, 3, 4)]
    assert sum(compose_counts(speeds, 8, 64, 2)) >= 4
    for microbatches in (7, 5, 3, 2):
        counts = compose_counts(speeds, 8, microbatches, 2)
        assert 2 <= sum(counts) <= microbatches
        assert sum(count * one.nodes for count, one in zip(counts, speeds, strict=True)) == 8
    with pytest.raises(ConfigError, match="pipelines"):
        compose_counts(speeds, 8, 1, 1)


@pytest.mark.parametrize(("heads", "per_node"), [(6, 4), (8, 4), (5, 6)])
def test_sizes_that_heads_do_not_divide_by_are_left_out(heads: int, per_node: int) -> None:
    """And named, in the text and the document; no stage has them."""
    model = decoder_model("gpt", GPT(GPTConfig(6, 16 * heads, heads, vocab=256, positions=64)))
    training = semu.Training(global_batch=2 * per_node, seq_len=60)
    job = semu.TrainingJob(model, semu.Cluster("h100", 2, per_node), semu.Parallel(dp=2 * per_node, zero=0), training)
    found = semu.pipeline_templates(job, faults=1)
    wanted = {gpus for gpus in range(1, per_node + 1) if per_node % gpus == 0 and heads % gpus}
    assert set(found.left_out) == wanted
    assert set(found.to_json()["left_out"]) == {str(gpus) for gpus in wanted}
    for gpus in wanted:
        assert f"no stages of {gpus} GPUs: " in repr(found)
    sizes = {stage.gpus for template in found.templates for stage in template.stages}
    assert sizes and not sizes & wanted
