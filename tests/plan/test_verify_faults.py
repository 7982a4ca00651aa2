"""Every kind of corruption of a legal plan is refused and named: fault, rank and action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from plan.legal_plans import (
    IRECV,
    ISEND,
    WAIT_IRECV,
    WAIT_ISEND,
    Act,
    B,
    F,
    I,
    W,
    changed,
    listed,
    random_plan,
    spelled,
    with_actions,
)
from plan.legal_plans import chain_plan as chain

from semu.errors import PlanError, ScheduleError
from semu.plan.action import ActionKind
from semu.plan.flow import chunk_edges
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault
from semu.plan.verification.rules import verify

Change = Callable[[ExecutionPlan, Random], ExecutionPlan]
STAGES, LAUNCHES, WAITS = (F, B, I, W), (ISEND, IRECV), (WAIT_ISEND, WAIT_IRECV)


def spots(plan: ExecutionPlan, *kinds: ActionKind) -> list[tuple[int, int]]:
    return [(r, i) for r, own in enumerate(listed(plan)) for i, act in enumerate(own) if act[0] in kinds]


def edited(plan: ExecutionPlan, edit: Callable[[list[list[Act]]], None]) -> ExecutionPlan:
    actions = listed(plan)
    edit(actions)
    return with_actions(plan, actions)


def drop(*kinds: ActionKind) -> Change:
    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        rank, at = random.choice(spots(plan, *kinds))
        return edited(plan, lambda actions: actions[rank].pop(at))  # type: ignore[arg-type,return-value]

    return change


def repeat(*kinds: ActionKind) -> Change:
    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        rank, at = random.choice(spots(plan, *kinds))
        kind, target, _ = listed(plan)[rank][at]
        return edited(plan, lambda actions: actions[rank].append((kind, target, -1)))

    return change


def move_away(*kinds: ActionKind) -> Change:
    """To another rank, with the message's or the stage's order kept."""

    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        rank, at = random.choice(spots(plan, *kinds))

        def edit(actions: list[list[Act]]) -> None:
            kind, target, _ = actions[rank].pop(at)
            actions[(rank + 1) % plan.num_ranks].append((kind, target, -1))

        return edited(plan, edit)

    return change


def before(first: ActionKind, second: ActionKind, same: Callable[[ExecutionPlan, Act, Act], bool]) -> Change:
    """The second action to just before the first."""

    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        places = [
            (r, i, j)
            for r, own in enumerate(listed(plan))
            for i, one in enumerate(own)
            for j, two in enumerate(own)
            if one[0] is first and two[0] is second and i < j and same(plan, one, two)
        ]
        rank, i, j = random.choice(places)

        def edit(actions: list[list[Act]]) -> None:
            actions[rank].insert(i, actions[rank].pop(j))

        return edited(plan, edit)

    return change


def is_of_one(plan: ExecutionPlan, one: Act, two: Act) -> bool:
    return one[1] == two[1]


def makes(plan: ExecutionPlan, stage: Act, send: Act) -> bool:
    return int(plan.messages.source[send[1]]) == 2 * stage[1] + (stage[0] is not F)


def uses(plan: ExecutionPlan, wait: Act, stage: Act) -> bool:
    return int(plan.messages.target[wait[1]]) == 2 * stage[1] + (stage[0] is not F)


def swap_receives(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """Two receives of one directed pair of ranks, in each other's place."""
    source = plan.messages.source_rank
    places = [
        (r, i, j)
        for r, own in enumerate(listed(plan))
        for i, one in enumerate(own)
        for j, two in enumerate(own)
        if i < j and one[0] is two[0] is IRECV and source[one[1]] == source[two[1]]
        if not any(act[0] is WAIT_IRECV and act[1] == one[1] for act in own[i:j])
    ]
    rank, i, j = random.choice(places)

    def edit(actions: list[list[Act]]) -> None:
        own = actions[rank]
        (a, m, b), (c, n, d) = own[i], own[j]
        own[i], own[j] = (a, n, b), (c, m, d)

    return edited(plan, edit)


