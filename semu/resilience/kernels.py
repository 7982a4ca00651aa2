"""The machine of a long run: training, saving and recovering between the events of nodes.

All times are whole microseconds and all accounts whole GPU-microseconds, so that every account adds up to the wall's
time x GPUs exactly. Between two events iterations are counted, not stepped. Kernels trust their input
(``semu.resilience.machine`` makes it) and release the GIL.

What the arrays hold:

* ``rows``: int64[nodes + 1, NUM_COLUMNS], what a strategy does with so many nodes alive;
* ``tiers``: int64[num_tiers, NUM_TIER_COLUMNS], where training checkpoints go, the fastest to load first;
* ``state``: int64[NUM_STATE], ``tier_state``: int64[num_tiers, NUM_TIER_STATE], ``account``: int64[NUM_ACCOUNTS];
* ``status``, ``rank_of``: int64[nodes]; ``failed_at``: int64[nodes] by rank; ``idle``, ``free``: int64[nodes], stacks
  of idle nodes and of ranks that no node has;
* ``log``: int64[n, 4], time, nodes alive, time of an iteration (0: none runs), iterations, after every change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, part

I64 = NDArray[np.int64]
Group = tuple[Any, ...]

# columns of ``rows``
ITERATION, NODES, REDUNDANT, DETECT, RECONFIGURE, COPY, KEEPS, PLANNED_SAVE, PLANNED_LOAD = range(9)
NUM_COLUMNS = 9
# columns of ``tiers``: work between saves [us] or iterations between them (0: by time), what training waits for, how
# long a save goes on beside training, loading, whether the copies lie in hosts' memory
EVERY, EVERY_ITERATIONS, STALL, BACKGROUND, LOAD, IS_MEMORY = range(6)
NUM_TIER_COLUMNS = 6
# entries of ``state``
(
    CLOCK, ALIVE, ACTIVE, IDLE, FREE, RUNNING, CAN_RUN, PHASE, PENDING, ITERATIONS,
    LEFT_DETECT, LEFT_SAVE, LEFT_RECONFIGURE, LEFT_COPY, LEFT_LOAD, MUST_LOAD, SAVING, SAVING_TIER,
    NOW_ITERATION, NOW_REDUNDANT, FAILURES, INTERRUPTIONS, CHANGES, SAVES, FROM_START, LOGGED, GPUS_PER_NODE, MOST,
    RANKS,
) = range(29)  # fmt: skip
NUM_STATE = 29
# columns of ``tier_state``
SINCE, IS_VALID, DURABLE, DURABLE_USEFUL, DURABLE_AT, NEXT, NEXT_USEFUL, NEXT_END = range(8)
NUM_TIER_STATE = 8
# accounts
A_USEFUL, A_LOST, A_SAVE, A_LOAD, A_DETECT, A_RECONFIGURE, A_COPY, A_IDLE, A_WAITING, A_REDUNDANT, A_DOWN = range(11)
NUM_ACCOUNTS = 11

DOWN, IN_USE, SPARE = 0, 1, 2
FAIL, JOIN = 0, 1
FAR = 1 << 60


@part
def _pass_time(state: I64, account: I64, time: int, what: int) -> None:
    """Let time pass; what < 0: the time of nodes in use is accounted for elsewhere."""
    per_node = state[GPUS_PER_NODE]
    state[CLOCK] += time
    account[A_DOWN] += time * (state[MOST] - state[ALIVE]) * per_node
    if what == A_WAITING:
        account[A_WAITING] += time * state[ALIVE] * per_node
        return
    account[A_IDLE] += time * (state[ALIVE] - state[ACTIVE]) * per_node
    if what >= 0:
        account[what] += time * state[ACTIVE] * per_node


@part
def _interval(tiers: I64, tier: int, iteration: int) -> int:
    """Iterations between two saves."""
    if tiers[tier, EVERY_ITERATIONS] > 0:
        return int(tiers[tier, EVERY_ITERATIONS])
    return max(1, int((2 * tiers[tier, EVERY] + iteration) // (2 * iteration)))


@part
def _settle(tier_state: I64, tier: int, now: int) -> None:
    """A save that has ended by now is durable."""
    end = tier_state[tier, NEXT_END]
    if 0 <= end <= now:
        tier_state[tier, IS_VALID] = 1
        tier_state[tier, DURABLE] = tier_state[tier, NEXT]
        tier_state[tier, DURABLE_USEFUL] = tier_state[tier, NEXT_USEFUL]
        tier_state[tier, DURABLE_AT] = end
        tier_state[tier, NEXT_END] = -1


@part
def _assign(world: Group, wanted: int) -> None:
    """Have so many nodes in use: idle ones are promoted, the last ones of those in use become idle."""
    state, status, rank_of, idle, free = world[1], world[4], world[5], world[7], world[8]
    while state[ACTIVE] < wanted and state[IDLE] > 0:
        state[IDLE] -= 1
        node = idle[state[IDLE]]
        status[node] = IN_USE
        state[FREE] -= 1
        rank_of[node] = free[state[FREE]]
        state[ACTIVE] += 1
    node = len(status) - 1
    while state[ACTIVE] > wanted:
        while status[node] != IN_USE:
            node -= 1
        status[node] = SPARE
        idle[state[IDLE]] = node
        state[IDLE] += 1
        free[state[FREE]] = rank_of[node]
        state[FREE] += 1
        state[ACTIVE] -= 1


@part
def _take_row(world: Group, row: I64, load: int) -> None:
    """Go over to what a row says; detection is left as it is."""
    state = world[1]
    state[CAN_RUN] = 1 if row[ITERATION] > 0 else 0
    if state[CAN_RUN] == 1:
        state[NOW_ITERATION] = row[ITERATION]
        state[NOW_REDUNDANT] = row[REDUNDANT]
        _assign(world, row[NODES])
    state[RUNNING] = 0
    state[PHASE] = 0
    state[SAVING] = 0
    state[LEFT_RECONFIGURE] = row[RECONFIGURE]
    state[LEFT_COPY] = row[COPY]
    state[LEFT_LOAD] = load


@part
def _note(world: Group) -> None:
    """Write a line of the log; a line of the same moment is replaced."""
    state, log = world[1], world[9]
    at = state[LOGGED]
    if at > 0 and at <= len(log) and log[at - 1, 0] == state[CLOCK]:
        at -= 1
    if at < len(log):
        log[at, 0] = state[CLOCK]
        log[at, 1] = state[ALIVE]
        log[at, 2] = state[NOW_ITERATION] if state[RUNNING] == 1 else 0
        log[at, 3] = state[ITERATIONS]
        state[LOGGED] = at + 1


@part
def _change(world: Group, rows: I64) -> None:
    """At an iteration's end: take in the nodes that have joined, where a strategy has use for them."""
    state, tier_state = world[1], world[2]
    row = rows[state[ALIVE]]
    state[PENDING] = 0
    if row[ITERATION] == 0 or (row[NODES] == state[ACTIVE] and row[ITERATION] >= state[NOW_ITERATION]):
        return
    _take_row(world, row, row[PLANNED_LOAD])
    state[LEFT_SAVE] = row[PLANNED_SAVE]
    state[CHANGES] += 1
    last = len(tier_state) - 1
    if row[PLANNED_SAVE] > 0 and last >= 0:
        _settle(tier_state, last, state[CLOCK])
        tier_state[last, NEXT] = state[ITERATIONS]
        tier_state[last, NEXT_USEFUL] = world[3][A_USEFUL]
        tier_state[last, NEXT_END] = state[CLOCK] + row[PLANNED_SAVE]
        tier_state[last, SINCE] = 0
    _note(world)


