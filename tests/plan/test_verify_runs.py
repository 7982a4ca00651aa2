"""The dry run against a runtime of random timings; ``verify`` against a slow reading of the same rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.legal_plans import IRECV, ISEND, chain_plan, listed, random_plan, spelled, with_actions
from plan.plan_reference import IllegalPlan, Runtime, check_each_rank, peaks

from semu.errors import PlanError, ScheduleError
from semu.plan.action import ActionKind
from semu.plan.columns import ActionColumns
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.dry_runs import Streams, dry_run
from semu.plan.verification.fault import Fault
from semu.plan.verification.rules import verify

SEEDS = st.integers(0, 10**6)


def is_legal_by_hand(plan: ExecutionPlan, streams: Streams, seed: int = 0) -> bool:
    try:
        check_each_rank(plan)
    except IllegalPlan:
        return False
    return Runtime(plan, streams, seed).run().is_complete(plan)


def loosened(plan: ExecutionPlan, random: Random, moves: int) -> ExecutionPlan:
    """Some actions elsewhere on their rank, where that rank alone still allows it: the plan may deadlock."""
    for _ in range(moves):
        actions = listed(plan)
        own = random.choice(actions)
        if len(own) < 2:
            continue
        act = own.pop(random.randrange(len(own)))
        if act[0] in (ISEND, IRECV) and random.random() < 0.5:
            act = (act[0], act[1], -1)
        own.insert(random.randint(0, len(own)), act)
        made = with_actions(plan, actions)
        try:
            check_each_rank(made)
        except IllegalPlan:
            continue
        plan = made
    return plan


def crossed(random: Random) -> ExecutionPlan:
    """A plan whose launches and waits are anywhere on their ranks that the order of each pair of ranks allows."""
    return loosened(random_plan(random.randrange(10**6), num_microbatches=2), random, 12)


@settings(max_examples=8)
@given(SEEDS)
def test_legal_plans_run_and_need_what_a_walk_by_hand_says(seed: int) -> None:
    plan = random_plan(seed)
    assert is_legal_by_hand(plan, Streams.RANK, seed)
    found = verify(plan, streams=Streams.RANK)
    assert found.streams is Streams.RANK
    assert found.peak_bytes is not None
    assert (found.buffer_bytes.tolist(), found.peak_bytes.tolist()) == peaks(plan)
    told = found.to_json()
    assert (told["buffer_bytes"], told["peak_bytes"]) == peaks(plan)
    assert replace(found, peak_bytes=None).to_json() == {**told, "peak_bytes": None}
    assert found.num_actions == sum(map(len, listed(plan)))
    assert found.num_actions == found.num_stages + 4 * found.num_messages


@settings(max_examples=10)
@given(SEEDS, st.sampled_from(Streams))
def test_all_timings_end_alike_and_as_the_dry_run(seed: int, streams: Streams) -> None:
    """Whatever is slow or fast, the same actions are done at the end, of plans that deadlock too."""
    check_timings(seed, streams)


def check_timings(seed: int, streams: Streams) -> None:
    plan = crossed(Random(seed))
    run = dry_run(ActionColumns.of(plan), streams)
    for other in range(3):
        outcome = Runtime(plan, streams, other).run()
        assert outcome.cursor == run.cursor.tolist()
        assert outcome.moved == set(np.flatnonzero(run.is_done).tolist())


def test_loosened_plans_are_of_all_kinds() -> None:
    """What the tests above draw runs with one stream per rank, only with more, or not at all."""
    kinds = set()
    for seed in range(24):
        columns = ActionColumns.of(crossed(Random(seed)))
        kinds.add(tuple(dry_run(columns, streams).is_stuck for streams in Streams))
    assert {(False, False, False), (True, False, False), (True, True, False), (True, True, True)} <= kinds


def test_more_streams_never_deadlock_where_fewer_do_not() -> None:
    for seed in range(12):
        columns = ActionColumns.of(crossed(Random(1000 + seed)))
        stuck = [dry_run(columns, streams).is_stuck for streams in Streams]
        assert stuck == sorted(stuck, reverse=True)


def corrupted(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """One to three changes of any kind to the actions."""
    actions = listed(plan)
    n, m = len(plan.pairs.chunk), len(plan.messages.source)
    for _ in range(random.choice((1, 1, 2, 3))):
        own = random.choice([own for own in actions if own])
        at = random.randrange(len(own))
        kind, target, batch = own[at]
        match random.randrange(8):
            case 0:
                del own[at]
            case 1:
                own.insert(random.randint(0, len(own)), own[at])
            case 2 | 3:
                other = random.randrange(len(own))
                own[at], own[other] = own[other], own[at]
            case 4:
                random.choice(actions).append(own.pop(at))
            case 5:
                own[at] = kind, random.randrange(n if kind.is_stage else max(m, 1)), batch
            case 6:
                others = [k for k in ActionKind if (k.is_stage, k.is_exchange) == (kind.is_stage, kind.is_exchange)]
                own[at] = random.choice(others), target, batch
            case 7:
                own[at] = kind, target, random.choice((-1, batch, random.randrange(4)))
        if not any(actions):
            break
    return with_actions(plan, actions)


@settings(max_examples=50)
@given(SEEDS)
def test_corrupted_actions_are_refused_exactly_if_they_cannot_run(seed: int) -> None:
    check_corrupted(seed)


@pytest.mark.slow
def test_the_same_of_many_plans() -> None:
    for seed in range(200):
        check_corrupted(seed)
    for seed in range(50):
        for streams in Streams:
            check_timings(seed, streams)


def check_corrupted(seed: int) -> None:
    random = Random(seed)
    try:
        plan = corrupted(random_plan(random.randrange(10**6), num_microbatches=random.randint(1, 2)), random)
    except ScheduleError as error:
        assert "a batch of something that is not launched" in error.message  # refused where actions are made
        return
    legal = is_legal_by_hand(plan, Streams.DIRECTION)
    try:
        verify(plan)
    except PlanError as error:
        assert not legal, error
        assert error.fault in set(Fault)
        missing = error.fault in (Fault.STAGE_MISSING, Fault.LAUNCH_MISSING, Fault.WAIT_MISSING)
        assert error.rank is not None
        assert missing or error.action is not None
        assert f"rank {error.rank}" in str(error)
    else:
        assert legal


# -- deadlocks as they are told ----------------------------------------------------------------------------------------


def test_sends_that_both_wait_for_before_they_receive() -> None:
    plan = chain_plan(2, 2)
    ranks = ["F0 s0 S0 F1 s2 S2 r1 R1 B0 r3 R3 B1", "r0 R0 F2 B2 s1 S1 r2 R2 F3 B3 s3 S3"]
    with pytest.raises(PlanError) as caught:
        verify(spelled(plan, ranks))
    assert (caught.value.fault, caught.value.exit_code) == (Fault.DEADLOCK, 4)
    assert (caught.value.rank, caught.value.action) == (0, 5)
    assert caught.value.message.splitlines() == [
        "the plan deadlocks",
        "  rank 0: wait_isend 0F0 -> 1F0 to rank 1; forward_stage 0F1; isend 0F1 -> 1F1 to rank 1 -> "
        "wait_isend 0F1 -> 1F1 to rank 1 waits: rank 1 has yet to launch irecv 0F1 -> 1F1",
        "  rank 1: forward_stage 1F0; backward_stage 1B0; isend 1B0 -> 0B0 to rank 0 -> "
        "wait_isend 1B0 -> 0B0 to rank 0 waits: rank 0 has yet to launch irecv 1B0 -> 0B0",
        "  cycle: rank 0 is at wait_isend 0F1 -> 1F1 to rank 1; rank 1 has yet to launch irecv 0F1 -> 1F1; "
        "rank 1 is at wait_isend 1B0 -> 0B0 to rank 0; rank 0 has yet to launch irecv 1B0 -> 0B0",
    ]
    first = "F0 s0 S0 F1 s2 r1 S2 R1 B0 r3 R3 B1"
    assert verify(spelled(plan, [first, ranks[1]])).streams is Streams.DIRECTION
    assert verify(spelled(plan, [first.replace("s2 r1", "s2+r1"), ranks[1].replace("s1 S1 r2", "s1+r2 S1")]))


def test_a_receive_that_is_launched_early_blocks_a_shared_stream() -> None:
    plan = spelled(chain_plan(2, 1), ["r1 F0 s0 S0 R1 B0", "r0 R0 F1 B1 s1 S1"])
    assert verify(plan).streams is Streams.DIRECTION
    with pytest.raises(PlanError, match="deadlocks") as caught:
        verify(plan, streams=Streams.PAIR)
    assert caught.value.message.splitlines() == [
        "the plan deadlocks",
        "  rank 0: irecv 1B0 -> 0B0 from rank 1; forward_stage 0F0; isend 0F0 -> 1F0 to rank 1 -> wait_isend 0F0 -> "
        "1F0 to rank 1 waits: 0F0 -> 1F0 is behind 1B0 -> 0B0 on a stream of rank 0",
        "  rank 1: irecv 0F0 -> 1F0 from rank 0 -> wait_irecv 0F0 -> 1F0 from rank 0 waits: 0F0 -> 1F0 is behind "
        "1B0 -> 0B0 on a stream of rank 0",
        "  cycle: 0F0 -> 1F0 is behind 1B0 -> 0B0 on a stream of rank 0; rank 1 has yet to launch isend 1B0 -> 0B0; "
        "rank 1 is at wait_irecv 0F0 -> 1F0 from rank 0",
    ]


def test_a_wait_for_a_part_of_a_batch_waits_for_it_all() -> None:
    """The gradient that comes in one batch with an activation depends on it."""
    plan = chain_plan(3, 1)
    ends = ["F0 s0 S0 r1 R1 B0", "r2 R2 F2 B2 s3 S3"]
    assert verify(spelled(plan, [ends[0], "r0 r3 R0 F1 s2 S2 R3 B1 s1 S1", ends[1]])).streams is Streams.DIRECTION
    with pytest.raises(PlanError, match="deadlocks") as caught:
        verify(spelled(plan, [ends[0], "r0+r3 R0 F1 s2 S2 R3 B1 s1 S1", ends[1]]))
    assert (caught.value.rank, caught.value.action) == (1, 2)
    lines = caught.value.message.splitlines()
    assert lines[2].endswith("wait_irecv 0F0 -> 1F0 from rank 0 waits: rank 2 has yet to launch isend 2B0 -> 1B0")
    assert lines[-1] == (
        "  cycle: rank 1 is at wait_irecv 0F0 -> 1F0 from rank 0; rank 2 has yet to launch isend 2B0 -> 1B0; rank 2 is "
        "at wait_irecv 1F0 -> 2F0 from rank 1; rank 1 has yet to launch isend 1F0 -> 2F0"
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_cycle_names_only_what_is_stuck(seed: int) -> None:
    """Of random deadlocks: every rank has a line, stuck ones an arrow, and the cycle leads back to its beginning."""
    random = Random(seed)
    while True:
        plan = crossed(random)
        columns = ActionColumns.of(plan)
        run = dry_run(columns, Streams.DIRECTION)
        if run.is_stuck:
            break
    with pytest.raises(PlanError, match="deadlocks") as caught:
        verify(plan)
    _, *lines, cycle = caught.value.message.splitlines()
    assert len(lines) == plan.num_ranks
    for rank, line in enumerate(lines):
        done = run.cursor[rank] == len(listed(plan)[rank])
        assert line.startswith(f"  rank {rank}: ")
        assert line.endswith(" (finished)") == done
        assert (" waits: " in line) != done
    assert cycle.startswith("  cycle: ")
    assert caught.value.rank is not None
    assert run.cursor[caught.value.rank] == caught.value.action
