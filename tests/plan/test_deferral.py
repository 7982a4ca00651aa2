"""Execution plans in which a module's readers read parts of several microbatches."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.compiled import check_compiled, check_memory
from searcher.assignment.jobs import draw_vlm, vlm_assigner
from simulation.schedules.test_stage_plan import deferring_case

import semu
from semu.errors import PlanError, ScheduleError
from semu.plan.flow import PlanFlow
from semu.plan.plan import ExecutionPlan
from semu.plan.torch_schedule import plan_to_torch_csv
from semu.plan.verification.rules import verify
from semu.simulation import prepare


@pytest.fixture(scope="module")
def plan() -> ExecutionPlan:
    return semu.compile_plan(vlm_assigner()(draw_vlm(90, 8), method="entrain-literal").checkpoint)


def test_an_assignment_that_defers_runs_as_it_is_simulated() -> None:
    """Under rendezvous sends too, bit for bit; messages carry the items of the parts."""
    found = vlm_assigner()(draw_vlm(90, 8), method="entrain-literal")
    assert found.defers
    plan = semu.compile_plan(found.checkpoint)
    check_compiled(plan, found.checkpoint)
    check_memory(plan, found.checkpoint)
    pairs = plan.pairs
    images = np.diff(found.samples.items["vision"].ptr)
    vit = next(number for number, chunk in enumerate(plan.chunks) if chunk.module == "vit")
    for replica in range(found.dp):
        for microbatch in range(found.num_microbatches):
            members = found.members(replica, microbatch)
            waits = found.dealt.is_deferred[members]
            kept, all_images = int(images[members[~waits]].sum()), int(images[members].sum())
            own = pairs.items[replica, (pairs.chunk == vit) & (pairs.microbatch == microbatch)].tolist()
            assert own == ([[0, kept], [kept, all_images]] if len(own) == 2 else [[0, all_images]])


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9))
def test_whichever_part_is_read_when_plans_run_as_simulated(seed: int) -> None:
    job, plan = deferring_case(Random(seed))
    checkpoint = prepare(job, plan=plan)
    compiled = semu.compile_plan(checkpoint)
    assert compiled.reads == plan.reads
    check_compiled(compiled, checkpoint)
    check_memory(compiled, checkpoint)
    flow = PlanFlow.of(compiled)
    other = compiled.pairs.microbatch[flow.source] != compiled.pairs.microbatch[flow.reader]
    if np.any(other & flow.crosses):
        with pytest.raises(PlanError, match="do not read each other"):
            verify(replace(compiled, reads={}))


def test_the_flow_is_that_of_the_parts_that_are_read(plan: ExecutionPlan) -> None:
    """Of every reader exactly the listed parts; within a module as ever."""
    flow, pairs = PlanFlow.of(plan), plan.pairs
    module = [chunk.module for chunk in plan.chunks]
    seams = {
        (int(pairs.microbatch[b]), int(pairs.microbatch[a]), int(pairs.part[a]))
        for a, b, is_seam in zip(flow.source.tolist(), flow.reader.tolist(), flow.is_seam.tolist(), strict=True)
        if is_seam
    }
    assert seams == {(m, i, part) for m, own in enumerate(plan.reads["vit"]) for i, part in own}
    for a, b in zip(flow.source[~flow.is_seam].tolist(), flow.reader[~flow.is_seam].tolist(), strict=True):
        assert module[pairs.chunk[a]] == module[pairs.chunk[b]]
        assert (pairs.microbatch[a], pairs.part[a]) == (pairs.microbatch[b], pairs.part[b])


def test_the_file_keeps_what_is_read(plan: ExecutionPlan, tmp_path) -> None:
    plan.write(tmp_path / "plan.json")
    again = ExecutionPlan.read(tmp_path / "plan.json")
    assert again.reads == plan.reads
    assert again.to_json() == plan.to_json()
    whole = semu.compile_plan(vlm_assigner()(draw_vlm(90, 8)).checkpoint)
    assert "reads" not in json.loads(whole.to_json())


def test_orders_for_other_readers_are_refused(plan: ExecutionPlan) -> None:
    own = list(plan.reads["vit"])
    own[0], own[2] = own[2], own[0]
    with pytest.raises(PlanError, match="whose result it needs"):
        verify(replace(plan, reads={"vit": tuple(own)}))


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ({"vti": ()}, "vti"),
        ({"vit": ((),)}, "a list for every microbatch"),
        ({"vit": (((0, 0),),) * 6}, "never or twice"),
        ({"vit": (((0, 0, 0),),) * 6}, "microbatch and part"),
        ({"vit": 3}, "lists of lists"),
    ],
)
def test_damaged_reads_are_named(plan: ExecutionPlan, reads: object, said: str) -> None:
    with pytest.raises(semu.SemuError, match=said):
        replace(plan, reads=reads)
    table = json.loads(plan.to_json())
    table["reads"] = reads
    with pytest.raises(semu.SemuError, match=said):
        ExecutionPlan.from_json(json.dumps(table))


def test_reads_that_are_no_table_are_refused(plan: ExecutionPlan) -> None:
    table = json.loads(plan.to_json())
    table["reads"] = [1]
    with pytest.raises(ScheduleError, match="not a table"):
        ExecutionPlan.from_json(json.dumps(table))


def test_torch_has_no_words_for_it(plan: ExecutionPlan) -> None:
    with pytest.raises(ScheduleError, match="torch"):
        plan_to_torch_csv(plan)
