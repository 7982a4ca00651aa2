"""FlexPipe's Algorithm 1 in plain Python, written from the paper: what the rule machine must do, 100 times slower."""

from __future__ import annotations

from collections.abc import Callable

from semu.graph.operator import Phase
from semu.schedule.rules.expressions import Size, value_of
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Breadth, Oldest
from semu.schedule.shape import StageKey
from semu.schedule.study import PipelineStudy

F, B = Phase.FORWARD, Phase.BACKWARD


class Actor:
    """A rank: its reorder queues and the state of its priorities."""

    def __init__(self, rank: int, study: PipelineStudy, rule: Priority) -> None:
        shape = study.shape
        size = Size(shape.num_ranks, rank, shape.num_slots, shape.num_microbatches)
        self.rank, self.rule, self.shape = rank, rule, shape
        self.queue: dict[Phase, list[StageKey]] = {F: [], B: []}
        self.arriving: list[tuple[float, StageKey]] = []
        self.free, self.level = 0.0, 0
        self.in_flight = dict.fromkeys(shape.chunks_of(rank), 0)
        self.unit = dict(zip((F, B), (value_of(unit, size, "unit") for unit in rule.units), strict=True))
        self.way = {F: rule.forward, B: rule.backward}
        self.run = {phase: 0 if way.run is None else value_of(way.run, size, "run") for phase, way in self.way.items()}
        self.position: dict[Phase, int] = {F: 0, B: 0}
        self.stepped: dict[Phase, int] = {F: 0, B: 0}
        self.last: list[Phase] = []
        self.left = {
            phase: {
                chunk: len(shape.every_part(chunk)) * (phase is F or shape.has_backward[chunk])
                for chunk in self.in_flight
            }
            for phase in (F, B)
        }

    def direction(self, phase: Phase) -> list[int]:
        """The rank's chunks as the reorder queue is traversed."""
        flows = self.shape.chunk_flow
        depth = {c: sum(flow == flows[c] for flow in flows[:c]) for c in self.in_flight}
        return sorted(self.in_flight, key=depth.__getitem__, reverse=type(self.way[phase]) is not Breadth)

    def types(self) -> list[Phase]:
        """``sort_inst_types``."""
        first = {"backward": B, "forward": F, "alternate": F}[self.rule.prefer]
        if self.last:
            same = 0
            for phase in reversed(self.last):
                if phase is not self.last[-1]:
                    break
                same += 1
            if same < self.unit[self.last[-1]]:
                first = self.last[-1]
            elif self.rule.prefer == "alternate":
                first = F if self.last[-1] is B else B
        return [first, F if first is B else B]

    def fetch(self, phase: Phase, refuses: Callable[[StageKey], bool]) -> StageKey | str:
        """``fetch_inst``: a stage, or why there is none."""
        ready, chunks, way = self.queue[phase], self.direction(phase), self.way[phase]

        def _front(chunk: int) -> StageKey:
            return (max if way.is_last else min)(
                (stage for stage in ready if stage.chunk == chunk), key=lambda stage: stage.microbatch
            )

        has = [any(stage.chunk == chunk for stage in ready) for chunk in chunks]
        if self.run[phase]:
            at = self.position[phase]
            if self.stepped[phase] >= self.run[phase] or not self.left[phase][chunks[at]]:
                order = [(at + 1 + n) % len(chunks) for n in range(len(chunks))]
                at = next(n for n in order if self.left[phase][chunks[n]])
                self.position[phase], self.stepped[phase] = at, 0
            if not has[at]:
                if self.rule.when_blocked == "wait":
                    return "run waits"
                if not any(has):
                    return "empty"
                at = next(n for n in ((at + 1 + k) % len(chunks) for k in range(len(chunks))) if has[n])
                self.position[phase], self.stepped[phase] = at, 0
            stage = _front(chunks[at])
            return "refused" if refuses(stage) else stage
        if not any(has):
            return "empty"
        fronts = [_front(chunk) for chunk, some in zip(chunks, has, strict=True) if some]
        allowed = [stage for stage in fronts if not refuses(stage)]
        if not allowed:
            return "refused"
        if isinstance(way, Oldest):
            return min(allowed, key=lambda stage: stage.microbatch // self.shape.chunk_split[stage.chunk])
        return allowed[0]


def run_algorithm_1(study: PipelineStudy, rule: Priority, limits: list[int]) -> list[list[StageKey]]:
    """The orders; shorter than the pipeline where the actors wait for ever.

    Args:
        limits: stages that each rank may hold, for stages of a byte each under admission by stage.
    """
    shape, graph, costs = study.shape, study.arrays, study.costs
    actors = [Actor(rank, study, rule) for rank in range(shape.num_ranks)]
    number = {graph.key(4 * pair + code): 4 * pair + code for pair in range(graph.num_pairs) for code in (0, 1)}
    stages = [
        stage for stage in number
        if stage.microbatch in shape.every_part(stage.chunk) and (stage.phase is F or shape.has_backward[stage.chunk])
    ]  # fmt: skip
    waits = {stage: set(graph.predecessors(stage)) for stage in stages}
    arrival = dict.fromkeys(stages, 0.0)
    orders: list[list[StageKey]] = [[] for _ in actors]
    wake = [0.0] * len(actors)
    for stage in stages:
        if not waits[stage]:
            actors[shape.chunk_rank[stage.chunk]].arriving.append((0.0, stage))
    while min(wake) < float("inf"):
        time = min(wake)
        actor = actors[wake.index(time)]
        for when, stage in [*actor.arriving]:
            if when <= time:
                actor.queue[stage.phase].append(stage)
                actor.arriving.remove((when, stage))

        def _refuses(stage: StageKey, actor: Actor = actor, time: float = time) -> bool:
            if stage.phase is B:
                return False
            held = int(costs.delta_bytes[number[stage]])
            if actor.level + held > limits[actor.rank]:
                return True
            soon = time + float(costs.latency_s[number[stage]])
            return "patient" in rule.checks and any(when < soon for when, other in actor.arriving if other.phase is B)

        chosen: StageKey | None = None
        for phase in actor.types():
            if not any(actor.left[phase].values()):
                continue
            found = actor.fetch(phase, _refuses)
            if isinstance(found, StageKey):
                chosen = found
                break
            stops = found == "run waits" or (found == "empty" and rule.prefer == "alternate")
            if rule.when_blocked == "wait" and B in actor.last and stops:
                break
        if chosen is None:
            wake[actor.rank] = min((when for when, _ in actor.arriving), default=float("inf"))
            continue
        orders[actor.rank].append(chosen)
        actor.queue[chosen.phase].remove(chosen)
        actor.left[chosen.phase][chosen.chunk] -= 1
        actor.stepped[chosen.phase] += 1
        actor.last.append(chosen.phase)
        actor.level += int(costs.delta_bytes[number[chosen]])
        actor.free = wake[actor.rank] = time + float(costs.latency_s[number[chosen]])
        for stage in stages:
            if chosen in waits[stage]:
                there = shape.chunk_rank[stage.chunk]
                way = 0.0 if there == actor.rank else float(costs.transfer_s[number[chosen]])
                arrival[stage] = max(arrival[stage], actor.free + way)
                waits[stage].discard(chosen)
                if not waits[stage]:
                    actors[there].arriving.append((arrival[stage], stage))
                    if there != actor.rank:
                        wake[there] = min(wake[there], max(arrival[stage], actors[there].free))
    return orders
