"""What every compiled plan must be, checked against the simulation in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from plan.reference_actions import Stage, actions_of, completes_in_groups, execute
from schedule.shapes import predecessors

from semu.graph.operator import Phase
from semu.plan.action import ActionKind
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.dry_runs import Streams
from semu.plan.verification.rules import verify
from semu.schedule.shape import PipelineShape, StageKey
from semu.simulation import JobCheckpoint

KIND = {
    Phase.FORWARD: ActionKind.FORWARD_STAGE,
    Phase.BACKWARD: ActionKind.BACKWARD_STAGE,
    Phase.INPUT_GRADIENT: ActionKind.INPUT_BACKWARD_STAGE,
    Phase.WEIGHT_GRADIENT: ActionKind.WEIGHT_BACKWARD_STAGE,
}


def keys_of(plan: ExecutionPlan, shape: PipelineShape) -> dict[tuple[int, int], int]:
    """(chunk, number of its part) -> pair."""
    columns = plan.pairs.chunk.tolist(), plan.pairs.microbatch.tolist(), plan.pairs.part.tolist()
    return {(c, shape.chunk_split[c] * i + k): pair for pair, (c, i, k) in enumerate(zip(*columns, strict=True))}


def check_compiled(plan: ExecutionPlan, checkpoint: JobCheckpoint, *, is_exact: bool = True) -> None:
    """All that holds of any compiled plan. ``checkpoint``: what it was compiled from, with its own schedule."""
    schedule, shape = checkpoint.schedule(), checkpoint.pipeline_shape
    pair_of = keys_of(plan, shape)
    run = checkpoint.timed().run
    problem = run.problem
    slowest = int(np.argmax(run.makespan()))

    def stage_of(key: StageKey) -> Stage:
        return pair_of[key.chunk, key.microbatch], KIND[key.phase]

    # stages: the schedule's, in its order
    for rank, order in enumerate(schedule.orders):
        own = [(target, kind) for kind, target, _ in actions_of(plan, rank) if kind.is_stage]
        assert own == [stage_of(key) for key in order]

    # messages: every result that another rank needs, once, and nothing else
    messages = plan.messages
    number = {
        (int(a), int(b)): message for message, (a, b) in enumerate(zip(messages.source, messages.target, strict=True))
    }
    assert len(number) == len(messages)
    whole = {key for order in schedule.orders for key in order}
    wanted: dict[tuple[int, int], tuple[int, int]] = {}
    needs: dict[Stage, set[int]] = {}
    made: dict[int, Stage] = {}
    for key in whole:
        for before in predecessors(shape, key):
            if shape.chunk_rank[before.chunk] == shape.chunk_rank[key.chunk]:
                continue
            if before not in whole:
                before = StageKey(before.chunk, Phase.INPUT_GRADIENT, before.microbatch)
            way = int(key.phase is not Phase.FORWARD)
            edge = 2 * stage_of(before)[0] + way, 2 * stage_of(key)[0] + way
            wanted[edge] = shape.chunk_rank[before.chunk], shape.chunk_rank[key.chunk]
            needs.setdefault(stage_of(key), set()).add(number[edge])
            made[number[edge]] = stage_of(before)
    assert {edge: (int(messages.source_rank[k]), int(messages.target_rank[k])) for edge, k in number.items()} == wanted
    tags = [*zip(messages.source_rank.tolist(), messages.target_rank.tolist(), messages.tag.tolist(), strict=True)]
    assert len(set(tags)) == len(tags)

    # actions: launched once at both ends, behind the stage that makes it; waited for before the stage that takes it
    seen: Counter[tuple[ActionKind, int]] = Counter()
    for rank in range(plan.num_ranks):
        before: set[tuple[ActionKind, int]] = set()
        numbers: list[int] = []
        for kind, target, batch in actions_of(plan, rank):
            if kind.is_stage:
                assert all((ActionKind.WAIT_IRECV, message) in before for message in needs.get((target, kind), ()))
            else:
                source = kind in (ActionKind.ISEND, ActionKind.WAIT_ISEND)
                assert rank == int((messages.source_rank if source else messages.target_rank)[target])
                seen[kind, target] += 1
                assert batch >= 0 or kind in (ActionKind.WAIT_ISEND, ActionKind.WAIT_IRECV)
            if kind is ActionKind.ISEND:
                stage, its = made[target]
                assert (its, stage) in before
            if kind is ActionKind.WAIT_ISEND:
                assert (ActionKind.ISEND, target) in before
            if kind is ActionKind.WAIT_IRECV:
                assert (ActionKind.IRECV, target) in before
            if batch >= 0:
                numbers.append(batch)
            before.add((kind, target))
        assert numbers == sorted(numbers)
    kinds = [kind for kind in ActionKind if not kind.is_stage and not kind.is_exchange]
    assert seen == {(kind, message): 1 for kind in kinds for message in range(len(messages))}
    both: dict[int, set[int]] = {}
    order: dict[tuple[int, int, bool], list[int]] = {}
    for rank in range(plan.num_ranks):
        for kind, target, batch in actions_of(plan, rank):
            if batch >= 0:
                both.setdefault(target, set()).add(batch)
                ends = int(messages.source_rank[target]), int(messages.target_rank[target])
                order.setdefault((*ends, kind is ActionKind.ISEND), []).append(target)
    assert all(len(numbers) == 1 for numbers in both.values())
    for (a, b, is_sent), launched in order.items():
        assert launched == order[a, b, not is_sent]
        assert [int(messages.tag[k]) for k in launched] == list(range(len(launched)))

    # bytes, on every replica
    of = checkpoint.replicas.of
    for transfer, moved in enumerate(problem.transfers):
        edge = run.sent[int(problem.transfer_edges[1][transfer])]
        column = int(edge.column[edge.transfers.tolist().index(transfer)])
        way = int(moved.stage.phase is not Phase.FORWARD)
        ends = (
            2 * pair_of[moved.stage.chunk, moved.stage.microbatch] + way,
            2 * pair_of[moved.consumer.chunk, moved.consumer.microbatch] + way,
        )
        assert messages.num_bytes[:, number[ends]].tolist() == [int(edge.size[run.shape[r, column]]) for r in of]

    # times: those of the simulation, bit for bit, whether sends wait for their receives or not, and even where all of a
    # batch ends together
    nodes = [node for node in range(problem.num_stages) if problem.phase[node] != 4]
    keys = [key for order in schedule.orders for key in order]
    expected = {
        stage_of(key): (float(run.start[slowest, node]), float(run.end[slowest, node]))
        for key, node in zip(keys, nodes, strict=True)
    }
    lasts = {
        number[
            2 * pair_of[t.stage.chunk, t.stage.microbatch] + (t.stage.phase is not Phase.FORWARD),
            2 * pair_of[t.consumer.chunk, t.consumer.microbatch] + (t.stage.phase is not Phase.FORWARD),
        ]: (float(run.start[slowest, problem.num_stages + j]), float(run.end[slowest, problem.num_stages + j]))
        for j, t in enumerate(problem.transfers)
    }
    took = {message: end - begin for message, (begin, end) in lasts.items()}
    for rendezvous, together in ((False, False), (True, False), (True, True)):
        found = execute(plan, lambda s: expected[s][1] - expected[s][0], took, rendezvous=rendezvous, together=together)
        assert found.is_done
        if is_exact:
            assert found.stages == expected
            assert found.messages == lasts
            assert found.makespan == float(run.makespan().max())
        else:
            assert found.makespan >= float(run.makespan().max())
    assert completes_in_groups(plan)
    unlimited = replace(plan, limit_bytes=np.zeros(plan.num_ranks, dtype=np.int64))
    assert verify(plan if is_exact else unlimited).streams is Streams.RANK
    estimates = plan.estimates
    assert estimates is not None
    assert checkpoint.replicas.of[estimates.replica] == slowest
    if is_exact:
        check_estimates(plan, expected, lasts)


def check_estimates(
    plan: ExecutionPlan, stages: dict[Stage, tuple[float, float]], messages: dict[int, tuple[float, float]]
) -> None:
    """Times of actions and transfers, and how long buffers are held beyond what is simulated."""
    estimates = plan.estimates
    assert estimates is not None
    for rank in range(plan.num_ranks):
        begins, ends = estimates.start_s[rank].tolist(), estimates.end_s[rank].tolist()
        clock, more = 0.0, 0
        program = actions_of(plan, rank)
        held: set[tuple[bool, int]] = set()
        sizes = plan.messages.num_bytes.max(axis=0, initial=0)
        for (kind, target, _), begin, end in zip(program, begins, ends, strict=True):
            if kind.is_stage:
                assert (begin, end) == stages[target, kind]
                extra = sum(
                    int(sizes[message])
                    for received, message in held
                    if (received and messages[message][0] > begin) or (not received and messages[message][1] < end)
                )
                more = max(more, extra)
            else:
                assert begin == clock
                over = (
                    max(clock, messages[target][1]) if kind in (ActionKind.WAIT_ISEND, ActionKind.WAIT_IRECV) else clock
                )
                assert end == over
            if kind in (ActionKind.ISEND, ActionKind.IRECV):
                held.add((kind is ActionKind.IRECV, target))
            elif not kind.is_stage:
                held.discard((kind is ActionKind.WAIT_IRECV, target))
            clock = end
        assert more == int(estimates.buffer_bytes[rank])
    pairs = zip(estimates.transfer_start_s.tolist(), estimates.transfer_end_s.tolist(), strict=True)
    assert dict(enumerate(pairs)) == messages


def check_memory(plan: ExecutionPlan, checkpoint: JobCheckpoint) -> None:
    """What stages need, pair by pair: on every rank the numbers of a replica, and of that which needs most."""
    assert plan.estimates is not None and plan.estimates.memory is not None
    memory = plan.estimates.memory
    every = [checkpoint.pair_costs(replica) for replica in range(len(checkpoint.replicas.shape))]
    rows = np.arange(len(plan.pairs))
    variant = plan.pairs.variant

    def peak(rank: int, held: list[int], forward: list[int], backward: list[int]) -> int:
        level = highest = 0
        for kind, pair, _ in actions_of(plan, rank):
            if kind.is_stage:
                is_forward = kind is ActionKind.FORWARD_STAGE
                highest = max(highest, level + (forward if is_forward else backward)[pair])
                if is_forward:
                    level += held[pair]
                elif kind is not ActionKind.INPUT_BACKWARD_STAGE:
                    level -= held[pair]
        assert level == 0
        return highest

    tables = [
        [own[rows, variant].tolist() for own in (c.held_bytes, c.forward_peak_bytes, c.backward_peak_bytes)]
        for c in every
    ]
    told = [memory.held_bytes.tolist(), memory.forward_peak_bytes.tolist(), memory.backward_peak_bytes.tolist()]
    rank_of = [plan.chunks[chunk].rank for chunk in plan.pairs.chunk.tolist()]
    for rank in range(plan.num_ranks):
        mine = [pair for pair, own in enumerate(rank_of) if own == rank]
        assert peak(rank, *told) == max(peak(rank, *table) for table in tables)
        assert [[row[pair] for pair in mine] for row in told] in [
            [[row[pair] for pair in mine] for row in table] for table in tables
        ]
    assert memory.static_bytes.tolist() == every[0].static_bytes.tolist()
