"""Samples that the backbone reads a microbatch later: the graph, the times, the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from searcher.assignment.jobs import draw_vlm, vlm_assigner

import semu
from semu.errors import ScheduleError
from semu.schedule.graph import graph_of
from semu.schedule.passes import defer_backward
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.searcher.assignment.deferring import deferring_plan, parts_of


def deferring_shape(num_microbatches: int = 4) -> PipelineShape:
    """An encoder on rank 0 whose even microbatches have two parts, read by a backbone on rank 1."""
    counts = parts_of(num_microbatches)
    reads = deferring_plan({"vit": [[[1] * count] for count in counts]}, num_microbatches).reads["vit"]
    return PipelineShape(
        num_ranks=2,
        num_microbatches=num_microbatches,
        chunk_rank=(0, 1),
        sources=((), (0,)),
        has_backward=(True, True),
        chunk_module=("vit", "llm"),
        chunk_split=(2, 1),
        part_counts=(counts, (1,) * num_microbatches),
        joins=True,
        reads=(("vit", tuple(tuple(2 * i + part for i, part in own) for own in reads)),),
    )


def names(stages: list[StageKey]) -> set[str]:
    return set(map(str, stages))


def test_dependencies_are_those_of_the_parts_that_are_read():
    graph = graph_of(deferring_shape())
    for stage, before in {
        "1F0": {"0F0"},
        "1F1": {"0F1", "0F2"},
        "1F2": {"0F4"},
        "1F3": {"0F5", "0F6"},
        "0B0": {"0F0", "1B0"},
        "0B1": {"0F1", "1B1"},
        "0B2": {"0F2", "1B1"},
        "0B5": {"0F5", "1B3"},
    }.items():
        assert names(graph.predecessors(StageKey.parse(stage))) == before, stage


def test_the_backward_of_what_waits_comes_after_that_of_its_reader():
    shape = deferring_shape()
    base = Schedule.from_text("0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3", "1f1b")
    found = defer_backward(base, shape, "deferring")
    assert " ".join(map(str, found.orders[0])) == "0F0 0F1 0F2 0B0 0F4 0F5 0B2 0B1 0F6 0B4 0B6 0B5"
    assert found.orders[1] == base.orders[1]
    found.validate(shape)


def deferred_assignment():
    found = vlm_assigner()(draw_vlm(90, 8), method="entrain-literal")
    assert found.defers
    return found


def test_times_are_those_of_a_recurrence_over_the_stages():
    """Independent of graph and engine: ranks run their orders, stages wait for what they read, transfers take time."""
    found = deferred_assignment()
    timed = found.checkpoint.timed()
    run, problem, layout = timed.run, timed.run.problem, timed.layout
    shape, cutting = problem.shape, layout.recipe.cutting
    reads = {(i, part): target for target, own in enumerate(found.recipe.reads["vit"]) for i, part in own}
    chunk, phase, number = problem.chunk, problem.phase, problem.microbatch
    position = {(int(c), int(p), int(n)): node for node, (c, p, n) in enumerate(zip(chunk, phase, number, strict=True))}
    split = cutting.modules["vit"].split
    for replica in range(run.num_replicas):
        start, end = run.start[replica], run.end[replica]
        for (c, p, n), node in position.items():
            needs = []
            if p == 0:
                for source in {s for s in layout.chunks[c].arrivals if s >= 0}:
                    if layout.chunks[source].module == layout.chunks[c].module:
                        needs.append((source, 0, n))
                    else:
                        needs += [(source, 0, split * i + part) for (i, part), target in reads.items() if target == n]
            else:
                needs.append((c, 0, n))
                for reader, own in enumerate(layout.chunks):
                    if c in own.arrivals:
                        same = own.module == layout.chunks[c].module
                        needs.append((reader, 1, n if same else reads[divmod(n, split)]))
            for need in needs:
                assert end[position[need]] <= start[node], (need, (c, p, n))
        for rank in range(shape.num_ranks):
            own = problem.rank_nodes[rank]
            assert (start[own][1:] >= end[own][:-1]).all()


def test_work_is_conserved():
    """The model's FLOP, but for the padding of parts to ranks that share them."""
    samples = draw_vlm(90, 8)
    deferred, plain = (vlm_assigner()(samples, method=name) for name in ("entrain-literal", "stratified"))
    assert deferred.num_microbatches == plain.num_microbatches
    reports = [semu.simulate(own.assigned_job, plan=own.recipe) for own in (deferred, plain)]
    flops = [own.mfu * own.iteration_time_s for own in reports]
    assert flops[0] == pytest.approx(flops[1], rel=1e-6)
    assert reports[0].iteration_time_s == deferred.iteration_s


