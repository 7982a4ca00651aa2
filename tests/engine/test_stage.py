"""Stages joined from random blocks, against every operator and every storage written out in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from semu.compile.join import build_stages
from semu.compile.segments import cost_stage
from semu.compile.stage import ROLES, StageProgram
from semu.compile.template import Template, TemplateLibrary, compile_template
from semu.graph.graph import Graph
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, OpKind, Port

LINK = Device(DeviceKind.LINK, port=Port.NVLINK, direction=Direction.OUT)
STREAMS = (Stream(Device(DeviceKind.COMPUTE), "compute"), Stream(LINK, "tp"), Stream(LINK, "cp"))
NAMES = tuple(stream.name for stream in STREAMS)

STEP_S = 2.0**-30


@dataclass
class RandomBlock:
    """A block with as many tensors in as out; gradients arrive for some outputs and leave for some inputs."""

    graph: Graph
    num_forward: int
    inputs: list[int]
    outputs: list[int]
    output_gradients: list[int | None]
    input_gradients: list[int | None]

    def template(self) -> Template:
        return compile_template(
            self.graph,
            self.num_forward,
            inputs=self.inputs,
            outputs=self.outputs,
            output_gradients=self.output_gradients,
            input_gradients=self.input_gradients,
        )

    def storage(self, tensor: int) -> int:
        return self.graph.tensors[tensor].storage


def random_block(random: Random, carry: int, behind: list[bool], before: list[bool], *, serial: bool) -> RandomBlock:
    """Operators on three streams that read and write at random; some arriving tensors nobody reads."""
    graph = Graph()

    def operate(known: list[int], must: list[int], count: int) -> None:
        new: list[int] = []
        for number in range(max(count, len(must))):
            reads = must[number : number + 1] + random.sample(known, min(len(known), random.randint(1, 2)))
            made = [graph.add_tensor((1,), DType.UINT8) for _ in range(random.randint(1, 2))]
            own = [tensor for tensor in reads if tensor in new]  # changed in place, as collectives do
            changed = [random.choice(own)] if own and random.random() < 0.4 else []
            stream = random.choice(STREAMS)
            last = graph.operators[-1] if graph.operators else None
            after = [last.index] if serial and last is not None and last.stream != stream else []
            graph.add_operator(OpKind.CUSTOM, stream, inputs=reads, outputs=[*made, *changed], after=after)
            known += made
            new += made

    inputs = [graph.add_input((1,), DType.UINT8, name=f"x{k}") for k in range(carry)]
    forward = list(inputs)
    operate(forward, random.sample(inputs, random.randint(0, carry)), random.randint(carry, 7))
    num_forward = len(graph.operators)
    outputs = random.sample(forward, carry)
    arrive = [graph.add_input((1,), DType.UINT8, name=f"dy{k}") if flag else None for k, flag in enumerate(behind)]
    gradients = [tensor for tensor in arrive if tensor is not None]
    known = [*gradients, *random.sample(forward, min(3, len(forward)))]
    if gradients:
        operate(known, random.sample(gradients, random.randint(0, len(gradients))), random.randint(carry, 7))
    fresh = gradients + [tensor for tensor in known if tensor > max(gradients, default=0)]
    leaving = iter(random.sample(fresh, sum(before)))
    leave = [next(leaving) if flag else None for flag in before]
    return RandomBlock(graph, num_forward, inputs, outputs, arrive, leave)


@dataclass
class Written:
    """One operator written out: times in steps of the grid, homes of the storages it touches."""

    block: int
    position: int
    stream: str
    touches: set[tuple[int, int]]
    latency: int = 0
    after: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0


class Chain:
    """Random blocks one after another, joined by semu and by hand."""

    def __init__(self, seed: int, *, serial: bool, trains: bool = True) -> None:
        self.random = Random(seed)
        self.serial = serial
        carry, count = self.random.randint(1, 3), self.random.randint(1, 4)
        flags = [[self.random.random() < 0.7 for _ in range(carry)] for _ in range(count + 1)]
        for flag in flags:
            flag[self.random.randrange(carry)] = True
            flag[:] = [value and trains for value in flag]
        self.blocks = [random_block(self.random, carry, flags[i + 1], flags[i], serial=serial) for i in range(count)]
        self.library = TemplateLibrary([block.template() for block in self.blocks])
        self.forward, self.backward = build_stages(self.library, range(count), NAMES, serial=serial)
        self.same: dict[tuple[int, int], tuple[int, int]] = {}
        for i, block in enumerate(self.blocks[1:], start=1):
            self._join(i, block.inputs, self.blocks[i - 1].outputs)
        for i in range(count - 2, -1, -1):
            following = self.blocks[i + 1]
            self._join(i, self.blocks[i].output_gradients, following.input_gradients, other=i + 1)
        self.draw()

    def _join(self, i: int, here: list, there: list, other: int | None = None) -> None:  # type: ignore[type-arg]
        j = i - 1 if other is None else other
        for mine, theirs in zip(here, there, strict=True):
            if mine is not None and theirs is not None:
                a, b = self.home(i, self.blocks[i].storage(mine)), self.home(j, self.blocks[j].storage(theirs))
                if a != b:
                    self.same[a] = b

    def home(self, block: int, storage: int) -> tuple[int, int]:
        name = (block, storage)
        while name in self.same:
            name = self.same[name]
        return name

    def draw(self) -> None:
        """Latencies of the operators and sizes of the storages, at random."""
        rows = [(i, p) for i, block in enumerate(self.blocks) for p in range(len(block.graph.operators))]
        self.steps = {row: self.random.randint(1, 9) for row in rows}
        self.latency = np.array([self.steps[row] for row in rows]) * STEP_S
        storages = [(i, s) for i, block in enumerate(self.blocks) for s in range(len(block.graph.storages))]
        drawn = {name: self.random.randint(1, 1000) for name in storages}
        self.bytes = {name: drawn[self.home(*name)] for name in storages}
        self.size = np.array([self.bytes[name] for name in storages])

    def homes(self, block: int, tensors: list) -> set[tuple[int, int]]:  # type: ignore[type-arg]
        return {self.home(block, self.blocks[block].storage(t)) for t in tensors if t is not None}

    def write(self, phase: str) -> list[Written]:
        """The operators of a stage in issue order, timed."""
        written: list[Written] = []
        writer: dict[tuple[int, int], int] = {}
        order = range(len(self.blocks)) if phase == "F" else range(len(self.blocks) - 1, -1, -1)
        for i in order:
            block = self.blocks[i]
            half = slice(0, block.num_forward) if phase == "F" else slice(block.num_forward, None)
            for operator in block.graph.operators[half]:
                touches = self.homes(i, [*operator.inputs, *operator.outputs])
                entry = Written(i, operator.index, operator.stream.name, touches, self.steps[i, operator.index])
                entry.after = [writer[home] for home in self.homes(i, list(operator.inputs)) if home in writer]
                same = [n for n, other in enumerate(written) if other.stream == entry.stream]
                entry.after += same[-1:]
                if self.serial and written:
                    entry.after.append(len(written) - 1)
                entry.start = max((written[n].end for n in entry.after), default=0)
                entry.end = entry.start + entry.latency
                writer.update({home: len(written) for home in self.homes(i, list(operator.outputs))})
                written.append(entry)
        return written

    def lifetimes(self, phase: str) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """What exists before a stage and what survives it."""
        forward = {home for entry in self.write("F") for home in entry.touches}
        arriving = self.homes(0, self.blocks[0].inputs)
        saved = {home for entry in self.write("B") for home in entry.touches} & (forward | arriving)
        end = len(self.blocks) - 1
        if phase == "F":
            return arriving, saved | self.homes(end, self.blocks[-1].outputs)
        return saved | self.homes(end, self.blocks[-1].output_gradients), self.homes(0, self.blocks[0].input_gradients)

    def memory(self, phase: str) -> dict[int, int]:
        """Bytes relative to the stage's beginning, at every step at which they change."""
        before, after = self.lifetimes(phase)
        change: dict[int, int] = {0: 0}
        written = self.write(phase)
        stage_end = max(entry.end for entry in written)
        for home in before.union(*(entry.touches for entry in written)):
            users = [entry for entry in written if home in entry.touches]
            if home not in before:
                first = min(entry.start for entry in users)
                change[first] = change.get(first, 0) + self.bytes[home]
            if home not in after:  # one that arrives and is not touched goes with the stage
                last = max((entry.end for entry in users), default=stage_end)
                change[last] = change.get(last, 0) - self.bytes[home]
        level, levels = 0, {}
        for step in sorted(change):
            level += change[step]
            levels[step] = level
        return levels


