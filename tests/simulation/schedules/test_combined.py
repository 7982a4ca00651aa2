"""Exchanges of experts' tokens behind another microbatch, against a slow run of Megatron-LM's and DualPipe-V's order.

The reference runs the nodes of ``TransformerLayerSchedulePlan.run`` and ``TransformerModelChunkSchedulePlan.run``
(megatron-core 0.16) one by one on a stream of computation and one of communication, and ranks in the order of
``forward_backward_pipelining_with_interleaving``, or of DeepSeek's ``DualPipeV.step``. It knows exchanges by their
paths, and takes from semu only how long single operators and transfers last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulation.models.test_experts import moe

import semu
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.runfile import load_run
from semu.simulation import prepare
from semu.simulation.checkpoint import JobCheckpoint

RUNS = Path(__file__).parents[3] / "examples" / "runs"
LINKS = ({}, {"nvlink_bytes_per_s": 2e9}, {"nvlink_bytes_per_s": 3e8}, {"nvlink_bytes_per_s": 5e10})
"""Links: as they are, and slow enough that exchanges show."""


def job_of(
    sizes: dict[str, Any],
    *,
    hides: bool = True,
    delays: bool = False,
    links: dict[str, float] | None = None,
    count: int = 8,
    **training: Any,
) -> TrainingJob:
    """A small mixture on one node, ``count`` microbatches on every replica."""
    parallel = semu.Parallel(**sizes)
    cluster = semu.Cluster("h100", nodes=1, gpus_per_node=parallel.num_gpus, override=links or {})
    asked = {"expert_parallel": hides, "delayed_weight_gradients": delays}
    overlap = semu.Overlap(param_gather=False, tensor_parallel=False, **asked)
    options = {"micro_batch": 1, "seq_len": 512, "schedule": "interleaved" if parallel.vpp > 1 else "1f1b"}
    options |= {"launch": False}
    options |= {"global_batch": count * parallel.replicas, "overlap": overlap} | training
    return semu.TrainingJob(moe(3 * parallel.pp * parallel.vpp), cluster, parallel, semu.Training(**options))


class Layer:
    """Times of a layer's nodes in one stage: ``times``; weight gradients that are delayed: ``late`` [s]."""

    def __init__(self) -> None:
        self.times = dict.fromkeys(("attn", "dispatch", "mlp", "combine"), 0.0)
        self.late = dict.fromkeys(("attn", "mlp"), 0.0)


@dataclass
class StageNodes:
    """A stage: compute before its layers, the layers as they run, compute behind them [s]."""

    before: float = 0.0
    layers: list[Layer] = field(default_factory=list)
    after: float = 0.0


def nodes_of(checkpoint: JobCheckpoint, chunk: int, phase: Phase) -> StageNodes:
    """The nodes of a chunk's stage, from the latencies of its operators one by one."""
    stages = checkpoint.layout.chunks[chunk]
    program = stages.forward if phase is Phase.FORWARD else stages.backward
    assert program is not None
    library, latency = checkpoint.layout.library, checkpoint.evaluation.by_shape.latency[0]
    delays = checkpoint.job.training.overlap.delayed_weight_gradients
    found = StageNodes()
    for _, rows in groupby(zip(program.block.tolist(), program.rows.tolist(), strict=True), key=itemgetter(0)):
        operators = [(library.operators[row], float(latency[row])) for _, row in rows]
        ways = [n for n, (op, _) in enumerate(operators) if _EXCHANGE(op.path)]
        if not ways:
            seconds = sum(lasts for _, lasts in operators)
            found = replace(found, **({"after": found.after + seconds} if found.layers else {"before": seconds}))
            continue
        layer = Layer()
        for n, (operator, lasts) in enumerate(operators):
            node = "mlp" if ways[0] < n < ways[-1] else "attn"
            if n in ways:
                layer.times["dispatch" if "dispatch" in operator.path else "combine"] += lasts
            elif delays and operator.phase is Phase.WEIGHT_GRADIENT:
                layer.late[node] += lasts
            else:
                layer.times[node] += lasts
        found.layers.append(layer)
    return found