def test_the_batch_has_the_encoders_samples_and_the_backbones():
    found = deferred_assignment()
    items = found.batch.items
    lengths = found.samples.lengths
    images = found.samples.items["vision"]
    for replica in range(found.dp):
        for microbatch in range(found.num_microbatches):
            item = items[microbatch * found.dp + replica]
            read, members = found.readers(replica, microbatch), found.members(replica, microbatch)
            assert item.lengths["text"].tolist() == lengths[read].tolist()
            patches = [images.lengths[images.ptr[s] : images.ptr[s + 1]] for s in members]
            assert item.lengths["vision"].tolist() == np.concatenate(patches).tolist()
    dealt = found.dealt
    late = dealt.is_deferred
    assert (dealt.reader[late] == dealt.microbatch[late] + 1).all()
    assert (dealt.microbatch[late] % 2 == 0).all()


def test_deferring_nothing_costs_what_no_deferral_costs():
    """Parts without samples run nothing: the same makespan, bit for bit."""
    found = vlm_assigner()(draw_vlm(90, 8), method="coupled")
    count, dp = found.num_microbatches, found.dp
    parts = parts_of(count)
    lengths = [len(item.lengths["vision"]) for item in found.batch.items]
    cut = [[[lengths[k * dp + r], 0][: parts[k]] for r in range(dp)] for k in range(count)]
    plan = deferring_plan({"vit": cut}, count)
    job = found.assigned_job
    overlap = replace(job.training.overlap, pipeline=job.overlaps_sends)
    job = replace(job, training=replace(job.training, overlap=overlap))
    prepared = semu.prepare(job, plan=plan)
    orders = defer_backward(semu.prepare(job).schedule(), prepared.shape, "nothing")
    deferring = prepared.decided(replace(plan, orders=orders)).iteration()
    assert deferring.run.makespan().max() == semu.prepare(job).iteration().run.makespan().max()


def test_a_plan_that_defers_is_the_same_from_its_file(tmp_path):
    plan = deferred_assignment().recipe
    plan.write(tmp_path / "plan.json")
    assert semu.StagePlan.read(tmp_path / "plan.json") == plan


BAD = {
    "twice": lambda plan: {"reads": {"vit": (plan.reads["vit"][0],) * len(plan.reads["vit"])}},
    "later": lambda plan: {"reads": {"vit": tuple(reversed(plan.reads["vit"]))}},
    "short": lambda plan: {"reads": {"vit": plan.reads["vit"][:-1]}},
    "items": lambda plan: {"items": {"vit": tuple(tuple((0,) * len(r) for r in own) for own in plan.items["vit"])}},
    "rows": lambda plan: {"items": {"vit": plan.items["vit"][:-1]}},
    "module": lambda plan: {"reads": {"llm": plan.reads["vit"]}},
}


@pytest.mark.parametrize("name", BAD)
def test_plans_that_defer_wrongly_are_refused(name):
    found = deferred_assignment()
    plan = replace(found.recipe, orders=None, **BAD[name](found.recipe))
    with pytest.raises(ScheduleError):
        semu.prepare(found.assigned_job, plan=plan)