def tear_batch(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """A launch far from the rest of its batch."""
    numbers = [(r, i) for r, i in spots(plan, *LAUNCHES)]
    rank, at = random.choice([s for s in numbers if len(listed(plan)[s[0]]) > s[1] + 1])

    def edit(actions: list[list[Act]]) -> None:
        own = actions[rank]
        kind, target, _ = own[at]
        own[at] = kind, target, 900
        own.insert(at + 1, (own[at + 1][0], own[at + 1][1], own[at + 1][2]))
        del own[at + 2]
        later = next(i for i in range(len(own) - 1, -1, -1) if i > at + 1 and own[i][0] in LAUNCHES)
        own[later] = own[later][0], own[later][1], 900

    return edited(plan, edit)


def backward_of_frozen(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    frozen = [i for i, c in enumerate(plan.pairs.chunk.tolist()) if not plan.chunks[c].has_backward]
    pair = random.choice(frozen)
    rank = plan.chunks[plan.pairs.chunk[pair]].rank
    return edited(plan, lambda actions: actions[rank].append((B, pair, -1)))


def both_backwards(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    rank, at = random.choice(spots(plan, B))
    pair = listed(plan)[rank][at][1]
    return edited(plan, lambda actions: actions[rank].append((I, pair, -1)))


def unanswered_split(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """A whole backward that becomes one of the inputs alone."""
    rank, at = random.choice(spots(plan, B))

    def edit(actions: list[list[Act]]) -> None:
        actions[rank][at] = I, actions[rank][at][1], -1

    return edited(plan, edit)


def column(block: str, name: str, value: Callable[[np.ndarray, int, Random], int]) -> Change:
    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        def put(array: np.ndarray) -> None:
            at = random.randrange(array.shape[-1])
            array[..., at] = value(array, at, random)

        return changed(plan, block, name, put)

    return change


def item_of_message(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """An end of the items of a message that has some."""

    def put(array: np.ndarray) -> None:
        places = np.argwhere(array[..., 1] > array[..., 0])
        replica, at = places[random.randrange(len(places))]
        array[replica, at, random.randrange(2)] += 1

    return changed(plan, "messages", "items", put)


def item_of_part(by: int) -> Change:
    """The first item of a part, in all chunks of its module."""

    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        pairs = plan.pairs
        modules = np.array([chunk.module for chunk in plan.chunks])[pairs.chunk]

        def put(array: np.ndarray) -> None:
            places = np.argwhere((array[..., 1] > array[..., 0]) & (array[..., 0] + by >= 0))
            replica, at = places[random.randrange(len(places))]
            same = (pairs.microbatch == pairs.microbatch[at]) & (pairs.part == pairs.part[at])
            array[replica, same & (modules == modules[at]), 0] += by

        return changed(plan, "pairs", "items", put)

    return change


def same_tag(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    ends = list(zip(plan.messages.source_rank.tolist(), plan.messages.target_rank.tolist(), strict=True))
    pairs = [(i, j) for i in range(len(ends)) for j in range(i) if ends[i] == ends[j]]
    i, j = random.choice(pairs)

    def put(array: np.ndarray) -> None:
        array[i] = array[j]

    return changed(plan, "messages", "tag", put)


def another_peer(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    def put(array: np.ndarray) -> None:
        at = random.randrange(len(array))
        array[at] = next(r for r in range(plan.num_ranks) if r not in (array[at], plan.messages.source_rank[at]))

    return changed(plan, "messages", "target_rank", put)


def larger_gradient(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    gradient = random.choice(np.flatnonzero(plan.messages.source % 2).tolist())

    def put(array: np.ndarray) -> None:
        array[:, gradient] += 1

    return changed(plan, "messages", "num_bytes", put)


def without_message(is_gradient: bool) -> Change:
    """A message with all its actions, as if nothing were to be sent."""

    def change(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
        found = np.flatnonzero(plan.messages.source % 2 == is_gradient).tolist()
        gone = random.choice(found)
        actions = [
            [
                (kind, target - (not kind.is_stage and target > gone), batch)
                for kind, target, batch in own
                if kind.is_stage or target != gone
            ]
            for own in listed(plan)
        ]
        kept = np.delete(np.arange(len(plan.messages.source)), gone)
        messages = replace(
            plan.messages,
            **{name: np.take(array, kept, axis=-1) for name, array in vars(plan.messages).items() if array.ndim < 3},
            items=plan.messages.items[:, kept],
        )
        return with_actions(plan, actions, messages=messages)

    return change


def gradient_of_frozen(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """A gradient of a result whose reader or maker has no backward."""
    messages = plan.messages
    ends = list(zip(messages.source.tolist(), messages.target.tolist(), strict=True))
    at = random.choice([i for i, (one, two) in enumerate(ends) if one % 2 == 0 and (two + 1, one + 1) not in ends])
    more = {
        name: np.append(array, array[..., at : at + 1], axis=-1)
        for name, array in vars(messages).items()
        if array.ndim < 3
    }
    more["items"] = np.append(messages.items, messages.items[:, at : at + 1], axis=1)
    more["source"][-1], more["target"][-1] = ends[at][1] + 1, ends[at][0] + 1
    more["source_rank"][-1], more["target_rank"][-1] = messages.target_rank[at], messages.source_rank[at]
    more["tag"][-1] = messages.tag.max() + 1
    return replace(plan, messages=replace(messages, **more))


def moved_chunk(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    at = random.choice(plan.pairs.chunk.tolist())
    chunk = plan.chunks[at]
    moved = replace(chunk, rank=(chunk.rank + 1) % plan.num_ranks)
    return replace(plan, chunks=(*plan.chunks[:at], moved, *plan.chunks[at + 1 :]))


def longer_chunk(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    modules = [chunk.module for chunk in plan.chunks]
    ends = {name: i for i, name in enumerate(modules)}
    at = random.choice([i for i in plan.pairs.chunk.tolist() if ends[modules[i]] != i])
    old = plan.chunks[at]
    words = tuple((*words, words[-1]) for words in old.variants)
    chunk = replace(old, num_layers=old.num_layers + 1, variants=words)
    return replace(plan, chunks=(*plan.chunks[:at], chunk, *plan.chunks[at + 1 :]))


def too_little_memory(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    peaks = verify(plan).peak_bytes
    assert peaks is not None
    rank = random.choice(np.flatnonzero(peaks > 1).tolist())
    limit = peaks.copy()
    assert verify(replace(plan, limit_bytes=limit)).num_actions
    limit[rank] -= 1
    return replace(plan, limit_bytes=limit)


def unequal_chunks(plan: ExecutionPlan, random: Random) -> ExecutionPlan:
    """Other items in one chunk of a module than in the others."""
    chunk = plan.pairs.chunk
    modules = [c.module for c in plan.chunks]
    own = random.choice([i for i, name in enumerate(modules) if modules.count(name) > 1 and np.any(chunk == i)])

    def put(array: np.ndarray) -> None:
        at = int(np.flatnonzero(chunk == own)[-1])
        array[0, at] += 3

    return changed(plan, "pairs", "items", put)


CHANGES: dict[str, tuple[Change, Fault | tuple[Fault, ...], str]] = {
    "a stage is dropped": (drop(*STAGES), Fault.STAGE_MISSING, "a stage is missing"),
    "a stage is repeated": (repeat(*STAGES), Fault.STAGE_TWICE, "runs twice"),
    "a stage on another rank": (move_away(*STAGES), Fault.STAGE_RANK, "rank that does not hold its chunk"),
    "a chunk on another rank": (moved_chunk, (Fault.STAGE_RANK, Fault.PEER, Fault.MESSAGE), ""),
    "layers run twice": (longer_chunk, Fault.LAYERS, "does not run every layer"),
    "a backward of a frozen chunk": (backward_of_frozen, Fault.NO_BACKWARD, "has none"),
    "a backward whole and split": (both_backwards, Fault.NO_BACKWARD, "whole and split"),
    "no weight gradient": (unanswered_split, Fault.STAGE_MISSING, "a stage is missing"),
    "the backward first": (before(F, B, is_of_one), (Fault.STAGE_ORDER, Fault.USED_EARLY), "a stage before"),
    "the weight gradient first": (before(I, W, is_of_one), Fault.STAGE_ORDER, "whose result it needs"),
    "a launch is dropped": (drop(*LAUNCHES), Fault.LAUNCH_MISSING, "a launch is missing"),
    "a launch is repeated": (repeat(*LAUNCHES), Fault.LAUNCH_TWICE, "launched twice"),
    "a launch elsewhere": (move_away(*LAUNCHES), Fault.LAUNCH_RANK, "not at that end of the message"),
    "a wait is dropped": (drop(*WAITS), Fault.WAIT_MISSING, "never freed"),
    "a wait is repeated": (repeat(*WAITS), Fault.WAIT_TWICE, "waited for"),
    "a wait elsewhere": (move_away(*WAITS), Fault.LAUNCH_RANK, "not at that end of the message"),
    "a wait before its isend": (before(ISEND, WAIT_ISEND, is_of_one), Fault.WAIT_EARLY, "before its launch"),
    "a wait before its irecv": (before(IRECV, WAIT_IRECV, is_of_one), Fault.WAIT_EARLY, "before its launch"),
    "sent before computed": (before(F, ISEND, makes), Fault.SENT_EARLY, "before it is computed"),
    "used before it has come": (before(WAIT_IRECV, F, uses), Fault.USED_EARLY, "before the wait"),
    "receives in another order": (swap_receives, Fault.COMMUNICATION_ORDER, "in another order than rank"),
    "a torn batch": (tear_batch, Fault.BATCH, "torn apart"),
    "another tag": (same_tag, Fault.TAG, "a tag that two messages"),
    "a gradient that is too large": (larger_gradient, Fault.BYTES, "larger than what it is of"),
    "another peer": (
        another_peer,
        Fault.PEER,
        "another target rank than that of its",
    ),
    "another reader": (
        column("messages", "target", lambda a, at, r: int(a[at]) ^ 1),
        (Fault.PEER, Fault.MESSAGE),
        "",
    ),
    "a result is not sent": (without_message(is_gradient=False), Fault.MESSAGE, "that is not sent"),
    "a gradient of what is frozen": (gradient_of_frozen, Fault.MESSAGE, "do not read each other"),
    "a gradient is not sent": (without_message(is_gradient=True), Fault.MESSAGE, "a gradient that is not sent"),
    "items of no part": (item_of_part(1), Fault.ITEMS, "items that no part has, or two"),
    "items in two parts": (item_of_part(-1), Fault.ITEMS, "items that no part has, or two"),
    "other items in a message": (item_of_message, Fault.ITEMS, "other items than its stage"),
    "other items in a chunk": (unequal_chunks, Fault.ITEMS, ""),
    "too little memory": (too_little_memory, Fault.MEMORY, "more memory than the rank has"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_corruption_is_named(name: str) -> None:
    change, faults, words = CHANGES[name]
    tried = 0
    for seed in range(60):
        random = Random(seed)
        plan = random_plan(random.randrange(10**6), num_microbatches=2)
        try:
            wrong = change(plan, random)
        except (IndexError, StopIteration, ValueError):
            continue  # nothing there to corrupt in this way
        if same_actions(plan, wrong):
            continue
        tried += 1
        with pytest.raises(PlanError) as caught:
            verify(wrong)
        assert isinstance(caught.value, ScheduleError)
        assert caught.value.exit_code == 4
        assert caught.value.fault in (faults if isinstance(faults, tuple) else (faults,)), str(caught.value)
        assert words in caught.value.message
        assert caught.value.where
        if tried == 4:
            return
    raise AssertionError(f"only {tried} plans could be corrupted so")


def same_actions(plan: ExecutionPlan, other: ExecutionPlan) -> bool:
    return other is plan or (
        listed(plan) == listed(other)
        and plan.pairs is other.pairs
        and plan.messages is other.messages
        and plan.chunks == other.chunks
        and plan.limit_bytes is other.limit_bytes
    )


def outgrown(plan: ExecutionPlan, message: int, gradient: int, replica: int) -> ExecutionPlan:
    """A gradient larger than its replica's result, and smaller than the result of every other replica."""

    def put(array: np.ndarray) -> None:
        array[:, message], array[:, gradient] = 5000, 2000
        array[replica, message], array[replica, gradient] = 1000, 1001

    return changed(plan, "messages", "num_bytes", put)


def equal_sizes(plan: ExecutionPlan, message: int, gradient: int, replica: int) -> ExecutionPlan:
    """A gradient as large as its replica's result, where other replicas have smaller results: legal."""

    def put(array: np.ndarray) -> None:
        array[:, message] = array[:, gradient] = 1000
        array[replica, message] = array[replica, gradient] = 5000

    return changed(plan, "messages", "num_bytes", put)


def misdirected(plan: ExecutionPlan, message: int, gradient: int, replica: int) -> ExecutionPlan:
    """A message whose items are another stage's on one replica."""

    def put(array: np.ndarray) -> None:
        array[replica, message] += 50

    return changed(plan, "messages", "items", put)


def two_replicas() -> tuple[ExecutionPlan, int, int]:
    """A plan of several replicas, a message, and the message that is its gradient."""
    for plan in map(random_plan, range(40)):
        ends = list(zip(plan.messages.source.tolist(), plan.messages.target.tolist(), strict=True))
        for gradient, (source, target) in enumerate(ends):
            if source % 2 and plan.num_replicas > 1:
                return plan, ends.index((target - 1, source - 1)), gradient
    raise AssertionError("no plan of several replicas sends gradients")


@pytest.mark.parametrize("replica", [0, 1])
def test_the_error_names_a_replica_and_its_sizes(replica: int) -> None:
    """Maxima over the replicas would say: at most 5000 bytes expected, 2000 bytes came."""
    plan, message, gradient = two_replicas()
    with pytest.raises(PlanError, match=f"larger than what it is of, replica {replica}") as caught:
        verify(outgrown(plan, message, gradient, replica))
    assert (caught.value.expected, caught.value.got) == ("1000", 1001)


@pytest.mark.parametrize("replica", [0, 1])
@pytest.mark.parametrize(
    ("change", "fault", "words"),
    [
        (outgrown, Fault.BYTES, "a gradient larger than what it is of"),
        (misdirected, Fault.ITEMS, "other items than its stage"),
        (equal_sizes, None, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_messages_are_checked_on_every_replica(
    change: Callable[[ExecutionPlan, int, int, int], ExecutionPlan], fault: Fault | None, words: str, replica: int
) -> None:
    """Other replicas alone would be legal."""
    tried = 0
    for seed in range(40):
        plan = random_plan(seed)
        ends = list(zip(plan.messages.source.tolist(), plan.messages.target.tolist(), strict=True))
        answered = [(ends.index((b - 1, a - 1)), at) for at, (a, b) in enumerate(ends) if a % 2]
        if plan.num_replicas == 1 or not answered:
            continue
        message, gradient = answered[seed % len(answered)]
        tried += 1
        wrong = change(plan, message, gradient, replica)
        if fault is None:
            verify(wrong)
            continue
        with pytest.raises(PlanError) as caught:
            verify(wrong)
        assert caught.value.fault is fault, str(caught.value)
        assert words in caught.value.message
        at = message if fault is Fault.ITEMS else gradient
        assert f"messages[{at}]" in str(caught.value.where)
    assert tried >= 8


def test_rank_action_and_what_is_there_are_told() -> None:
    plan = spelled(chain(2, 1), ["F0 s0 S0 r1 R1 B0", "r0 F1 R0 B1 s1 S1"])
    with pytest.raises(PlanError) as caught:
        verify(plan)
    error = caught.value
    assert (error.fault, error.rank, error.action) == (Fault.USED_EARLY, 1, 1)
    assert error.where == "random: rank 1, action 1"
    assert error.expected == "after wait_irecv 0F0 -> 1F0 from rank 0"
    assert error.got == "forward_stage 1F0"
    assert {key: error.to_json()[key] for key in ("kind", "fault", "rank", "action")} == {
        "kind": "PlanError",
        "fault": "used before it has come",
        "rank": 1,
        "action": 1,
    }


def test_chunks_that_do_not_say_what_they_read_are_guessed() -> None:
    for seed in range(20):
        plan = random_plan(seed)
        silent = replace(plan, chunks=tuple(replace(chunk, sources=None) for chunk in plan.chunks))
        assert verify(silent).to_json() == verify(plan).to_json()
        said, guessed = ({tuple(edge) for edge in chunk_edges(one).tolist()} for one in (plan, silent))
        read = plan.messages.target[plan.messages.source % 2 == 0] // 2
        made = plan.messages.source[plan.messages.source % 2 == 0] // 2
        sent = set(zip(plan.pairs.chunk[made].tolist(), plan.pairs.chunk[read].tolist(), strict=True))
        assert sent <= said and sent <= guessed


def test_a_weight_gradient_before_everything_is_out_of_order_not_missing() -> None:
    """The very first action of all."""
    plan = chain(1, 2)

    def ahead(actions: list[list[Act]]) -> None:
        own = actions[0]
        own.insert(0, own.pop(next(number for number, act in enumerate(own) if act[0] is W)))

    with pytest.raises(PlanError) as caught:
        verify(edited(plan, ahead))
    assert caught.value.fault is Fault.STAGE_ORDER