def stages(chain: Chain) -> list[tuple[str, StageProgram]]:
    assert chain.backward is not None
    return [("F", chain.forward), ("B", chain.backward)]


CHAINS = pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
SEEDS = pytest.mark.parametrize("seed", range(40))


@SEEDS
@CHAINS
def test_times_and_exposed_communication(seed: int, serial: bool) -> None:
    chain = Chain(seed, serial=serial)
    for phase, stage in stages(chain):
        written = chain.write(phase)
        start, end = stage.times(chain.latency)
        assert start.tolist() == [entry.start * STEP_S for entry in written]
        assert end.tolist() == [entry.end * STEP_S for entry in written]
        costs = cost_stage(stage, chain.latency[None, :], chain.size[None, :])
        longest = max(entry.end for entry in written)
        kernels = sum(entry.latency for entry in written if entry.stream == "compute")
        assert costs.latency.tolist() == [longest * STEP_S]
        assert costs.exposed[0, 0] == 0.0
        assert costs.exposed.sum() == (longest - kernels) * STEP_S
        if serial:  # one operator at a time: a stream is exposed for as long as its operators take
            assert stage.is_serial
            for number, name in enumerate(NAMES[1:], start=1):
                busy = sum(entry.latency for entry in written if entry.stream == name)
                assert costs.exposed[0, number] == busy * STEP_S


