"""Kernels that commands call: how long compiling them takes, and the types of their arguments.

Types are as in ``numba.types``: a kernel that is called with others is compiled when it is called. A test compares."""

from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel of ``KERNELS``.

    Attributes:
        seconds: that compiling it takes, about, on one core of 2023 [s]. types: of its arguments.
    """

    seconds: float
    types: str


_FLOW = "Tuple((i8[::1], i4[::1], i4[::1], i4[::1], f8[::1], i4[::1], i8, i4[::1]))"
_CANDIDATES = "Tuple((f8[:,::1], f8[:,::1], i8[:,::1], i8[:,::1], i8[:,::1], b1[::1], i2[::1]))"
_STREAMS = "Tuple((i4[::1], i4[::1], i8))"
_EDGES = "Tuple((i4[::1], i4[::1], f8[:,::1], i4[::1], i4[::1]))"

KERNELS = {
    "compile.kernels.memory_of_stage": Kernel(
        1.1,
        "f8[::1], f8[::1], Tuple((i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], b1[::1], b1[::1])), i8[::1], "
        "i4[::1], f8[::1], i8[:,::1]",
    ),
    "compile.kernels.run_segment": Kernel(
        0.5,
        "f8[:,::1], i4[::1], i4[::1], i8[:,::1], i4[::1], i4[::1], i4[::1], f8[::1], f8[:,::1], i8[::1], "
        "i8[::1], i4[::1]",
    ),
    "compile.kernels.run_stage": Kernel(
        0.7,
        "f8[:,::1], i4[::1], Tuple((i4[::1], i4[::1], i4[::1], i8)), Tuple((i4[::1], i4[::1], i4[::1], "
        "i4[::1], i4[::1], b1[::1], b1[::1])), i8[:,::1], i4[::1], Tuple((f8[::1], f8[:,::1], i8[::1], "
        "i8[::1], i4[::1]))",
    ),
    "compile.kernels.time_stage": Kernel(
        0.3,
        "f8[::1], f8[::1], Tuple((i4[::1], i4[::1], i4[::1], i8)), f8[::1], f8[::1], f8[::1]",
    ),
    "costs.kernels.roofline_latency": Kernel(
        0.9,
        "f8[:,::1], f8[:,::1], f8[:,::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[:,::1]",
    ),
    "engine.kernels.allocator.order_turns": Kernel(
        0.2,
        "i8[::1], f8[::1], i8[::1], i8, i8[::1]",
    ),
    "engine.kernels.allocator.replay": Kernel(
        1.1,
        "i8[::1], i8[::1], i8, i8, i8, i8[::1], i8, i8[::1]",
    ),
    "engine.kernels.allocator.write_tape": Kernel(
        0.2,
        "i8[:,::1], i8[::1], i8[:,::1], i8, i8[:,::1]",
    ),
    "engine.kernels.dispatch.replay_units": Kernel(
        1.6,
        f"i4[::1], {_STREAMS}, f8[:,::1], {_EDGES}, {_EDGES}, Tuple((i4[::1], i4[::1], f8[:,::1], i4[::1], "
        f"i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i8[::1], f8[:,::1])), Tuple((f8[:,::1], f8[:,::1], "
        f"f8[:,::1], b1[:,::1]))",
    ),
    "engine.kernels.memory_parts.highest_of_parts": Kernel(
        0.8,
        "f8[::1], i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], f8[::1], i8[:,::1], f8[::1], f8[::1], i8[:,::1]",
    ),
    "engine.kernels.orders.forced_order": Kernel(
        0.9,
        f"{_STREAMS}, {_EDGES}, {_EDGES}, i4[::1]",
    ),
    "engine.kernels.pipeline_memory.exact_summit": Kernel(
        0.4,
        "f8, f8, i8, f8[::1], i8[::1], f8[::1], i8[::1], f8[::1], i8[::1]",
    ),
    "engine.kernels.pipeline_memory.pipeline_summits": Kernel(
        0.5,
        "i8[::1], f8[:,::1], f8[:,::1], i8[:,::1], i8[:,::1], i8[::1], f8[:,::1], i8[:,::1], i8[:,::1], "
        "i8[:,::1], i8[:,::1], i8[:,::1]",
    ),
    "engine.kernels.pipeline_memory.raise_to_summits": Kernel(
        0.6,
        "i8[:,::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8[:,::1], f8[:,::1], i8[:,::1], i8[::1], "
        "f8[:,::1], i8[:,::1], i8[::1], f8[::1], i8[::1]",
    ),
    "engine.kernels.pipeline_memory.sort_events": Kernel(
        0.3,
        "i8[::1], f8[:,::1], i8[:,::1]",
    ),
    "searcher.kernels.bounds.gather_sets": Kernel(
        0.5,
        "i4[::1], i4[::1], i4[::1], f8[::1], f8[::1], i4[::1], f8[::1], f8[:,::1], i8[::1], f8[::1]",
    ),
    "searcher.kernels.bounds.heads_and_tails": Kernel(
        0.2,
        "i4[::1], i4[::1], i4[::1], f8[::1], f8[::1], f8[::1], f8[::1]",
    ),
    "searcher.kernels.bounds.one_machine": Kernel(
        0.1,
        "f8[::1], f8[::1], f8[::1]",
    ),
    "searcher.kernels.bounds.refute": Kernel(
        1.8,
        "f8, i4[::1], i4[::1], i4[::1], f8[::1], f8[::1], f8[::1], f8[::1], i8[::1], i8[::1], i8, i8",
    ),
    "searcher.kernels.memory_choice.choose_memory": Kernel(
        4.0,
        f"i4[::1], {_CANDIDATES}, i8, f8, i8, i8[::1], i2[::1]",
    ),
    "searcher.kernels.times.evaluate_orders": Kernel(
        1.2,
        f"{_FLOW}, {_CANDIDATES}, i4[:,::1], i2[:,::1], Tuple((f8[:,::1], f8[:,::1], f8[::1])), i8[:,::1]",
    ),
    "searcher.kernels.interleaving.hold_at_once": Kernel(
        0.5,
        "i8[::1], i4[::1], i4[::1], i4[::1], i4[::1], b1[::1], i8[::1], i8[::1], i8[:,::1]",
    ),
    "searcher.kernels.rollout.rollouts": Kernel(
        2.5,
        f"{_FLOW}, Tuple((i4[::1], i4[::1], i4[::1], i4[::1], i4[::1])), Tuple((b1[::1], i8[:,::1], i8[:,::1], "
        f"i4[:,::1])), {_CANDIDATES}, i8[::1], i4[:,::1], i4[:,::1], f8, i8, f8, i4[:,::1], i2[:,::1], "
        f"Tuple((f8[:,::1], f8[:,::1], f8[::1])), f8[::1], i8[::1], i8[:,::1]",
    ),
    "searcher.kernels.annealing.anneal": Kernel(
        4.5,
        f"{_FLOW}, Tuple((i4[::1], i4[::1], f8[::1])), {_CANDIDATES}, i4[::1], i2[::1], i8[::1], i8, f8, f8, "
        f"f8, f8, i4[::1], i2[::1], i8",
    ),
    "searcher.kernels.tabu_search.tabu": Kernel(
        1.5,
        f"{_FLOW}, Tuple((i4[::1], i4[::1], f8[::1])), Tuple((f8[::1], i8[::1], i8[::1])), i4[::1], i8[::1], "
        f"i8, i8, i8, i8",
    ),
    "searcher.kernels.sequences.nearest_sequences": Kernel(
        0.9,
        "i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], f8[:,::1], i4[:,::1]",
    ),
    "schedule.kernels.run_orders": Kernel(
        0.6,
        "i8[::1], i4[::1], i4[::1], i4[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], i8[::1]",
    ),
    "schedule.kernels.memory_of_orders": Kernel(
        0.2,
        "i8[::1], i4[::1], i8[::1], i8[::1], i8[::1]",
    ),
    "schedule.kernels.list_schedule": Kernel(
        2.0,
        "Tuple((i8[::1], i8[::1], i8[::1], b1[::1], b1[::1], i4[::1], i4[::1], i4[::1], i4[::1])), "
        'Tuple((f8[::1], f8[::1], i8[::1])), Array(i8, 1, "C", readonly=True), i8[:,::1], Tuple((b1, b1, i8, '
        "b1, f8, b1)), i4[::1]",
    ),
    "schedule.rules.kernels.machine.run_rule": Kernel(
        2.0,
        "Tuple((i8[::1], i8[::1], i8[:,::1], i8[::1], b1[::1])), Tuple((i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], "
        "i4[::1], f8[::1], f8[::1], i8)), Tuple((i8[::1], i8[::1], i8[::1], i8[:,::1], b1, b1, i8[:,::1])), "
        "Tuple((Tuple((i8[:,::1], i8[:,::1], i4[:,::1], i8[:,::1], i8[:,::1], i8[:,::1])), Tuple((i8[::1], i8[::1], "
        "i8[::1], b1[::1], i8[::1], i8[::1], i4[::1], f8[::1])), i4[::1], u8[:,::1], i8[:,::1], f8[::1], f8[::1], "
        "i4[::1], i8[::1], Tuple((i8[::1], i8[::1], b1[::1], b1[::1], u8[:,::1])), i8[::1])), i8, i4[::1]",
    ),
    "plan.verification.kernels.run_dry": Kernel(
        0.6,
        "i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[:,::1], i8[::1], "
        "i8[::1], b1[::1], b1[::1], b1[::1], i8[::1], "
        "Tuple((i8[::1], i8[::1], i8[::1], i8[::1]))",
    ),
}
"""By name, without ``semu.``."""

_TIMES = (
    "costs.kernels.roofline_latency",
    "compile.kernels.run_segment",
    "compile.kernels.memory_of_stage",
    "compile.kernels.time_stage",
    "compile.kernels.run_stage",
    "engine.kernels.orders.forced_order",
    "engine.kernels.dispatch.replay_units",
    "engine.kernels.pipeline_memory.sort_events",
    "engine.kernels.pipeline_memory.pipeline_summits",
    "engine.kernels.pipeline_memory.exact_summit",
)
_ALLOCATOR = (
    "engine.kernels.allocator.order_turns",
    "engine.kernels.allocator.write_tape",
    "engine.kernels.allocator.replay",
)
_ORDERS = (
    "schedule.kernels.list_schedule",
    "schedule.kernels.run_orders",
    "schedule.rules.kernels.machine.run_rule",
    "schedule.kernels.memory_of_orders",
)
_LONGEST = (
    "searcher.kernels.memory_choice.choose_memory",
    "searcher.kernels.rollout.rollouts",
    "searcher.kernels.annealing.anneal",
)
_SEARCH = (
    "searcher.kernels.interleaving.hold_at_once",
    "searcher.kernels.bounds.heads_and_tails",
    "searcher.kernels.bounds.gather_sets",
    "searcher.kernels.bounds.one_machine",
    "searcher.kernels.sequences.nearest_sequences",
    "searcher.kernels.times.evaluate_orders",
    "searcher.kernels.tabu_search.tabu",
    "searcher.kernels.bounds.refute",
)
NEEDS = {
    "simulate": (*_TIMES, *_ALLOCATOR, "engine.kernels.memory_parts.highest_of_parts"),
    "grid": (*_TIMES, *_ALLOCATOR, "engine.kernels.memory_parts.highest_of_parts"),
    "validate": (*_TIMES, *_ALLOCATOR),
    "what-if": (*_TIMES, *_ORDERS[:2]),
    "schedules": (*_TIMES, *_ORDERS, "engine.kernels.pipeline_memory.raise_to_summits"),
    "plan": (*_TIMES, "plan.verification.kernels.run_dry"),
    "search": (*_LONGEST, *_TIMES, *_SEARCH, *_ALLOCATOR),
}
"""What each command calls, in the order of the calls, save that kernels that others call come before them, and that the
longest come first: one process compiles them while another one compiles all else."""
