"""Legal plans of random small pipelines, made slowly: a random order of all stages, launches where results are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from semu.plan.action import ActionKind
from semu.plan.plan import (
    ExecutionPlan,
    PlanChunk,
    PlanEstimates,
    PlanMemory,
    PlanMessages,
    PlanPairs,
    RankActions,
)

F, B, I, W = KINDS_OF_STAGES = tuple(kind for kind in ActionKind if kind.is_stage)  # noqa: E741
ISEND, WAIT_ISEND, IRECV, WAIT_IRECV, EXCHANGE, EXCHANGE_GRADIENT = (k for k in ActionKind if not k.is_stage)
Act = tuple[ActionKind, int, int]
"""Kind, target, batch."""


@dataclass
class Module:
    """A modality module of a random pipeline: ranks of its chunks, parts of every microbatch, what it reads."""

    name: str
    ranks: list[int]
    parts: list[int]
    trains: bool
    sources: list[str] = field(default_factory=list)


def random_modules(random: Random, num_ranks: int, num_microbatches: int) -> list[Module]:
    """A chain, or one or two encoders into a backbone; some frozen, some cut."""

    def ranks() -> list[int]:
        if random.random() < 0.6:
            return list(range(num_ranks)) * random.choice((1, 1, 2))
        return [random.randrange(num_ranks) for _ in range(random.randint(1, num_ranks + 1))]

    def parts() -> list[int]:
        if random.random() < 0.4:
            return [1] * num_microbatches
        return [random.randint(1, 3) for _ in range(num_microbatches)]

    encoders = [
        Module(f"encoder {i}", ranks(), [random.choice((p, p, 0)) for p in parts()], random.random() < 0.6)
        for i in range(random.choice((0, 1, 1, 2)))
    ]
    whole = [1] * num_microbatches if random.random() < 0.7 else parts()
    return [*encoders, Module("backbone", ranks(), whole, True, [encoder.name for encoder in encoders])]


def random_plan(seed: int, *, num_ranks: int | None = None, num_microbatches: int | None = None) -> ExecutionPlan:
    """A legal plan."""
    random = Random(seed)
    ranks = num_ranks or random.randint(2, 4)
    return build_plan(random, random_modules(random, ranks, num_microbatches or random.randint(1, 4)), ranks)


def build_plan(random: Random, modules: Sequence[Module], num_ranks: int) -> ExecutionPlan:
    """A plan with a random legal order of the modules' stages."""
    maker = _Maker(random, modules, num_ranks)
    return maker.plan()


def chain_plan(num_ranks: int, num_microbatches: int, seed: int = 0, slots: int = 1) -> ExecutionPlan:
    """One module that trains, a chunk per rank and slot."""
    module = Module("lm", list(range(num_ranks)) * slots, [1] * num_microbatches, True)
    return build_plan(Random(seed), [module], num_ranks)


def chain_in_order(num_ranks: int, num_microbatches: int, seed: int = 0, slots: int = 1) -> ExecutionPlan:
    """A chain whose last chunk runs the microbatches' forwards in their order."""
    seeds = range(1000 * seed, 1000 * seed + 1000)
    plans = (chain_plan(num_ranks, num_microbatches, each, slots) for each in seeds)
    return next(plan for plan in plans if has_losses_in_order(plan))


def has_losses_in_order(plan: ExecutionPlan) -> bool:
    """Whether the last chunk runs the microbatches' forwards in their order."""
    last, pairs = len(plan.chunks) - 1, plan.pairs
    order = [int(pairs.microbatch[t]) for own in listed(plan) for k, t, _ in own if k is F and pairs.chunk[t] == last]
    return order == sorted(order)