_EXCHANGE = re.compile(r"mlp\.(dispatch|combine)(_bw)?\.(all_to_all|all_gather|reduce_scatter)").fullmatch


class Streams:
    """A stream of computation and one of communication; every chain of nodes has an event."""

    def __init__(self, start: float = 0.0) -> None:
        self.free = {"comp": start, "comm": start}
        self.event = {"f": start, "b": start}

    def run(self, stream: str, chain: str, seconds: float, *, records: bool = True) -> None:
        begin = max(self.free[stream], self.event[chain]) if records else self.free[stream]
        self.free[stream] = begin + seconds
        if records:
            self.event[chain] = self.free[stream]

    def end(self) -> float:
        return max(*self.free.values(), *self.event.values())


def run_layer(streams: Streams, f: Layer | None, b: Layer | None, *, is_last: bool) -> None:
    """``TransformerLayerSchedulePlan.run``."""
    if b:
        streams.run("comm", "b", b.times["combine"])
    if f:
        streams.run("comp", "f", f.times["attn"])
    if b:
        streams.run("comp", "b", b.times["mlp"])
    if f:
        streams.run("comm", "f", f.times["dispatch"])
    if b:
        streams.run("comp", "b", b.late["mlp"], records=False)
        streams.run("comm", "b", b.times["dispatch"])
    if f:
        streams.run("comp", "f", f.times["mlp"])
        streams.run("comm", "f", f.times["combine"])
    if b:
        streams.run("comp", "b", b.times["attn"])
        if not is_last:
            streams.run("comp", "b", b.late["attn"], records=False)


def combined_time(f: StageNodes | None, b: StageNodes | None) -> float:
    """``TransformerModelChunkSchedulePlan.run``, without its transfers [s]."""
    streams = Streams()
    streams.run("comp", "f", f.before if f else 0.0)
    streams.run("comp", "b", b.before if b else 0.0)
    ours, theirs = (f.layers if f else []), (b.layers if b else [])
    for number in range(max(len(ours), len(theirs))):
        is_last = number == len(theirs) - 1
        run_layer(
            streams,
            ours[number] if number < len(ours) else None,
            theirs[number] if number < len(theirs) else None,
            is_last=is_last,
        )
    if theirs:
        streams.run("comp", "b", theirs[-1].late["attn"], records=False)
    streams.run("comp", "f", f.after if f else 0.0)
    streams.run("comp", "b", b.after if b else 0.0)
    return streams.end()


Stage = tuple[int, str, int]
"""Chunk, F, B, I or W, microbatch."""


def megatron_orders(p: int, m: int, v: int) -> list[list[tuple[Stage | None, Stage | None]]]:
    """Per rank, what it runs: a forward, a backward, or both in one (``get_pp_rank_microbatches``, and
    ``combined_1f1b_schedule_for_no_pipelining`` on one rank)."""
    table = [(mb, slot) for group in range(0, m, p) for slot in range(v) for mb in range(group, min(group + p, m))]
    orders = []
    for rank in range(p):
        warm_up = 1 if p == 1 else 2 * (p - rank - 1) + (v - 1) * p + 1
        warm_up = min(warm_up, m * v)

        def forward(k: int, rank: int = rank) -> Stage:
            return table[k][1] * p + rank, "F", table[k][0]

        def backward(k: int, rank: int = rank) -> Stage:
            return (v - 1 - table[k][1]) * p + rank, "B", table[k][0]

        steady = m * v - warm_up
        order: list[tuple[Stage | None, Stage | None]] = [(forward(k), None) for k in range(warm_up)]
        order += [(forward(k + warm_up), backward(k)) for k in range(steady)]
        orders.append(order + [(None, backward(k)) for k in range(steady, m * v)])
    return orders