@part
def _recover(world: Group, most: int) -> None:
    """Spend up to ``most`` on what is left of a recovery."""
    state, account = world[1], world[3]
    if state[LEFT_DETECT] > 0:
        entry, what = LEFT_DETECT, A_DETECT
    elif state[CAN_RUN] == 0:
        _pass_time(state, account, most, A_WAITING)
        return
    elif state[LEFT_SAVE] > 0:
        entry, what = LEFT_SAVE, A_SAVE
    elif state[LEFT_RECONFIGURE] > 0:
        entry, what = LEFT_RECONFIGURE, A_RECONFIGURE
    elif state[LEFT_COPY] > 0:
        entry, what = LEFT_COPY, A_COPY
    elif state[LEFT_LOAD] > 0:
        entry, what = LEFT_LOAD, A_LOAD
    else:
        state[RUNNING] = 1
        state[MUST_LOAD] = 0
        _note(world)
        return
    time = min(most, state[entry])
    state[entry] -= time
    _pass_time(state, account, time, what)


@part
def _begin_save(world: Group, tiers: I64, tier: int) -> None:
    """Begin a save: training waits for its stall, and before that for the tier's last save to end."""
    state, tier_state = world[1], world[2]
    _settle(tier_state, tier, state[CLOCK])
    state[SAVING] = max(0, tier_state[tier, NEXT_END] - state[CLOCK]) + tiers[tier, STALL]
    state[SAVING_TIER] = tier
    tier_state[tier, SINCE] = 0
    if state[SAVING] == 0:
        _end_save(world, tiers)