class _Maker:
    def __init__(self, random: Random, modules: Sequence[Module], num_ranks: int) -> None:
        self.random, self.num_ranks = random, num_ranks
        self.num_microbatches = len(modules[0].parts)
        self.replicas = random.choice((1, 2))
        self.chunks: list[PlanChunk] = []
        self.pairs: list[tuple[int, int, int]] = []
        self.items: list[list[tuple[int, int]]] = []
        self.modules = {module.name: module for module in modules}
        last: dict[str, int] = {}
        for module in modules:
            self._add(module, last)
        self.number = {pair: i for i, pair in enumerate(self.pairs)}
        self.edges = [
            (self.number[s, mb, p], i)
            for i, (c, mb, part) in enumerate(self.pairs)
            for s in self.chunks[c].sources or ()
            for p in range(self.modules[self.chunks[s].module].parts[mb])
            if self.chunks[s].module != self.chunks[c].module or p == part
        ]

    def _add(self, module: Module, last: dict[str, int]) -> None:
        first_layer = 0
        spread = [
            [self._cut(parts) for parts in module.parts] for _ in range(self.replicas)
        ]  # [replica][microbatch][part]
        for place, rank in enumerate(module.ranks):
            count = self.random.randint(1, 3)
            sources = (len(self.chunks) - 1,) if place else tuple(last[name] for name in module.sources)
            words = tuple(("none",) * count if v == 0 else ("full",) * count for v in range(self.random.randint(1, 2)))
            self.chunks.append(PlanChunk(module.name, rank, first_layer, count, module.trains, words, sources=sources))
            first_layer += count
            for mb, parts in enumerate(module.parts):
                for part in range(parts):
                    self.pairs.append((len(self.chunks) - 1, mb, part))
                    self.items.append([spread[r][mb][part] for r in range(self.replicas)])
        last[module.name] = len(self.chunks) - 1

    def _cut(self, parts: int) -> list[tuple[int, int]]:
        """Items of the parts of a microbatch on a replica, the last ones perhaps empty."""
        mine = self.random.randint(1, parts) if parts else 0
        ends = sorted(self.random.sample(range(1, 12), mine))
        spans = list(zip([0, *ends[:-1]], ends, strict=True)) if mine else []
        return spans + [(0, 0)] * (parts - mine)

    def _rank(self, pair: int) -> int:
        return self.chunks[self.pairs[pair][0]].rank

    def _trains(self, pair: int) -> bool:
        return self.chunks[self.pairs[pair][0]].has_backward

    def plan(self) -> ExecutionPlan:
        split = {i for i in range(len(self.pairs)) if self.random.random() < 0.3}
        needs: dict[tuple[ActionKind, int], list[tuple[ActionKind, int]]] = {}
        for i in range(len(self.pairs)):
            needs[F, i] = []
            if self._trains(i):
                needs[(I if i in split else B), i] = [(F, i)]
                if i in split:
                    needs[W, i] = [(I, i)]

        def back(i: int) -> tuple[ActionKind, int]:
            return (I if i in split else B), i

        messages: list[tuple[int, int]] = []  # stages: 2 pair + phase
        gives: dict[tuple[ActionKind, int], list[int]] = {}
        takes: dict[tuple[ActionKind, int], list[int]] = {}
        for source, reader in self.edges:
            flows = [((F, source), (F, reader), 2 * source, 2 * reader)]
            if self._trains(source) and self._trains(reader):
                flows.append((back(reader), back(source), 2 * reader + 1, 2 * source + 1))
            for before, after, a, b in flows:
                needs[after].append(before)
                if self._rank(source) != self._rank(reader):
                    gives.setdefault(before, []).append(len(messages))
                    takes.setdefault(after, []).append(len(messages))
                    messages.append((a, b))
        actions = self._actions(needs, messages, gives, takes)
        return self._assembled(messages, actions)

    def _actions(self, needs, messages, gives, takes) -> list[list[Act]]:  # type: ignore[no-untyped-def]
        random = self.random
        actions: list[list[Act]] = [[] for _ in range(self.num_ranks)]
        unsent: list[list[int]] = [[] for _ in range(self.num_ranks)]
        done: set[tuple[ActionKind, int]] = set()
        launched: set[int] = set()
        kept: list[int] = []
        batch = 0
        eager = random.random()

        def launch() -> None:
            nonlocal batch
            for a, b in sorted({tuple(sorted(self._ends(messages[m]))) for m in kept}):
                together = [m for m in kept if tuple(sorted(self._ends(messages[m]))) == (a, b)]
                number = batch if len(together) > 1 or random.random() < 0.5 else -1
                batch += 1
                for m in together:
                    source, target = self._ends(messages[m])
                    actions[source].append((ISEND, m, number))
                    actions[target].append((IRECV, m, number))
                    unsent[source].append(m)
                    launched.add(m)
            kept.clear()

        waiting = dict(needs)
        while waiting:
            ready = [s for s, before in waiting.items() if all(b in done for b in before)]
            stage = random.choice(ready)
            del waiting[stage]
            done.add(stage)
            rank = self._rank(stage[1])
            if any(m not in launched for m in takes.get(stage, [])):
                launch()
            arrivals = list(takes.get(stage, []))
            random.shuffle(arrivals)
            actions[rank] += [(WAIT_IRECV, m, -1) for m in arrivals]
            actions[rank].append((stage[0], stage[1], -1))
            kept += gives.get(stage, [])
            if random.random() < eager:
                launch()
                for own, pending in enumerate(unsent):
                    if pending and random.random() < 0.2:
                        random.shuffle(pending)
                        actions[own] += [(WAIT_ISEND, m, -1) for m in pending]
                        pending.clear()
        launch()
        for own, pending in enumerate(unsent):
            actions[own] += [(WAIT_ISEND, m, -1) for m in pending]
        return actions

    def _ends(self, message: tuple[int, int]) -> tuple[int, int]:
        return self._rank(message[0] // 2), self._rank(message[1] // 2)

    def _assembled(self, messages: list[tuple[int, int]], actions: list[list[Act]]) -> ExecutionPlan:
        random, n = self.random, len(self.pairs)
        table = np.array(self.pairs, dtype=np.int32).reshape(-1, 3)
        ends = np.array(messages, dtype=np.int32).reshape(-1, 2)
        ranks = np.array([self._ends(m) for m in messages], dtype=np.int16).reshape(-1, 2)
        size = np.array([[self._bytes(m, r) for m in messages] for r in range(self.replicas)], dtype=np.int64)
        carried = np.array(
            [[self._carried(m, r) for m in messages] for r in range(self.replicas)], dtype=np.int32
        ).reshape(self.replicas, -1, 2)
        held = np.array([random.randint(1, 9) * self._trains(i) for i in range(n)], dtype=np.int64)
        memory = PlanMemory(
            held_bytes=held,
            forward_peak_bytes=held + np.array([random.randint(0, 5) for _ in range(n)]),
            backward_peak_bytes=np.array([random.randint(0, 5) for _ in range(n)], dtype=np.int64),
            static_bytes=np.array([random.randint(0, 50) for _ in range(self.num_ranks)], dtype=np.int64),
        )
        variant = [random.randrange(len(self.chunks[c].variants)) for c, _, _ in self.pairs]
        times = tuple(np.zeros(len(own)) for own in actions)
        return ExecutionPlan(
            name="random",
            model_hash="",
            num_ranks=self.num_ranks,
            num_replicas=self.replicas,
            num_microbatches=self.num_microbatches,
            chunks=tuple(self.chunks),
            pairs=PlanPairs(
                *(np.ascontiguousarray(column) for column in table.T),
                np.array(variant, dtype=np.int32),
                np.array(self.items, dtype=np.int32).reshape(n, self.replicas, 2).transpose(1, 0, 2).copy(),
            ),
            messages=PlanMessages(
                ends[:, 0],
                ends[:, 1],
                ranks[:, 0],
                ranks[:, 1],
                np.arange(len(messages), dtype=np.int32),
                size.reshape(self.replicas, -1),
                carried,
            ),
            actions=tuple(as_actions(own) for own in actions),
            limit_bytes=np.full(self.num_ranks, 1 << 40, dtype=np.int64),
            estimates=PlanEstimates(
                inputs_hash="",
                iteration_time_s=0.0,
                makespan_s=0.0,
                peak_memory_bytes=np.zeros(self.num_ranks, dtype=np.int64),
                start_s=times,
                end_s=times,
                memory=memory,
            ),
        )

    def _forward_ends(self, message: tuple[int, int]) -> tuple[int, int]:
        a, b = message
        return (b // 2, a // 2) if a % 2 else (a // 2, b // 2)

    def _carried(self, message: tuple[int, int], replica: int) -> tuple[int, int]:
        giver, taker = self._forward_ends(message)
        given, taken = self.items[giver][replica], self.items[taker][replica]
        own, other = (self.modules[self.chunks[self.pairs[p][0]].module] for p in (giver, taker))
        cut = [max(own.parts) > 1, max(other.parts) > 1]
        if own is not other and cut == [True, True]:
            low, high = max(given[0], taken[0]), min(given[1], taken[1])
            return (low, high) if low < high else (0, 0)
        return taken if own is not other and cut == [False, True] else given

    def _bytes(self, message: tuple[int, int], replica: int) -> int:
        a, b = self._carried(message, replica)
        return 100 * (b - a)


def as_actions(own: Sequence[Act]) -> RankActions:
    """Arrays of a rank's actions."""
    return RankActions(
        np.array([kind.code for kind, _, _ in own], dtype=np.int8),
        np.array([target for _, target, _ in own], dtype=np.int32),
        np.array([batch for _, _, batch in own], dtype=np.int32),
    )


def listed(plan: ExecutionPlan) -> list[list[Act]]:
    """The actions of every rank as a list."""
    kinds = list(ActionKind)
    return [
        [(kinds[k], t, b) for k, t, b in zip(own.kind.tolist(), own.target.tolist(), own.batch.tolist(), strict=True)]
        for own in plan.actions
    ]


def with_actions(
    plan: ExecutionPlan, actions: Sequence[Sequence[Act]], messages: PlanMessages | None = None
) -> ExecutionPlan:
    """The plan with other actions, and other messages."""
    times = tuple(np.zeros(len(own)) for own in actions)
    estimates = None if plan.estimates is None else replace(plan.estimates, start_s=times, end_s=times)
    made = tuple(as_actions(own) for own in actions)
    return replace(plan, actions=made, estimates=estimates, messages=messages or plan.messages)


def spelled(plan: ExecutionPlan, ranks: Sequence[str]) -> ExecutionPlan:
    """The plan with actions in letters: stages ``F0 B0 I0 W0`` of pairs; of messages ``s0 S0 r0 R0``, isend, its wait,
    irecv, its wait; ``s0+r1``: one batch."""
    letters = dict(zip("FBIWsSrRxX", ActionKind, strict=True))
    actions: list[list[Act]] = []
    for rank, line in enumerate(ranks):
        own: list[Act] = []
        for number, word in enumerate(line.split()):
            parts = word.split("+")
            own += [(letters[part[0]], int(part[1:]), number if len(parts) > 1 else -1) for part in parts]
        actions.append(own)
        assert rank < plan.num_ranks
    return with_actions(plan, actions)


def changed(plan: ExecutionPlan, block: str, name: str, change: Callable[[np.ndarray], None]) -> ExecutionPlan:
    """The plan with a column of ``pairs`` or ``messages`` changed in place."""
    old = getattr(plan, block)
    array = getattr(old, name).copy()
    change(array)
    return replace(plan, **{block: replace(old, **{name: array})})