class DualPipeRank:
    """What one rank of ``DualPipeV`` calls, and the counters that it keeps."""

    def __init__(self, p: int, rank: int) -> None:
        self.chunk = rank, 2 * p - 1 - rank
        self.order: list[tuple[Stage | None, Stage | None]] = []
        self.done = {"F": [0, 0], "B": [0, 0]}
        self.weights: list[Stage] = []

    def following(self, letter: str, phase: int) -> Stage:
        count = self.done["F" if letter == "F" else "B"]
        count[phase] += 1
        return self.chunk[phase], letter, count[phase] - 1

    def forward(self, phase: int) -> None:
        self.order.append((self.following("F", phase), None))

    def backward(self, phase: int, zero_bubble: bool = False) -> None:
        stage = self.following("I" if zero_bubble else "B", phase)
        self.order.append((None, stage))
        if zero_bubble:
            self.weights.append((stage[0], "W", stage[2]))

    def both(self, phase: int) -> None:
        self.order.append((self.following("F", phase), self.following("B", 1 - phase)))

    def weight(self) -> None:
        self.order.append((None, self.weights.pop(0)))


def dualpipe_v_orders(p: int, m: int) -> list[list[tuple[Stage | None, Stage | None]]]:
    """Per rank what ``DualPipeV.step`` calls, in its eight steps (dualpipe/dualpipev.py of DeepSeek's DualPipe)."""
    orders = []
    for rank in range(p):
        own = DualPipeRank(p, rank)
        for _ in range(2 * (p - rank - 1)):
            own.forward(0)
        for _ in range(rank + 1):
            own.forward(0)
            own.forward(1)
        for _ in range(p - rank - 1):
            own.backward(1, zero_bubble=True)
            own.weight()
            own.forward(1)
        for number in range(m - 2 * p + rank + 1):
            if number == 0 and rank == p - 1:  # not overlapped
                own.forward(0)
                own.backward(1)
            else:
                own.both(0)
            own.both(1)
        for _ in range(p - rank - 1):
            own.backward(1)
            own.both(1)
        zero_bubble = False
        for number in range(rank + 1):
            zero_bubble |= number == (rank + 1) // 2 and rank % 2 == 1
            own.backward(1, zero_bubble)
            zero_bubble |= number == (rank + 1) // 2 and rank % 2 == 0
            own.backward(0, zero_bubble)
        for _ in range(p - rank - 1):
            own.weight()
            own.backward(0, zero_bubble=True)
        for _ in range(rank + 1):
            own.weight()
        orders.append(own.order)
    return orders


def half_of(checkpoint: JobCheckpoint, chunk: int, *, weights: bool) -> float:
    """A chunk's gradients of weights, or all else of its backward, one operator after the other [s]."""
    program = checkpoint.layout.chunks[chunk].backward
    assert program is not None
    library, latency = checkpoint.layout.library, checkpoint.evaluation.by_shape.latency[0]
    late = [library.operators[row].phase is Phase.WEIGHT_GRADIENT for row in program.rows.tolist()]
    return sum(
        float(latency[row]) for row, is_late in zip(program.rows.tolist(), late, strict=True) if is_late == weights
    )