@part
def _end_save(world: Group, tiers: I64) -> None:
    """A save's stall is over: what it holds is durable when its background part has ended."""
    state, tier_state, account = world[1], world[2], world[3]
    tier = state[SAVING_TIER]
    _settle(tier_state, tier, state[CLOCK])
    tier_state[tier, NEXT] = state[ITERATIONS]
    tier_state[tier, NEXT_USEFUL] = account[A_USEFUL]
    tier_state[tier, NEXT_END] = state[CLOCK] + tiers[tier, BACKGROUND]
    state[SAVES] += 1


@part
def _advance(world: Group, rows: I64, tiers: I64, until: int) -> None:
    """Go on to a moment."""
    state, tier_state, account = world[1], world[2], world[3]
    num_tiers = len(tiers)
    while state[CLOCK] < until:
        most = until - state[CLOCK]
        if state[RUNNING] == 0:
            _recover(world, most)
            continue
        if state[SAVING] > 0:
            time = min(most, state[SAVING])
            state[SAVING] -= time
            _pass_time(state, account, time, A_SAVE)
            if state[SAVING] == 0:
                _end_save(world, tiers)
            continue
        iteration = state[NOW_ITERATION]
        count = FAR
        due = -1
        for tier in range(num_tiers):
            left = _interval(tiers, tier, iteration) - tier_state[tier, SINCE]
            count = min(count, left)
            if left <= 0 and due < 0:
                due = tier
        if state[PHASE] == 0:
            if state[PENDING] == 1:
                _change(world, rows)
                continue
            if due >= 0:
                _begin_save(world, tiers, due)
                continue
        if state[PENDING] == 1 or count < 1:
            count = 1
        count = min(count, (most + state[PHASE]) // iteration)
        if count == 0:
            state[PHASE] += most
            _pass_time(state, account, most, -1)
            continue
        gpus = state[ACTIVE] * state[GPUS_PER_NODE]
        account[A_USEFUL] += count * (iteration - state[NOW_REDUNDANT]) * gpus
        account[A_REDUNDANT] += count * state[NOW_REDUNDANT] * gpus
        _pass_time(state, account, count * iteration - state[PHASE], -1)
        state[PHASE] = 0
        state[ITERATIONS] += count
        for tier in range(num_tiers):
            tier_state[tier, SINCE] += count


@part
def _holds(world: Group, tiers: I64, tier: int, rank: int) -> bool:
    """Whether a tier's checkpoint has survived the failure of a rank's node: storage always does; a rank's copy in the
    memory of the next rank's host needs that node to be as it was, and so does the copy that the rank kept."""
    tier_state, failed_at, state = world[2], world[6], world[1]
    if tier_state[tier, IS_VALID] == 0:
        return False
    if tiers[tier, IS_MEMORY] == 0:
        return True
    ranks = state[RANKS]
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    since = tier_state[tier, DURABLE_AT]
    return bool(ranks > 2 and failed_at[after] < since and failed_at[before] < since)


@part
def _go_back(world: Group, tiers: I64, rank: int) -> int:
    """Go back to the newest training checkpoint that is left; how long loading it takes."""
    state, tier_state, account = world[1], world[2], world[3]
    best = -1
    for tier in range(len(tiers)):
        _settle(tier_state, tier, state[CLOCK])
        tier_state[tier, NEXT_END] = -1
        if not _holds(world, tiers, tier, rank):
            tier_state[tier, IS_VALID] = 0
        elif best < 0 or tier_state[tier, DURABLE] > tier_state[best, DURABLE]:
            best = tier
    kept, useful, load = 0, 0, 0
    if best >= 0:
        kept, useful, load = tier_state[best, DURABLE], tier_state[best, DURABLE_USEFUL], tiers[best, LOAD]
    elif state[ITERATIONS] > 0:
        state[FROM_START] += 1
    account[A_LOST] += account[A_USEFUL] - useful
    account[A_USEFUL] = useful
    state[ITERATIONS] = kept
    for tier in range(len(tiers)):
        tier_state[tier, SINCE] = kept - tier_state[tier, DURABLE] if tier_state[tier, IS_VALID] == 1 else kept
    return load


@part
def _fail(world: Group, rows: I64, tiers: I64, node: int) -> None:
    """A node goes."""
    state, account, status, rank_of, failed_at = world[1], world[3], world[4], world[5], world[6]
    idle, free = world[7], world[8]
    state[FAILURES] += 1
    state[ALIVE] -= 1
    was = status[node]
    status[node] = DOWN
    if was == SPARE:
        place = 0
        while idle[place] != node:
            place += 1
        for k in range(place, state[IDLE] - 1):
            idle[k] = idle[k + 1]
        state[IDLE] -= 1
        _note(world)
        return
    rank = rank_of[node]
    failed_at[rank] = state[CLOCK]
    free[state[FREE]] = rank
    state[FREE] += 1
    account[A_LOST] += state[PHASE] * state[ACTIVE] * state[GPUS_PER_NODE]
    state[PHASE] = 0
    state[ACTIVE] -= 1
    state[INTERRUPTIONS] += 1
    row = rows[state[ALIVE]]
    if state[SAVING] > 0:
        world[2][state[SAVING_TIER], SINCE] = FAR // 2
    if row[KEEPS] == 0:
        state[MUST_LOAD] = _go_back(world, tiers, rank)
    _take_row(world, row, state[MUST_LOAD])
    state[PENDING] = 0
    state[LEFT_SAVE] = 0
    state[LEFT_DETECT] = row[DETECT]
    _note(world)


@part
def _join(world: Group, rows: I64, node: int) -> None:
    """A node comes."""
    state, status, idle = world[1], world[4], world[7]
    status[node] = SPARE
    idle[state[IDLE]] = node
    state[IDLE] += 1
    state[ALIVE] += 1
    row = rows[state[ALIVE]]
    if state[RUNNING] == 0 and state[CAN_RUN] == 0:
        if row[ITERATION] > 0:
            _take_row(world, row, state[MUST_LOAD])
    else:
        state[PENDING] = 1
    _note(world)


@part
def _is_warned(world: Group, rows: I64, tiers: I64, time: int, notice: int) -> None:
    """Before a node goes that has given notice: the last iteration that ends in time is the last one begun, and what
    the strategy has to save is saved; else the notice is of no use."""
    state, tier_state, account = world[1], world[2], world[3]
    last = len(tiers) - 1
    keeps = rows[state[ALIVE] - 1, KEEPS] == 1
    if not keeps and last < 0:
        return
    save = 0 if keeps else tiers[last, STALL] + tiers[last, BACKGROUND]
    start = max(state[CLOCK], time - notice)
    _advance(world, rows, tiers, start)
    if time - save < start:
        return
    if keeps:
        _advance(world, rows, tiers, time)
        if state[RUNNING] == 1 and 0 < state[PHASE] <= time - start:
            account[A_WAITING] += state[PHASE] * state[ACTIVE] * state[GPUS_PER_NODE]
            state[PHASE] = 0
        return
    latest = time - save  # when the last save has to begin
    while state[CLOCK] <= latest:
        is_training = state[RUNNING] == 1 and state[SAVING] == 0
        iteration = state[NOW_ITERATION]
        if is_training and state[PHASE] == 0 and state[CLOCK] + iteration > latest:
            tier_state[last, SINCE] = 0
            _pass_time(state, account, save, A_SAVE)
            tier_state[last, NEXT] = state[ITERATIONS]
            tier_state[last, NEXT_USEFUL] = account[A_USEFUL]
            tier_state[last, NEXT_END] = state[CLOCK]
            state[SAVES] += 1
            _pass_time(state, account, time - state[CLOCK], A_WAITING)
            return
        if state[CLOCK] == latest:
            return
        ahead = iteration - state[PHASE] if is_training else state[SAVING] if state[RUNNING] == 1 else latest
        _advance(world, rows, tiers, min(latest, state[CLOCK] + max(1, ahead)))


@kernel
def run_events(world: Group, rows: I64, tiers: I64, events: I64, until: int) -> None:
    """Run the events, then on to ``until``.

    Args:
        world: ``(log's first free line is in state) 0: nothing, 1: state, 2: tier_state, 3: account, 4: status,
            5: rank_of, 6: failed_at, 7: idle, 8: free, 9: log``; all are written to.
        rows, tiers: as above. events: int64[num_events, 4]: time [us], node, FAIL or JOIN, notice [us]; in order of
            time, none of them before the clock. until: not before the last event [us].
    """
    status = world[4]
    for k in range(len(events)):
        time, node, kind, notice = events[k, 0], events[k, 1], events[k, 2], events[k, 3]
        if kind == FAIL and notice > 0 and status[node] == IN_USE:
            _is_warned(world, rows, tiers, time, notice)
        _advance(world, rows, tiers, time)
        if kind == FAIL and status[node] != DOWN:
            _fail(world, rows, tiers, node)
        elif kind == JOIN and status[node] == DOWN:
            _join(world, rows, node)
    _advance(world, rows, tiers, until)
    _note(world)
