"""Stages cut into segments, against the same stages run operator by operator in plain Python and by ``run_stage``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.compile.join import build_stages
from semu.compile.segments import Segment, WholeStage, cost_stage, split_stage
from semu.compile.stage import StageCosts, StageProgram
from semu.compile.template import Template, TemplateLibrary, compile_template, stream_names
from semu.costs.roofline import CostModel
from semu.costs.segment_keys import SegmentKeys
from semu.graph.dim import Dim, Poly
from semu.graph.graph import Graph
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.cluster import Cluster
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, OpKind, Port
from semu.hardware.network import CommGroup

STEP_S = 2.0**-40
NUM_ROWS, NUM_SIZE_ROWS, NUM_STREAMS = 5, 6, 3

# Slots of a block: what it gets from the block before and hands on, what it makes and uses up, what it leaves
# behind, and what was there for it from the beginning.
CARRY_IN, CARRY_OUT, TEMPORARY, SAVED, GIVEN = range(5)


@dataclass(frozen=True)
class BlockKind:
    """Operators as (cost row, stream, slots touched); the size row of each slot."""

    operators: tuple[tuple[int, int, tuple[int, ...]], ...]
    size_rows: tuple[int, ...]


SLOTS = st.lists(st.integers(0, 4), max_size=3, unique=True).map(tuple)
OPERATORS = st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(0, NUM_STREAMS - 1), SLOTS)
KINDS = st.builds(
    BlockKind,
    st.lists(OPERATORS, min_size=1, max_size=4).map(tuple),
    st.tuples(*[st.integers(0, NUM_SIZE_ROWS - 1)] * 5),
)
SEQUENCES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4).map(
    lambda runs: list(itertools.chain.from_iterable([kind] * count for kind, count in runs))
)


def pointer(lengths: Sequence[int]) -> np.ndarray:
    return np.array([0, *itertools.accumulate(lengths)], dtype=np.int32)


def program_of(kinds: Sequence[BlockKind], sequence: Sequence[int], *, descending: bool) -> StageProgram:
    """Blocks one after another, every operator after the one before it."""
    rows: list[int] = []
    block: list[int] = []
    stream: list[int] = []
    touches: list[list[int]] = []
    size_row = [kinds[sequence[0]].size_rows[CARRY_IN]]
    before, after = [True], [False]
    carry = 0
    for position, number in enumerate(sequence):
        kind = kinds[number]
        storage = {CARRY_IN: carry}
        for slot in (CARRY_OUT, TEMPORARY, SAVED, GIVEN):
            storage[slot] = len(size_row)
            size_row.append(kind.size_rows[slot])
            before.append(slot == GIVEN)
            after.append(slot == SAVED)
        carry = storage[CARRY_OUT]
        for row, on, slots in kind.operators:
            rows.append(row)
            block.append(len(sequence) - 1 - position if descending else position)
            stream.append(on)
            touches.append([storage[slot] for slot in slots])
    flat = [storage for touched in touches for storage in touched]
    return StageProgram(
        rows=np.array(rows, dtype=np.int32),
        block=np.array(block, dtype=np.int32),
        pred_ptr=pointer([int(n > 0) for n in range(len(rows))]),
        pred=np.arange(len(rows) - 1, dtype=np.int32),
        stream=np.array(stream, dtype=np.int32),
        touch_ptr=pointer([len(touched) for touched in touches]),
        touch=np.array(flat, dtype=np.int32),
        size_row=np.array(size_row, dtype=np.int32),
        role=np.zeros(len(size_row), dtype=np.int32),
        alive_before=np.array(before),
        alive_after=np.array(after),
        num_streams=NUM_STREAMS,
    )


def by_hand(
    program: StageProgram, latency: Sequence[float], size: Sequence[int]
) -> tuple[float, list[float], int, int, int]:
    """Latency, exposed, peak, net and operator at the peak of one shape."""
    exposed = [0.0] * program.num_streams
    total, live, peak, peak_op = 0.0, 0, 0, -1
    alive = program.alive_before.tolist()
    left = program.touches.tolist()
    for op, row in enumerate(program.rows.tolist()):
        total += latency[row]
        if program.stream[op]:
            exposed[program.stream[op]] += latency[row]
        touched = program.touch[program.touch_ptr[op] : program.touch_ptr[op + 1]].tolist()
        live += sum(size[program.size_row[storage]] for storage in touched if not alive[storage])
        for storage in touched:
            alive[storage] = True
            left[storage] -= 1
        if live > peak:
            peak, peak_op = live, op
        live -= sum(size[program.size_row[s]] for s in touched if not left[s] and not program.alive_after[s])
    unread = program.alive_before & ~program.alive_after & (program.touches == 0)
    live -= sum(size[row] for row in program.size_row[unread].tolist())
    return total, exposed, peak, live, peak_op


def assert_same(one: StageCosts, other: StageCosts, *, but_exposed: bool = False) -> None:
    """Two communications in a row are both exposed, or all of it is the second one's: only the sum is the same."""
    for name in ("latency", "peak", "net", "peak_op"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    if but_exposed:
        assert np.array_equal(one.exposed.sum(axis=1), other.exposed.sum(axis=1))
    else:
        assert np.array_equal(one.exposed, other.exposed)


@given(
    kinds=st.lists(KINDS, min_size=3, max_size=3),
    sequence=SEQUENCES,
    descending=st.booleans(),
    latency=st.lists(st.lists(st.integers(0, 2**41), min_size=NUM_ROWS, max_size=NUM_ROWS), min_size=1, max_size=3),
    size=st.lists(st.integers(0, 4), min_size=NUM_SIZE_ROWS, max_size=NUM_SIZE_ROWS),
)
def test_a_stage_is_the_sum_of_its_segments(
    kinds: list[BlockKind], sequence: list[int], descending: bool, latency: list[list[int]], size: list[int]
) -> None:
    program = program_of(kinds, sequence, descending=descending)
    assert program.is_serial
    seconds = np.array(latency) * STEP_S
    sizes = np.array([[bytes_of * (number + 1) for bytes_of in size] for number in range(len(latency))])
    costs = cost_stage(program, seconds, sizes)
    by_row = np.ascontiguousarray(seconds.T), np.ascontiguousarray(sizes.T)
    if seconds.min() > 0:  # operators without length may stand in another order on other streams
        assert_same(costs, WholeStage(program).run(*by_row), but_exposed=True)
    for number in range(len(latency)):
        total, exposed, peak, net, peak_op = by_hand(program, seconds[number].tolist(), sizes[number].tolist())
        assert costs.latency[number] == total
        assert costs.exposed[number].tolist() == exposed
        assert (costs.peak[number], costs.net[number], costs.peak_op[number]) == (peak, net, peak_op)


@pytest.mark.parametrize("size", [(7, 7, 3, 0, 0), (7, 7, 3, 2, 0), (7, 7, 3, 0, 2), (7, 9, 3, 1, 1)])
@pytest.mark.parametrize("num_shapes", [1, 1023, 1024, 1025, 2500])
def test_a_long_chain_of_layers(size: tuple[int, ...], num_shapes: int) -> None:
    """Layers that leave nothing behind, some of it, or less than there was; more shapes than go in one block."""
    layer = BlockKind(
        ((0, 0, (CARRY_IN, TEMPORARY)), (1, 1, (TEMPORARY, SAVED)), (2, 0, (SAVED, GIVEN, CARRY_OUT))), (0, 1, 2, 3, 4)
    )
    program = program_of([layer], [0] * 40, descending=False)
    plan = split_stage(program)
    assert len(plan.distinct) <= 3
    assert sum(run.count for run in plan.runs) == 40
    random = np.random.default_rng(0)
    seconds = random.integers(1, 2**40, (num_shapes, NUM_ROWS)) * STEP_S
    sizes = np.array(size)[None, :] * random.integers(1, 5, (num_shapes, 1))
    costs = cost_stage(program, seconds, sizes)
    assert_same(costs, WholeStage(program).run(np.ascontiguousarray(seconds.T), np.ascontiguousarray(sizes.T)))


# -- stages joined from templates -------------------------------------------------------------------------------------
COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")
LINK = Device(DeviceKind.LINK, port=Port.NVLINK, direction=Direction.OUT)
TP, WIDE = Stream(LINK, "tp"), Stream(LINK, "wide")
GROUPS = {TP: CommGroup("tp", 4, 1), WIDE: CommGroup("wide", 16, 2)}
TOKENS, PAIRS = Poly.symbol("text.tokens"), Poly.symbol("text.pairs")


def layer_template(
    *,
    flop: Dim = 1000 * TOKENS,
    traffic: Dim = 8 * TOKENS,
    wire: Dim = 4 * TOKENS,
    width: Dim = 8 * TOKENS,
    hidden_width: Dim = 8 * TOKENS,
    kind: OpKind = OpKind.MATMUL,
    tokens: Dim = TOKENS,
    pairs: Dim = PAIRS,
    share: int = 2,
) -> Template:
    """A layer with attention and collectives that saves its input and hands on its output."""
    graph = Graph()
    x = graph.add_input((width,), DType.BF16, name="x")
    y = graph.add_tensor((width,), DType.BF16)
    hidden = graph.add_tensor((hidden_width,), DType.BF16)
    attention = (tokens, tokens, pairs, 8, 8, 128, 128, share)
    graph.add_operator(kind, COMPUTE, flop=flop, mem_bytes=traffic, inputs=[x], outputs=[hidden])
    graph.add_operator(
        OpKind.ATTENTION_FORWARD, COMPUTE, flop=256 * PAIRS, mem_bytes=9 * TOKENS, inputs=[hidden], key=attention
    )
    for stream in GROUPS:
        last = len(graph.operators) - 1
        graph.add_operator(OpKind.ALL_REDUCE, stream, net_bytes=wire, inputs=[hidden], outputs=[hidden], after=[last])
    last = len(graph.operators) - 1
    graph.add_operator(OpKind.ACTIVATION, COMPUTE, mem_bytes=3 * TOKENS, inputs=[hidden], outputs=[y], after=[last])
    num_forward = len(graph.operators)
    dy = graph.add_input((width,), DType.BF16, name="dy")
    dx = graph.add_tensor((width,), DType.BF16)
    graph.add_operator(kind, COMPUTE, flop=2 * flop, mem_bytes=traffic, inputs=[dy, x], outputs=[dx])
    return compile_template(
        graph,
        num_forward,
        inputs=[x],
        outputs=[y],
        output_gradients=[dy],
        input_gradients=[dx],
        groups=GROUPS,
    )


def stages_of(library: TemplateLibrary, blocks: Sequence[int]) -> tuple[StageProgram, StageProgram]:
    forward, backward = build_stages(library, blocks, stream_names(library))
    assert backward is not None
    return forward, backward


def keys_of(templates: Sequence[Template], blocks: Sequence[int], profile: DeviceProfile | None = None) -> set[bytes]:
    """Keys of all segments of both stages of a chunk."""
    library = TemplateLibrary(templates)
    keys = SegmentKeys(CostModel(library, profile if profile is not None else Cluster("h100", 1, 1).profile))
    return {keys.key(segment) for stage in stages_of(library, blocks) for segment in split_stage(stage).distinct}


def test_a_stage_of_many_layers_has_no_more_segments_than_one_of_few() -> None:
    library = TemplateLibrary([layer_template()])
    for few, many in zip(stages_of(library, [0] * 4), stages_of(library, [0] * 60), strict=True):
        assert len(split_stage(many).distinct) == len(split_stage(few).distinct)
        assert len(split_stage(many).runs) == len(split_stage(few).runs)
    assert keys_of([layer_template()], [0] * 4) == keys_of([layer_template()], [0] * 60)


def test_keys_are_those_of_the_content() -> None:
    """The same layers in another library, at other rows, with names elsewhere: the same keys."""
    layer, other = layer_template(), layer_template(flop=999 * TOKENS)
    assert keys_of([layer], [0] * 4) == keys_of([other, layer], [1] * 4)
    assert keys_of([layer, other], [0, 0, 0, 1]) & keys_of([layer], [0] * 4)


CHANGED: dict[str, dict[str, Any]] = {
    "FLOP": {"flop": 1001 * TOKENS},
    "another symbol": {"flop": 1000 * PAIRS},
    "a power": {"flop": 1000 * TOKENS * TOKENS},
    "a constant": {"traffic": 8 * TOKENS + 1},
    "bytes on the wire": {"wire": 5 * TOKENS},
    "what is handed on": {"width": 9 * TOKENS},
    "what is used up": {"hidden_width": 9 * TOKENS},
    "another kind": {"kind": OpKind.NORM},
    "attention's tokens": {"tokens": 2 * TOKENS},
    "attention's pairs": {"pairs": 2 * PAIRS},
    "attention's mask": {"share": 1},
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_costs_are_other_keys(name: str) -> None:
    """One of the two stages at least does not have a segment in common."""
    plain, changed = TemplateLibrary([layer_template()]), TemplateLibrary([layer_template(**CHANGED[name])])
    profile = Cluster("h100", 1, 1).profile
    keys, other_keys = SegmentKeys(CostModel(plain, profile)), SegmentKeys(CostModel(changed, profile))
    common = [
        {keys.key(segment) for segment in split_stage(stage).distinct}
        & {other_keys.key(segment) for segment in split_stage(other).distinct}
        for stage, other in zip(stages_of(plain, [0] * 4), stages_of(changed, [0] * 4), strict=True)
    ]
    assert set() in common


@pytest.mark.slow
def test_every_number_that_changes_a_latency_changes_the_keys() -> None:
    profile, library = Cluster("h100", 1, 1).profile, TemplateLibrary([layer_template()])
    columns = library.evaluate({"text.tokens": np.array([1, 700, 90_000]), "text.pairs": np.array([1, 9_000, 10**9])})
    plain = CostModel(library, profile).latencies(columns)
    before = keys_of([layer_template()], [0] * 4, profile)
    deciding = []
    for name, number in dict(profile.numbers()).items():
        at_least_one = name.endswith((".p", ".switch", ".cached", ".partial_tile", ".between", "training_products"))
        factor = 1.25 if name.startswith("software.") or at_least_one else 2 if name == "fp8_layouts" else 0.75
        changed = profile.override({name: number.value * factor if math.isfinite(number.value) else 3.0})
        if (CostModel(library, changed).latencies(columns) != plain).any():
            deciding.append(name)
            assert keys_of([layer_template()], [0] * 4, changed) != before, name
    for part in ("attention_forward.s0_tokens", "matmul.p", "matmul.t0_s", "mem_bytes_per_s", "nic_bytes_per_s", "c_s"):
        assert any(name.endswith(part) for name in deciding), part


def test_other_structures_are_other_keys() -> None:
    library = TemplateLibrary([layer_template(hidden_width=9 * TOKENS)])
    keys = SegmentKeys(CostModel(library, Cluster("h100", 1, 1).profile))
    segment = split_stage(stages_of(library, [0] * 4)[0]).distinct[0]
    assert isinstance(segment, Segment)
    others = [
        segment,
        replace(segment, stream=segment.stream[::-1].copy()),
        replace(segment, num_streams=segment.num_streams + 1),
        replace(segment, come=segment.come - 1),
        replace(segment, gone=segment.gone - 1),
        replace(segment, rows=segment.rows[::-1].copy()),
        replace(segment, size_rows=np.roll(segment.size_rows, 1)),
    ]
    assert len({keys.key(other) for other in others}) == len(others)


def test_symbols_are_those_that_are_used() -> None:
    video = Poly.symbol("video.tokens")
    library = TemplateLibrary([layer_template(), layer_template(tokens=video), layer_template(hidden_width=video)])
    keys = SegmentKeys(CostModel(library, Cluster("h100", 1, 1).profile))
    texts = ("text.pairs", "text.tokens")
    for number, names in ((0, texts), (1, (*texts, "video.tokens")), (2, (*texts, "video.tokens"))):
        forward, backward = (
            {keys.symbols(segment) for segment in split_stage(stage).distinct} for stage in stages_of(library, [number])
        )
        assert (forward, backward) == ({names}, {("text.tokens",)})


def test_an_overlapped_stage_is_one_segment() -> None:
    """Two streams without a wait between them: blocks are not apart in time."""
    library = TemplateLibrary([layer_template()])
    forward, _ = stages_of(library, [0] * 3)
    stream = (np.arange(forward.num_ops) % 2).astype(np.int32)
    loose = StageProgram(
        **{
            **{name: getattr(forward, name) for name in StageProgram.__dataclass_fields__},
            "stream": stream,
            "pred_ptr": np.zeros(forward.num_ops + 1, dtype=np.int32),
            "pred": np.zeros(0, dtype=np.int32),
            "num_streams": 2,
        }
    )
    plan = split_stage(loose)
    assert [type(segment) for segment in plan.distinct] == [WholeStage]
    assert {type(segment) for segment in split_stage(forward).distinct} == {Segment}
    keys = SegmentKeys(CostModel(library, Cluster("h100", 1, 1).profile))
    assert len({keys.key(segment) for segment in (*plan.distinct, *split_stage(forward).distinct)}) == 1 + len(
        split_stage(forward).distinct
    )
    columns = library.evaluate({"text.tokens": np.array([3, 50]), "text.pairs": np.array([5, 900])})
    latency = np.ascontiguousarray(CostModel(library, Cluster("h100", 1, 1).profile).latencies(columns).T)
    size = np.ascontiguousarray(columns.size_bytes.T)
    costs = cost_stage(loose, latency, size)
    for number in range(2):
        end = loose.times(latency[number])[1]
        assert costs.latency[number] == end.max()


@given(
    kinds=st.lists(KINDS, min_size=3, max_size=3),
    sequence=SEQUENCES,
    waits=st.lists(st.booleans(), min_size=7, max_size=7),
    steps=st.lists(st.lists(st.integers(0, 2), min_size=NUM_ROWS, max_size=NUM_ROWS), min_size=2, max_size=6),
    sizes=st.lists(st.integers(0, 9), min_size=NUM_SIZE_ROWS, max_size=NUM_SIZE_ROWS + 3),
)
def test_a_shape_costs_the_same_whichever_shapes_were_before_it(
    kinds: list[BlockKind], sequence: list[int], waits: list[bool], steps: list[list[int]], sizes: list[int]
) -> None:
    """Operators that overlap, of few different lengths: many begin and end together, and some take no time."""
    chained = program_of(kinds, sequence, descending=False)
    follows = [int(n > 0 and waits[n % len(waits)]) for n in range(chained.num_ops)]
    before = np.array([n - 1 for n, does in enumerate(follows) if does], dtype=np.int32)
    stage = WholeStage(replace(chained, pred_ptr=pointer(follows), pred=before))
    latency = np.array([*steps, *steps[::-1]]) * STEP_S
    size = np.resize(np.array(sizes, dtype=np.int64), (len(latency), NUM_SIZE_ROWS))
    together = stage.run(np.ascontiguousarray(latency.T), np.ascontiguousarray(size.T))
    for shape in range(len(latency)):
        alone = stage.run(np.ascontiguousarray(latency[[shape]].T), np.ascontiguousarray(size[[shape]].T))
        for name in ("latency", "peak", "net", "peak_op", "exposed"):
            assert np.array_equal(getattr(together, name)[[shape]], getattr(alone, name)), name