def reference_makespan(checkpoint: JobCheckpoint) -> float:
    """The end of the last stage under the framework's order: a rank goes on when what it needs has come, and sends when
    it is done; transfers between two ranks follow one another [s]."""
    parallel, m = checkpoint.job.parallel, checkpoint.job.num_microbatches
    chunks = parallel.pp * parallel.vpp
    is_v = parallel.placement == "v-shape"
    rank_of = [min(chunk, chunks - 1 - chunk) if is_v else chunk % parallel.pp for chunk in range(chunks)]
    halves = {
        (chunk, letter): half_of(checkpoint, chunk, weights=letter == "W") for chunk in range(chunks) for letter in "IW"
    }
    stages = {
        (chunk, letter): nodes_of(checkpoint, chunk, phase)
        for chunk in range(chunks)
        for letter, phase in (("F", Phase.FORWARD), ("B", Phase.BACKWARD))
    }
    checkpoint.timed()  # under the schedule's own whole backwards
    sends = send_times(checkpoint)
    orders = dualpipe_v_orders(parallel.pp, m) if is_v else megatron_orders(parallel.pp, m, parallel.vpp)
    clock, links, arrived = [0.0] * parallel.pp, dict[tuple[int, int], float](), dict[Stage, float]()
    while any(orders):
        before = sum(map(len, orders))
        for rank, order in enumerate(orders):
            while order and (came := _came(order[0], arrived, chunks)) is not None:
                f, b = order.pop(0)
                if b is not None and b[1] in "IW":
                    lasts = halves[b[:2]]
                else:
                    lasts = combined_time(stages[f[0], "F"] if f else None, stages[b[0], "B"] if b else None)
                clock[rank] = max(clock[rank], came) + lasts
                for chunk, letter, microbatch in filter(None, (f, b)):
                    key = "B" if letter == "I" else letter
                    reader = chunk + {"F": 1, "B": -1, "W": chunks}[key]
                    ready = clock[rank]
                    if 0 <= reader < chunks and rank_of[reader] != rank:
                        link = rank, rank_of[reader]
                        begin = max(ready, links.get(link, 0.0))
                        ready = links[link] = begin + sends[chunk, key, microbatch]
                    arrived[chunk, key, microbatch] = ready
        assert sum(map(len, orders)) < before, "a deadlock"
    return max(clock)


def send_times(checkpoint: JobCheckpoint) -> dict[Stage, float]:
    """How long each stage's transfer lasts, gradients under B [s]."""
    names = [checkpoint.units.name(unit) for unit in range(checkpoint.units.num_units)]
    found: dict[Stage, float] = {}
    for unit, name in enumerate(names):
        if match := re.match(r"send (\d+)([FBI])(\d+)", name):
            chunk, letter, microbatch = match.groups()
            stage = int(chunk), "F" if letter == "F" else "B", int(microbatch)
            found[stage] = float(checkpoint.nodes.latency[0, unit])
    return found


def _came(pair: tuple[Stage | None, Stage | None], arrived: dict[Stage, float], chunks: int) -> float | None:
    """When all that a step needs has come; None: it has not yet."""
    needs: list[Stage] = []
    for chunk, letter, microbatch in filter(None, pair):
        if letter == "W":
            continue
        if letter == "F" and chunk:
            needs.append((chunk - 1, "F", microbatch))
        elif letter in "BI":
            needs += [(chunk, "F", microbatch), *([(chunk + 1, "B", microbatch)] if chunk + 1 < chunks else [])]
    return max((arrived[need] for need in needs), default=0.0) if all(need in arrived for need in needs) else None