@SEEDS
def test_operators_that_wait_for_something_outside(seed: int) -> None:
    chain = Chain(seed, serial=False)
    random = Random(seed)
    for phase, stage in stages(chain):
        written = chain.write(phase)
        release = [random.choice([0, random.randint(1, 60)]) for _ in written]
        for entry, earliest in zip(written, release, strict=True):
            entry.start = max([earliest, *(written[n].end for n in entry.after)])
            entry.end = entry.start + entry.latency
        start, end = stage.times(chain.latency, np.array(release) * STEP_S)
        assert start.tolist() == [entry.start * STEP_S for entry in written]
        assert end.tolist() == [entry.end * STEP_S for entry in written]


@SEEDS
@CHAINS
def test_memory(seed: int, serial: bool) -> None:
    chain = Chain(seed, serial=serial)
    for phase, stage in stages(chain):
        levels = chain.memory(phase)
        costs = cost_stage(stage, chain.latency[None, :], chain.size[None, :])
        assert costs.net.tolist() == [list(levels.values())[-1]]
        assert costs.peak.tolist() == [max(0, *levels.values())]
        operator = int(costs.peak_op[0])
        assert (operator < 0) == (costs.peak[0] == 0)
        if operator >= 0:
            assert levels[chain.write(phase)[operator].start] == costs.peak[0]


@SEEDS
def test_expansion_is_the_same_curve(seed: int) -> None:
    chain = Chain(seed, serial=False)
    for phase, stage in stages(chain):
        expanded = stage.expand(chain.latency, chain.size)
        assert expanded.event_bytes.shape == (len(ROLES), len(expanded.event_time))
        total = expanded.event_bytes.sum(axis=0)
        for step, level in chain.memory(phase).items():
            assert total[expanded.event_time <= step * STEP_S].sum() == level
        assert (np.diff(expanded.event_time) >= 0).all()


@SEEDS
def test_memory_of_a_forward_and_its_backward_cancels(seed: int) -> None:
    """After both stages only what leaves (carry and gradients) is there, and what arrived is gone."""
    chain = Chain(seed, serial=True)
    net = sum(int(cost_stage(stage, chain.latency[None, :], chain.size[None, :]).net[0]) for _, stage in stages(chain))
    arrived = chain.lifetimes("F")[0] | chain.homes(len(chain.blocks) - 1, chain.blocks[-1].output_gradients)
    left = chain.homes(len(chain.blocks) - 1, chain.blocks[-1].outputs) - chain.lifetimes("B")[0]
    left |= chain.homes(0, chain.blocks[0].input_gradients)
    assert net == sum(chain.bytes[h] for h in left) - sum(chain.bytes[h] for h in arrived)


@SEEDS
def test_what_leaves_and_whether_it_is_kept(seed: int) -> None:
    chain = Chain(seed, serial=True)
    last = len(chain.blocks) - 1
    saved = chain.lifetimes("B")[0]
    sizes = [chain.bytes[chain.home(last, chain.blocks[last].storage(t))] for t in chain.blocks[last].outputs]
    assert [int(chain.size[row]) for row in chain.forward.leaving] == sizes
    kept = [chain.home(last, chain.blocks[last].storage(t)) in saved for t in chain.blocks[last].outputs]
    assert list(chain.forward.leaving_kept) == kept
    assert chain.backward is not None
    missing = [row < 0 for row in chain.backward.leaving]
    assert missing == [tensor is None for tensor in chain.blocks[0].input_gradients]


@SEEDS
def test_many_shapes_at_once_are_each_shape_alone(seed: int) -> None:
    chain = Chain(seed, serial=False)
    latency, size = [chain.latency], [chain.size]
    for _ in range(4):
        chain.draw()
        latency.append(chain.latency)
        size.append(chain.size)
    for _, stage in stages(chain):
        together = cost_stage(stage, np.stack(latency), np.stack(size))
        for number, (one, bytes_of) in enumerate(zip(latency, size, strict=True)):
            alone = cost_stage(stage, one[None, :], bytes_of[None, :])
            for name in ("latency", "exposed", "peak", "net", "peak_op"):
                assert np.array_equal(getattr(together, name)[number], getattr(alone, name)[0]), name


@pytest.mark.parametrize("seed", range(10))
def test_a_chunk_without_gradients_has_no_backward_stage(seed: int) -> None:
    chain = Chain(seed, serial=True, trains=False)
    assert chain.backward is None
    levels = chain.memory("F")
    costs = cost_stage(chain.forward, chain.latency[None, :], chain.size[None, :])
    assert costs.net.tolist() == [list(levels.values())[-1]]
    leaving = chain.homes(len(chain.blocks) - 1, chain.blocks[-1].outputs)
    assert set(chain.forward.leaving_kept) == {False}
    assert costs.net[0] == sum(chain.bytes[h] for h in leaving) - sum(chain.bytes[h] for h in chain.lifetimes("F")[0])