SIZES = [
    {"dp": 2, "ep": 2},
    {"dp": 4, "ep": 4},
    {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "zero": 0},
    {"dp": 2, "pp": 2, "vpp": 2, "ep": 2},
    {"dp": 2, "pp": 4, "vpp": 3, "ep": 2},
    {"dp": 2, "pp": 3, "vpp": 2, "ep": 2},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("links", LINKS, ids=["plain", "slow", "slower", "half"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: semu.Parallel(**sizes).label())
def test_the_pipeline_runs_as_megatron_runs_it(sizes: dict[str, Any], links: dict[str, float]) -> None:
    checkpoint = prepare(job_of(sizes, links=links, count=12))
    assert checkpoint.timed().run.makespan()[0] == pytest.approx(reference_makespan(checkpoint), rel=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("links", LINKS, ids=["plain", "slow", "slower", "half"])
@pytest.mark.parametrize(("pp", "count"), [(2, 4), (2, 7), (4, 8), (4, 13), (3, 9)])
def test_dualpipe_v_runs_as_deepseek_runs_it(pp: int, count: int, links: dict[str, float]) -> None:
    checkpoint = prepare(dualpipe_v_job(pp, count, links=links))
    assert checkpoint.timed().run.makespan()[0] == pytest.approx(reference_makespan(checkpoint), rel=1e-12)


def dualpipe_v_job(pp: int, count: int, **options: Any) -> TrainingJob:
    """A small mixture in a V."""
    sizes = {"dp": 2, "pp": pp, "vpp": 2, "ep": 2, "placement": "v-shape"}
    return job_of(sizes, count=count, schedule="dualpipe-v", **options)


def test_dualpipe_v_hides_exchanges() -> None:
    """Work is the same, and all that is saved is exchanges and what waits for them."""
    plain, hidden = (semu.simulate(dualpipe_v_job(4, 16, hides=hides)) for hides in (False, True))
    assert hidden.iteration_time_s < 0.95 * plain.iteration_time_s
    assert hidden.model_flop == plain.model_flop
    assert hidden.breakdown_s["compute"] == pytest.approx(plain.breakdown_s["compute"], rel=1e-9)
    assert sum(_flat(hidden.breakdown_s)) == pytest.approx(hidden.iteration_time_s, rel=1e-9)
    assert hidden.peak_memory_bytes == pytest.approx(plain.peak_memory_bytes, rel=0.01)  # the order is the same
    assert not any("expert_parallel" in warning for warning in hidden.warnings)


def combined(checkpoint: JobCheckpoint, chunk: int) -> float:
    """How long a chunk's forward and backward last in one, as semu says [s]."""
    costs = checkpoint.evaluation.chunks[len(checkpoint.layout.recipe.numbers) + chunk]
    assert costs.backward is not None
    return float(costs.forward.latency[0] + costs.backward.latency[0])


@pytest.mark.parametrize("seed", range(12))
def test_a_pair_lasts_as_long_as_its_layers_one_by_one(seed: int) -> None:
    """With and without delayed weight gradients, on links of any speed.

    The first layer's exchange back has no weight gradients before it in Megatron-LM's run; semu takes all layers alike.
    """
    random = Random(seed)
    links = {"nvlink_bytes_per_s": 10 ** random.uniform(8, 11.5)}
    sizes = random.choice([{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "zero": 0}])
    for delays in (False, True):
        checkpoint = prepare(job_of(sizes, links=links, delays=delays, seq_len=random.choice([256, 1024, 4096])))
        f, b = (nodes_of(checkpoint, 0, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
        exact, layer, back = combined_time(f, b), f.layers[0].times, b.layers[0]
        alone = max(back.times["combine"] - layer["attn"], 0.0)
        x, w = back.times["attn"], back.late["attn"]
        behind = max(max(x + w, layer["combine"]) + layer["attn"], max(x, layer["combine"]) + back.times["combine"])
        behind -= x + w + layer["attn"] + max(layer["combine"] - x - w, 0.0)
        assert combined(checkpoint, 0) == pytest.approx(exact - (alone - behind), rel=1e-12)
        if not delays:
            assert combined(checkpoint, 0) == pytest.approx(exact, rel=1e-12)


def test_delayed_weight_gradients_hide_more() -> None:
    """An exchange of the backward that is longer than the experts' forward."""
    times = []
    for delays in (False, True):
        links = {"nvlink_bytes_per_s": 2e10}
        checkpoint = prepare(job_of({"dp": 2, "ep": 2}, delays=delays, links=links, seq_len=4096))
        times.append(combined(checkpoint, 0))
    assert times[1] < 0.99 * times[0]


@pytest.mark.parametrize("sizes", SIZES[:1] + SIZES[3:4], ids=["one rank", "interleaved"])
def test_a_report_conserves(sizes: dict[str, Any]) -> None:
    """Where time goes sums to the iteration; work and bytes on the links are those of the job without overlap."""
    slow = {"nvlink_bytes_per_s": 2e10}
    plain, hidden = (semu.simulate(job_of(sizes, hides=hides, links=slow, count=12)) for hides in (False, True))
    assert sum(_flat(hidden.breakdown_s)) == pytest.approx(hidden.iteration_time_s, rel=1e-9)
    assert hidden.iteration_time_s < plain.iteration_time_s
    assert hidden.model_flop == plain.model_flop
    ep = [report.breakdown_s["exposed_communication"]["ep"] for report in (plain, hidden)]
    assert 0 < ep[1] < ep[0]
    assert hidden.breakdown_s["compute"] == pytest.approx(plain.breakdown_s["compute"], rel=1e-9)
    held = zip(hidden.peak_memory_bytes, plain.peak_memory_bytes, strict=True)
    assert all(more >= less for more, less in held)  # one more forward before the first backward


def _flat(table: Any) -> list[float]:
    return [x for v in table.values() for x in (_flat(v) if isinstance(v, dict) else [v])]


def test_one_more_microbatch_is_held() -> None:
    """On one rank two microbatches' activations instead of one."""
    sizes = {"dp": 2, "ep": 2}
    checkpoints = [prepare(job_of(sizes, hides=hides)) for hides in (False, True)]
    orders = [[str(stage) for stage in c.schedule().orders[0]][:4] for c in checkpoints]
    assert orders == [["0F0", "0B0", "0F1", "0B1"], ["0F0", "0F1", "0B0", "0F2"]]


@pytest.mark.parametrize(
    ("sizes", "training", "reason"),
    [
        ({"dp": 2}, {}, "ep = 1"),
        ({"dp": 2, "pp": 2, "ep": 2}, {}, "vpp >= 2"),
        ({"dp": 2, "ep": 2}, {"recompute": "full"}, "made again"),
        ({"dp": 2, "ep": 2}, {"moe_dispatcher": "allgather"}, "all-gather"),
        ({"dp": 2, "ep": 2}, {"schedule": "gpipe"}, "only 1f1b, interleaved, dualpipe-v"),
        ({"dp": 2, "pp": 2, "vpp": 2, "ep": 2, "placement": "v-shape"}, {"schedule": "zb-v"}, "only 1f1b"),
    ],
)
def test_where_it_hides_nothing_the_report_says_so(
    sizes: dict[str, Any], training: dict[str, Any], reason: str
) -> None:
    hidden, plain = (semu.simulate(job_of(sizes, hides=hides, **training)) for hides in (True, False))
    assert any(reason in warning for warning in hidden.warnings)
    assert hidden.iteration_time_s == plain.iteration_time_s


def test_delayed_weight_gradients_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="delayed weight gradients"):
        job_of({"dp": 2, "ep": 2}, hides=False, delays=True)


def test_contention_is_refused() -> None:
    with pytest.raises(ConfigError, match="contention"):
        semu.simulate(job_of({"dp": 2, "ep": 2}), contention=True)


def test_hidden_exchanges_are_launched_all_the_same() -> None:
    """Hosts that are all that matters issue as much as without overlap, but for one more forward in a row."""
    host = {"host.launch_s": 2.0**-10, "host.eager_launch_s": 2.0**-10}
    spans = [
        semu.simulate(job_of({"dp": 2, "ep": 2}, hides=hides, links=host, launch=True)).makespan_s
        for hides in (False, True)
    ]
    assert spans[1] == pytest.approx(spans[0], rel=0.02)


@pytest.mark.slow
def test_deepseek_v3_trains_at_its_published_rate() -> None:
    """180 thousand GPU hours of H800 per trillion tokens (2412.19437 §1), most of it because of DualPipe's overlap."""
    published = 1e12 / (180e3 * 3600)
    run = load_run(RUNS / "deepseek-v3.toml")
    tokens = run.training.global_batch * run.training.seq_len / 2048
    hidden, exposed = (
        tokens
        / semu.evaluate(
            replace(run, training=replace(run.training, overlap=semu.Overlap(expert_parallel=hides)))
        ).iteration_time_s
        for hides in (True, False)
    )
    assert hidden == pytest.approx(published, rel=0.12)
    assert exposed < 0.8 * published
